"""Tests that logs of successful runs have no finding, regardless of their words."""

from __future__ import annotations

import io
from pathlib import Path

from imgbuild.diagnose import rules
from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row

HEALTHY = sorted((Path(__file__).parents[2] / "data/diagnose/healthy").glob("*.log"))


@each_row("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_has_no_finding(path: Path) -> None:
    with path.open("rb") as stream:
        assert diagnose_log(stream, path.name).findings == ()


@each_row("path", HEALTHY, ids=lambda path: path.stem)
def test_failure_at_the_end_of_a_log_is_found(path: Path) -> None:
    """This test ensures that healthy logs are read to their end."""
    failure = next(rule for rule in rules.load_rules() if rule.code == "IMG504").example
    text = path.read_bytes() + failure.encode()
    assert diagnose_log(io.BytesIO(text), path.name).findings[0].code == "IMG504"


def test_concatenated_healthy_logs_have_no_finding() -> None:
    text = b"".join(path.read_bytes() for path in HEALTHY for _ in range(20))
    assert diagnose_log(io.BytesIO(text), "log").findings == ()


OUT_OF_MEMORY = """Traceback (most recent call last):
  File "/workspace/train.py", line 21, in fit
    logits = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 GiB
"""


STEPS = "".join(f"step {n}\n" for n in range(6))
METRICS = "".join(f"metrics: {n} pushed\n" for n in range(300))
MAIN = """Traceback (most recent call last):
  File "/workspace/train.py", line 8, in <module>
    main()
ValueError: the batch is empty
"""
LAUNCHER = """E1130 22:00:01.3 100 torch/distributed/elastic/api.py:874] failed (exitcode: 1)
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
"""


@each_row(
    "text",
    [
        f"{STEPS}{MAIN}{STEPS}",
        f"{STEPS}{MAIN}W1130 22:00:01.3 100 torch/elastic/api.py:9] restarting\n{STEPS}",
        f"{STEPS}[rank0]: [Rank 0] last enqueued work: 4, last completed work: 4\n",
        f"{MAIN}retrying in 5 s\nTraining completed\n",
    ],
)
def test_program_that_is_started_again_has_no_finding(text: str) -> None:
    assert diagnose_log(io.BytesIO(text.encode()), "log").findings == ()


@each_row(
    ("text", "code"),
    [
        (f"{OUT_OF_MEMORY}trying a smaller batch\n", "IMG520"),
        (f"{OUT_OF_MEMORY}trying a smaller batch\nstep 1\n{OUT_OF_MEMORY}", "IMG520"),
        (f"{OUT_OF_MEMORY}Job 77 finished at Mon Nov 30 10:00:00 2026\n", "IMG520"),
        (f"ERROR:train:failed\n{OUT_OF_MEMORY}checkpoint saved\ncleaning up\n", "IMG520"),
        (f"step 1\n{OUT_OF_MEMORY}step 2\nstep 3\n", "IMG520"),
        (
            "".join(f"[rank0]: step {n}\n" for n in range(9))
            + "".join(f"[rank1]: {line}\n" for line in OUT_OF_MEMORY.splitlines())
            + "".join(f"[rank0]: step {n}\n" for n in range(9, 12)),
            "IMG520",
        ),
        ("step 1\nrun.sh: line 2:  7 Killed   python train.py\nstopping node 2\n", "IMG535"),
        (f"{METRICS}{STEPS}{MAIN}[data] skipping 3 empty rows\n", "IMG922"),
        (f"{STEPS}{MAIN}[monitor] restarting dashboard 1\n", "IMG922"),
        ("".join(f"metrics: {n} pushed\nstep {n}\n" for n in range(5)) + MAIN + METRICS, "IMG922"),
        (f"{METRICS}{STEPS}run.sh: line 2:  7 Killed   python train.py\n{METRICS}", "IMG535"),
        (f"{STEPS}{MAIN}{LAUNCHER}upload succeeded\n", "IMG922"),
        (f"{OUT_OF_MEMORY}falling back to a smaller batch\nexit code 1\n", "IMG520"),
    ],
)
def test_failure_that_the_program_does_not_survive_is_found(text: str, code: str) -> None:
    assert diagnose_log(io.BytesIO(text.encode()), "log").findings[0].code == code
