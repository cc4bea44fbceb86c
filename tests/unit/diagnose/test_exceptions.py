"""Tests reading interleaved, prefixed, chained, truncated and quoted tracebacks."""

from __future__ import annotations

import io

from imgbuild.diagnose import lines, log
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.log import ParsedLog
from imgbuild.diagnose.prefixes import parse_line
from tests.support.rows import each_row

KEYWORD = "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'"
TRACE = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 9, in main
    trainer = SFTTrainer(
TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'
"""


def read(text: str) -> ParsedLog:
    return log.parse_log(lines.read_lines(io.BytesIO(text.encode()), "log"))


def first(text: str) -> str:
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0].code


@each_row(
    ("prefix", "source"),
    [
        ("", ""),
        ("\x1b[36m(main_task pid=1477553)\x1b[0m ", "main_task pid=1477553"),
        ("(WorkerDict pid=8, ip=10.0.0.4) ", "WorkerDict pid=8, ip=10.0.0.4"),
        ("(EngineCore_DP0 pid=7) ERROR 11-20 18:55:24 [core.py:708] ", "EngineCore_DP0 pid=7"),
        ("[rank3]: ", "rank3"),
        ("[default0]:[rank0]: ", "default0 rank0"),
        ("2026-11-20T18:55:24.123456789Z stderr F ", ""),
        ("2026-11-20 18:55:24,123 - ", ""),
        ("trainer-1  | ", "trainer-1"),
        ("#12 5.123 ", ""),
        ("3: ", "3"),
        ("ERROR 11-20 18:55:24 [v1/engine/core.py:1234] ", ""),
        ("[2026-11-20 18:55:24,123 E 12 12] (raylet) node_manager.cc:3069: ", ""),
        ("2026-11-20T15:00:09.1234567Z ##[error]", ""),
    ],
)
def test_log_prefixes_of_a_traceback_are_stripped(prefix: str, source: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in TRACE.splitlines())
    value = read(text)
    (exception,) = value.exceptions
    assert exception.type == "TypeError"
    assert exception.frames[0].file == "/workspace/train.py"
    assert exception.source == source
    assert first(text) == "IMG904"


def test_interleaved_output_of_ranks_has_separate_tracebacks() -> None:
    other = TRACE.replace("TypeError", "ValueError").replace("train.py", "other.py")
    text = "".join(
        f"[rank0]: {a}\n[rank1]: {b}\n"
        for a, b in zip(TRACE.splitlines(), other.splitlines(), strict=True)
    )
    zero, one = read(text).exceptions
    assert (zero.source, zero.type, zero.frames[0].file) == (
        "rank0",
        "TypeError",
        "/workspace/train.py",
    )
    assert (one.source, one.type, one.frames[0].file) == (
        "rank1",
        "ValueError",
        "/workspace/other.py",
    )


def test_cause_of_an_exception_precedes_the_wrapping_exception() -> None:
    text = (
        TRACE
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACE.replace(KEYWORD,
                        "RuntimeError: Engine core initialization failed. See root cause above.")
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )  # fmt: skip
    value = read(text)
    assert value.exceptions[1].cause == 0
    assert value.exceptions[1].is_wrapper
    assert first(text) == "IMG904"


def test_ray_task_error_is_not_reported_as_the_cause() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/workspace/main.py", line 3, in <module>\n'
        "    ray.get(task)\n"
        "ray.exceptions.RayTaskError(ZeroDivisionError): ray::main_task() (pid=9, ip=10.0.0.4)\n"
        '  File "/workspace/reward.py", line 7, in score\n'
        "    return good / total\n"
        "ZeroDivisionError: division by zero\n"
    )
    findings = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert "division by zero" in findings[0].cause
    assert "/workspace/reward.py:7" in findings[0].cause


def test_exception_is_reported_instead_of_the_handled_lookup_error() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/workspace/a.py", line 3, in load\n    return table[name]\n'
        "KeyError: 'acme'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/workspace/a.py", line 5, in load\n    raise ValueError(name)\n'
        "ValueError: no such model: acme\n"
    )
    assert "no such model: acme" in diagnose_log(io.BytesIO(text.encode()), "log").findings[0].cause


def test_a_traceback_without_its_start_or_end_is_read() -> None:
    assert read(TRACE.split("\n", 1)[1]).exceptions[0].type == "TypeError"
    cut = TRACE.rsplit("\n", 2)[0].replace("trainer = SFTTrainer(", "raise OSError('no disk')")
    exception = read(cut).exceptions[0]
    assert (exception.type, exception.message) == ("OSError", "'no disk'")


def test_traceback_in_a_pip_box_is_read() -> None:
    text = "".join(f"    │ {line}\n" for line in TRACE.splitlines())
    assert read(text).exceptions[0].type == "TypeError"


def test_exception_message_of_several_lines_is_complete() -> None:
    text = "ValidationError: 1 validation error for ModelConfig\n  Value error, no architectures\n"
    assert read(text).exceptions[0].message.endswith("Value error, no architectures")


def test_warning_in_a_log_is_not_an_exception() -> None:
    text = "x.py:3: FutureWarning: old\nDeprecationWarning: ValueError: no\n"
    assert diagnose_log(io.BytesIO(text.encode()), "log").findings == ()


def test_failure_without_a_rule_is_explained_by_its_first_exception() -> None:
    text = TRACE.rsplit("\n", 2)[0] + "\nacme.errors.QuotaError: no tokens are left\n"
    (finding,) = diagnose_log(io.BytesIO(text.encode()), "log").findings
    assert (finding.code, finding.confidence) == ("IMG922", "medium")
    assert "acme.errors.QuotaError: no tokens are left" in finding.cause
    assert [line.number for line in finding.lines] == [2, 4]


def test_escape_sequences_are_removed() -> None:
    line = parse_line(1, "\x1b[1;31m\x1b]0;title\x07ValueError\x00: x\x1b[0m")
    assert line.text == "ValueError: x"


@each_row(
    "end",
    [" ", "\\n"],  # joined by the page where it was posted, or the text of a record
)
def test_traceback_in_one_line_is_split_into_its_frames(end: str) -> None:
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "/workspace/{name}.py", line 9, in main\n    {name}.start()\n'
        for name in ("train", "trainer")
    )
    joined = end.join(f"{text}{KEYWORD}".splitlines())
    (exception,) = read(joined).exceptions
    assert [frame.file for frame in exception.frames] == [
        "/workspace/train.py",
        "/workspace/trainer.py",
    ]
    assert exception.text == KEYWORD


def test_assertion_without_a_message_states_its_condition() -> None:
    text = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 9, in main
    assert rank < size
AssertionError
"""
    finding = diagnose_log(io.BytesIO(text.encode()), "log").findings[0]
    assert "rank < size" in finding.cause
