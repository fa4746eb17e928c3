#!/bin/bash -l
# clusterrun: /usr/bin/env true

# What the cluster is asked for; what is not here is left to the cluster. Values stand in double quotes
# because sbatch reads these lines with a tokenizer of its own, in which # and \ mean something.
#SBATCH --job-name="env.k3v7qaab"
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
# Absolute paths: a log folder that the node cannot find is a failed job without a log. Appended to,
# because a requeue runs again under the same id and would cut its own history.
#SBATCH --output="/home/ann/project/logs/train_%j.out"
#SBATCH --error="/home/ann/project/logs/train_%j.err"
#SBATCH --open-mode=append
#SBATCH --chdir="/home/ann/project/src"
# Never left to the site's default: a run that cannot resume must not start again from nothing.
#SBATCH --requeue
# The submitter's environment, without what Slurm itself had left in it. NONE would leave the ranks without a PATH.
#SBATCH --export=ALL

# Which run this is. render and submit differ in these lines and the job's name only. All that this script
# keeps for itself is called CR_…: $WORK, $TOKEN or $CLUSTER may be yours, and setup lines and ranks must still see them.
# shellcheck disable=SC1003,SC1112,SC2016 # in single quotes stands what you gave: data, never expanded
CR_RUN_ID=20261121-034501-k3v7qa
CR_RUN_DIR=/home/ann/project/.clusterrun/runs/20261121-034501-k3v7qa
CR_TOKEN=k3v7qaabcdefghij

# Where things are: the job's Python, and the worker that every rank starts in.
CR_PYTHON=/opt/venv/bin/python
CR_WORKER=/opt/venv/lib/clusterrun/worker/__main__.py
CR_WORK=(command -- /usr/bin/env true)
CR_TASKS_PER_NODE=2

# Our own files are never for others to write. The submitter's umask comes back around setup lines and ranks.
umask 077

CR_CLUSTER=${SLURM_CLUSTER_NAME:-local}
CR_JOB_ID=${SLURM_JOB_ID:-${CLUSTERRUN_LOCAL_JOB_ID:-none}}
CR_ARRAY_TASK=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
CR_RESTART=${SLURM_RESTART_COUNT:-0}

# Where this start's part of the two logs begins: a requeue, or an id that is given out again, appends to what is there.
CR_OUT_START=$(stat -L -c %s "/proc/$$/fd/1" 2>/dev/null || echo 0)
CR_ERR_START=$(stat -L -c %s "/proc/$$/fd/2" 2>/dev/null || echo 0)

say() { printf 'clusterrun: %s\n' "$*" >&2; }

# put FOLDER NAME [sync]: standard input becomes that file, whole or not at all; what stood there is replaced and never
# written through.
put() (
    cd "$1" && staged=$(mktemp ./.XXXXXXXX) && cat >"$staged" && chmod 600 "$staged" &&
        ${3:-:} "$staged" && mv -fT "$staged" "$2"
)

# Files are listed and not looked up. NFS may answer a look-up for a minute (acdirmax) with the "not there" it remembers;
# to open a folder it asks the server whether the folder has changed.
listed() { find "$1" -maxdepth 1 -name "$2" 2>/dev/null; }

# A script run by hand has no submission behind it: its records would lie about a job that clusterrun never sent.
by_hand() {
    local again=bash script=$0
    if [ "${CLUSTERRUN_FORCE:-}" != 1 ]; then
        say "this script was not submitted by clusterrun, so it keeps no record and was not started."
        say "hint: submit a job with 'clusterrun submit', or run this script all the same: CLUSTERRUN_FORCE=1 $again $(printf %q "$script")"
        exit 2
    fi
    CR_RUN_DIR=$PWD/.clusterrun/by-hand/$CR_JOB_ID
}

# The folders that this job writes in. One that another user has put there, or a link, would lead our files astray.
own_folders() {
    local folder
    mkdir -p "$CR_RUN_DIR/claims" "$CR_RUN_DIR/attempts" || exit 1
    for folder in "$CR_RUN_DIR" "$CR_RUN_DIR/claims" "$CR_RUN_DIR/attempts"; do
        if [ -L "$folder" ] || [ ! -O "$folder" ]; then
            say "$folder is a link or belongs to another user: nothing was started."
            say "hint: submit the job again from a folder that only you can write"
            exit 1
        fi
    done
}

# The claim: the job's first act. A submission that was sent twice (its answer came too late) runs once: whoever
# renames its folder first owns the token, the other leaves before it touches a GPU, a checkpoint or a log of the
# run. The same job started again by Slurm (a requeue) takes its own claim over.
claim() {
    local claims=$CR_RUN_DIR/claims name=$CR_TOKEN$CR_ARRAY_TASK mine="$CR_CLUSTER $CR_JOB_ID $CR_RESTART" staged cluster job restart epoch=0
    if ! { staged=$(mktemp -d "$claims/.XXXXXXXX") && chmod 700 "$staged" && printf '%s\n' "$mine" | put "$staged" owner; }; then
        say "cannot write the claim in $claims"
        exit 1
    fi
    if ! mv -T "$staged" "$claims/$name" 2>/dev/null; then
        read -r cluster job restart <"$claims/$name/owner"
        if [ "$cluster $job" != "$CR_CLUSTER $CR_JOB_ID" ] || [ "$CR_RESTART" -lt "$restart" ]; then
            rm -r "$staged"
            say "job $job (restart $restart) already runs $CR_RUN_ID: this copy, job $CR_JOB_ID (restart $CR_RESTART), leaves."
            exit 75
        fi
        mv -fT "$staged/owner" "$claims/$name/owner" && rmdir "$staged"
    fi

    # The epoch: who writes the run's lasting files holds the newest. A process of an earlier start, on a node that was
    # cut off, sees a larger number and writes no more.
    export CLUSTERRUN_EPOCH_FILE=$CR_RUN_DIR/epoch$CR_ARRAY_TASK
    [ -z "$(listed "$CR_RUN_DIR" "epoch$CR_ARRAY_TASK")" ] || read -r epoch <"$CLUSTERRUN_EPOCH_FILE"
    case $epoch in '' | *[!0-9]*)
        say "no number stands in $CLUSTERRUN_EPOCH_FILE: '$epoch'"
        exit 1
        ;;
    esac
    export CLUSTERRUN_EPOCH=$((10#$epoch + 1))
    if [ "$(cat "$claims/$name/owner")" != "$mine" ]; then
        say "job $CR_JOB_ID was started again meanwhile: its earlier start (restart $CR_RESTART) leaves."
        exit 75
    fi
    if ! echo "$CLUSTERRUN_EPOCH" | put "$CR_RUN_DIR" "epoch$CR_ARRAY_TASK" sync; then
        say "cannot write $CLUSTERRUN_EPOCH_FILE"
        exit 1
    fi
}

# The end record: the script's own word on how it ended, for when the scheduler has forgotten the job or keeps no
# accounts. Written to a temporary name, synced, renamed. Failing to write it never changes the job's status.
record_end() {
    local status=$1 reason='' due=''
    CR_RECORDED=1
    trap '' TERM  # sent to every process of the step: neither the record nor the status may be lost to a second one
    umask 077  # a setup line that exits leaves the submitter's
    {
        printf '{"version": 1, "status": %d, "signal": "%s", "reason": "%s", "due": "%s", "unmarked": %d, ' \
            "$status" "$CR_STOPPED_BY" "$reason" "$due" "$CR_UNMARKED"
        printf '"cluster": "%s", "job": "%s", "restart": %d, "launch": %d, "time": %s}\n' \
            "$CR_CLUSTER" "$CR_JOB_ID$CR_ARRAY_TASK" "$CR_RESTART" "$CR_LAUNCH" "$(date +%s)"
    } | put "$CR_ATTEMPT_DIR" end.json sync 2>/dev/null
}

# Whatever ends the script (an exit in a setup line among them) leaves a record, and never a success that was not one.
# shellcheck disable=SC2317,SC2329 # called by a trap
on_exit() {
    local status=$?
    if [ -z "$CR_RECORDED" ]; then
        if [ "$status" = 0 ]; then
            say "the script ended before the ranks were started"
            status=1
        fi
        record_end "$status"
    fi
    exit "$status"
}

# A foreground srun would lose the record on scancel, so it runs in the background, TERM is passed on, and the script
# waits until it has really ended.
# shellcheck disable=SC2317,SC2329 # called by a trap
on_term() {
    CR_STOPPED_BY=TERM
    [ -n "$CR_STEP" ] || exit 143
    local tries=0 step=''
    until [ -s "$CR_ATTEMPT_DIR/step.pid" ] || [ "$((tries += 1))" -gt 50 ]; do sleep 0.1; done
    { read -r step <"$CR_ATTEMPT_DIR/step.pid" && kill -TERM "$step"; } 2>/dev/null
}

attempt_dir() {
    CR_LAUNCH=$1
    CR_ATTEMPT_DIR=$CR_RUN_DIR/attempts/$CR_TOKEN$CR_ARRAY_TASK.$CR_RESTART.$CR_LAUNCH
    mkdir -m 700 "$CR_ATTEMPT_DIR" 2>/dev/null
    if [ ! -d "$CR_ATTEMPT_DIR" ] || [ -L "$CR_ATTEMPT_DIR" ] || [ ! -O "$CR_ATTEMPT_DIR" ]; then
        say "cannot write $CR_ATTEMPT_DIR"
        exit 1
    fi
}

# launch NUMBER: everything that may differ between two launches of one attempt: nodes, address, port, folder, step.
# Sets CR_STATUS to the step's true outcome.
launch() {
    attempt_dir "$1"
    # This machine stands in for the nodes: each is a group of processes with devices of its own.
    mapfile -t CR_NODES < <(for ((i = 0; i < 1; i++)); do echo "local$i"; done)
    MASTER_ADDR=127.0.0.1
    CR_CPUS=$(($(nproc) / (1 * CR_TASKS_PER_NODE)))
    WORLD_SIZE=$((${#CR_NODES[@]} * CR_TASKS_PER_NODE))

    # What the worker is told. Everything else it learns from the scheduler's own variables.
    export MASTER_ADDR WORLD_SIZE
    export CLUSTERRUN_RUN_ID=$CR_RUN_ID CLUSTERRUN_RUN_DIR=$CR_RUN_DIR CLUSTERRUN_TOKEN=$CR_TOKEN CLUSTERRUN_JOB_ID=$CR_JOB_ID$CR_ARRAY_TASK
    export CLUSTERRUN_ATTEMPT_DIR=$CR_ATTEMPT_DIR CLUSTERRUN_NODES=${#CR_NODES[@]} CLUSTERRUN_NODE_NAMES="${CR_NODES[*]}"
    export CLUSTERRUN_WORLD_SIZE=$((1 * CR_TASKS_PER_NODE))
    # The rendezvous answers anyone who reaches its port. Known to this job's processes alone, new for each launch:
    CLUSTERRUN_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export CLUSTERRUN_SECRET
    export CLUSTERRUN_PG_TIMEOUT=36000 CLUSTERRUN_JOIN_TIMEOUT=600

    # NCCL and torch. The heartbeat watches NCCL's own thread and must outlast the process group's time-out, or it ends
    # a collective that was allowed to take long. On a time-out, dump the flight recorder where it can be found.
    export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=${TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC:-36000}
    export TORCH_NCCL_ASYNC_ERROR_HANDLING=${TORCH_NCCL_ASYNC_ERROR_HANDLING:-3}
    export TORCH_NCCL_DUMP_ON_TIMEOUT=${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}
    export TORCH_FR_DUMP_TEMP_FILE=${TORCH_FR_DUMP_TEMP_FILE:-$CR_ATTEMPT_DIR/flight_recorder_}
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$TORCH_FR_DUMP_TEMP_FILE  # the name before torch 2.9
    export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
    export PYTHONUNBUFFERED=${PYTHONUNBUFFERED:-1} PYTHONFAULTHANDLER=${PYTHONFAULTHANDLER:-1}
    # One thread per core of a rank: more make the ranks of a node fight.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((CR_CPUS > 0 ? CR_CPUS : 1))}

    # The rendezvous: a helper opens the port, says which, and holds it until the step has ended, so that no other job can
    # take it and rank 0 may leave first. Below the ephemeral range, where an outgoing connection may sit on any port.
    exec {CR_RENDEZVOUS}< <(exec "$CR_PYTHON" -u "${CR_WORKER%/*}/rendezvous.py" --host "$MASTER_ADDR" --parent $$)
    CR_HOLDER=$!
    if ! read -r -t 60 MASTER_PORT <&"$CR_RENDEZVOUS"; then
        say "no rendezvous on $MASTER_ADDR: the lines above say why"
        kill -KILL "$CR_HOLDER" 2>/dev/null
        CR_STATUS=1
        return
    fi
    export MASTER_PORT
    say "$CR_RUN_ID: job $CR_JOB_ID$CR_ARRAY_TASK, attempt $CR_RESTART.$CR_LAUNCH: $WORLD_SIZE ranks on ${CR_NODES[*]}, rendezvous $MASTER_ADDR:$MASTER_PORT"

    # A keeper runs the step and writes its status down, deaf to the TERM that ends it: bash can lose the status of a
    # child that ends while a trap interrupts `wait` (seen on 5.2, one time in five).
    (
        trap '' TERM
        (
            trap - TERM
            CR_STEP=$BASHPID
            echo "$CR_STEP" | put "$CR_ATTEMPT_DIR" step.pid
            umask "$CR_UMASK"
            exec "$CR_PYTHON" -u "${CR_WORKER%/*}/local_launcher.py" --nodes 1 --tasks-per-node "$CR_TASKS_PER_NODE" \
                --devices "${CLUSTERRUN_LOCAL_DEVICES:-cpu}" -- "$CR_PYTHON" -u "$CR_WORKER" "${CR_WORK[@]}"
        )
        CR_STATUS=$?
        echo "$CR_STATUS" | put "$CR_ATTEMPT_DIR" step.status
        exit "$CR_STATUS"
    ) &
    CR_STEP=$!
    while kill -0 "$CR_STEP" 2>/dev/null; do
        wait "$CR_STEP"
        CR_STATUS=$?
    done
    # `read` and not $(cat …): a TERM to all processes of the step would end the cat, and a status would be lost.
    [ ! -s "$CR_ATTEMPT_DIR/step.status" ] || read -r CR_STATUS <"$CR_ATTEMPT_DIR/step.status"
    CR_STEP=
    # It holds nothing but memory. It is deaf to TERM, which scancel and a requeue send to every process here while ranks
    # that save first still meet at its store.
    kill -KILL "$CR_HOLDER" 2>/dev/null
    exec {CR_RENDEZVOUS}<&-

    # torch makes its dumps with the ranks' umask.
    find "$CR_ATTEMPT_DIR" -maxdepth 1 -name 'flight_recorder_*' -exec chmod go-w {} + 2>/dev/null

    # The step's 0 is not yet a success (srun ends 0 after a node failure): every rank leaves a mark of its own end. A
    # shared file system may show those of other nodes late.
    if [ "$CR_STATUS" = 0 ]; then
        local marks deadline=$((SECONDS + CR_SHOWN_LATE))
        while marks=$(listed "$CR_ATTEMPT_DIR" 'rank-*.end' | wc -l); CR_UNMARKED=$((WORLD_SIZE - ${marks:-0})); [ "$CR_UNMARKED" -gt 0 ] && [ "$SECONDS" -lt "$deadline" ]; do
            sleep 1
        done
        if [ "$CR_UNMARKED" -gt 0 ]; then
            say "the step ended with status 0, but only $((WORLD_SIZE - CR_UNMARKED)) of $WORLD_SIZE ranks say that they ended: a node or a rank was lost"
            CR_STATUS=1
        elif [ -e "$CR_ATTEMPT_DIR/stopped" ]; then
            CR_STATUS=85  # saved and left, to be resumed: never COMPLETED, or afterok would start on half a model
        fi
    fi
}

CR_STEP='' CR_STOPPED_BY='' CR_RECORDED='' CR_LAUNCH=0 CR_STATUS=1 CR_UNMARKED=0
CR_SHOWN_LATE=90  # seconds after which a shared file system shows what another node wrote: NFS keeps a folder for 60
CR_WAIT_UNTIL=$((SECONDS + CR_SHOWN_LATE))
until [ "$CR_JOB_ID" != none ] && [ -n "$(listed "$CR_RUN_DIR/submissions" "$CR_TOKEN.json")" ]; do
    # Outside a Slurm job, and for what `render` printed, there is nothing to wait for.
    if [ -z "${SLURM_JOB_ID:-}" ] || [ "$CR_TOKEN" = TOKEN ] || [ "$SECONDS" -ge "$CR_WAIT_UNTIL" ]; then
        by_hand
        break
    fi
    sleep 1
done
own_folders
claim
attempt_dir 0
printf '%s %s\n' "$CR_OUT_START" "$CR_ERR_START" | put "$CR_ATTEMPT_DIR" log-start
trap on_exit EXIT
trap on_term TERM

# The folder the job was submitted from. Slurm would go on in /tmp without a word.
cd /home/ann/project/src || exit 1

# --setup: your own lines, on the first node, in this shell, so that modules, variables and a umask reach the ranks.
umask 0022
set +eu
CR_UMASK=$(umask)
umask 077
# The job's Python comes first, as in an active environment: a module loaded above must not swap it.
export PATH=${CR_PYTHON%/*}:$PATH

launch 0
record_end "$CR_STATUS"
exit "$CR_STATUS"
