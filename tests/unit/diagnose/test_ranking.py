"""Tests which failures in a log are causes, and which are consequences of them."""

from __future__ import annotations

import io

from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFindings
from tests.support.rows import each_row

START = "{'loss': 1.23, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 5
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/workspace/train.py", line 42, in <module>\n    main()\n'
    '  File "/workspace/train.py", line 30, in main\n    trainer.train()\n'
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"
REMOVED = "ImportError: cannot import name 'PPOTrainer' from 'trl' (/opt/trl/__init__.py)\n"
DIVERGED = "FloatingPointError: loss is nan at step 2\n"
NO_SHAPE = "AttributeError: 'NoneType' object has no attribute 'shape'\n"
PEER = (
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network"
    " error, NCCL version 2.21.5\n"
)
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:1\n"
NOT_NUMBERS = (
    "TensorCompare.cu:121: block: [0,0,0] Assertion `probability tensor contains either `inf`,"
    " `nan` or element < 0` failed.\n"
)
ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.\n"
TORCHRUN = (
    "W1120 18:12:40 100 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4243"
    " closing signal SIGTERM\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n"
)
STEP = (
    "srun: error: node7: task 1: Exited with exit code 1\n"
    "slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-20T18:12:41 ***\n"
)
LAST_LINES = "RuntimeError: Engine core initialization failed. See root cause above.\n"
SHARED_MEMORY = (
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient"
    " shared memory (shm).\n"
)
WORKER = "RuntimeError: DataLoader worker (pid(s) 13447) exited unexpectedly\n"
ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
RAY_KILL = "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)\n"
ENGINE = "(EngineCore_DP0 pid=200) ERROR 11-20 18:00:10 [core.py:708] "


def ranked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in (TRACE + text).splitlines())


def timeout(rank: int, work: int = 44) -> str:
    report = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work},"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds"
        " before timing out.\n"
    )
    return (
        f"[rank{rank}]:[E1120 18:12:33.1 ProcessGroupNCCL.cpp:632] {report}"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread"
        f" terminated with exception: {report}"
    )


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def diagnosed(text: str) -> LogFindings:
    return diagnose_log(io.BytesIO((START + text).encode()), "log")


# A log: the codes of its causes, and those of the consequences.
LOGS = {
    "out of memory in one rank": (
        ranked(0, OUT_OF_MEMORY) + timeout(1) + timeout(2) + OOM_KILL + TORCHRUN,
        "IMG520 IMG534 / IMG544 IMG570 IMG550",
    ),
    "crash of a rank before timeouts of the others": (
        ranked(2, NO_SHAPE) + timeout(0) + timeout(1) + timeout(3) + TORCHRUN,
        "IMG923 / IMG544 IMG570 IMG550",
    ),
    "others report the crash before it is printed": (
        ranked(0, PEER) + ranked(1, NO_SHAPE) + TORCHRUN,
        "IMG923 / IMG543 IMG550",
    ),
    "timeouts only": (
        timeout(0) + timeout(1) + timeout(2, 41) + TORCHRUN,
        "IMG908 / IMG570 IMG550",
    ),
    "a killed rank may be the cause of a timeout": (
        f"{timeout(0)}failed (exitcode: -9) local_rank: 2 (pid: 4242)\n{TORCHRUN}",
        "IMG908 IMG535 / IMG570 IMG550",
    ),
    "a rank that is killed before gloo closes": (
        ranked(0, GLOO) + "failed (exitcode: -9) local_rank: 1\n  exitcode  : -9 (SIGKILL)\n",
        "IMG535 / IMG543",
    ),
    "a folder that is neither a model nor an adapter": (
        TRACE
        + "HFValidationError: Repo id must be in the form 'repo_name': '/out/run1'\n"
        + f"{DURING}{TRACE}ValueError: Can't find 'adapter_config.json' at '/out/run1'\n",
        "IMG653 /",
    ),
    "logits that the sampling kernel refuses": (
        NOT_NUMBERS + TRACE + ASSERTED,
        "IMG1238 IMG907 /",
    ),
    "Ray actor that was killed for lack of memory": (RAY_KILL + TRACE + ACTOR, "IMG534 / IMG556"),
    "Ray actor without a cause": (TRACE + ACTOR, "IMG556 /"),
    "vLLM engine that cannot import a name": (
        prefixed(ENGINE, f"EngineCore failed to start.\n{TRACE}{REMOVED}")
        + prefixed("(APIServer pid=100) ", TRACE + LAST_LINES),
        "IMG902 / IMG760",
    ),
    "Slurm step with a failed task": (
        prefixed("1: ", TRACE + NO_SHAPE) + STEP,
        "IMG923 / IMG1439 IMG550",
    ),
    "Slurm step that was cancelled": (STEP.partition("\n")[2], "IMG1439 /"),
    "data loader with a small /dev/shm": (SHARED_MEMORY + TRACE + WORKER, "IMG530 / IMG767"),
    "two failures in two ranks": (
        ranked(0, REMOVED) + ranked(1, OUT_OF_MEMORY) + TORCHRUN,
        "IMG520 IMG902 / IMG550",
    ),
    "two runs": (
        TRACE + REMOVED + STEP + START + TRACE + OUT_OF_MEMORY,
        "IMG520 IMG902 / IMG1439 IMG550",
    ),
    "an exception raised from another one": (
        TRACE + OUT_OF_MEMORY + DIRECT + TRACE + REMOVED,
        "IMG520 / IMG902",
    ),
    "a symptom in the program's own exception": (
        ranked(0, DIVERGED) + ranked(1, DIVERGED) + TORCHRUN,
        "IMG731 / IMG550",
    ),
    "exit code only": (TORCHRUN, "IMG550 /"),
}


@each_row("name", LOGS)
def test_consequences_are_separate_from_causes(name: str) -> None:
    text, expected = LOGS[name]
    found = diagnosed(text)
    causes, consequences = (
        " ".join(each.code for each in group) for group in (found.findings, found.consequences)
    )
    assert f"{causes} / {consequences}".strip() == expected


def test_two_readings_of_one_line_are_one_finding() -> None:
    (finding,) = diagnosed(timeout(0).partition("terminate")[0]).findings
    assert finding.code == "IMG908"


def test_warnings_and_timings_of_a_healthy_start_are_no_cause() -> None:
    text = (
        "[W1130 10:14:56.562480867 socket.cpp:207] [c10d] The hostname of the client socket cannot"
        " be retrieved. err=-3\n"
        "[2026-11-30 10:15:31] Engine startup timings (s): load_weight=0.16,"
        " cuda_graph={prefill=98.59, decode=1.73, draft_decode=0.00}, tokenizer_e2e=118.26\n"
        "[2026-11-30 10:15:40,805] [INFO] [launch.py:335:sigkill_handler] Killing subprocess 106\n"
        "[2026-11-30 10:15:40,806] [ERROR] [launch.py:341:sigkill_handler] ['python', '-u',"
        " 'train.py', '--local_rank=0'] exits with return code = 1\n"
    )
    assert [each.code for each in diagnosed(text).findings] == ["IMG550"]


def test_missing_argument_of_a_class_that_no_table_has_names_no_package() -> None:
    text = "TypeError: OwnAttention.forward() missing 1 required positional argument: 'rows'"
    (finding,) = diagnosed(text).findings
    assert "of the installed version requires 'rows'" in finding.cause
