"""Tests that times, levels, hosts and JSON records around the lines of a log are removed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from imgbuild.diagnose import prefixes
from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row

TIME = "2026-11-20 18:55:24,123"
Format = Callable[[str, str], str]
NAMING: dict[str, Format] = {
    "logging": lambda level, text: f"{TIME} - my.trainer - {level} - {text}",
    "logging, no name": lambda level, text: f"{TIME} - {level} - {text}",
    "examples of transformers": lambda level, text: (
        f"11/20/2026 18:55:24 - {level} - __main__ - {text}"
    ),
    "loguru": lambda level, text: f"2026-11-20 18:55:24.123 | {level:<8} | a.b:fit:12 - {text}",
    "hydra": lambda level, text: f"[{TIME}][a.b][{level}] - {text}",
    "rich": lambda level, text: f"[18:55:24] {level:<8} {text}",
    "rich, same time": lambda level, text: f"           {level:<8} {text}",
    "ray driver": lambda level, text: f"{TIME} {level} trainer.py:12 -- {text}",
    "brackets": lambda level, text: f"[{TIME}] [{level}] [trainer] {text}",
    "absl": lambda level, text: f"{level[0]}1120 18:55:24.123456 1234567 a.py:12] {text}",
    "json": lambda level, text: json.dumps({"ts": 1, "level": level.lower(), "msg": text}),
    "json of logging": lambda level, text: json.dumps({"levelname": level, "message": text}),
    "json of a cloud": lambda level, text: json.dumps({"severity": level, "textPayload": text}),
    "logfmt": lambda level, text: (
        f'time="2026-11-20T18:55:24Z" level={level.lower()} msg={json.dumps(text)}'
    ),
}
OTHER: dict[str, Format] = {
    "syslog": lambda _, text: f"Nov 20 18:55:24 node1 train[123]: {text}",
    "journald": lambda _, text: f"2026-11-20T18:55:24+0000 node1 slurmstepd[12]: {text}",
    "docker's files": lambda _, text: json.dumps({"log": text + "\n", "stream": "stderr"}),
    "kubernetes": lambda _, text: f"2026-11-20T18:55:24.123456789Z stderr F {text}",
    "kubectl --prefix": lambda _, text: f"[pod/train-0/trainer] {text}",
    "stern": lambda _, text: f"train-abc-0 trainer {text}",
    "pdsh": lambda _, text: f"worker-1: {text}",
    "addresses": lambda _, text: f"10.0.0.3: {text}",
    "mpirun": lambda _, text: f"[1,3]<stderr>:{text}",
    "sglang": lambda _, text: f"[2026-11-20 18:55:24 DP1 TP3] {text}",
    "time of syslog": lambda _, text: f"Nov 20 18:55:24 {text}",
    "of an unseen program": lambda _, text: f"<<n7|gpu 3>> {text}",
}
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 12, in <module>',
    "    prepare(1)",
    "CustomFault: rewards are absent",
)


def cause(lines: list[str]) -> str:
    findings = diagnose_log(io.BytesIO("\n".join(lines).encode()), "log").findings
    return findings[0].cause if findings else ""


@each_row("name", [*NAMING, *OTHER])
def test_traceback_after_a_prefix_is_read(name: str) -> None:
    line = {**NAMING, **OTHER}[name]
    text = cause([line("INFO", "start")] * 50 + [line("ERROR", text) for text in TRACEBACK])
    assert text == (
        "CustomFault: rewards are absent, raised by the program's own code in"
        " /workspace/train.py:12"
    )


@each_row("name", NAMING)
def test_log_level_is_read(name: str) -> None:
    text = "RuntimeError: CUDA out of memory, lower the batch size"
    assert cause([NAMING[name]("WARNING", text)] + [NAMING[name]("INFO", "step")] * 50) == ""
    assert "GPU ran out of memory" in cause([NAMING[name]("ERROR", text)])


def test_interleaved_tracebacks_with_unknown_prefixes_are_separated() -> None:
    lines = [
        line
        for a, b in zip(TRACEBACK, (*TRACEBACK[:3], "OtherFault: y"), strict=True)
        for line in (f"host-1 <{a}", f"host-2 <{b}")
    ]
    findings = diagnose_log(io.BytesIO("\n".join(lines).encode()), "log").findings
    assert "CustomFault: rewards are absent" in findings[0].cause
    assert findings[0].cause.endswith("in /workspace/train.py:12")


def test_words_of_a_message_are_not_stripped_as_a_prefix() -> None:
    assert prefixes.parse_line(1, "Nov 20 18:55:24 attempt failed: X").text == "attempt failed: X"


@pytest.mark.parametrize("key", ["exc_info", "exc_text"])
def test_traceback_in_a_json_record_is_read(key: str) -> None:
    record = {
        "level": "error",
        "time": 1,
        "message": "step failed",
        key: "\n".join(TRACEBACK),
    }
    assert "CustomFault: rewards are absent" in cause([json.dumps(record)])
    assert "CustomFault: rewards are absent" in cause([json.dumps({key: record[key]})])


@pytest.mark.parametrize(
    "data",
    [
        {"prompt": "What is RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB?"},
        {"role": "user", "content": "torch.OutOfMemoryError: CUDA out of memory"},
    ],
)
def test_json_data_without_records_is_not_a_log(data: dict[str, str]) -> None:
    assert cause([json.dumps(data)]) == ""


def test_json_response_of_server_is_read() -> None:
    answer = {"object": "error", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    assert "2.00 GiB" in cause([json.dumps(answer)])


@each_row("text", ['{"level": 1', '{"level": "error", "msg": 5}', "{" * 9999, "{}"])
def test_damaged_json_records_are_read_as_lines(text: str) -> None:
    assert cause([text]) == ""


@each_row(
    ("line", "code"),
    [
        ("./run.sh: 行 3: 12 已杀死               python train.py", "IMG535"),
        ("bash: 第 3 行\uff1a 12 段错误 \uff08核心已转储\uff09python a.py", "IMG569"),
        ("OSError: [Errno 28] 设备上没有空间: '/data'", "IMG537"),
        ("PermissionError: [Errno 13] 权限不够: '/data'", "IMG538"),
        ("mkdir: 无法创建目录 “/data”: 只读文件系统", "IMG538"),
        ("OSError: libGL.so.1: 无法打开共享对象文件: 没有那个文件或目录", "IMG906"),
    ],
)
def test_messages_of_the_system_in_chinese_are_read(line: str, code: str) -> None:
    assert diagnose_log(io.BytesIO(line.encode()), "log").findings[0].code == code
