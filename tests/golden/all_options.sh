#!/bin/bash -l
# clusterrun: /home/ann/project/src/train.py --lr 1e-4

# The job's resources; unset options use the cluster's defaults. Values are in double quotes: sbatch reads these
# lines with its own tokenizer, in which # and \ are special.
#SBATCH --job-name="my \"run\" #1.k3v7qaab"
#SBATCH --comment="a \\ comment; it's \"quoted\" #not a comment"
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=4
# Per node, not per task: a task that sees only its own GPU cannot use NVLink to the other GPUs.
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task="6"
#SBATCH --mem="64G"
#SBATCH --time="2:00:00"
#SBATCH --partition="gpu"
#SBATCH --account="proj-7"
#SBATCH --qos="high"
#SBATCH --constraint="a100&nvlink"
#SBATCH --gres="lustre:1"
#SBATCH --reservation="maint"
#SBATCH --exclude="node[1-2]"
#SBATCH --nodelist="node7"
#SBATCH --dependency="afterok:123"
#SBATCH --mail-type="END,FAIL"
# Absolute paths: a job whose log folder is missing fails without a log. Append mode: a requeued job has the same id
# and would truncate its own log.
#SBATCH --output="/home/ann/project/logs/train_%j.out"
#SBATCH --error="/home/ann/project/logs/train_%j.err"
#SBATCH --open-mode=append
#SBATCH --chdir="/home/ann/project/src"
# Always set, whatever the site's default: a run that cannot resume must not start from the beginning.
#SBATCH --requeue
# The submitter's environment, without Slurm's own variables. With NONE the ranks would have no PATH.
#SBATCH --export=ALL

# The ids of the run. The scripts of `render` and `submit` differ only in these lines and in the job name.
# shellcheck disable=SC1003,SC1112,SC2016 # your values are in single quotes: data, never expanded
export CLUSTERRUN_RUN_ID=20261121-034501-k3v7qa
export CLUSTERRUN_RUN_DIR=/home/ann/project/.clusterrun/runs/20261121-034501-k3v7qa
export CLUSTERRUN_TOKEN=k3v7qaabcdefghij

# The Python of the job, the worker, and the work to run. The variables of this script begin with CR_, so that your
# variables ($WORK, $CLUSTER) still reach the setup lines and the ranks.
CR_PYTHON=/opt/venv/bin/python
CR_WORKER=/opt/venv/lib/clusterrun/worker/__main__.py
CR_WORK=(script -- /home/ann/project/src/train.py --lr 1e-4)
CR_OPTIONS=(--nodes 3 --tasks-per-node 4 --launcher srun --stage-env --requeue --master-port 12345 --pg-timeout 1800 --join-timeout 120 --shared --process-group expected)
# The sizes of both logs when this script starts: a requeued job, or a new job with a reused id, appends to them.
CR_OPTIONS+=(--script "$0" --log-start "$(stat -L -c %s "/proc/$$/fd/1" || echo 0) $(stat -L -c %s "/proc/$$/fd/2" || echo 0)")

# Called if the script ends before its last line (failed setup line, SIGTERM, no Python): records the end, and never as
# a success.
# shellcheck disable=SC2317,SC2329 # called by a trap
cr_end() {
    local status=$?
    trap '' TERM
    set +eu
    if [ "$status" = 0 ]; then
        echo "clusterrun: the script ended before the ranks were started" >&2
        status=1
    fi
    ! "$CR_PYTHON" -c '' || exec "$CR_PYTHON" -u "$CR_WORKER" supervise "${CR_OPTIONS[@]}" --ended "$status"
    echo "clusterrun: $CR_PYTHON cannot run: was it removed, or does it need a --setup line?" >&2
    umask 027
    local attempt=$CLUSTERRUN_RUN_DIR/attempts/$CLUSTERRUN_TOKEN${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}.${SLURM_RESTART_COUNT:-0}.0
    mkdir "$attempt" && printf '{"version": 1, "status": %d}\n' "$status" >"$attempt/end.json"
    exit "$status"
}
trap cr_end EXIT
trap 'exit 143' TERM

# The folder the job was submitted from. Without this, Slurm silently continues in /tmp.
cd /home/ann/project/src || exit 1
umask 0022

# --env: data, never code
export A=b

# --setup: your own lines. They run in this shell on the first node, so that modules, variables and the umask reach
# the ranks.
cr_setup_failed() {
    echo "clusterrun: setup line $2 failed with status $1: $3" >&2
    CR_OPTIONS+=("--failed-setup=$2 $3")
    exit "$1"
}
set +eu
# (A duplicate of this job exits before these lines: its supervisor finds that the run is already claimed.)
[ ! -e "$CLUSTERRUN_RUN_DIR/claims/$CLUSTERRUN_TOKEN${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}" ] || [ "${SLURM_RESTART_COUNT:-0}" != 0 ] ||
    exec "$CR_PYTHON" -u "$CR_WORKER" supervise "${CR_OPTIONS[@]}" -- "${CR_WORK[@]}"
{ true
} || cr_setup_failed $? 1 true

# The supervisor claims the run, starts the ranks (one srun task for each), and records how they ended.
trap '' TERM # ignore SIGTERM until the supervisor can handle it
"$CR_PYTHON" -c '' || exit
exec "$CR_PYTHON" -u "$CR_WORKER" supervise "${CR_OPTIONS[@]}" -- "${CR_WORK[@]}"
