"""Rows and rules of the causes that no excerpt shows: one line each."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import pytest

from clusterrun.why.causes import Cause, EndFacts, Line, first_cause

KEY = "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'"


def judge(text: str) -> Cause:
    lines = [Line("train_1.err", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    return first_cause([lines], EndFacts(state="FAILED", exit_status=1))


@pytest.mark.parametrize(
    ("text", "kind", "sentence", "advice"),
    [
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "no-gpu", "in use by another process", "exclusive-process"),
        ("OSError: [Errno 116] Stale file handle: '/nas/a.arrow'", "file-system", "Stale file handle: /nas/a.arrow", "several nodes"),
        ("RuntimeError: operator torchvision::nms does not exist", "library-mismatch", "does not match the installed torch", "reinstall"),
        ("SignalException: Process 7 got signal: 15", "interrupted", "SIGTERM", "scancel"),
        ("SignalException: Process 7 got signal: 1", "interrupted", "SIGHUP", "terminal"),
        ("SignalException: Process 7 got signal: 10", "interrupted", "(10)", "kill -l"),
        ("Received Signals.SIGINT death signal, shutting down workers", "interrupted", "Ctrl-C", "SIGINT"),
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/triton'", "permission", "/root/.cache/triton", "HOME"),
        ("PermissionError: [Errno 13] Permission denied: '/data/a.cache.txt'", "permission", "/data/a.cache.txt", "owner"),
        ("srun: error: n1: task 3: Aborted", "crashed", "task 3 on n1", "SIGABRT"),
        ("store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:02:00)"
         "\nRuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: k (world_size=2, worker_count=4, timeout=0:02:00)",
         "ranks-missing", "joined the process group within 0:02:00 (4 instead of 2)", "delete that file"),
        ("n5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115(Operation now in progress)", "network", "10.0.0.4<56849>", "NCCL_SOCKET_IFNAME"),
        ("[trainer0|0]:ncclInternalError: Internal check failed.\n[trainer0|0]:Last error:\n[trainer0|0]:ncclSocketInit: no address of eth2", "nccl-error", "Internal check failed: ncclSocketInit: no address of eth2", "NCCL_DEBUG"),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=485, OpType=ALLREDUCE, TensorShape=[25]), but Rank 0 is running collective:"
         " CollectiveFingerPrint(SequenceNumber=485, OpType=BROADCAST, TensorShape=[1]).", "collective-mismatch", "rank 1 ALLREDUCE of shape [25], rank 0 BROADCAST of shape [1]", "only some ranks"),
        ("slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: No space left on device", "launch-failed", "could not create a user namespace", "max_user_namespaces"),
        ("KeyError: 'LOCAL_RANK'", "exception", "the environment variable LOCAL_RANK", "torchrun"),
        ("RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 12851034048 vs 12851033880", "disk-full", "could not be written", "free some space"),
        ("The client socket has failed to connect to n1.default.svc:23456 (errno: 113 - No route to host).", "network", "(to n1.default.svc:23456): No route", "firewall"),
        ("Couldn't connect to the Hub: 401 Client Error. (Request ID: Root=1-6a28)\n\nRepository Not Found for url: https://huggingface.co/api/models/a/b.", "access", "401 Client Error for url: https://huggingface.co/api/models/a/b", "HF_TOKEN"),
        ("[rank4]:   File \"/u/t.py\", line 3, in f\n[rank4]: torch._dynamo.exc.BackendCompilerFailed: backend='compile_fn' raised:\n[rank4]: AttributeError: 'int' object has no attribute 'meta'",
         "exception", "raised: AttributeError: 'int'", ""),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded\n\tWeightsUnpickler error: Unsupported global: GLOBAL __main__.TorchCoder was not an allowed global", "exception", "weights_only", "weights_only=False"),
        ("urllib.error.HTTPError: HTTP Error 403: Forbidden", "access", "403: Forbidden", "login node"),
        ("Expected to have finished reduction in the prior iteration before starting a new one.", "ddp-parameters", "expects a gradient", "find_unused_parameters"),
        ("FloatingPointError: Loss became infinite or NaN at iteration=137!", "nan-loss", "at iteration 137", "learning rate"),
        ("CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of 23.43 GiB of which 210.06 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 22.41 GiB is allocated by PyTorch", "cuda-memory", "the rank itself holds 22.41 GiB", "micro batch"),
        ("RuntimeError: CUDA error: the launch timed out and was terminated", "cuda-error", "run time limit", "display"),
        ("RuntimeError: CUDA error: unknown error", "cuda-error", "the GPU or its driver failed", "nvidia-smi"),
        ("CUDA kernel failed : no kernel image is available for execution on the device\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n    spawn()\nException: process 0 terminated with exit code 255", "library-mismatch", "not built for this GPU", "build"),
        ("[ERROR] ['python', '-u', 'a.py', '--local_rank=1'] exits with return code = -11", "crashed", "a rank was killed by signal 11", "native"),
        ("ValueError: Connection error, and we cannot find the requested files in the cached path. Please try again or make sure your Internet connection is on.", "offline", "not in the Hugging Face cache", "login node"),
        ("wandb: ERROR Error communicating with wandb process", "offline", "communicating", "offline"),
        ("n1:7:9 [1] NCCL WARN NET/IB : req 0/1 tag 4 peer 10.0.0.4<4> collective mismatch error, local size 8 remote size 16", "nccl-error", "local size 8", "a send and its receive differ in shape"),
    ],
)  # fmt: skip
def test_line_by_itself_has_its_cause_and_advice(text: str, kind: str, sentence: str, advice: str) -> None:
    cause = judge(text)
    assert (cause.kind, sentence in cause.sentence, advice in cause.advice) == (kind, True, True), cause


def test_requeued_job_that_was_cancelled_before_its_restart_says_both() -> None:
    text = "slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***"
    cause = first_cause([[Line("train_1.err", 1, None, text)]], EndFacts(state="CANCELLED"))
    assert (cause.kind, cause.sentence.partition(" at ")[0]) == ("requeued", "Slurm requeued the job")
    assert cause.sentence.endswith("; then the job was cancelled")


def test_cancelled_job_whose_ranks_were_interrupted_says_both() -> None:
    text = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2"
    cause = first_cause([[Line("train_1.err", 1, None, text)]], EndFacts(state="CANCELLED"))
    assert (cause.kind, cause.sentence.rpartition("; ")[2]) == ("interrupted", "then the job was cancelled")


def test_full_disk_under_a_checkpoint_says_that_it_was_being_saved() -> None:
    frames = '  File "/v/transformers/trainer.py", line 9, in _save_checkpoint\n    self.save()\n'
    text = f"Traceback (most recent call last):\n{frames}OSError: [Errno 28] No space left on device"
    assert judge(text).sentence.endswith("while a checkpoint or a model was being saved")
    assert "saved" not in judge(text.replace("_save_checkpoint", "train")).sentence


TIMED_OUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15074, OpType=_ALLGATHER_BASE, NumelIn=1024, NumelOut=8192, Timeout(ms)=1800000) ran for 1800333 milliseconds before timing out."


def test_abort_of_nccls_watchdog_is_its_timeout() -> None:
    cause = judge(f"[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] {TIMED_OUT}\n[INFO] 4984 exits with return code = -6")
    assert cause.kind == "collective-timeout"


def test_abort_after_a_lost_peer_names_the_peer_that_ended_first() -> None:
    lost = "n2:5:24 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n1.lab.edu<45074>"
    assert (
        "lost the connection to n1.lab.edu; then" in judge(f"{lost}\n[INFO] 4984 exits with return code = -6").sentence
    )
    own = f"{lost}\nsrun: error: n1: task 0: Aborted (core dumped)"
    assert "lost" not in judge(own).sentence, "the abort was that peer's end"


def test_exception_about_a_dead_worker_gives_way_to_the_kernels_kill() -> None:
    raised = 'Traceback (most recent call last):\n  File "/u/t.py", line 3, in f\nRuntimeError: Some background worker is dead'
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks have been OOM Killed."
    assert judge(f"{raised}\n{killed}").kind == "host-memory"
    assert judge(raised).kind == "exception"


def test_triton_kernel_that_does_not_compile_is_named_by_its_reason() -> None:
    frame = '  File "/u/v.py", line 83, in make_ir\n'
    code = (
        "triton.compiler.errors.CompilationError: at 41:17:\n    # comment\n    x = tl.softmax(y, axis=1)\n        ^\n"
    )
    assert judge(f"{frame}{code}TypeError(\"no argument 'axis'\")").sentence.endswith(
        "compiled: TypeError: no argument 'axis'"
    )


def test_completed_job_whose_script_was_not_found_says_so() -> None:
    text = "python: can't open file '/var/spool/slurmd/job19/a.py': [Errno 2] No such file or directory"
    cause = first_cause([[Line("train_1.err", 1, None, text)]], EndFacts(state="COMPLETED", exit_status=0))
    assert cause.kind == "file-missing" and cause.sentence.startswith("the job is COMPLETED, but file not found: /var/")


def test_error_that_two_processes_wrote_into_each_other_is_read_once() -> None:
    frame = 'Traceback (most recent call last):\n  File "/u/t.py", line 3, in f\n'
    assert judge(f"{frame}KeyErrorKeyError: : 'ab''ab'").sentence == "KeyError: 'ab'"


def test_plain_exception_without_a_traceback_header_has_its_place() -> None:
    assert (
        judge('  File "/u/build.py", line 60, in check\n    raise Exception(text)\nException: no').place
        == "/u/build.py:60"
    )


def test_crash_names_the_library_of_open_mpis_and_gdbs_backtraces() -> None:
    signal = "[n3:0123] Signal: Segmentation fault (11)\n"
    cause = judge(
        f"{signal}[n3:0123] [ 0] /lib64/libpthread.so.0(+0x12)[0x7f]\n[n3:0123] [ 1] /x/libnccl.so.2(ncclSend+0x1)[0x7f]"
    )
    assert "in libnccl.so.2 (ncclSend)" in cause.sentence and cause.node == "n3"
    assert "in libcuda.so.1 (cuInit)" in judge(f"{signal}#3  0x0000 in cuInit () from /usr/lib64/libcuda.so.1").sentence


def test_crash_without_a_backtrace_names_no_library() -> None:
    assert " in lib" not in judge("[n3:0123] Signal: Segmentation fault (11)\nloaded /x/libnccl.so.2").sentence


def test_rank_that_waits_for_a_key_is_not_the_one_that_did_not_write_it() -> None:
    error = "but store->get('0') got error: Socket Timeout"
    assert judge(f"[rank3]: RuntimeError: [3] {KEY}, {error}").rank == 0
    both = judge(f"[rank3]: RuntimeError: [1] {KEY}, {error}\n[rank0]: RuntimeError: [2] {KEY}, {error}")
    assert both.rank is None  # 0 is a number within a smaller group


NCCL = "n1:7:9 [1] net_ib.cc:12 NCCL WARN "


def test_line_of_nccl_ucx_or_pdsh_names_its_node() -> None:
    assert judge(f"{NCCL}Call to ibv_create_cq failed").node == "n1"
    assert judge(f"[2025-05-14 10:22:41] {NCCL}Call to ibv_create_cq failed").node == "n1"
    assert judge("[n3:5:0:6] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB").node == "n3"
    assert judge("pdsh@n1: n2: ssh exited with exit code 1\nn2: ModuleNotFoundError: No module named 'x'").node == "n2"


def test_word_before_a_colon_is_no_node_without_pdsh() -> None:
    assert judge("n2: ModuleNotFoundError: No module named 'x'").node == ""


def test_node_of_a_rank_is_that_of_torchruns_summary_unless_it_has_two() -> None:
    text = "[rank1]: ValueError: x\n  host      : {}\n  rank      : 1 (local_rank: 1)"
    assert judge(text.format("n5")).node == "n5"
    assert judge(f"{text.format('n5')}\n{text.format('n6')}").node == ""


def test_task_of_another_node_is_not_the_rank_of_a_cause_on_a_known_node() -> None:
    cause = judge(f"{NCCL}NET/IB : Got completion with error 12\nsrun: error: n4: task 3: Exited with exit code 1")
    assert (cause.node, cause.rank) == ("n1", None)


def test_task_whose_container_failed_has_srun_s_node() -> None:
    failed = "22: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error"
    lines = [
        Line("a.err", 1, 22, failed[4:]),
        Line("a.err", 2, None, "srun: error: n7: tasks 22-23: Exited with exit code 1"),
    ]
    cause = first_cause([lines], EndFacts(state="FAILED", exit_status=1))
    assert (cause.rank, cause.node) == (22, "n7")


@pytest.mark.parametrize(
    ("text", "sentence", "advice"),
    [
        (f"{NCCL}Call to ibv_reg_mr failed", "on the node", "ulimit -l"),
        (f"{NCCL}Call to ibv_create_qp failed with error Cannot allocate memory", "could not lock memory", "ulimit -l"),
        (f"{NCCL}Call to ibv_modify_qp failed with error Connection timed out", "InfiniBand or RoCE failed", "switch"),
        ("connect returned No route to host", "a network connection failed", "firewall"),
        ("ssh: connect to host n2 port 22: No route to host", "ssh could not log in to n2: port 22: No route", "srun"),
        ("a.py: error: unrecognized arguments: --local_rank=3", "its launcher adds", "LOCAL_RANK"),
        ("/lib/libm.so.6: version `GLIBC_2.32' not found (required by /a.so)", "the node's C library", "container"),
        ("ImportError: /a/libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1", "incompatible with another loaded library", "LD_LIBRARY_PATH"),
        ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory", "libGL.so.1", "module"),
        ("Error while creating shared memory segment /dev/shm/nccl-a (size 9)", "/dev/shm is full", "num_workers"),
        ("wandb.errors.CommError: permission denied", "wandb failed: permission denied", "API key"),
    ],
)  # fmt: skip
def test_sentence_and_advice_are_about_what_the_line_means(text: str, sentence: str, advice: str) -> None:
    cause = judge(text)
    assert (sentence in cause.sentence, advice in cause.advice) == (True, True), cause


@pytest.mark.parametrize(
    ("text", "not_kind"),
    [
        ("redis.exceptions.ConnectionError: Error 111 connecting to a:6379. Connection refused.", "peer-lost"),
        ("OSError: [Errno 23] Too many open files in system: '/a'", "too-many-files"),
        ("OSError: [Errno 107] Transport endpoint is not connected", "file-system"),
        ("FloatingPointError: overflow encountered in exp", "nan-loss"),
        ("requests.exceptions.RetryError: HTTPSConnectionPool(host='a.org', port=443): Max retries exceeded with url: /b (Caused by ResponseError('too many 503'))", "offline"),
    ],
)  # fmt: skip
def test_words_of_another_program_are_not_that_cause(text: str, not_kind: str) -> None:
    assert judge(text).kind != not_kind


def test_time_out_without_a_missing_rank_names_the_rank_and_node_that_reported_it() -> None:
    error = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    cause = judge(f"[rank1]: {error}\n  host      : n5\n  rank      : 1 (local_rank: 1)")
    assert "rank 1 on n5 reported the timeout first" in cause.sentence and cause.rank is None


def summary(first: int, ended: int) -> str:
    """torchrun's of four ranks, of which one was ended by SIGTERM and the others aborted."""
    entries = [
        f"[{n}]:\n  host      : n{first // 4}\n  rank      : {first + n} (local_rank: {n})\n"
        f"  exitcode  : {-15 if first + n == ended else -6} (pid: 1)"
        for n in range(4)
    ]
    return "Failures:\n" + "\n".join(entries[:3]) + "\nRoot Cause (first observed failure):\n" + entries[3]


def test_rank_that_did_not_abort_is_named_only_if_one_summary_lists_all_ranks() -> None:
    timed_out = (
        "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE,"
        " NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
    )
    named = "all ranks but rank 2 aborted, so rank 2 was probably missing"
    assert named in judge(timed_out + summary(0, 2)).sentence
    assert "do not show which rank" in judge(timed_out + summary(0, 2) + "\n" + summary(4, 9)).sentence


#: Logs of jobs of other tools, whose scripts went on after a step had failed (Slurm 26.05).
WENT_ON = {
    "an echo after srun": (
        "Traceback (most recent call last):\n  File \"/u/fails.py\", line 4, in <module>\n    raise ValueError('rows')\n"
        "ValueError: rows\nsrun: error: n2: task 1: Exited with exit code 1\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=13.0\n"
        "slurmstepd-n1: error: *** STEP 13.0 ON n1 CANCELLED AT 2026-11-27T23:48:36 ***\n"
        "srun: error: n1: task 0: Terminated\nsrun: Force Terminated StepId=13.0\nFAILED: done at Fri Nov 27\n",
        "the job is COMPLETED, but its program failed: ValueError: rows",
    ),
    "a signal that only the step got": (
        "srun: error: n1: task 0: User defined signal 1\nfinished\n",
        "the job is COMPLETED, but one of its steps failed: a process was killed by a signal that it did not handle:"
        " User defined signal 1",
    ),
    "a status that nobody looked at": (
        "srun: error: n1: tasks 0-3: Exited with exit code 2\nfinished\n",
        "the job is COMPLETED, but one of its steps failed: tasks 0-3 on n1: Exited with exit code 2",
    ),
}


@pytest.mark.parametrize("case", WENT_ON)
def test_a_completed_job_of_another_tool_whose_step_failed_is_not_fine(case: str) -> None:
    text, sentence = WENT_ON[case]
    log = [Line("a.log", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    cause = first_cause([log], EndFacts(state="COMPLETED", exit_status=0))
    assert cause.sentence == sentence and cause.advice


def test_a_run_that_started_its_ranks_again_and_completed_is_fine() -> None:
    text = WENT_ON["a status that nobody looked at"][0]
    log = [Line("a.log", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    assert first_cause([log], EndFacts(state="COMPLETED", exit_status=0, world_size=4)).kind == "none"
