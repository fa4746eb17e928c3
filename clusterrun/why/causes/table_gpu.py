"""Causes on the GPU: memory, faults, the driver, its libraries (CUDA, cuDNN, NCCL builds), unsupported requests."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row

_SMALLER = (
    "use bf16, shorter sequences, or a smaller micro batch (with more gradient accumulation steps, the global batch stays the same);"
    " if the rank itself holds little of the GPU's memory, run nvidia-smi on the node to see which processes hold the rest;"
    " if a lot of memory is reserved but unused, set PYTORCH_ALLOC_CONF=expandable_segments:True (in older versions of torch, PYTORCH_CUDA_ALLOC_CONF)"
)
_SMALLER_COMMAND = "clusterrun submit … --env PYTORCH_ALLOC_CONF=expandable_segments:True"
_ELSEWHERE = "tell your administrators that the GPU, or its PCIe or NVLink connection, is probably faulty (see nvidia-smi -q and the Xid messages in dmesg on the node), and exclude the node"
_ELSEWHERE_AMD = "read the node's amdgpu kernel messages (dmesg | grep amdgpu) for the reason; if the error happens on one node only, tell your administrators and exclude the node"
_EXCLUDE = "clusterrun submit … --exclude[ {node}]"
_DRIVER = "install a torch build for a CUDA version that the node's GPU driver supports (nvidia-smi shows the newest one), or use nodes with a newer driver"
_MODEL = (
    "install or build a version of torch (or of the extension that failed) that supports this GPU, or request another GPU model;"
    " to see which architectures torch supports and which one the GPU has, print torch.cuda.get_arch_list() and torch.cuda.get_device_capability()"
)
_MODEL_COMMAND = (
    "srun --gpus 1 python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'"
)

#: code that could not be built; the lines before it name what is missing
BUILD = row(
    "library-mismatch", "cuda setup failed|error building extension|cuda_home environment variable is not set|mismatches the version that was used to compile|find c compiler|error compiling objects|nvcc fatal|working triton installation|ninja is required|command '['",
    r"(?P<what>CUDA Setup failed despite GPU being available|Error building extension '[\w.]+'|CUDA_HOME environment variable is not set"
    r"|detected CUDA version \(\S+\) mismatches the version that was used to compile\s+PyTorch|Failed to find C compiler|Error compiling objects for extension"
    r"|nvcc fatal +: .*|Cannot find a working triton installation|Ninja is required to load C\+\+ extensions)"
    r"|CalledProcessError: Command '\['(?P<tool>[^']*(?:gcc|g\+\+|clang|cc|c\+\+|nvcc|ninja|ptxas))'.*returned non-zero",
    "an extension cannot be loaded or built on the node[: {what}][: {tool} failed]",
    "look for the compiler's own error in the log; if the compiler or the CUDA toolkit is missing or has the wrong version,"
    " build the extension on another node before the job, or load the right modules (torch.version.cuda shows the CUDA version to use)",
    "https://github.com/deepspeedai/DeepSpeed/issues/694", "clusterrun submit … --setup 'module load cuda'",
)  # fmt: skip
GPU: tuple[CauseRow, ...] = (
    row("cuda-memory", "tried to allocate",
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+)"
        r"(?:.*?GPU (?P<gpu>\d+))?(?:.*?total capac\w+ of (?P<total>[\d.]+ \w+)|.*?; (?P<total_old>[\d.]+ \w+) total capacity)?"
        r"(?:(?!.*reserved in total)(?=.*?; (?P<held_too>[\d.]+ \w+) already allocated))?"
        r"(?:.*? of which (?P<free>[\d.]+ \w+) is free|.*?; (?P<free_old>[\d.]+ \w+) free)?(?:(?=.*this process has ).*?Process \d+ has (?P<other>[\d.]+ \w+) memory in use)?"
        r"(?:.*?this process has (?:0 bytes memory in use\. Of the allocated memory )?(?P<held>[\d.]+ \w+) (?:memory in use|is allocated)|.*?; (?P<held_old>[\d.]+ \w+) reserved in total)?",
        "GPU memory ran out: the rank tried to allocate {asked}[ on GPU {gpu}][, with {free} of {total} free][; the rank itself holds {held}][; another process uses {other} of the GPU's memory]", _SMALLER,
        "https://github.com/pytorch/pytorch/issues/16417", _SMALLER_COMMAND),
    row("cuda-memory", "outofmemoryerror|cuda error: out of memory|hip error: out of memory|cuda_error_out_of_memory|cudaerrormemoryallocation|cuda runtime error (2)",
        r"^(?:.*[ :])?(?:torch\.)?(?:cuda\.)?OutOfMemoryError: |(?:CUDA|HIP) error: out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda runtime error \(2\) : out of memory",
        "GPU memory ran out", _SMALLER, "https://github.com/pytorch/pytorch/issues/67978", _SMALLER_COMMAND),
    row("cuda-memory", "_status_alloc_failed", r"CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED", "a GPU library could not allocate memory: {0}",
        "if the GPU has enough free memory, run with CUDA_LAUNCH_BLOCKING=1 to find an earlier error on the GPU (such as an index out of range); otherwise, " + _SMALLER,
        "https://github.com/pytorch/pytorch/issues/67978", _SMALLER_COMMAND),
    row("cuda-memory", "'out of memory'|failed to cuda", r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc)\w* (?P<bytes>\d+) bytes",
        "GPU memory ran out when NCCL tried to allocate memory[ ({bytes} bytes)]",
        "leave GPU memory free for NCCL, which allocates its buffers outside torch's caching allocator: " + _SMALLER, "https://github.com/NVIDIA/nccl/issues/1235", _SMALLER_COMMAND),
    row("gpu-fault", "xid", r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<xid>\d+), (?P<what>.*)",
        "the GPU at {bus} reported Xid {xid}: {what}",
        "look up Xid {xid} in NVIDIA's Xid table; for 13, 31 or 43, look for a bug in the program; for 48, 63, 64, 74, 79, 92, 94, 95"
        " or 119 (usually hardware faults), tell your administrators and exclude the node",
        "https://docs.nvidia.com/deploy/xid-errors/", _EXCLUDE),
    row("gpu-fault", "hw exception by gpu", r"HW Exception by (?P<what>GPU node-\d+).*?reason ?: ?(?P<why>[\w ]+)", "an AMD GPU failed ({what}): {why}",
        _ELSEWHERE_AMD, "https://github.com/ROCm/ROCm/issues/4021", "clusterrun submit … --exclude NODE"),
    row("gpu-fault", "fallen off the bus", r"fallen off the bus", "a GPU has fallen off the bus (Xid 79)", _ELSEWHERE,
        "https://github.com/NVIDIA/NVSentinel/issues/155", _EXCLUDE),
    row("gpu-fault", "ecc error", r"(?i)uncorrectable (?:NVLink |ECC )?(?:ECC )?error(?!s?\s*:\s*(?:0|N))",
        "a GPU reported an uncorrectable ECC error", _ELSEWHERE,
        "https://github.com/jade-hpc-gpu/jade-hpc-gpu.github.io/issues/194", _EXCLUDE),
    row("cuda-assert", "device-side assert", r"device-side assert triggered",
        "an assertion failed on the GPU (device-side assert)",
        "usually a class label or token id is out of range: compare labels with the number of classes, and token ids with the vocabulary size;"
        " to see the line of code that failed, run on the CPU or with CUDA_LAUNCH_BLOCKING=1",
        "https://github.com/layumi/Person_reID_baseline_pytorch/issues/372",
        "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-assert", "assertion `", r"\.cu:\d+: .*block: \[.*Assertion `(?P<what>[^`']*)['`] failed",
        "an assertion failed on the GPU: {what}",
        "usually an index (such as a class label or token id) is out of range, or a probability is NaN, below 0 or above 1; to see the line of code that failed, run with CUDA_LAUNCH_BLOCKING=1",
        "https://github.com/milesial/Pytorch-UNet/issues/375", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-error", "illegal memory access|unspecified launch failure|misaligned address|error: an illegal|invalid program counter|memory access fault by gpu",
        r"(?:CUDA|HIP) error: (?P<what>an illegal memory access[\w ]*|unspecified launch failure|misaligned address|an illegal instruction[\w ]*"
        r"|invalid program counter)|cudaErrorIllegalAddress|(?P<what_too>Memory access fault by GPU node-\d+)",
        "a kernel failed on the GPU[: {what}]",
        "if the error happens on one node only, that node's GPU may be faulty; to see the line of code that failed, run with CUDA_LAUNCH_BLOCKING=1 (on AMD GPUs, with AMD_SERIALIZE_KERNEL=3)",
        "https://github.com/pytorch/pytorch/issues/21819", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-error", "error: invalid device function", r"(?:CUDA|HIP) error: invalid device function", "the GPU could not run a kernel: {0}; usually torch or a library was not built for this GPU model",
        _MODEL, "https://github.com/ROCm/legacy-rocm-build/issues/4208", _MODEL_COMMAND),
    row("no-gpu", "invalid device ordinal", r"invalid device ordinal", "the rank selected a GPU that it cannot see: {0}",
        "if each rank sees only one GPU (because of --gpus-per-task, --gpu-bind or CUDA_VISIBLE_DEVICES), use cuda:0 in every rank; otherwise, request one GPU per rank on each node",
        "https://github.com/ACEsuit/mace/issues/435", "clusterrun submit … --gpus-per-node N"),
    row("no-gpu", "busy or unavailable", r"(?:all )?CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable", "the rank's GPU is in use by another process or not available: {0}",
        "in exclusive-process mode, a GPU accepts only one process: start at most one rank per GPU, and call torch.cuda.set_device(LOCAL_RANK) before anything else uses CUDA;"
        " if nvidia-smi on the node shows a process of another job on the GPU, exclude the node",
        "https://github.com/huggingface/pytorch-image-models/issues/1033", "srun --gpus 1 nvidia-smi -q -d COMPUTE,PIDS"),
    row("no-gpu", "no cuda gpus are available|no cuda-capable device|found no nvidia driver|nvml: driver not loaded|no gpus found|cuda unknown error|cuda driver initialization failed",
        r"No CUDA GPUs are available|(?<!CUDA_ERROR_NO_DEVICE: )no CUDA-capable device is detected|Found no NVIDIA driver"
        r"|NVML: Driver Not Loaded|only supported with GPUs, no GPUs found|(?:RuntimeError|CUDA initialization): (?:CUDA unknown error|CUDA driver initialization failed)",
        "the rank found no usable GPU: {0}",
        "if the job already requests GPUs, check that nvidia-smi works on the node and that your script does not set CUDA_VISIBLE_DEVICES; otherwise, request GPUs",
        "https://github.com/NVIDIA/nccl/issues/1948", "clusterrun submit … --gpus-per-node N"),
    # its message has two or three lines
    row("no-gpu", "you requested gpu", r"(?:MisconfigurationException: |^ +)(?P<what>You requested (?:gpu|GPU)s?: .{1,160})", "the script requests GPUs that its rank cannot see: {what}[ {rest}]",
        "set the script's number of devices to the number of GPUs that each task can see; if --gpus-per-task or --gpu-bind hides"
        " the node's other GPUs from a task, request GPUs per node instead",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/16828", "clusterrun submit … --gpus-per-node N",
        after=r"(?P<rest>But your machine only has: .{1,160})"),
    row("no-gpu", "torch.cuda.is_available() is false|cuda unavailable|no supported gpu backend|can not run on your system since",
        r"Error: (?P<what>.{0,80}torch\.cuda\.is_available\(\) is False|CUDA unavailable.{0,60})|Exception: (?P<what_too>No supported gpu backend found|.{0,60}can not run on your system since the accelerator is not available)",
        "the rank found no usable GPUs, or fewer than it needs: {what}", "if the job already requests enough GPUs, check that torch was built with CUDA and that your script does not set CUDA_VISIBLE_DEVICES; otherwise, request more GPUs",
        "https://github.com/pytorch/pytorch/blob/main/torch/serialization.py", "clusterrun submit … --gpus-per-node N"),
    row("no-gpu", "system not yet initialized", r"(?:802|[Cc]uda|CUDA|Error).{0,160}system not yet initialized", "the node's GPUs are not ready: system not yet initialized (error 802)",
        "tell your administrators that NVIDIA Fabric Manager on the node is probably stopped or differs in version from the driver, and exclude the node",
        "https://github.com/pytorch/pytorch/issues/35710", "clusterrun submit … --exclude[ {node}]"),
    row("no-gpu", "unexpected error from cudagetdevicecount", r"Unexpected error from cudaGetDeviceCount\(\)(?!.*forward compat).*?(?P<what>Error \d+: .*)?$",
        "the rank found no usable GPU[: {what}]", "run nvidia-smi on the node; if nvidia-smi fails, tell your administrators and exclude the node",
        "https://github.com/huggingface/huggingface_hub/issues/4134", "srun --gpus 1 nvidia-smi"),
    row("no-gpu", "nvidia-smi has failed|failed to initialize nvml", r"NVIDIA-SMI has failed because [\w' ]+|Failed to initialize NVML: .{1,60}",
        "the node's GPU driver cannot be used: {0}", "if the job requested no GPUs, request them with --gpus-per-node; otherwise, tell your administrators and exclude the node",
        "https://github.com/3dem/model-angelo/issues/60", "srun --gpus 1 nvidia-smi", Strength.HINT, common=True),
    row("library-mismatch", "has no attribute '_cuda_|have nccl built in|not compiled with cuda enabled",
        r"module 'torch\._C' has no attribute '_cuda_\w+'|package doesn't have NCCL built in|Torch not compiled with CUDA enabled",
        "the installed torch was built without CUDA or NCCL support: {0}",
        "for NVIDIA or AMD GPUs, install the CUDA or ROCm build of torch (see pytorch.org/get-started); for any other device, change the code to use that device's module and backend instead of torch.cuda and nccl",
        "https://github.com/hpzhao/SummaRuNNer/issues/32", "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"),
    row("library-mismatch", "no kernel image is available|hiperrornobinaryforgpu", r"no kernel image is available for execution on the device|hipErrorNoBinaryForGpu: Unable to find code object for all current devices", "torch or one of its extensions was not built for this GPU model: {0}", _MODEL,
        "https://github.com/pytorch/pytorch/issues/44828", _MODEL_COMMAND),
    row("library-mismatch", "is not defined for option 'gpu-name'", r"ptxas fatal +: Value '(?P<arch>sm_\w+)' is not defined for option 'gpu-name'",
        "the installed Triton or CUDA compiler (ptxas) does not support this GPU's architecture ({arch})", "install a newer triton, or set TRITON_PTXAS_PATH to the ptxas of a newer CUDA toolkit",
        "https://github.com/mlcommons/training/pull/826", "clusterrun submit … --env TRITON_PTXAS_PATH=PATH"),
    row("library-mismatch", "cudnn version incompatibility", r"cuDNN version incompatibility: PyTorch was compiled\s+against (?P<built>\([\d, ]+\))\s+but found runtime version (?P<found>\([\d, ]+\))",
        "torch was compiled for cuDNN {built}, but the job loaded version {found}",
        "torch comes with its own cuDNN: if pip replaced torch's nvidia-cudnn package, reinstall torch;"
        " otherwise, do not load a cudnn module, and remove folders that contain another cuDNN from LD_LIBRARY_PATH",
        "https://github.com/pytorch/pytorch/blob/main/torch/backends/cudnn/__init__.py", "srun bash -c 'echo $LD_LIBRARY_PATH'"),
    row("library-mismatch", "undefined symbol: |does not exist|incompatible|compiled with different cuda",
        r"(?:^|[ '])(?P<what>/\S+\.so[\w.]*: undefined symbol: (?:_Z\w*?(?:3c10|2at|5torch|6caffe2)|THP)\w*)|Error: (?P<what_too>operator torch(?:vision|audio|text)::\w+ does not exist"
        r"|Couldn't load custom C\+\+ ops\. This can happen if your PyTorch and torchvision versions are incompatible|Detected that PyTorch and torch(?:vision|audio) were compiled with different CUDA.{0,40})",
        "an extension does not match the installed torch: {what}",
        "build the extension in the job's Python environment (pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir PACKAGE),"
        " or install a version of the extension that was built for the job's versions of torch and CUDA",
        "https://github.com/mst272/LLM-Dojo/issues/35", "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"),
    row("library-mismatch", "driver on your system is too old|driver version is insufficient|forward compatibility was attempted|unsupported cuda version: ",
        r"NVIDIA driver on your system is too old(?: \(found version (?P<version>\d+)\))?|CUDA driver version is insufficient for CUDA runtime version"
        r"|forward compatibility was attempted on non supported HW|unsupported CUDA version: driver \S+ < image \S+",
        "torch and the node's GPU driver are incompatible: {0}", "if the error mentions forward compatibility, remove the cuda-compat libraries from LD_LIBRARY_PATH; otherwise, " + _DRIVER, "https://github.com/ai4d-iasc/trixie/issues/9",
        "srun --gpus 1 nvidia-smi"),
    row("library-mismatch", "not found (required by",
        r"(?P<what>\S+: version `(?:GLIBCXX|CXXABI)_\S+' not found(?: \(required by \S+\))?)", "the loaded C++ standard library is too old for an extension: {what}",
        "install libstdcxx-ng from conda-forge and add $CONDA_PREFIX/lib to LD_LIBRARY_PATH; or, if the node has a module with a newer gcc, load that module",
        "https://github.com/alinlab/CSI/issues/44", "clusterrun submit … --setup 'module load gcc'"),
    row("library-mismatch", "not found (required by",
        r"(?P<what>\S+: version `GLIBC_\S+' not found \(required by \S+\))", "the node's C library is too old for a package: {what}",
        "install an older version of the package, or build it on this system; or, if neither works, run the job in a container with a newer C library (glibc)",
        "https://github.com/pyg-team/pyg-lib/issues/266", "srun ldd --version"),
    row("library-mismatch", "undefined symbol: ", r"(?:ImportError|OSError|error while loading shared libraries): (?P<what>.*undefined symbol: \S+)|^(?:\S+: |\[rank\d+\] )?(?P<what_too>/\S+: undefined symbol: \S+)",
        "a library is incompatible with another loaded library: {what}",
        "usually a folder in LD_LIBRARY_PATH contains another version of a library that pip or conda installed: submit again with --setup 'unset LD_LIBRARY_PATH'; if the error remains, reinstall the package that contains the library, with its dependencies",
        "https://github.com/pytorch/pytorch/issues/111469", "srun bash -c 'echo $LD_LIBRARY_PATH'"),
    row("library-mismatch", "undefined symbol|cannot open shared object file|not found (required by|could not load library|libcuda.so",
        r"(?:ImportError|OSError|error while loading shared libraries): (?P<what>.*(?:undefined symbol: \S+|cannot open shared object file"
        r"|version `\S+' not found \(required by \S+\)))|^(?:\S+: |\[rank\d+\] )?(?P<what_too>/\S+: (?:version `\S+' not found \(required by \S+\)|undefined symbol: \S+)|Could not load library \S+\. Error: .{1,200}|lib[\w.+-]+: cannot open shared object file: No such file or directory$)|(?P<what_old>libcuda\.so (?:cannot|not) found!?)",
        "a library is missing or incompatible on the node: {what}", "for libcuda.so, which comes with the GPU driver, use a node with GPUs; for any other library, install the library into the job's environment, or load the module that provides it", "https://github.com/pytorch/pytorch/issues/119932",
        "clusterrun submit … --setup 'module load NAME'"),
    BUILD,
    row("library-mismatch", "can't find nvml", r"Can't find (?P<what>nvml\w+: \S*libnvidia-ml\.so\S* undefined symbol)", "the node's GPU driver is too old for torch: {what}",
        _DRIVER, "https://github.com/pytorch/pytorch/blob/main/c10/cuda/driver_api.cpp", "srun --gpus 1 nvidia-smi"),
    # the program often continues without the extension
    row("library-mismatch", "fatal error: |cannot find -l|ninja: build stopped|unsupported gnu version|nvrtc: error",
        r"(?P<what>fatal error: \S+\.(?:h|hpp|cuh): No such file or directory|unsupported GNU version!.*|ld: cannot find -l\S+|ninja: build stopped: .*|nvrtc: error: .*)",
        "code could not be compiled on the node: {what}", "if a header or library is missing, install the package that contains it (for Python.h, Python's development package); otherwise, load a CUDA toolkit for torch's CUDA version and a compiler that the toolkit supports",
        "https://github.com/NVlabs/denoising-diffusion-gan/issues/25", "clusterrun submit … --setup 'module load cuda gcc'", Strength.HINT),
    row("duplicate-gpu", "duplicate gpu detected", r"Duplicate GPU detected : rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>[0-9a-f]{1,8})",
        "ranks {first} and {second} use the same GPU (bus id {device})",
        "call torch.cuda.set_device(LOCAL_RANK) in each rank before init_process_group; if a node has more ranks than GPUs, request more GPUs",
        "https://github.com/NVIDIA/Megatron-LM/issues/661", "clusterrun submit … --gpus-per-node N"),
    # without the module's name before it, the tuner only skipped that choice
    row("exception", "triton.compiler.errors.compilationerror: ", r"triton\.compiler\.errors\.CompilationError: ", "a Triton kernel could not be compiled[: {error}: {why}]",
        "the log lines after this error show the kernel's code and then the reason; if the kernel is part of a library, check that the library supports the installed version of triton (python -m pip show triton)",
        "https://github.com/triton-lang/triton/blob/main/python/triton/compiler/errors.py", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50",
        after=r"^(?:[EW]\d{4} [^]]*\] (?:\[\d+/\d+\])?)?\s*(?P<error>\w+(?:Error|Exception))\((?:\d+, )?['\"](?P<why>.*)['\"],?\)$"),
    row("cuda-error", "in file ", r"^Error (?P<what>.{1,80}) at line (?P<line>\d+) in file \S*/(?P<file>[\w.-]+\.(?:cu|cuh|c|cc|cpp|h))$", "a CUDA call in a library failed: {what} ({file}:{line})",
        "if the library is bitsandbytes, check that it supports the job's CUDA version and GPU, and that the optimizer states are on the same device as the parameters; otherwise, look for the failed step in the log lines before this error",
        "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/csrc/ops.cuh", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("exception", "outofresources: ", r"^triton[\w.]*\.OutOfResources: (?P<what>.{1,160})", "a Triton kernel needs more resources than the GPU has: {what}",
        "use smaller blocks or fewer stages for the kernel, or a GPU with more shared memory",
        "https://github.com/triton-lang/triton/issues/2596", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("cuda-error", "cuda error: initialization error", r"CUDA error: (?P<what>initialization error)", "CUDA does not work in this process: {what}",
        "usually this process was forked after its parent had used CUDA: move the CUDA calls out of the DataLoader's workers, or pass multiprocessing_context='spawn' to the DataLoader; if no process was forked, check the node with nvidia-smi",
        "https://pytorch.org/docs/stable/notes/multiprocessing.html", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("cuda-error", "the launch timed out", r"CUDA error: (?P<what>the launch timed out and was terminated)", "a kernel reached the GPU's run time limit: {what}",
        "the driver limits the run time of kernels on a GPU that drives a display: use a GPU without a display (Disp.A is Off in nvidia-smi); if the kernel was an NCCL collective, also look for a rank that was late",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html", "srun nvidia-smi"),
    row("cuda-error", "cuda error: unknown error", r"CUDA error: (?P<what>unknown error)", "the GPU or its driver failed: {what}",
        "look in the log for an earlier error on the GPU; if nvidia-smi fails on the node, tell your administrators and exclude the node",
        "https://github.com/pytorch/pytorch/issues/49081", "clusterrun submit … --exclude NODE"),
    row("cuda-error", "cudnn_status|cublas_status|cusparse_status|cusolver_status|curand_status|cuda error: |hip error: |cuda driver error: |cudnn error: |cudnn frontend error: ",
        r"(?P<lib>CU(?:DNN|BLAS|SPARSE|SOLVER|RAND)_STATUS_(?!SUCCESS)\w+)|(?:CUDA(?: driver)?|HIP|cuDNN(?: Frontend)?) error: (?!no error|driver shutting down)(?P<what>[A-Za-z\[][^(;\n]{2,120})",
        "the GPU or one of its libraries failed[: {lib}][: {what}]",
        "common causes: too little free GPU memory (often reported as NOT_INITIALIZED), unsupported tensor shapes, or libraries built for another CUDA version;"
        " run with CUDA_LAUNCH_BLOCKING=1 to see the line of code that failed",
        "https://github.com/seanie12/Info-HCVAE/issues/7", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
)  # fmt: skip
