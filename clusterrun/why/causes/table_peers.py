"""Causes between ranks: collectives that time out, ports, names, the network, lost peers."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row

_HANG = (
    "set a longer timeout only if the missing rank was slow, not stuck; to find out, run py-spy dump --pid PID on that rank's node the next time the job hangs,"
    " or read the rank's last log lines"
)
#: of a collective that all ranks called
NO_TRAFFIC = (
    "the ranks probably cannot exchange data; if they share one node, test with NCCL_P2P_DISABLE=1; if they run on several nodes,"
    " set NCCL_SOCKET_IFNAME to an interface that links the nodes (clusterrun check --nodes N tests the nodes and the links between them)"
)
_HANG_COMMAND = "clusterrun logs JOB[ --rank {rank}] -n 50"
PEER = "this error usually follows from another failure; look for the rank that failed first"
PORT = "omit --master-port to let clusterrun find a free port and reserve it for the job"
_NAME = "if the name is wrong, correct it; otherwise, ask your administrators to make it resolve on every node; to test a name, look it up on two nodes"
_SOCKETS = (
    "if the connection was to another node, check that no firewall blocks the port; if none does,"
    " set NCCL_SOCKET_IFNAME (for gloo, GLOO_SOCKET_IFNAME) to an interface that links the nodes"
)
_IB = "if no rank had ended before this error, a network link or switch probably failed, so tell your administrators and exclude this node"

#: What NCCL warns; the exception after it names rank and line, and only says "invalid usage".
SIZES = row(
    "nccl-error", "message truncated :|collective mismatch error",
    r"NCCL WARN .*?(?P<what>message truncated : receiving \d+ bytes instead of \d+|collective mismatch error,? local size \d+ remote size \d+)",
    "ranks do not agree on the size of a message: {what}",
    "if a send and its receive differ in shape or dtype, make them the same;"
    " otherwise, let torch check whether all ranks call the same collectives in the same order",
    "https://github.com/sail-sg/zero-bubble-pipeline-parallelism/issues/60", "clusterrun submit … --env TORCH_DISTRIBUTED_DEBUG=DETAIL",
)  # fmt: skip
#: UCX aborts the process then, unless its program handles the error
LINK = row(
    "network", "transport retry count exceeded", r"Transport retry count exceeded on (?P<what>[\w:/.-]+)", "another node did not acknowledge an RDMA message: transport retry count exceeded on {what}",
    _IB, "https://github.com/horovod/horovod/issues/1390", "clusterrun submit … --exclude NODE", Strength.HINT,
)  # fmt: skip
#: the end of another process, noticed by a rank
PEER_LOST = row(
    "peer-lost", "closed by peer|closed by remote peer|reset by peer|broken pipe|remote process exited|ncclremoteerror"
    "|nccl communicator was aborted|taking the entire process down|operations have failed or timed out|0 bytes from the|recvvalue failed|failed to recv, got 0 bytes|connection refused|rendezvousconnectionerror|horovod has been shut down|application crash on rank",
    r"(?i)Connection (?:closed|reset) by (?:remote )?peer(?:,? (?P<peer>\[?[\w.-]+[]:<]+\d+>?))?|Broken pipe|remote process exited|ncclRemoteError"
    r"|NCCL communicator was aborted|taking the entire process down|NCCL operations have failed or timed out|recvValue failed|failed to recv, got 0 bytes"
    r"|(?<!\. )(?<!connect to server: )Connection refused|RendezvousConnectionError|Horovod has been shut down|possible application crash on rank \d+",
    "a connection to another process failed: {0}", PEER, "https://github.com/meta-pytorch/torchrec/issues/3560", "clusterrun logs JOB --errors",
    Strength.CONSEQUENCE,
)  # fmt: skip
PEERS: tuple[CauseRow, ...] = (
    row("collective-timeout", "watchdog caught collective operation timeout",
        r"(?:\[Rank (?P<reporter>\d+)\] )?Watchdog caught collective operation timeout:(?: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
        r".*?Timeout\(ms\)=(?P<ms>\d+))?",
        "a collective[ ({op})] timed out[ after {limit}]", _HANG, "https://github.com/pytorch/pytorch/issues/118369", _HANG_COMMAND, Strength.HANG),
    row("collective-timeout", "ms for recv operation to complete|ms for send operation to complete",
        r"Timed out waiting (?P<ms>\d+)ms for (?:send|recv) operation to complete",
        "a collective (gloo) timed out[ after {limit}]", _HANG, "https://github.com/facebookresearch/detectron2/issues/3243", _HANG_COMMAND,
        Strength.HANG),
    row("collective-timeout", "monitoredbarrier", r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        "a barrier timed out[ after {limit}]", _HANG,
        "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp", _HANG_COMMAND, Strength.HANG),
    row("collective-timeout", "heartbeat monitor timed out|watchdog got stuck for",
        r"Rank (?P<reporter>\d+)\] (?:Heartbeat monitor timed out!|.*watchdog got stuck for (?P<seconds>\d+) seconds)",
        "the NCCL watchdog thread was stuck, so PyTorch's heartbeat monitor timed out", _HANG,
        "https://github.com/hiyouga/LlamaFactory/issues/6953", _HANG_COMMAND, Strength.HANG),
    row("collective-timeout", "retrieving nccluniqueid from", r"retrieving ncclUniqueId from \[(?P<awaited>\d+)\] .*got error: (?:wait timeout after (?P<ms>\d+)ms|Socket Timeout)",
        "a rank timed out[ after {limit}] waiting for rank {awaited}, which creates the NCCL unique ID", _HANG, "https://github.com/bytedance/HLLM/issues/20", "clusterrun logs JOB --rank {awaited} -n 50", Strength.HANG),
    row("collective-timeout", "wait timeout after|socket timeout|timeout waiting for key",
        r"(?:DistStoreError|got error): (?:wait timeout after (?P<ms>\d+)ms|Socket Timeout)|RuntimeError: Socket Timeout|Timeout waiting for key: ",
        "a rank timed out waiting for another rank at the rendezvous (TCPStore)", _HANG, "https://github.com/pytorch/pytorch/pull/131808", _HANG_COMMAND, Strength.HANG),
    row("nccl-error", "no socket interface found", r"NCCL WARN (?P<what>(?:Bootstrap ?: )?no socket interface found)", "NCCL found no network interface to use: {what}",
        "NCCL_SOCKET_IFNAME probably names an interface that this node does not have; set it to one of the node's interfaces, which this command lists",
        "https://github.com/NVIDIA/nccl/issues/286", "srun -w NODE ip -br addr"),
    row("ranks-missing", "error waiting on exit barrier", r"Error waiting on exit barrier\. Elapsed: (?P<seconds>\d+)", "torchrun gave up after waiting {seconds} s for the torchrun processes on other nodes to end; its own ranks had already ended",
        "check whether the ranks on the other nodes had hung, were still working, or had ended because their node failed",
        "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/agent/server/api.py", "clusterrun logs JOB -n 50", Strength.HINT),
    row("ranks-missing", "clients joined|workers joined", r"Timed out after (?P<seconds>\d+) seconds waiting for (?:clients|workers)\. (?P<came>\d+)/(?P<all>\d+)",
        "only {came} of {all} ranks joined within {seconds} s",
        "check that WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the same on all nodes, and read the last log lines of the missing ranks",
        "https://github.com/Liuziyu77/Visual-RFT/issues/123", "clusterrun logs JOB -n 50", Strength.HANG),
    row("ranks-missing", "store based barrier",
        r"Timed out initializing process group in store based barrier on rank: ?\d+.*?\(world_size=(?P<all>\d+), worker_count=(?P<came>\d+)(?:, num_workers_joined=\d+)?(?:, timeout=(?P<waited>[\d:]+))?",
        "the wrong number of ranks joined the process group[ within {waited}] ({came} instead of {all})",
        "if more ranks joined than expected, give each run its own port or, with init_method=file://…, delete that file before each run;"
        " if fewer joined, read the last log lines of the missing ranks",
        "https://github.com/tczhangzhi/pytorch-distributed/issues/18", "clusterrun logs JOB -n 50", Strength.HANG),
    row("address-in-use", "address already in use|eaddrinuse",
        r"(?:\bport:? |\]:|\d\.\d{1,3}:|localhost:|\*:|', )(?P<port>\d{2,5})\b(?!\.\d).*(?:EADDRINUSE|[Aa]ddress already in use)|EADDRINUSE|[Aa]ddress already in use",
        "the port to listen on is already in use[ (port {port})]", "if the script or its configuration sets the port, change the port there; otherwise, " + PORT,
        "https://github.com/vllm-project/vllm-omni/issues/6425", "clusterrun submit … (without --master-port)"),
    row("nccl-error", "has already checked in", r"Bootstrap Root : rank (?P<twice>\d+) of (?P<of>\d+) ranks has already checked in", "two processes have the same rank: rank {twice} of {of} had already joined",
        "give each process its own rank; if torchrun starts the ranks, start it once per node, with a different --node-rank on each node; if srun starts them, set RANK to SLURM_PROCID in each process",
        "NCCL 2.18 bootstrap.cc", "clusterrun logs JOB -n 50"),
    row("name-resolution", "gaierror|could not resolve hostname|host not found: ",
        r"gaierror: \[Errno -?\d+\] (?P<what>.*)|ssh: Could not resolve hostname (?P<name>\S+): |Error: host not found: (?P<what_too>.*)",
        "a host name does not resolve[: {name}][: {what}]", _NAME, "https://github.com/vllm-project/vllm/issues/2407", "srun -N 2 getent hosts NAME"),
    row("name-resolution", "cannot be retrieved (gai error", r"network addresses of \((?P<name>[^,]+), (?P<port>\d+)\) cannot be retrieved \(gai error",
        "the host name {name} does not resolve", _NAME, "https://github.com/hpcaitech/ColossalAI/issues/2841", "srun -N 2 getent hosts NAME", Strength.HINT),
    row("network", "connect to 169.254.", r"NCCL WARN .*?(?P<what>Connect to 169\.254\.\S+ failed.*)", "NCCL uses a link-local address, which other nodes cannot reach: {what}",
        "choose the network interface that links the nodes (ip -br addr on a node lists the interfaces)",
        "https://github.com/verl-project/verl/issues/726", "clusterrun submit … --env NCCL_SOCKET_IFNAME=NAME", Strength.HINT),
    LINK,
    # ibv_open_device and queries also fail where NCCL does without that device
    row("network", "call to ibv_", r"(?P<what>Call to ibv_(?:create|alloc|reg)_\w+ failed(?: with error .{1,60})?)", "NCCL could not set up InfiniBand (RDMA) on the node: {what}",
        "to run without InfiniBand, set NCCL_IB_DISABLE=1; to run with it, make sure that ulimit -l prints unlimited and /dev/infiniband exists,"
        " both on this node and inside the container if the ranks run in one",
        "https://github.com/NVIDIA/nccl/issues/1129", "srun -w NODE bash -c 'ulimit -l; ls /dev/infiniband'", Strength.HINT),
    row("network", "got completion |got async event|got fatal event|call to ibv_",
        r"NET/IB ?P?[ :]+Got completion (?:from peer (?P<peer>\S+) )?with (?:status=|error )(?:IBV_WC_\w+\()?(?!5\b)(?P<status>\d+)\)?"
        r"|NET/IB.* Got (?:async|fatal) event ?: .*error|Call to ibv_(?!open_device|get_|query_)\w+ failed(?: with error .{1,60})?",
        "InfiniBand or RoCE failed: {0}", "with RoCE, check NCCL_IB_GID_INDEX; for error 4 or 10, test without GPUDirect RDMA (NCCL_NET_GDR_LEVEL=LOC); otherwise, " + _IB, "https://github.com/NVIDIA/nccl/issues/1664", "clusterrun submit … --exclude NODE", Strength.HINT),
    row("network", "connect to |no route to host|network is unreachable",
        r"^.*?NCCL WARN (?P<what>.*[Cc]onnect to \S+ (?:failed ?: (?!Connection re(?:fused|set))|returned (?:\d+ ?\()?(?:No route|Network)).*)|^(?!(?:ssh|curl|wget|fatal): ).*?(?:connect to (?P<peer>(?!any )[\w.-]+:\d+|\[[^\]\s]+\]:\d+) .{0,80}?)?(?P<what_too>No route to host|Network is unreachable)",
        "a network connection failed[ (to {peer})]: {what}", _SOCKETS, "https://github.com/hiyouga/LlamaFactory/issues/8045", "clusterrun submit … --env NCCL_SOCKET_IFNAME=NAME", Strength.HINT),
    row("network", "ib_mlx5_log.c", r"ib_mlx5_log\.c:\d+ +(?P<what>(?!Transport retry)\w[\w ]*? on \S+)", "the InfiniBand adapter reported an error: {what}",
        "if no rank had ended before this error, tell your administrators and test whether the run works without InfiniBand",
        "https://github.com/openucx/ucx/blob/master/src/uct/ib/mlx5/ib_mlx5_log.c", "clusterrun submit … --env UCX_TLS=^ib"),
    row("network", "connectfullmesh failed", r"Gloo connectFullMesh failed with (?P<what>.*)", "gloo could not connect ranks across nodes: {what}",
        "gloo probably chose an interface that the other nodes cannot reach; choose the network interface that links the nodes (ip -br addr on a node lists the interfaces)",
        "https://github.com/sgl-project/sglang/issues/3226", "clusterrun submit … --env GLOO_SOCKET_IFNAME=NAME"),
    row("network", "destination is unreachable|failed to resolve ucx", r"Failed to resolve UCX endpoint.*|ucp_ep_create.* failed: Destination is unreachable",
        "UCX cannot reach another process: {0}", "check on every node that UCX_TLS and UCX_NET_DEVICES name only transports and devices that ucx_info -d lists; to test whether the run works without RDMA, set UCX_TLS=tcp", "https://github.com/NVIDIA/NeMo-Aligner/issues/541", "clusterrun submit … --env UCX_TLS=tcp"),
    row("network", "client socket has timed out|client socket has failed to connect",
        r"client socket has (?:timed out after (?P<waited>\d+ ?m?s) while trying to connect to|failed to connect to(?: any network address of)?) \((?P<what>127\.0\.0\.\d+|localhost|::1), (?P<port>\d+)\)",
        "no process on the rank's own node accepted connections at {what}, port {port}[ within {waited}]", "if the job has several nodes, set MASTER_ADDR to the name of the first node; otherwise, read the log lines of rank 0, which had probably ended or not yet called init_process_group",
        "https://github.com/pytorch/pytorch/issues/107021", "clusterrun logs JOB -n 50", Strength.HINT),
    row("network", "client socket has timed out|client socket has failed to connect|connect() timed out",
        r"connect\(\) timed out\. Original timeout|client socket has (?:timed out after (?P<seconds>\d+)(?: ?s|ms) while trying to connect to|failed to connect to(?: any network address of)?) (?P<what>\([^)]*\)|[^\s,]+)",
        "the rendezvous port on the first node cannot be reached[: {what}]", "check that no firewall blocks the port between the nodes, and set MASTER_ADDR (for torchrun, --rdzv-endpoint) to a name of the first node that resolves on the other nodes",
        "https://github.com/pytorch/pytorch/issues/107021", "srun -N 2 getent hosts NAME", Strength.HINT),
    row("collective-mismatch", "mismatch between collectives", r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d+) is running (?:inconsistent )?collective: .*?OpType=(?P<what>\w+)(?:, TensorShape=(?P<shape>\[[^\]]{0,80}\]))?.*?, but Rank (?P<other>\d+) is running (?:inconsistent )?collective: .*?OpType=(?P<what_b>\w+)(?:, TensorShape=(?P<shape_b>\[[^\]]{0,80}\]))?",
        "the ranks called different collectives: rank {one} {what}[ of shape {shape}], rank {other} {what_b}[ of shape {shape_b}]",
        "make all ranks call the same collectives in the same order; look for code that only some ranks run, such as an evaluation on rank 0 or an extra training step",
        "https://github.com/speechbrain/speechbrain/issues/2401", "clusterrun logs JOB --errors"),
    SIZES,
    row("nccl-error", "nccl error in|ncclsystemerror|ncclunhandledcudaerror|ncclinternalerror|ncclinvalid|unhandled system error|unhandled cuda error|nccl error |rank failed: ",
        r"nccl(?:(?:System|UnhandledCuda|Internal)Error|Invalid(?:Argument|Usage)): (?P<text>[^\n]{0,120})|NCCL Error [1-5]: (?P<text_too>.{0,80})|nccl[A-Z]\w* failed: (?P<text_old>.{0,80})|NCCL error in: [^,]*, (?!remote process exited)(?P<what>[^,\n]{1,80})(?:, NCCL version|$)"
        r"|(?P<other>unhandled (?:system|cuda) error)",
        "NCCL failed[: {what}][: {text}][: {other}]", "to see in the log which call failed inside NCCL, run the job again with NCCL_DEBUG=INFO",
        "https://github.com/NVIDIA/nccl/issues/1066", "clusterrun submit … --env NCCL_DEBUG=INFO", Strength.HINT),
    row("peer-lost", "keep-alive heartbeat", r"The node '(?P<agent>[^']{1,80}?)_\d+_\d+' has failed to send a keep-alive heartbeat to the rendezvous .* Rendezvous\w+Error",
        "torchrun on {agent} lost the connection to the rendezvous", PEER, "https://github.com/pytorch/pytorch/issues/76287", "clusterrun logs JOB --errors", Strength.CONSEQUENCE),
    row("peer-lost", "rendezvousclosederror", r"RendezvousClosedError", "torchrun's rendezvous was already closed (RendezvousClosedError), usually because torchrun had ended on another node",
        PEER, "https://github.com/pytorch/pytorch/issues/91943", "clusterrun logs JOB --errors", Strength.CONSEQUENCE),
    PEER_LOST,
)  # fmt: skip
