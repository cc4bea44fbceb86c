"""One line of a log without its prefixes.

Colours, times, ranks, and what Ray, Slurm, docker and log levels put before a line.
"""

from __future__ import annotations

import re

import msgspec

LONGEST = 4000  # characters of a line that are examined

ESCAPES = re.compile(
    r"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)?|\x1b[@-Z\\^_=>()]?"
)
CONTROLS = dict.fromkeys((*range(9), *range(11, 32), 127)) | {0xFEFF: None}
TIME = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
CLOCK = r"\d\d:\d\d:\d\d"
LEVEL = r"(?P<level>DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SEVERE)"
# Each is tried at the start of what is left, until none matches: a label is a rank or process.
PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # Ray and vLLM: (main_task pid=12, ip=10.0.0.1), (EngineCore_DP0 pid=7), (raylet)
        r"\((?P<label>[A-Za-z_][\w.:<>\- ]{0,80}?\s?(?:rank=\d{1,6} )?pid=\d+[^()]{0,60})\) ?",
        r"\((?P<label>raylet|autoscaler|gcs_server|dashboard)[^()]{0,60}\) ?",
        # torchrun: [rank0]: or [default0]:
        r"\[(?P<label>(?:rank|default|worker|trainer)\d{1,6})\]: ?",
        # glog: [E1120 18:12:33.123456789 ProcessGroupNCCL.cpp:616]
        (
            rf"\[?(?P<glog>[IWEF])\d{{4,8}} {CLOCK}\.\d{{1,9}}\s+(?:\d{{1,10}}"
            rf" )?[\w./+-]{{1,120}}:\d+\] ?"
        ),
        # Ray's C++: [2026-11-20 18:55:24,123 E 12 12] (raylet) node_manager.cc:3069:
        rf"\[{TIME} (?P<ray>[DIWEFC]) \d+ \d+\] (?:\([\w ]{{1,40}}\) )?(?:[\w./]{{1,80}}:\d+: ?)?",
        rf"\[?{TIME}\]?(?: (?:stdout|stderr) [FP])?(?: ?[|:-] | |:|$)",
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]? ",
        r"##\[(?P<actions>error|warning|group|debug)\]",
        rf"\[?{LEVEL}\]?(?: \d\d-\d\d \d\d:\d\d:\d\d)? \[[\w./<>-]{{1,120}}:\d+(?::\w+)?\] ?",
        rf"\[{LEVEL}(?:\|[\w./-]{{1,80}}:\d+)?\](?: {TIME} >>)? ?(?:\[[\w.:/<>-]{{1,99}}\] ?)?:? ?",
        rf"\| {LEVEL}\s+\| ",
        rf"{LEVEL}:(?:[\w.]{{1,60}}:)? ?",
        rf"{LEVEL} (?:\[[^\]\n]{{1,80}}\] ?)?(?=[A-Z/\[({{'\"`])",
        # compose and Kubernetes: trainer-1  | ; BuildKit: #12 5.123
        r"(?P<label>[a-z][\w.-]{0,60}-?\d*)\s{1,20}\| ",
        r"#\d{1,4} \d+\.\d+ ",
        # srun --label: 3:
        r"(?P<label> {0,4}\d{1,5}): (?=\S| )",
        r"\[(?P<label>\d{1,5})\]:? (?=Traceback|  File|\w+Error)",
        r"\[rank(?P<label>\d{1,5})\] ",
    )
)
# What pip and uv put before the output of a build.
PROGRAM = re.compile("\\s{0,40}(?:[│\u00d7╰─>]{1,4}|\\[(?:stdout|stderr)\\]) ")
LEVELS = {"E": "E", "F": "E", "C": "E", "W": "W", "I": "I", "D": "I"}
WORDS = {
    "DEBUG": "I",
    "INFO": "I",
    "NOTICE": "I",
    "WARNING": "W",
    "WARN": "W",
    "ERROR": "E",
    "CRITICAL": "E",
    "FATAL": "E",
    "SEVERE": "E",
    "error": "E",
    "warning": "W",
}


class LogLine(msgspec.Struct, frozen=True):
    """A line: its number from 1, the rank or process that wrote it ("" if unknown), its text.

    `level` is "E", "W" or "I" where the line names one, else "". `hit`: it may report a failure.
    """

    number: int
    source: str
    text: str
    level: str = ""
    hit: bool = True


def parse(number: int, raw: str, *, hit: bool = True) -> LogLine:
    """Line `number` of a log."""
    text = raw[:LONGEST]
    if len(raw) > LONGEST:
        text = raw[: LONGEST // 2] + " … " + raw[-LONGEST // 2 :]
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    if not text.isprintable():
        text = text.translate(CONTROLS)
    labels: list[str] = []
    level = ""
    for _ in range(6):
        for prefix in PREFIXES:
            match = prefix.match(text)
            if match is not None and match.end():
                groups = match.groupdict()
                if label := groups.get("label"):
                    labels.append(label.strip())
                letter = groups.get("glog") or groups.get("ray")
                word = groups.get("level") or groups.get("actions")
                level = (
                    LEVELS[letter]
                    if letter and not groups.get("ray")
                    else WORDS.get(word or "", level)
                )
                text = text[match.end() :]
                break
        else:
            break
    if text.lstrip().startswith(("│", "\u00d7", "╰", "[std")):
        text = PROGRAM.sub("", text).removesuffix("│").rstrip()
    return LogLine(number, " ".join(labels), text.rstrip(), level, hit)
