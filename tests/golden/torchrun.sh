#!/bin/bash -l
# clusterrun: /home/ann/project/src/train.py --lr 1e-4

# The job's resources; unset options use the cluster's defaults. Values are in double quotes: sbatch reads these
# lines with its own tokenizer, in which # and \ are special.
#SBATCH --job-name="train.k3v7qaab"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
# Per node, not per task: a task that sees only its own GPU cannot use NVLink to the others.
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task="6"
# Absolute paths: a job whose log folder is missing fails without a log. Append mode: a requeued job has the same id
# and would truncate its own log.
#SBATCH --output="/home/ann/project/logs/train_%j.out"
#SBATCH --error="/home/ann/project/logs/train_%j.err"
#SBATCH --open-mode=append
#SBATCH --chdir="/home/ann/project/src"
# Always set, whatever the site's default: a run that cannot resume must not start from the beginning.
#SBATCH --no-requeue
# The submitter's environment, without Slurm's own variables. With NONE the ranks would have no PATH.
#SBATCH --export=ALL

# The run's ids. The scripts of render and submit differ only here and in the job's name. This script's own variables
# begin with CR_, so that yours ($WORK, $TOKEN, $CLUSTER) still reach setup lines and ranks.
# shellcheck disable=SC1003,SC1112,SC2016 # your values are in single quotes: data, never expanded
CR_RUN_ID=20261121-034501-k3v7qa
CR_RUN_DIR=/home/ann/project/.clusterrun/runs/20261121-034501-k3v7qa
CR_TOKEN=k3v7qaabcdefghij

# The job's Python, and the worker that starts every rank.
CR_PYTHON=/opt/venv/bin/python
CR_WORKER=/opt/venv/lib/clusterrun/worker/__main__.py
CR_WORK=(launch torchrun --ranks 4 --max-restarts 2 -- script -- /home/ann/project/src/train.py --lr 1e-4)
CR_TASKS_PER_NODE=4

# clusterrun's files are not writable for others. Setup lines and ranks run with the submitter's umask.
umask 077

CR_CLUSTER=${SLURM_CLUSTER_NAME:-local}
CR_JOB_ID=${SLURM_JOB_ID:-${CLUSTERRUN_LOCAL_JOB_ID:-none}}
CR_ARRAY_TASK=${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
CR_RESTART=${SLURM_RESTART_COUNT:-0}

# The sizes of the two logs at this start: a requeued job, or a new job with a reused id, appends to them.
CR_OUT_START=$(stat -L -c %s "/proc/$$/fd/1" 2>/dev/null || echo 0)
CR_ERR_START=$(stat -L -c %s "/proc/$$/fd/2" 2>/dev/null || echo 0)

say() { printf 'clusterrun: %s\n' "$*" >&2; }

# put FOLDER NAME [sync]: write standard input to that file atomically. An existing file or link is replaced.
put() (
    cd "$1" && staged=$(mktemp ./.XXXXXXXX) && cat >"$staged" && chmod 600 "$staged" &&
        ${3:-:} "$staged" && mv -fT "$staged" "$2"
)

# List files instead of testing for them. NFS may cache "no such file" for a minute (acdirmax), but checks with the
# server when it opens a folder.
listed() { find "$1" -maxdepth 1 -name "$2" 2>/dev/null; }

# A script run by hand has no submission, so its records would describe a job that clusterrun never submitted.
by_hand() {
    local again=bash script=$0
    if [ "${CLUSTERRUN_FORCE:-}" != 1 ]; then
        if [ "${0##*/}" = slurm_script ]; then  # Slurm's copy, which is gone after the job
            again=sbatch
            script=$(timeout 10 scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* Command=\(.*\) WorkDir=.*/\1/p')
        fi
        say "this script was not submitted by clusterrun, so nothing was started."
        say "hint: use 'clusterrun submit', or run this script anyway: CLUSTERRUN_FORCE=1 $again $(printf %q "$script")"
        exit 2
    fi
    CR_RUN_DIR=$PWD/.clusterrun/by-hand/$CR_JOB_ID
}

# The folders of this run. A link or another user's folder could redirect our files.
own_folders() {
    local folder
    mkdir -p "$CR_RUN_DIR/claims" "$CR_RUN_DIR/attempts" || exit 1
    for folder in "$CR_RUN_DIR" "$CR_RUN_DIR/claims" "$CR_RUN_DIR/attempts"; do
        if [ -L "$folder" ] || [ ! -O "$folder" ]; then
            say "$folder is a link or belongs to another user, so nothing was started."
            say "hint: submit the job again from a folder that only you can write to"
            exit 1
        fi
    done
}

# The claim, the job's first action. It makes a submission that was sent twice run once: the job that renames its
# folder first owns the token. The other exits before it uses a GPU, a checkpoint or a log of the run. A job that Slurm
# restarts (requeue) renews its own claim.
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
            say "job $job (restart $restart) already runs $CR_RUN_ID: this copy, job $CR_JOB_ID (restart $CR_RESTART), exits."
            exit 75
        fi
        mv -fT "$staged/owner" "$claims/$name/owner" && rmdir "$staged"
    fi

    # The epoch: only processes with the newest epoch write checkpoints. A process of an earlier start, on a node that
    # lost its connection, sees a larger number and stops writing.
    export CLUSTERRUN_EPOCH_FILE=$CR_RUN_DIR/epoch$CR_ARRAY_TASK
    [ -z "$(listed "$CR_RUN_DIR" "epoch$CR_ARRAY_TASK")" ] || read -r epoch <"$CLUSTERRUN_EPOCH_FILE"
    case $epoch in '' | *[!0-9]*)
        say "$CLUSTERRUN_EPOCH_FILE does not contain a number: '$epoch'"
        exit 1
        ;;
    esac
    export CLUSTERRUN_EPOCH=$((10#$epoch + 1))
    if [ "$(cat "$claims/$name/owner")" != "$mine" ]; then
        say "job $CR_JOB_ID was restarted meanwhile: its earlier start (restart $CR_RESTART) exits."
        exit 75
    fi
    if ! echo "$CLUSTERRUN_EPOCH" | put "$CR_RUN_DIR" "epoch$CR_ARRAY_TASK" sync; then
        say "cannot write $CLUSTERRUN_EPOCH_FILE"
        exit 1
    fi
}

# The end record: how the job ended, for clusters without accounting and for jobs that Slurm has forgotten. Written
# atomically and synced. A failure to write it does not change the job's exit status.
record_end() {
    local status=$1 reason='' due=''
    CR_RECORDED=1
    trap '' TERM  # a second TERM must not interrupt the record or change the status
    umask 077  # a setup line that exits leaves the submitter's umask
    if [ -n "$CR_STOPPED_BY" ]; then
        # TERM has no reason. Slurm's job state shows a time limit; Slurm's line in this script's log also shows a requeue,
        # a preemption and a node failure. Up to 24.11 that line begins with slurmstepd's name, in 26.05 with the time.
        reason=$(timeout 3 scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* Reason=\([A-Za-z_]*\).*/\1/p')
        # (Descriptor 2 of the shell must still be the log here, so do not redirect this whole function.)
        # Read only the lines of this attempt: the log also holds the earlier ones.
        due=$(tail -c "+$((CR_ERR_START + 1))" "/proc/$$/fd/2" 2>/dev/null | tail -c 16384 |
            sed -nE 's/^(slurmstepd|\[[^]]*\] error: ).* CANCELLED AT [^ ]*( DUE TO ([A-Z ]*)(, SEE .*)?| DUE to SIGNAL .*)? \*\*\*$/\3/p' |
            tail -n 1)
    fi
    {
        printf '{"version": 1, "status": %d, "signal": "%s", "reason": "%s", "due": "%s", "unmarked": %d, ' \
            "$status" "$CR_STOPPED_BY" "$reason" "$due" "$CR_UNMARKED"
        printf '"cluster": "%s", "job": "%s", "restart": %d, "launch": %d, "time": %s}\n' \
            "$CR_CLUSTER" "$CR_JOB_ID$CR_ARRAY_TASK" "$CR_RESTART" "$CR_LAUNCH" "$(date +%s)"
    } | put "$CR_ATTEMPT_DIR" end.json sync 2>/dev/null
}

# Any exit of the script (also in a setup line) writes an end record, and success only if the ranks ran.
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

# With a foreground srun the record would be lost on scancel. So srun runs in the background, the script forwards TERM
# to it and waits for its end.
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

# The address of the first node for the other nodes. The name comes first, because certificates and firewalls use it.
# If it does not resolve, or only to a loopback address (Debian's 127.0.1.1), Slurm's NodeAddr is next, then the node's
# first own address. Never localhost: two nodes would form two separate groups.
head_address() {
    local node=$1 nodes=$2 address
    for address in "$node" "$(scontrol show node -o "$node" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')" \
        "$(hostname -I 2>/dev/null | cut -d ' ' -f 1)"; do
        case "$(getent ahosts "${address:-?}" | cut -d ' ' -f 1 | head -n 1)" in
            '') continue ;;
            127.* | ::1) [ "$nodes" -gt 1 ] && continue ;;
        esac
        printf '%s\n' "$address"
        return
    done
    say "no address of $node that other nodes could reach: its name does not resolve, and Slurm's NodeAddr is not usable"
    return 1
}

# launch NUMBER: start the ranks. All that may differ between two launches is set here: nodes, address, port, folder, step.
# Sets CR_STATUS to the exit status of the step.
launch() {
    attempt_dir "$1"
    mapfile -t CR_NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    if [ "${#CR_NODES[@]}" -eq 0 ]; then
        say "cannot read the node list '$SLURM_JOB_NODELIST': is scontrol on the PATH of the node?"
        CR_STATUS=1
        return
    fi
    MASTER_ADDR=$(head_address "${CR_NODES[0]}" "${#CR_NODES[@]}") || { CR_STATUS=1; return; }
    CR_CPUS=${SLURM_CPUS_PER_TASK:-1}
    # Since 22.05 srun does not inherit --cpus-per-task from sbatch: without this line each rank gets one core.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$((SLURM_CPUS_PER_TASK * 4))
    # A site's --export=NONE sets this variable, which would remove the ranks' environment.
    unset SLURM_EXPORT_ENV
    WORLD_SIZE=$((${#CR_NODES[@]} * CR_TASKS_PER_NODE))

    # The worker's variables; all others come from the scheduler.
    export MASTER_ADDR WORLD_SIZE
    export CLUSTERRUN_RUN_ID=$CR_RUN_ID CLUSTERRUN_RUN_DIR=$CR_RUN_DIR CLUSTERRUN_TOKEN=$CR_TOKEN CLUSTERRUN_JOB_ID=$CR_JOB_ID$CR_ARRAY_TASK
    export CLUSTERRUN_ATTEMPT_DIR=$CR_ATTEMPT_DIR CLUSTERRUN_NODES=${#CR_NODES[@]} CLUSTERRUN_NODE_NAMES="${CR_NODES[*]}"
    export CLUSTERRUN_WORLD_SIZE=$((2 * CR_TASKS_PER_NODE))
    # Any process can connect to the rendezvous port. So each launch has a new secret, known only to this job's processes.
    CLUSTERRUN_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export CLUSTERRUN_SECRET
    export CLUSTERRUN_PG_TIMEOUT=36000 CLUSTERRUN_JOIN_TIMEOUT=600
    export CLUSTERRUN_PROCESS_GROUP=expected
    # The end of the time limit in epoch seconds (empty if unknown): built-in tasks save and stop before it.
    CLUSTERRUN_END_TIME=$(timeout 10 scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* EndTime=\([0-9][^ ]*\).*/\1/p')
    CLUSTERRUN_END_TIME=${CLUSTERRUN_END_TIME:+$(date -d "$CLUSTERRUN_END_TIME" +%s 2>/dev/null)}
    export CLUSTERRUN_END_TIME

    # NCCL and torch. The heartbeat monitors NCCL's thread; its timeout must not be shorter than the process group's, or it
    # kills a collective that is allowed to take long. On a timeout, dump the flight recorder into the attempt's folder.
    export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=${TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC:-36000}
    export TORCH_NCCL_ASYNC_ERROR_HANDLING=${TORCH_NCCL_ASYNC_ERROR_HANDLING:-3}
    export TORCH_NCCL_DUMP_ON_TIMEOUT=${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}
    export TORCH_FR_DUMP_TEMP_FILE=${TORCH_FR_DUMP_TEMP_FILE:-$CR_ATTEMPT_DIR/flight_recorder_}
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$TORCH_FR_DUMP_TEMP_FILE  # its name before torch 2.9
    export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
    export PYTHONUNBUFFERED=${PYTHONUNBUFFERED:-1} PYTHONFAULTHANDLER=${PYTHONFAULTHANDLER:-1}
    # One thread per core of a rank: with more, the ranks of a node compete for cores.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((CR_CPUS > 0 ? CR_CPUS : 1))}

    # The rendezvous: a helper opens a port, prints its number and holds it until the step ends. So no other job can take
    # it, and rank 0 may exit first. The port is below the ephemeral range, where outgoing connections may use any port.
    exec {CR_RENDEZVOUS}< <(exec "$CR_PYTHON" -u "${CR_WORKER%/*}/rendezvous.py" --host "$MASTER_ADDR" --parent $$)
    CR_HOLDER=$!
    if ! read -r -t 60 MASTER_PORT <&"$CR_RENDEZVOUS"; then
        say "no rendezvous on $MASTER_ADDR: see the lines above"
        kill -KILL "$CR_HOLDER" 2>/dev/null
        CR_STATUS=1
        return
    fi
    export MASTER_PORT
    say "$CR_RUN_ID: job $CR_JOB_ID$CR_ARRAY_TASK, attempt $CR_RESTART.$CR_LAUNCH: $WORLD_SIZE ranks on ${CR_NODES[*]}, rendezvous $MASTER_ADDR:$MASTER_PORT"

    # A subshell that ignores TERM runs the step and records its status: bash can lose the status of a child that ends
    # while a trap interrupts `wait` (observed on 5.2, one time in five).
    (
        trap '' TERM
        (
            trap - TERM
            CR_STEP=$BASHPID
            echo "$CR_STEP" | put "$CR_ATTEMPT_DIR" step.pid
            umask "$CR_UMASK"
            # One task per node, which starts the node's ranks and labels their lines. If a task fails, the others are killed
            # at once (--kill-on-bad-exit).
            exec srun --nodes="${#CR_NODES[@]}" --ntasks="${#CR_NODES[@]}" --ntasks-per-node=1 \
                --distribution=block --kill-on-bad-exit=1 --wait=0 --export=ALL \
                "$CR_PYTHON" -u "$CR_WORKER" "${CR_WORK[@]}"
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
    # `read`, not $(cat …): a TERM to all processes of the step would kill cat and lose the status.
    [ ! -s "$CR_ATTEMPT_DIR/step.status" ] || read -r CR_STATUS <"$CR_ATTEMPT_DIR/step.status"
    CR_STEP=
    # The helper ignores TERM, which scancel and a requeue send to all processes here, because ranks that are still saving
    # use its store. It has nothing to clean up, so KILL is safe.
    kill -KILL "$CR_HOLDER" 2>/dev/null
    exec {CR_RENDEZVOUS}<&-

    # torch writes its dumps with the ranks' umask.
    find "$CR_ATTEMPT_DIR" -maxdepth 1 -name 'flight_recorder_*' -exec chmod go-w {} + 2>/dev/null

    # Status 0 of the step does not prove success (srun exits 0 after a node failure), so every rank writes an end record.
    # A shared file system may show those of other nodes late.
    if [ "$CR_STATUS" = 0 ]; then
        local marks deadline=$((SECONDS + CR_SHOWN_LATE))
        while marks=$(listed "$CR_ATTEMPT_DIR" 'rank-*.end' | wc -l); CR_UNMARKED=$((WORLD_SIZE - ${marks:-0})); [ "$CR_UNMARKED" -gt 0 ] && [ "$SECONDS" -lt "$deadline" ]; do
            sleep 1
        done
        if [ "$CR_UNMARKED" -gt 0 ]; then
            say "the step ended with status 0, but only $((WORLD_SIZE - CR_UNMARKED)) of $WORLD_SIZE ranks say that they ended: a node or a rank was lost"
            CR_STATUS=1
        elif [ -e "$CR_ATTEMPT_DIR/stopped" ]; then
            CR_STATUS=85  # saved, to be resumed. Not COMPLETED: an afterok job would start with an unfinished model
        fi
    fi
}

CR_STEP='' CR_STOPPED_BY='' CR_RECORDED='' CR_LAUNCH=0 CR_STATUS=1 CR_UNMARKED=0
CR_SHOWN_LATE=90  # seconds until a shared file system shows another node's files: NFS caches a folder for 60
CR_WAIT_UNTIL=$((SECONDS + CR_SHOWN_LATE))
until [ "$CR_JOB_ID" != none ] && [ -n "$(listed "$CR_RUN_DIR/submissions" "$CR_TOKEN.json")" ]; do
    # Do not wait outside a Slurm job, or in a script from `render`.
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

# The folder the job was submitted from. Without this, Slurm silently continues in /tmp.
cd /home/ann/project/src || exit 1

# --setup: your own lines, on the first node, in this shell, so that modules, variables and the umask reach the ranks.
umask 0022
set +eu
CR_UMASK=$(umask)
umask 077
# The job's Python comes first on PATH, as in an active environment: a module loaded above must not replace it.
export PATH=${CR_PYTHON%/*}:$PATH

launch 0
record_end "$CR_STATUS"
exit "$CR_STATUS"
