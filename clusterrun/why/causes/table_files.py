"""Causes in files and services: full disks, quotas, missing files, permissions, no internet access."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row, texts

_FULL = "free some space, write to another file system (set checkpoint_dir or TMPDIR), or keep fewer checkpoints"

#: a name that does not resolve in a library for requests to the internet
UNRESOLVED = texts(
    "offline", "the node cannot reach a server on the internet: {error}",
    "many compute nodes have no internet access; on the login node, download the files into a folder that the compute nodes can read, and set TORCH_HOME or HF_HOME to that folder",
    "https://github.com/timesler/facenet-pytorch/issues/202", "clusterrun submit … --env TORCH_HOME=PATH",
)  # fmt: skip
FILES: tuple[CauseRow, ...] = (
    row("quota", "quota exceeded|errno 122", r"(?i)Disk quota exceeded(?:: '?(?P<what>[^'\n]+)'?)?|\[Errno 122\](?! Disk)",
        "a disk quota was exceeded (bytes or number of files)[: {what}]", "delete files, or write to another file system; to move large caches out of $HOME, set HF_HOME and TRITON_CACHE_DIR",
        "https://github.com/KennthShang/HostG/issues/7", "quota -s[; lfs quota -h -u $USER {folder}]"),
    row("disk-full", "no space left on device|storagefull", r"(?i)No space left on device(?:: '?(?P<what>[^'\n]+)'?)?|StorageFull",
        "a disk is full[: {what}]", _FULL, "https://github.com/hiyouga/LlamaFactory/issues/5155", "df -h[ {folder}]; df -i[ {folder}]"),
    row("disk-full", "pytorchstreamwriter failed|inline_container", r"PytorchStreamWriter failed writing file (?P<what>\S+?): file write failed|inline_container\.cc:\d+\] \. (?P<what_too>unexpected pos \d+ vs \d+)",
        "a checkpoint could not be written ({what}); usually the disk is full, or a quota was exceeded", _FULL, "https://github.com/hiyouga/LlamaFactory/issues/1223",
        "df -h .; quota -s"),
    row("file-system", "iostream error", r"RuntimeError: (?P<what>basic_ios::clear: iostream error)", "a file could not be read or written ({what})",
        "if torch.save failed, usually the disk is full or a quota was exceeded; if torch.load failed, the path is probably a folder or a damaged file", "https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        "df -h .; quota -s"),
    row("too-many-files", "too many open files|items of ancdata", r"Too many open files(?! in system)|received \d+ items of ancdata",
        "a rank has too many files open", "raise the limit on open files in the job, or call torch.multiprocessing.set_sharing_strategy('file_system')",
        "https://github.com/pytorch/pytorch/issues/973", "clusterrun submit … --setup 'ulimit -n 65536'"),
    row("file-missing", "hugging face hub either", r"^(?:.*?Error: )?(?P<what>Couldn't find .*Hugging Face Hub either.{0,80})", "a file or dataset is neither on disk nor on the Hugging Face Hub: {what}",
        "check the name or path; if the node has no internet access, download the files on the login node with HF_HOME set to a shared folder, then submit the job with the same HF_HOME", "https://github.com/huggingface/evaluate/issues/475",
        "clusterrun submit … --env HF_HOME=PATH"),
    row("file-missing", "filenotfounderror|can't open file",
        r"FileNotFoundError: (?!.*Hugging Face Hub either)(?:\[Errno 2\] No such file or directory: )?(?P<what>'(?P<path>[^'\n]+)'$|.*)"
        r"|can't open file '?(?P<what_too>(?P<path_too>[^':]+))'?: \[Errno 2\]",
        "file not found[: {what}]", "check that the path exists on the compute nodes (a relative path starts in the folder where you ran clusterrun submit); if the name is that of a program, such as 'nvcc', add the program's folder to PATH", "Python 3.11",
        "[srun ls -ld {path}]"),
    row("permission", "permissionerror", r"PermissionError: (?:\[Errno 1?3?\] \w[\w ]*: )?'?(?P<what>/(?:[\w.-]+/){0,3}\.(?:cache|config|local|triton|nv|torch|huggingface|matplotlib|keras|ipython)\b[^'\n]*)",
        "permission denied in a cache folder: {what}", "HOME is probably / or another user's folder, as in some containers; set HOME, or the variables of the caches (XDG_CACHE_HOME, HF_HOME, TRITON_CACHE_DIR),"
        " to a folder that the job can write to", "https://github.com/opendatahub-io/ilab-on-ocp/pull/26", "clusterrun submit … --env XDG_CACHE_HOME=PATH --env HF_HOME=PATH"),
    row("permission", "permissionerror|): permission denied", r"PermissionError: (?:\[Errno 1?3?\] \w[\w ]*: )?(?P<what>.*)|Error: open\((?P<what_too>/[^)]*)\): Permission denied",
        "permission denied[: {what}]", "check the owner, the group and the permissions of the path", "Python 3.11", "ls -ld[ {folder}]"),
    # the shell continues
    row("permission", ": permission denied", r"(?P<what>/\S+): Permission denied$|: Permission denied$",
        "permission denied[: {what}]", "check the owner, the group and the permissions of the path", "bash 5.2", "ls -ld[ {folder}]", Strength.HINT, common=True),
    row("read-only", "read-only file system", r"Read-only file system(?:: '?(?P<what>[^'\n]+)'?)?", "a file system is read-only[: {what}]",
        "$HOME can be read-only on compute nodes, and container images usually are; write to another file system, and move caches there too", "Linux errno 30", "clusterrun submit … --env HF_HOME=PATH"),
    row("file-system", "stale file handle|stale nfs file handle", r"(?i)(?P<what>Stale (?:NFS )?file handle)(?:: '?(?P<file>[^'\n]+)'?)?", "a file system error occurred: {what}[: {file}]",
        "if no other node replaced or deleted the file, exclude this node and tell your administrators that its mount is stale;"
        " if several nodes write to the same cache, move the cache to each node's local disk",
        "https://github.com/modelscope/ms-swift/issues/6695", "clusterrun submit … --env HF_DATASETS_CACHE=PATH", Strength.HINT),
    row("file-system", "input/output error|transport endpoint|remote i/o error|communication error on send",
        r"(?i)(?:write\(\): fd \d+ failed with )?Input/output error|/\S{3,200}?['\"]?: Transport endpoint is not connected|Transport endpoint is not connected(?=: ['\"]?/)|Cannot send after transport endpoint shutdown|Remote I/O error|Communication error on send",
        "a file system error occurred: {0}", "usually the file server or the node's mount failed: tell your administrators, and try another node; if the error names no path, check whether the program wrote to a terminal that was closed",
        "https://github.com/pytorch/pytorch/issues/10577", "df -h", Strength.HINT),
    row("offline", "couldn't connect to '|max retries exceeded with url|read timed out|can't load",
        r"couldn't connect to '(?P<what>[^']+)'|^(?!.*(?:thrown while requesting|[Rr]etrying)).*ConnectionPool\(host='(?P<what_too>(?!127\.|10\.|192\.168\.)[^'.]+\.[^']+)'.*?(?:Max retries exceeded with url(?!.*Caused by (?:ResponseError|SSLError\(SSLCertVerif))(?:.{0,400}?ProxyError\('(?P<proxy>[^']+?)\.?')?|Read timed out)",
        "the node cannot reach the server {what}[ through the proxy in http_proxy or https_proxy ({proxy})]", "unless the server is down, the node probably has no internet access; download Hugging Face files on the login node with HF_HOME set to a shared folder, then submit the job with the same HF_HOME",
        "https://huggingface.co/docs/transformers/installation#offline-mode", "clusterrun submit … --env HF_HUB_OFFLINE=1 --env HF_HOME=PATH"),
    row("offline", "localentrynotfounderror|requested files in the cached path", r"LocalEntryNotFoundError(?:: (?P<what>.{1,120}))?|Connection error, and we cannot find the requested files in the cached path", "a file is not in the Hugging Face cache and could not be downloaded[: {what}]", "many compute nodes have no internet access; download the files on the login node with HF_HOME set to a shared folder, then submit the job with the same HF_HOME",
        "https://huggingface.co/docs/huggingface_hub/package_reference/utilities", "clusterrun submit … --env HF_HUB_OFFLINE=1 --env HF_HOME=PATH"),
    row("offline", "couldn't reach |cannot connect to host |could not connect to the endpoint|could not resolve host: |unable to resolve host address|failed to resolve '",
        r"Couldn't reach (?P<what>'[^\s{]+' on the Hub|https?://[^\s{]+)|Cannot connect to host (?P<what_too>[\w.-]+\.\w+:\d+)"
        r"|EndpointConnectionError: (?P<url>.*)|(?:fatal: unable to access|curl: \(6\)).*Could not resolve host: (?P<host>\S+)|unable to resolve host address .(?P<address>[\w.-]+)|Error.*Failed to resolve '(?P<name>[\w.-]+)'",
        "the node cannot reach a server[: {what}][: {url}][: {host}][: {address}][: {name}]",
        "many compute nodes have no internet access; download the files on the login node into a shared folder; for Hugging Face files, set HF_HOME to that folder there and in the job",
        "https://github.com/huggingface/datasets/issues/1764", "clusterrun submit … --env HF_HUB_OFFLINE=1 --env HF_HOME=PATH"),
    row("offline", "urlopen error |connecterror: |connectionerror: |error: tunnel connection failed",
        r"^(?!\[nltk_data\]|.*(?:WARN|[Rr]etry)).*?urlopen error (?P<what>\[Errno -\d+\].*?|\[Errno 1(?:01|10|11|13)\].*?|timed out|Tunnel connection failed.*?|_ssl\.c:\d+: The handshake operation timed out)>?$"
        r"|(?:Connect|Connection)Error: (?P<what_too>\[Errno (?:-\d+|101|110|113)\] .*|.*(?:Name or service not known|Temporary failure in name resolution).*)|Error: (?P<what_old>Tunnel connection failed: .*)",
        "the node cannot reach a server: {what}", "many compute nodes have no internet access; if the server is on the internet, download the files on the login node into a folder that the compute nodes can read, and set TORCH_HOME or HF_HOME to that folder",
        "https://github.com/pytorch/pytorch/issues/14701", "clusterrun submit … --env TORCH_HOME=PATH"),
    row("offline", "wandb: error|wandb.errors", r"wandb: ERROR (?P<what>Run initialization has timed out|Error communicating with wandb process|.*[Nn]etwork error).*|wandb\.errors\.\S*(?:Comm|Timeout)Error: (?P<what_too>.*)",
        "wandb failed: {what}", "if the node cannot reach wandb, log offline and upload the run from the login node afterwards (wandb sync); if wandb denied access, check the API key, entity and project",
        "https://github.com/wandb/wandb/issues/10044", "clusterrun submit … --env WANDB_MODE=offline"),
    row("access", "api_key not configured", r"wandb: ERROR api_key not configured \(no-tty\)", "wandb has no API key and cannot ask for one, because a job has no terminal",
        "run `wandb login` on the login node (it writes ~/.netrc), or pass the key to the ranks with --secret; set WANDB_MODE=offline to log without a key",
        "https://docs.wandb.ai/guides/track/environment-variables", "clusterrun submit … --secret WANDB_API_KEY"),
    row("access", "http error ", r"HTTPError: HTTP Error (?P<what>[45]\d\d: .*)", "a download failed with HTTP error {what}",
        "check that the URL is still valid, and whether it requires a login; if the URL works on the login node, download the files there and pass their path to the job",
        "Python 3.11 urllib", "clusterrun logs JOB -n 50"),
    row("access", "repository not found for url", r"Repository Not Found for url: (?P<what>\S+?)\.?$",
        "the Hugging Face Hub has no such repository, or you have no access to it: {what}", "check the name and the repository type (for a dataset, use --repo-type dataset or load_dataset); for a private or gated repository, run `hf auth login` on the login node, and set HF_TOKEN_PATH in the job to the token file",
        "https://huggingface.co/docs/huggingface_hub/package_reference/utilities", "hf auth whoami"),
    row("access", "401 client error|403 client error|429 client error|gated repo|gatedrepoerror|invalid user token", r"(?P<what>4(?:0[13]|29) Client Error(?:(?!\.? \(Request| for url)[^\n]){0,120})(?: (?P<url>for url:? https?://[^\s?]{1,200}?)(?=[.?]?(?:\s|\?|$)))?|(?P<what_too>GatedRepoError(?:: 4\d\d Client Error)?)|(?<!private or )(?P<what_old>gated repo)",
        "a service denied access: {what}[ {url}]", "for error 429 (too many requests), download the files once on the login node; for any other error from Hugging Face, accept the terms on the model's page, run `hf auth login` on the login node, and set HF_TOKEN_PATH in the job to the token file",
        "https://huggingface.co/docs/hub/models-gated", "hf auth whoami",
        after=r"(?P<url>(?:for url:? |at )https?://[^\s?]+?)(?=[.?]?(?:\s|\?|$))"),
)  # fmt: skip
