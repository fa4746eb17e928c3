"""The table of a job's options: what each is, and who reads it. No I/O.

One row drives the command line, job files, ``clusterrun.toml``, the words that the job's script passes to its
supervisor, the supervisor's parser, and the variable in which each rank finds the value. Values are checked in
jobspec/fields.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import argparse

Kind = Literal["int", "text", "flag", "list", "map"]
Writer = Literal["agent", "project", "user"]
AGENT: Writer = "agent"
PROJECT: Writer = "project"
USER: Writer = "user"

RESOURCES, PLACEMENT, ENVIRONMENT = "Resources", "Placement", "Environment"
TRAINING, RECOVERY, JOB = "Training", "Recovery", "Job"
SECTIONS = (RESOURCES, PLACEMENT, ENVIRONMENT, TRAINING, RECOVERY, JOB)
"""The sections of the options in ``--help``."""
PG_TIMEOUT = 36_000
"""Seconds a process group waits for a collective; loading and saving may take long."""
JOIN_TIMEOUT = 600
"""Seconds a rank waits for the other ranks to start before it fails and names the missing ones."""
NAME_BYTES = 40
"""The maximum length of a job name; clusterrun appends a part of the run's token."""


class Field(NamedTuple):
    """One option.

    ``writer`` is who may set it in a session of a coding agent: the agent and all others, the files of the project, or
    only the user (what names a program, a file, a host or a secret, or hides what a job costs). ``directive``: it is an
    ``#SBATCH`` directive of the same name. ``slurm``: the local scheduler ignores it. ``training``: ``clusterrun
    check`` takes it from no profile. ``job``: the job's supervisor takes it (times in seconds); ``default`` is its
    value without the option, and ``variable`` is where each rank finds it. ``short`` is sbatch's letter for it,
    ``section`` is where ``--help`` shows it.
    """

    name: str
    kind: Kind
    metavar: str
    writer: Writer
    help: str
    directive: bool = False
    least: int = 0
    slurm: bool = False
    training: bool = False
    negatable: bool = False
    job: bool = False
    default: Any = None
    variable: str = ""
    short: str = ""
    section: str = JOB

    @property
    def attribute(self) -> str:
        """The name in Python: ``gpus_per_node``."""
        return self.name.replace("-", "_")

    def words(self, value: Any) -> list[str]:
        """Return the words that pass a value to the supervisor; none for what it takes without the option."""
        if self.kind == "flag":
            return [] if value == self.default else [f"--{self.name}" if value else f"--no-{self.name}"]
        if not value and value == self.default:
            return []
        # a text may be one word that begins with a dash
        return [f"--{self.name}={value}"] if str(value).startswith("-") else [f"--{self.name}", str(value)]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to the supervisor's parser."""
        if self.kind == "flag":
            action = "store_false" if self.default else "store_true"
            prefix = "no-" if self.default else ""
            parser.add_argument(f"--{prefix}{self.name}", dest=self.attribute, action=action, help=self.help)
        else:
            number = self.kind == "int" or type(self.default) is int
            parser.add_argument(f"--{self.name}", type=int if number else str, default=self.default, help=self.help)


FIELDS: tuple[Field, ...] = (
    Field("scheduler", "text", "NAME", AGENT,
          "Scheduler: slurm, local, or auto (Slurm if available, else this machine).", section=PLACEMENT),
    Field("in-job", "text", "JOBID", AGENT,
          "Run inside this running job of yours, without queueing; default in a shell of salloc; none queues a job.",
          training=True, section=PLACEMENT),
    Field("nodes", "int", "N", AGENT, "Number of nodes.", least=1, job=True, default=1, variable="CLUSTERRUN_NODES",
          short="-N", section=RESOURCES),
    Field("gpus-per-node", "int", "N", AGENT, "GPUs per node, one rank per GPU; 0 for a CPU job.", section=RESOURCES),
    Field("tasks-per-node", "int", "N", AGENT, "Ranks per node; default: one per GPU.", least=1, job=True, default=1,
          section=RESOURCES),
    Field("launcher", "text", "NAME", AGENT,
          "How to start the ranks: srun (default), torchrun, accelerate, deepspeed, none.",
          training=True, job=True, default="srun", section=TRAINING),
    Field("max-restarts", "int", "N", AGENT, "How many times to restart a job's ranks after a failure; default 0.",
          training=True, job=True, default=0, section=RECOVERY),
    Field("spare-nodes", "int", "N", AGENT, "Extra nodes to replace lost ones; needs --max-restarts.",
          slurm=True, training=True, job=True, default=0, variable="CLUSTERRUN_SPARE_NODES", section=RECOVERY),
    Field("resume-args", "text", "WORDS", AGENT,
          "Arguments to append when the script is restarted, such as --resume auto.",
          training=True, job=True, default="", section=RECOVERY),
    Field("on-failure", "text", "hold[=TIME]", AGENT,
          "Keep the nodes for debugging after the last failure; default TIME: 30m.",
          slurm=True, training=True, job=True, default=0, section=RECOVERY),
    Field("total-time", "text", "TIME", AGENT,
          "Requeue at the time limit until the run has used TIME in total (5d, 36h).",
          slurm=True, training=True, job=True, default=0, section=RECOVERY),
    Field("helper-job", "flag", "", PROJECT,
          "Submit a small helper job so that a requeued job starts at once; default on.",
          slurm=True, training=True, negatable=True, job=True, default=True, section=RECOVERY),
    Field("signal", "text", "SIG@SECONDS", AGENT, "Signal to send to the ranks before the time limit (TERM@300).",
          directive=True, slurm=True, training=True, job=True, default="", section=RECOVERY),
    Field("hang-timeout", "int", "SECONDS", AGENT,
          "End ranks that make no progress for this long; 0 disables the check.", training=True, job=True,
          section=RECOVERY),
    Field("progress-interval", "int", "SECONDS", AGENT,
          "Seconds between two progress records of a rank, 1 to 10; default 10.",
          training=True, job=True, variable="CLUSTERRUN_PROGRESS_INTERVAL", section=RECOVERY),
    Field("notify", "text", "TARGET", USER, "Webhook URL or command that receives the run's events.", training=True,
          section=JOB),
    Field("notify-on", "list", "EVENT", USER,
          "Event to report; repeatable; default: all except started and first-step.", training=True, section=JOB),
    Field("accelerate-config", "text", "FILE", PROJECT, "Configuration file (YAML) for --launcher accelerate.",
          training=True, section=TRAINING),
    Field("cpus-per-task", "int", "N", AGENT, "CPU cores per rank.", directive=True, least=1, short="-c",
          section=RESOURCES),
    Field("mem", "text", "SIZE", AGENT, "Memory per node (64G).", directive=True, slurm=True, section=RESOURCES),
    Field("time", "text", "TIME", AGENT, "Time limit: 90m, 1h30m, 2d, or Slurm's minutes, HH:MM:SS, DAYS-HOURS.",
          directive=True, short="-t", section=RESOURCES),
    Field("partition", "text", "NAME", AGENT, "Partition; auto picks the one with the earliest start.",
          directive=True, slurm=True, short="-p", section=PLACEMENT),
    Field("account", "text", "NAME", AGENT, "Account to charge.", directive=True, slurm=True, short="-A",
          section=PLACEMENT),
    Field("qos", "text", "NAME", AGENT, "Quality of service.", directive=True, slurm=True, short="-q",
          section=PLACEMENT),
    Field("constraint", "text", "EXPR", AGENT, "Required node features.", directive=True, slurm=True, short="-C",
          section=PLACEMENT),
    Field("gres", "text", "LIST", AGENT, "Generic resources per node (gpu:a100:4); replaces --gpus-per-node.",
          directive=True, slurm=True, section=RESOURCES),
    Field("reservation", "text", "NAME", AGENT, "Reservation to use.", directive=True, slurm=True, section=PLACEMENT),
    Field("exclude", "text", "NODES", AGENT, "Nodes to avoid.", directive=True, slurm=True, short="-x",
          section=PLACEMENT),
    Field("nodelist", "text", "NODES", USER, "Nodes to use.", directive=True, slurm=True, short="-w",
          section=PLACEMENT),
    Field("allow-nodes", "flag", "", AGENT,
          "Use also nodes whose hardware failed twice in your runs of the last 24 h.",
          slurm=True, negatable=True, section=PLACEMENT),
    Field("dependency", "text", "LIST", AGENT, "Start after other jobs (afterok:123).", directive=True, training=True,
          short="-d", section=JOB),
    Field("job-name", "text", "NAME", AGENT, f"Job name, at most {NAME_BYTES} bytes.", training=True, short="-J",
          section=JOB),
    Field("mail-type", "text", "LIST", PROJECT, "Events to email you about (END,FAIL).", directive=True, slurm=True,
          section=JOB),
    Field("comment", "text", "TEXT", AGENT, "Comment stored with the job.", section=JOB),
    Field("python", "text", "PATH", PROJECT,
          "The job's Python; default: the active venv or conda env, else clusterrun's own.", section=ENVIRONMENT),
    Field("venv", "text", "DIR", PROJECT,
          "Virtual environment to activate in the job, or the uv project that contains it.", section=ENVIRONMENT),
    Field("conda", "text", "ENV", PROJECT, "conda environment to activate in the job: its name or folder.",
          section=ENVIRONMENT),
    Field("container-image", "text", "IMAGE", PROJECT,
          "Container image for the ranks: a file (.sif, .sqsh), or docker://NAME.", section=ENVIRONMENT),
    Field("container-mounts", "list", "A:B", PROJECT,
          "Additional folders to mount in the container (A:B,C:D); repeatable.", section=ENVIRONMENT),
    Field("container-runtime", "text", "NAME", PROJECT,
          "Container runtime: pyxis or apptainer; default: the one installed on this machine.", section=ENVIRONMENT),
    Field("container-python", "text", "PATH", PROJECT, "Python in the container; default: python3.",
          section=ENVIRONMENT),
    Field("stage-env", "flag", "", PROJECT,
          "Copy the venv or conda environment to each node's local disk before the ranks start.",
          slurm=True, training=True, negatable=True, job=True, default=False, section=ENVIRONMENT),
    Field("modules", "list", "NAME", PROJECT, "Environment module to load in the job (cuda/12.4); repeatable.",
          section=ENVIRONMENT),
    Field("env", "map", "KEY=VALUE", AGENT, "Set an environment variable in the job; repeatable.", section=ENVIRONMENT),
    Field("secret", "list", "NAME", PROJECT,
          "Pass an environment variable (HF_TOKEN) to the ranks without storing it; repeatable.", training=True,
          section=ENVIRONMENT),
    Field("setup", "list", "LINE", PROJECT, "Shell line to run once before the ranks start; repeatable.",
          section=ENVIRONMENT),
    Field("template", "text", "FILE", USER, "Custom sbatch template.", section=JOB),
    Field("sbatch-arg", "list", "ARG", USER, "Extra argument for sbatch, passed unchanged; repeatable.", slurm=True,
          section=JOB),
    Field("requeue", "flag", "", AGENT, "Let Slurm restart the job after preemption or a node failure.",
          slurm=True, training=True, negatable=True, job=True, default=False, section=RECOVERY),
    Field("master-port", "int", "PORT", PROJECT, "Rendezvous port; default: a free port.",
          least=1, training=True, job=True, section=TRAINING),
    Field("pg-timeout", "int", "SECONDS", AGENT, f"Timeout for collectives; default {PG_TIMEOUT}.",
          least=1, job=True, default=PG_TIMEOUT, variable="CLUSTERRUN_PG_TIMEOUT", section=TRAINING),
    Field("join-timeout", "int", "SECONDS", AGENT, f"Timeout for all ranks to start; default {JOIN_TIMEOUT}.",
          least=1, job=True, default=JOIN_TIMEOUT, variable="CLUSTERRUN_JOIN_TIMEOUT", section=TRAINING),
    Field("local-main-process-first", "flag", "", AGENT,
          "Let local rank 0 of each node import, start and compile first; the others wait, at most half the join"
          " timeout.", training=True, job=True, default=False, variable="CLUSTERRUN_LOCAL_MAIN_PROCESS_FIRST",
          section=TRAINING),
    Field("require-group", "flag", "", AGENT, "Fail if no rank uses a process group (implied for built-in tasks).",
          training=True, section=TRAINING),
    Field("independent", "flag", "", AGENT,
          "Treat ranks as separate programs: do not warn if none uses a process group.", training=True,
          section=TRAINING),
    Field("check", "flag", "", AGENT, "Check nodes and links before training starts; end the job if one is broken.",
          training=True, section=RECOVERY),
    Field("set", "map", "KEY=VALUE", AGENT, "Change a setting of a built-in task (steps=300); repeatable.",
          section=TRAINING),
    Field("fp16", "flag", "", AGENT, "Run a built-in task in fp16 (--no-fp16: fp32); default: depends on the device.",
          negatable=True, section=TRAINING),
    Field("snapshot", "flag", "", AGENT, "Save the code and run the saved copy; default: on in a git work tree.",
          negatable=True, section=ENVIRONMENT),
    Field("shared", "flag", "", USER, "Let your group read the run's records and logs.", job=True, default=False,
          section=JOB),
)  # fmt: skip
FIELD: dict[str, Field] = {field.name: field for field in FIELDS}
#: Options that the next job of a run may change: they request resources from Slurm and keep the number of ranks.
CHANGEABLE = ("time", "mem", "partition", "exclude", "account", "qos", "reservation")
OF_JOB: tuple[Field, ...] = tuple(field for field in FIELDS if field.job)
"""The options that the job's supervisor takes."""
