"""Causes in files and services: full disks, quotas, what is missing or forbidden, and a node without the internet."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.causes.model import Strength
from clusterrun.causes.rows import Row, row

_FULL = "make room there, or write elsewhere (checkpoint_dir, TMPDIR); keep fewer checkpoints"

FILES: tuple[Row, ...] = (
    row(
        "quota", "quota exceeded|errno 122", r"(?i)Disk quota exceeded(?:: '?(?P<what>[^'\n]+)'?)?|\[Errno 122\](?! Disk)",
        "a quota is used up (bytes or number of files)[: {what}]", "make room, or write elsewhere; caches in $HOME (HF_HOME, TRITON_CACHE_DIR, TMPDIR) fill it unseen",
        "https://github.com/KennthShang/HostG/issues/7", "quota -s[; lfs quota -h -u $USER {folder}]",
    ),
    row(
        "disk-full", "no space left on device|storagefull", r"(?i)No space left on device(?:: '?(?P<what>[^'\n]+)'?)?|StorageFull",
        "a disk is full[: {what}]", _FULL, "https://github.com/hiyouga/LlamaFactory/issues/5155", "df -h[ {folder}]; df -i[ {folder}]",
    ),
    row(
        "disk-full", "pytorchstreamwriter failed|inline_container", r"PytorchStreamWriter failed writing file (?P<what>\S+?): file write failed",
        "a checkpoint could not be written ({what}): the disk is full, or a quota used up", _FULL, "https://github.com/hiyouga/LlamaFactory/issues/1223",
        "df -h .; quota -s",
    ),
    row(
        "too-many-files", "too many open files|items of ancdata", r"Too many open files|received \d+ items of ancdata",
        "a rank has too many files open", "raise the limit in the job, or torch.multiprocessing.set_sharing_strategy('file_system')",
        "https://github.com/pytorch/pytorch/issues/973", "clusterrun submit … --setup 'ulimit -n 65536'",
    ),
    row(
        "file-missing", "filenotfounderror|no such script|can't open file",
        r"FileNotFoundError: (?:\[Errno 2\] No such file or directory: )?(?P<what>'(?P<path>[^'\n]+)'$|.*)"
        r"|no such script: (?P<what_old>.*?)(?: \(in (?P<within>/.*)\))?$|can't open file '?(?P<what_too>(?P<path_too>[^':]+))'?: \[Errno 2\]",
        "a file is not there[: {what}]", "the path must exist on the compute nodes; relative paths count from the folder of the submit", "Python 3.11",
        "[srun ls -ld {path}]",
    ),
    row(
        "permission", "permissionerror|permission denied", r"PermissionError: (?:\[Errno 1?3?\] \w[\w ]*: )?(?P<what>.*)|: Permission denied$",
        "not allowed[: {what}]", "see whose it is and which group may write there", "Python 3.11", "ls -ld[ {folder}]",
    ),
    row(
        "read-only", "read-only file system", r"Read-only file system(?:: '?(?P<what>[^'\n]+)'?)?", "a file system is read-only[: {what}]",
        "write elsewhere; some sites mount $HOME read-only on compute nodes", "Linux errno 30", "clusterrun submit … --env HF_HOME=PATH",
    ),
    row(
        "file-system", "stale file handle|input/output error|transport endpoint is not connected", r"(?i)Stale (?:NFS )?file handle|Input/output error|Transport endpoint is not connected",
        "a file system failed: {0}", "the server or the node's mount: where it is one node, keep off it; tell your admins",
        "https://github.com/pytorch/pytorch/issues/10577", "df -h", Strength.HINT,
    ),
    row(
        "offline", "couldn't connect to '|max retries exceeded with url|read timed out|offline mode is enabled|localentrynotfounderror|can't load",
        r"couldn't connect to '(?P<what>[^']+)'|^(?!.*(?:thrown while requesting|[Rr]etrying)).*ConnectionPool\(host='(?P<what_too>[^']+)'.*?(?:Max retries exceeded with url|Read timed out)"
        r"|[Oo]ffline ?[Mm]ode is enabled|LocalEntryNotFoundError",
        "the node cannot reach the internet[: {what}]", "download on the login node first and set HF_HUB_OFFLINE=1; many compute nodes have no way out",
        "https://huggingface.co/docs/transformers/installation#offline-mode", "clusterrun submit … --env HF_HUB_OFFLINE=1 --env HF_HOME=PATH",
    ),
    row(
        "offline", "wandb: error|wandb.errors", r"wandb: ERROR (?P<what>Run initialization has timed out|.*[Nn]etwork error).*|wandb\.errors\.\S*(?:Comm|Timeout)Error: (?P<what_too>.*)",
        "the node cannot reach wandb: {what}", "let it write on the node, and sync afterwards from the login node (wandb sync)",
        "https://github.com/wandb/wandb/issues/10044", "clusterrun submit … --env WANDB_MODE=offline",
    ),
    row(
        "access", "401 client error|403 client error|429 client error|gated repo|gatedrepoerror|invalid user token", r"4(?:0[13]|29) Client Error[^\n]{0,120}|GatedRepoError|gated repo",
        "a service refused access: {0}", "log in on the login node, accept the model's terms, and let the job see the token (HF_TOKEN_PATH)",
        "https://huggingface.co/docs/hub/models-gated", "hf auth whoami",
    ),
)  # fmt: skip
