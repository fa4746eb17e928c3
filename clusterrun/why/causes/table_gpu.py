"""Causes on the GPU: memory, faults, the driver, its libraries (CUDA, cuDNN, NCCL builds), unsupported requests."""

# ruff: noqa: E501 (a table: a pattern or a sentence stays in one piece)

from __future__ import annotations

from clusterrun.why.causes.model import CauseRow, Strength, row

_SMALLER = (
    "use a smaller micro batch with more accumulation steps (same global batch), shorter sequences, or bf16;"
    " if the rank itself holds little of the GPU's memory, other processes hold the rest (nvidia-smi on the node lists them);"
    " PYTORCH_ALLOC_CONF=expandable_segments:True helps when a lot of memory is reserved but unused"
)
_SMALLER_COMMAND = "clusterrun submit … --env PYTORCH_ALLOC_CONF=expandable_segments:True"
_ELSEWHERE = "usually the GPU or its link is faulty: exclude this node and tell your administrators (run nvidia-smi -q and dmesg | grep Xid on the node to see the fault)"
_ELSEWHERE_AMD = "usually the GPU or its link is faulty: exclude this node and tell your administrators (run rocm-smi and dmesg | grep amdgpu on the node to see the fault)"
_EXCLUDE = "clusterrun submit … --exclude[ {node}]"
_DRIVER = "usually the job's torch needs a newer GPU driver than the node has: install a torch build for the node's driver, or load your site's environment module for CUDA forward compatibility, if there is one"
_MODEL = (
    "install a torch build that supports this GPU (or build the extension for this GPU), or request another GPU model; torch.cuda.get_arch_list()"
    " lists the architectures that torch supports, and torch.cuda.get_device_capability() returns the GPU's compute capability"
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
    "on the node, provide a compiler and a CUDA toolkit that matches torch (module load, CUDA_HOME), or build the extension once before the job;"
    " for the exact reason, look for the compiler's own error in the log",
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
    row("cuda-memory", "out of memory on cuda", r"out of memory on (?P<where>cuda.*?), micro batch (?P<micro>\d+): (?P<todo>.+)",
        "GPU memory ran out on {where}, with a micro batch of {micro}", "{todo}", "clusterrun/worker/training/memory.py",
        "clusterrun submit … --set auto_micro_batch=true"),
    row("cuda-memory", "outofmemoryerror|cuda error: out of memory|hip error: out of memory|cuda_error_out_of_memory|cudaerrormemoryallocation|resource_exhausted: |oom when allocating|cuda runtime error (2)",
        r"^(?:.*[ :])?(?:torch\.)?(?:cuda\.)?OutOfMemoryError: |(?:CUDA|HIP) error: out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: (?i:out of memory)|OOM when allocating .*device:GPU|cupy\.cuda\.memory\.OutOfMemoryError|cuda runtime error \(2\) : out of memory",
        "GPU memory ran out", _SMALLER, "https://github.com/pytorch/pytorch/issues/67978", _SMALLER_COMMAND),
    row("cuda-memory", "_status_alloc_failed", r"CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_ALLOC_FAILED", "a GPU library could not allocate memory: {0}",
        "usually the GPU's memory is full: " + _SMALLER + "; an earlier error on the GPU (such as an index out of range) can also cause this error: CUDA_LAUNCH_BLOCKING=1 shows the line of code that failed",
        "https://github.com/pytorch/pytorch/issues/67978", _SMALLER_COMMAND),
    row("cuda-memory", "'out of memory'|failed to cuda", r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc)\w* (?P<bytes>\d+) bytes",
        "GPU memory ran out when NCCL tried to allocate memory[ ({bytes} bytes)]",
        _SMALLER + "; NCCL allocates its buffers outside torch's caching allocator", "https://github.com/NVIDIA/nccl/issues/1235", _SMALLER_COMMAND),
    row("cuda-memory", "fail to allocate memory", r"PxgCudaDeviceMemoryAllocator fail to allocate memory (?P<bytes>\d+) bytes", "GPU memory ran out when PhysX tried to allocate {bytes} bytes",
        "use fewer environments per GPU, or smaller GPU buffers in the simulator", "https://github.com/isaac-sim/IsaacGymEnvs/issues/256", "clusterrun logs JOB -n 50"),
    row("gpu-fault", "xid", r"NVRM: Xid \((?P<bus>[^)]*)\): (?P<xid>\d+), (?P<what>.*)",
        "the GPU at {bus} reported Xid {xid}: {what}",
        "look up the number in NVIDIA's Xid table; 48, 63, 64, 74, 79, 92, 94, 95 and 119 are usually hardware faults: exclude this"
        " node and tell your administrators; 13, 31 and 43 are usually bugs in the program",
        "https://docs.nvidia.com/deploy/xid-errors/", _EXCLUDE),
    row("gpu-fault", "hw exception by gpu", r"HW Exception by (?P<what>GPU node-\d+).*?reason ?: ?(?P<why>[\w ]+)", "an AMD GPU failed ({what}): {why}",
        _ELSEWHERE_AMD, "https://github.com/ROCm/ROCm/issues/4021", "clusterrun submit … --exclude NODE"),
    row("gpu-fault", "fallen off the bus", r"fallen off the bus", "a GPU has fallen off the bus (Xid 79)", _ELSEWHERE,
        "https://github.com/NVIDIA/NVSentinel/issues/155", _EXCLUDE),
    row("gpu-fault", "ecc error", r"(?i)uncorrectable (?:NVLink |ECC )?(?:ECC )?error(?!s?\s*:\s*(?:0|N))",
        "a GPU reported an uncorrectable ECC error", _ELSEWHERE,
        "https://github.com/jade-hpc-gpu/jade-hpc-gpu.github.io/issues/194", _EXCLUDE),
    row("gpu-fault", "gpu is lost|unable to determine the device handle|hardware stack error|nvlink error",
        r"GPU is lost|Unable to determine the device handle for \w+|CUDA error: (?:hardware stack error|.*NVLink error).*",
        "a GPU failed: {0}", _ELSEWHERE, "https://github.com/rwth-i6/returnn/issues/1486", _EXCLUDE),
    row("cuda-assert", "device-side assert", r"device-side assert triggered",
        "an assertion failed on the GPU (device-side assert)",
        "usually a label or token id is outside the model's range: check the number of classes and the vocabulary; run with"
        " CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line of code that failed",
        "https://github.com/layumi/Person_reID_baseline_pytorch/issues/372",
        "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-assert", "assertion `", r"\.cu:\d+: .*block: \[.*Assertion `(?P<what>[^`']*)['`] failed",
        "an assertion failed on the GPU: {what}",
        "usually a label or token id is outside the model's range: check the number of classes and the vocabulary; if the assertion is about probabilities or inputs, they usually contain NaN",
        "https://github.com/milesial/Pytorch-UNet/issues/375", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-error", "illegal memory access|unspecified launch failure|misaligned address|error: an illegal|invalid program counter|memory access fault by gpu",
        r"(?:CUDA|HIP) error: (?P<what>an illegal memory access[\w ]*|unspecified launch failure|misaligned address|an illegal instruction[\w ]*"
        r"|invalid program counter)|cudaErrorIllegalAddress|(?P<what_too>Memory access fault by GPU node-\d+)",
        "a kernel failed on the GPU[: {what}]",
        "run with CUDA_LAUNCH_BLOCKING=1 to see the line of code that failed; if the error happens on one node only, that node's GPU may be faulty",
        "https://github.com/pytorch/pytorch/issues/21819", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
    row("cuda-error", "error: invalid device function", r"(?:CUDA|HIP) error: invalid device function", "the GPU could not run a kernel: {0}; usually torch or a library was not built for this GPU model",
        _MODEL, "https://github.com/ROCm/legacy-rocm-build/issues/4208", _MODEL_COMMAND),
    row("no-gpu", "invalid device ordinal", r"invalid device ordinal", "the rank selected a GPU that it cannot see: {0}",
        "do not set CUDA_VISIBLE_DEVICES by hand; start at most one rank per GPU on each node, and request GPUs per node, not per task; alternatively, let each rank use only the GPUs that it can see (torch.cuda.device_count())",
        "https://github.com/ACEsuit/mace/issues/435", "clusterrun submit … --gpus-per-node N"),
    row("no-gpu", "busy or unavailable", r"(?:all )?CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable", "the rank's GPU is in use by another process or not available: {0}",
        "a GPU in exclusive-process mode accepts only one process: call torch.cuda.set_device(LOCAL_RANK) before anything else uses CUDA, and do not start more ranks than there are GPUs;"
        " nvidia-smi on the node shows the compute mode and the processes of other jobs; if another job holds the GPU, exclude the node",
        "https://github.com/huggingface/pytorch-image-models/issues/1033", "srun --gpus 1 nvidia-smi -q -d COMPUTE,PIDS"),
    row("no-gpu", "no cuda gpus are available|no cuda-capable device|found no nvidia driver|nvml: driver not loaded|no gpus found|cuda unknown error|cuda driver initialization failed",
        r"No CUDA GPUs are available|(?<!CUDA_ERROR_NO_DEVICE: )no CUDA-capable device is detected|Found no NVIDIA driver"
        r"|NVML: Driver Not Loaded|only supported with GPUs, no GPUs found|(?:RuntimeError|CUDA initialization): (?:CUDA unknown error|CUDA driver initialization failed)",
        "the rank found no usable GPU: {0}",
        "check that the job requested GPUs (--gpus-per-node) and that CUDA_VISIBLE_DEVICES is not set by hand, and run nvidia-smi on the node",
        "https://github.com/NVIDIA/nccl/issues/1948", "clusterrun submit … --gpus-per-node N"),
    # its message has two or three lines
    row("no-gpu", "you requested gpu", r"(?:MisconfigurationException: |^ +)(?P<what>You requested (?:gpu|GPU)s?: .{1,160})", "the script requests GPUs that its rank cannot see: {what}",
        "set the script's number of devices to the number of GPUs that each task can see, and request GPUs per node (--gpus-per-node):"
        " --gpus-per-task and --gpu-bind hide the node's other GPUs from a task",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/16828", "clusterrun submit … --gpus-per-node N"),
    row("no-gpu", "torch.cuda.is_available() is false|cuda unavailable|no supported gpu backend|can not run on your system since",
        r"Error: (?P<what>.{0,80}torch\.cuda\.is_available\(\) is False|CUDA unavailable.{0,60})|Exception: (?P<what_too>No supported gpu backend found|.{0,60}can not run on your system since the accelerator is not available)",
        "the rank found no usable GPUs, or fewer than it needs: {what}", "check that the job requested GPUs (--gpus-per-node), that CUDA_VISIBLE_DEVICES is not set by hand, and that torch is built with CUDA",
        "https://github.com/pytorch/pytorch/blob/main/torch/serialization.py", "clusterrun submit … --gpus-per-node N"),
    row("no-gpu", "system not yet initialized", r"(?:802|[Cc]uda|CUDA|Error).{0,160}system not yet initialized", "the node's GPUs are not ready: system not yet initialized (error 802)",
        "usually the node's fabric manager, which sets up the links between GPUs (NVSwitch), is not running, or its version does not match the driver: exclude the node and tell your administrators",
        "https://github.com/pytorch/pytorch/issues/35710", "clusterrun submit … --exclude[ {node}]"),
    row("no-gpu", "unexpected error from cudagetdevicecount", r"Unexpected error from cudaGetDeviceCount\(\)(?!.*forward compat).*?(?P<what>Error \d+: .*)?$",
        "the rank found no usable GPU[: {what}]", "run nvidia-smi on the node; if it fails on this node only, exclude the node and tell your administrators",
        "https://github.com/huggingface/huggingface_hub/issues/4134", "srun --gpus 1 nvidia-smi"),
    # TensorFlow prints this and continues without a GPU
    row("no-gpu", "failed call to cuinit", r"failed call to cuInit: (?P<what>CUDA_ERROR_\w+)", "the rank found no usable GPU: {what}",
        "check that the job requested GPUs (--gpus-per-node), and run nvidia-smi on the node",
        "https://github.com/google/deepvariant/issues/761", "clusterrun submit … --gpus-per-node N", Strength.HINT, common=True),
    row("no-gpu", "nvidia-smi has failed|failed to initialize nvml", r"NVIDIA-SMI has failed because [\w' ]+|Failed to initialize NVML: .{1,60}",
        "the node's GPU driver cannot be used: {0}", "request GPUs (--gpus-per-node) if the job has none; otherwise exclude this node and tell your administrators",
        "https://github.com/3dem/model-angelo/issues/60", "srun --gpus 1 nvidia-smi", Strength.HINT, common=True),
    row("library-mismatch", "has no attribute '_cuda_|have nccl built in|not compiled with cuda enabled",
        r"module 'torch\._C' has no attribute '_cuda_\w+'|package doesn't have NCCL built in|Torch not compiled with CUDA enabled",
        "the installed torch was built without CUDA or NCCL support: {0}",
        "on NVIDIA GPUs, install a CUDA build of torch into the job's Python environment (see pytorch.org/get-started); on other devices (Intel XPU, NPU, CPU), the code must use the device's own module and backend, not torch.cuda and nccl",
        "https://github.com/hpzhao/SummaRuNNer/issues/32", "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"),
    row("library-mismatch", "no kernel image is available|hiperrornobinaryforgpu", r"no kernel image is available for execution on the device|hipErrorNoBinaryForGpu: Unable to find code object for all current devices", "torch or one of its extensions was not built for this GPU model: {0}", _MODEL,
        "https://github.com/pytorch/pytorch/issues/44828", _MODEL_COMMAND),
    row("library-mismatch", "is not defined for option 'gpu-name'", r"ptxas fatal +: Value '(?P<arch>sm_\w+)' is not defined for option 'gpu-name'",
        "the installed Triton or CUDA compiler (ptxas) does not support this GPU's architecture ({arch})", "install a newer triton, or set TRITON_PTXAS_PATH to the ptxas of a newer CUDA toolkit",
        "https://github.com/mlcommons/training/pull/826", _MODEL_COMMAND),
    row("library-mismatch", "cudnn version incompatibility", r"cuDNN version incompatibility: PyTorch was compiled\s+against (?P<built>\([\d, ]+\))\s+but found runtime version (?P<found>\([\d, ]+\))",
        "torch was compiled for cuDNN {built}, but the job loaded version {found}",
        "torch comes with its own cuDNN: do not load a cudnn module, and remove folders that contain another cuDNN from LD_LIBRARY_PATH (to test this, add --setup 'unset LD_LIBRARY_PATH');"
        " if pip replaced torch's nvidia-cudnn package, reinstall torch",
        "https://github.com/pytorch/pytorch/blob/main/torch/backends/cudnn/__init__.py", "srun bash -c 'echo $LD_LIBRARY_PATH'"),
    row("library-mismatch", "undefined symbol: |does not exist|incompatible|compiled with different cuda",
        r"(?:^|[ '])(?P<what>/\S+\.so[\w.]*: undefined symbol: (?:_Z\w*?(?:3c10|2at|5torch|6caffe2)|THP)\w*)|Error: (?P<what_too>operator torch(?:vision|audio|text)::\w+ does not exist"
        r"|Couldn't load custom C\+\+ ops\. This can happen if your PyTorch and torchvision versions are incompatible|Detected that PyTorch and torch(?:vision|audio) were compiled with different CUDA.{0,40})",
        "an extension does not match the installed torch: {what}",
        "rebuild or reinstall the extension for the installed torch, in the same Python environment: pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir PACKAGE,"
        " or install a wheel that was built for this torch and CUDA",
        "https://github.com/mst272/LLM-Dojo/issues/35", "python -c 'import torch; print(torch.__version__, torch.version.cuda)'"),
    row("library-mismatch", "driver on your system is too old|driver version is insufficient|forward compatibility was attempted|unsupported cuda version: ",
        r"NVIDIA driver on your system is too old(?: \(found version (?P<version>\d+)\))?|CUDA driver version is insufficient for CUDA runtime version"
        r"|forward compatibility was attempted on non supported HW|unsupported CUDA version: driver \S+ < image \S+",
        "torch and the node's GPU driver are incompatible: {0}", _DRIVER + "; a node or container without the driver can also cause this error", "https://github.com/ai4d-iasc/trixie/issues/9",
        "srun --gpus 1 nvidia-smi"),
    row("library-mismatch", "not found (required by",
        r"(?P<what>\S+: version `(?:GLIBCXX|CXXABI)_\S+' not found(?: \(required by \S+\))?)", "the loaded C++ standard library is too old for an extension: {what}",
        "load a newer libstdc++ from a newer gcc module or from conda (conda install -c conda-forge libstdcxx-ng, then set LD_LIBRARY_PATH=$CONDA_PREFIX/lib); or build the extension on this system",
        "https://github.com/alinlab/CSI/issues/44", "clusterrun submit … --setup 'module load gcc'"),
    row("library-mismatch", "not found (required by",
        r"(?P<what>\S+: version `GLIBC_\S+' not found \(required by \S+\))", "the node's C library is too old for a package: {what}",
        "the node's C library cannot be replaced: install a build of the package for this system (an older wheel, or a build from source), or use a container",
        "https://github.com/pyg-team/pyg-lib/issues/266", "srun ldd --version"),
    row("library-mismatch", "undefined symbol: ", r"(?:ImportError|OSError|error while loading shared libraries): (?P<what>.*undefined symbol: \S+)|^(?:\S+: |\[rank\d+\] )?(?P<what_too>/\S+: undefined symbol: \S+)",
        "a library is incompatible with another loaded library: {what}",
        "LD_LIBRARY_PATH or a module often adds another version of a library that pip or conda installed: to test this, add --setup 'unset LD_LIBRARY_PATH'; if that does not help, reinstall the package that the error names, and its dependencies",
        "https://github.com/pytorch/pytorch/issues/111469", "srun bash -c 'echo $LD_LIBRARY_PATH'"),
    row("library-mismatch", "undefined symbol|cannot open shared object file|not found (required by|could not load library|libcuda.so",
        r"(?:ImportError|OSError|error while loading shared libraries): (?P<what>.*(?:undefined symbol: \S+|cannot open shared object file"
        r"|version `\S+' not found \(required by \S+\)))|^(?:\S+: |\[rank\d+\] )?(?P<what_too>/\S+: (?:version `\S+' not found \(required by \S+\)|undefined symbol: \S+)|Could not load library \S+\. Error: .{1,200}|lib[\w.+-]+: cannot open shared object file: No such file or directory$)|(?P<what_old>libcuda\.so (?:cannot|not) found!?)",
        "a library is missing or incompatible on the node: {what}", "load the module that provides the library, or install it into the job's Python environment or container; libcuda.so comes with the GPU driver and is missing on nodes without GPUs", "https://github.com/pytorch/pytorch/issues/119932",
        "clusterrun submit … --setup 'module load NAME'"),
    BUILD,
    row("library-mismatch", "can't find nvml", r"Can't find (?P<what>nvml\w+: \S*libnvidia-ml\.so\S* undefined symbol)", "the node's GPU driver is too old for torch: {what}",
        _DRIVER, "https://github.com/pytorch/pytorch/blob/main/c10/cuda/driver_api.cpp", "srun --gpus 1 nvidia-smi"),
    # the program often continues without the extension
    row("library-mismatch", "fatal error: |cannot find -l|ninja: build stopped|unsupported gnu version|nvrtc: error",
        r"(?P<what>fatal error: \S+\.(?:h|hpp|cuh): No such file or directory|unsupported GNU version!.*|ld: cannot find -l\S+|ninja: build stopped: .*|nvrtc: error: .*)",
        "code could not be compiled on the node: {what}", "load a compiler, a CUDA toolkit that matches torch, and Python's headers on the node (module load), or build the extension once before the job",
        "https://github.com/NVlabs/denoising-diffusion-gan/issues/25", "clusterrun submit … --setup 'module load cuda gcc'", Strength.HINT),
    row("duplicate-gpu", "duplicate gpu detected", r"Duplicate GPU detected : rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>[0-9a-f]{1,8})",
        "ranks {first} and {second} use the same GPU (bus id {device})",
        "each rank needs its own GPU: call torch.cuda.set_device(LOCAL_RANK) before init_process_group, and start as many ranks as there are GPUs",
        "https://github.com/NVIDIA/Megatron-LM/issues/661", "clusterrun submit … --gpus-per-node N"),
    # Ascend's codes; the next line of the log names a solution
    row("cuda-error", "reason: |reason=[|possible cause: |the error from device", r"(?:^|\w\()(?P<code>E[A-Z]\d{4})\)?: (?:\[PID: \d+\] )?(?:\d{4}-[\d:.-]+ +)?(?P<what>(?!Inner Error).{1,240})", "the NPU or its libraries report {code}: {what}",
        "below this error in the log, the text after 'Solution' says what to check; a timeout (EI0002, EI0006) usually follows from another rank's failure: look for a rank that failed first", "https://github.com/vllm-project/vllm-ascend/issues/486",
        "clusterrun logs JOB --errors", Strength.HINT),
    # without the module's name before it, the tuner only skipped that choice
    row("exception", "triton.compiler.errors.compilationerror: ", r"triton\.compiler\.errors\.CompilationError: ", "a Triton kernel could not be compiled[: {error}: {why}]",
        "the log lines after this error show the kernel's code and then the reason; if the kernel is part of a library, check that the library supports the installed version of triton (python -m pip show triton)",
        "https://github.com/triton-lang/triton/blob/main/python/triton/compiler/errors.py", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50",
        after=r"^(?:[EW]\d{4} [^]]*\] (?:\[\d+/\d+\])?)?\s*(?P<error>\w+(?:Error|Exception))\((?:\d+, )?['\"](?P<why>.*)['\"],?\)$"),
    row("cuda-error", "in file ", r"^Error (?P<what>.{1,80}) at line (?P<line>\d+) in file \S*/(?P<file>[\w.-]+\.(?:cu|cuh|c|cc|cpp|h))$", "a CUDA call in a library failed: {what} ({file}:{line})",
        "the library itself ended the process, so no traceback shows the call; with bitsandbytes, check that its version supports the installed CUDA version and the GPU, and that the optimizer states are on the same device as the parameters",
        "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/csrc/ops.cuh", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("exception", "outofresources: ", r"^triton[\w.]*\.OutOfResources: (?P<what>.{1,160})", "a Triton kernel needs more resources than the GPU has: {what}",
        "use smaller blocks or fewer stages for the kernel, or a GPU with more shared memory",
        "https://github.com/triton-lang/triton/issues/2596", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("cuda-error", "cuda error: initialization error", r"CUDA error: (?P<what>initialization error)", "CUDA does not work in this process: {what}",
        "usually this process was forked after its parent had used CUDA: do not use CUDA in the dataset or the DataLoader workers, or pass multiprocessing_context='spawn' to the DataLoader; if even the program's first CUDA call fails, check the node (nvidia-smi)",
        "https://pytorch.org/docs/stable/notes/multiprocessing.html", "clusterrun logs JOB[ --rank {rank}] --stream err -n 50"),
    row("cuda-error", "the launch timed out", r"CUDA error: (?P<what>the launch timed out and was terminated)", "a kernel reached the GPU's run time limit: {what}",
        "a GPU that drives a display stops long-running kernels: use another GPU, or run the X server on another GPU; an NCCL kernel that waits for another rank can also reach the limit",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html", "srun nvidia-smi"),
    row("cuda-error", "cuda error: unknown error", r"CUDA error: (?P<what>unknown error)", "the GPU or its driver failed: {what}",
        "usually the GPU or the driver of the node is in a bad state: if nvidia-smi fails on the node, exclude the node and tell your administrators; also look for an earlier error on the GPU",
        "https://github.com/pytorch/pytorch/issues/49081", "clusterrun submit … --exclude NODE"),
    row("cuda-error", "cudnn_status|cublas_status|cusparse_status|cusolver_status|curand_status|cuda error: |hip error: |cuda driver error: |cudnn error: |cudnn frontend error: ",
        r"(?P<lib>CU(?:DNN|BLAS|SPARSE|SOLVER|RAND)_STATUS_(?!SUCCESS)\w+)|(?:CUDA(?: driver)?|HIP|cuDNN(?: Frontend)?) error: (?!no error|driver shutting down)(?P<what>[A-Za-z\[][^(;\n]{2,120})",
        "the GPU or one of its libraries failed[: {lib}][: {what}]",
        "common causes: too little free GPU memory (often reported as NOT_INITIALIZED), unsupported tensor shapes, or libraries built for another CUDA version;"
        " run with CUDA_LAUNCH_BLOCKING=1 to see the line of code that failed",
        "https://github.com/seanie12/Info-HCVAE/issues/7", "clusterrun submit … --env CUDA_LAUNCH_BLOCKING=1"),
)  # fmt: skip
