"""Removes the prefixes of a line in a log.

Prefixes are colours, times, ranks, log levels, and the prefixes that Ray, Slurm and Docker add.
"""

from __future__ import annotations

import re

import msgspec

LONGEST = 4000  # characters of a line that are examined

ESCAPES = re.compile(
    r"(?:ESC|\^\[|\\u001b|\\x1b|\\033|\u241b|\ufffd)\[[\d;]{0,20}m|"
    r"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)?|\x1b[@-Z\\^_=>()]?"
)
CONTROLS = dict.fromkeys((*range(9), *range(11, 32), 127)) | {0xFEFF: None}
TIME = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
CLOCK = r"\d\d:\d\d:\d\d"
DAY = rf"(?:\d\d/\d\d/\d{{4}}|[A-Z][a-z]{{2}} [ \d]\d) {CLOCK}(?:[.,]\d{{1,6}})?"
LEVEL = r"(?P<level>DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SEVERE)"
LOGGER = r"(?:__\w{1,40}__|\w{1,40}(?:\.\w{1,40}){1,8})"
# Each is tried at the start of what is left, until none matches: a label is a rank or process.
PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # indented, or quoted in Markdown
        r"\s{0,8}(?:> ?){1,3}\s{0,8}(?=[\[(]\w|Traceback|  File|\w+Error)",
        r"\s{1,8}(?=\[(?:rank|default)\d)",
        # pytest; code in Markdown
        r"E {3,10}(?=\w+(?:\.\w+)*(?:Error|Exception)\b)",
        r"`{1,3}(?=\w+(?:\.\w+)*(?:Error|Exception): )",
        # exception groups
        r"\s{2,12}\| (?= +File|\w+(?:\.\w+)*(?:Error|Exception)|Traceback|    )",
        # Ray and vLLM: (main_task pid=12, ip=10.0.0.1), (EngineCore_DP0 pid=7), (raylet)
        r"\((?P<label>[A-Za-z_][\w.:<>\- ]{0,80}?\s?(?:rank=\d{1,6} )?pid=\d+[^()]{0,60})\) ?",
        r"\((?P<label>raylet|autoscaler|gcs_server|dashboard)[^()]{0,60}\) ?",
        r"\((?P<label>pid=[A-Za-z_][\w.-]{0,40}(?:, ip=[\d.]{7,15})?)\) ?",
        # slurmd's own log: [19.0] error:
        r"\[\d{1,10}\.(?:\d{1,6}|batch|extern)\] (?=(?:error|fatal|debug\d?|info|warning): )",
        # pdsh, which prints the address of the node
        r"(?P<label>\d{1,3}(?:\.\d{1,3}){3}): (?=\S| )",
        # torchrun: [rank0]: or [default0]:
        r"\[(?P<label>(?:rank|default|worker|trainer)\d{1,6})\]: ?",
        # glog: [E1120 18:12:33.123456789 ProcessGroupNCCL.cpp:616]
        (
            rf"\[?(?P<glog>[IWEF])\d{{4,8}} {CLOCK}\.\d{{1,9}}\s+(?:\d{{1,10}}"
            rf" )?[\w./+-]{{1,120}}:\d+\] ?"
        ),
        # Ray's C++: [2026-11-20 18:55:24,123 E 12 12] (raylet) node_manager.cc:3069:
        rf"\[{TIME} (?P<ray>[DIWEFC]) \d+ \d+\] (?:\([\w ]{{1,40}}\) )?(?:[\w./]{{1,80}}:\d+: ?)?",
        # Hydra: [2026-11-20 18:55:24,123][verl.trainer][ERROR] -
        rf"\[{TIME}\](?:\[[\w./<>-]{{1,120}}\])?\[{LEVEL}\](?: - |: ?| )?",
        # SGLang: [2026-11-20 18:55:24 DP0 TP1]
        rf"\[{TIME}(?P<label>(?: [A-Z]{{2,4}}\d{{1,5}}){{1,4}})\] ?",
        # journald and syslog: Nov 20 18:55:24 node1 slurmstepd[12]:
        rf"(?:{TIME}|{DAY}) [\w.-]{{1,80}} (?:[\w./@-]{{1,80}}\[\d{{1,10}}\]|kernel): ",
        rf"\[?{TIME}\]?(?: (?:stdout|stderr) [FP])?(?: ?[|:-] | |:|$)",
        rf"{DAY} (?:[-|] )?",
        r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]? ",
        # logging: trainer.ppo - ERROR - ; ERROR - trainer.ppo - ; Ray: INFO worker.py:1520 --
        rf"(?:[\w./:<>-]{{1,80}} - ){{0,2}}{LEVEL}\s{{0,8}} - (?:{LOGGER} - )?",
        rf"{LEVEL} [\w./-]{{1,80}}:\d+ -- ",
        # loguru: ERROR    | trainer.ppo:fit:12 -
        rf"{LEVEL}\s{{0,8}} \| [\w.<>-]{{1,120}}:[\w<>]{{1,80}}:\d+ - ",
        # rich, which fills the level to eight characters: ERROR    text
        rf"\s{{0,24}}{LEVEL}(?:(?<=DEBUG|ERROR) {{4}}|(?<=INFO) {{5}}|(?<=NING) {{2}}|(?<=ICAL) )",
        r"##\[(?P<actions>error|warning|group|debug)\]",
        rf"\[?{LEVEL}\]?(?: \d\d-\d\d \d\d:\d\d:\d\d)? \[[\w./<>-]{{1,120}}:\d+(?::\w+)?\] ?",
        # vLLM before 0.8: ERROR 02-07 11:38:50 engine.py:389]
        rf"{LEVEL} \d\d-\d\d \d\d:\d\d:\d\d [\w./-]{{1,80}}:\d+\] ?",
        rf"\[{LEVEL}(?:\|[\w./-]{{1,80}}:\d+)?\](?: {TIME} >>)? ?(?:\[[\w.:/<>-]{{1,99}}\] ?)?:? ?",
        rf"\| {LEVEL}\s+\| ",
        rf"{LEVEL}:(?:[\w.]{{1,60}}:)? ?",
        rf"{LEVEL} (?:\[[^\]\n]{{1,80}}\] ?)?(?=[A-Z/\[({{'\"`])",
        # compose and Kubernetes: trainer-1  | ; BuildKit: #12 5.123
        r"(?P<label>[a-z][\w.-]{0,60}-?\d*)\s{1,20}\| ",
        r"(?:#\d{1,4} \d+\.\d+ |(?:\d{1,5}\.\d{3}|\d\d\.\d\d|\d{3}\.\d) (?=  |[A-Z]))",
        # srun --label: 3:
        r"(?P<label> {0,4}\d{1,5}): (?=\S| )",
        r"\[(?P<label>\d{1,5})\]:? (?=Traceback|  File|\w+Error)",
        r"\[rank(?P<label>\d{1,5})\] ",
        # kubectl logs --prefix and mpirun --tag-output: [pod/train-0/main] , [1,3]<stderr>:
        r"\[(?P<label>pod/[\w./-]{1,200})\] ",
        r"\[(?P<label>\d{1,5},\d{1,6})\]<std(?:err|out)>: ?",
    )
)
# A line that states that its failure has no effect; messages of exceptions are excluded.
HARMLESS = re.compile(
    r"(?i)\b(?:ignoring|(?:is|was|error) ignored|fall(?:ing|s)? back|retrying|will retry|"
    r"trying (?:again|\d+)|skipping|continuing without)\b"
)
# After an exception.
AFTER = re.compile(r"\((?:optional, )?(?:skipped|skipping|ignored|ignoring)\)\s*$")
# Each match of HARMLESS contains one of these.
_HARMLESS_WORDS = ("ignor", "fall", "retry", "trying", "skip", "continuing")
EXCEPTION = re.compile(r"\s{0,60}(?:\w{1,80}\.){0,8}\w{1,80}(?:Error|Exception)\b")
# Prefixes that pip and uv add to the output of a build.
PROGRAM = re.compile("\\s{0,40}(?:[│\u00d7╰─>]{1,4}|\\[(?:stdout|stderr)\\]) ")
HEADER = "Traceback (most recent call last)"
LONGEST_PREFIX = 120  # characters
MOST_PREFIXES = 32
DIGITS = re.compile(r"\d+")
CHANGING = re.compile(r"\d{4}-\d\d-\d\d|\d+(?::\d+)+(?:[.,]\d+)?")  # dates and times
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
    """A line with its number (from 1), its text, and the rank or process that wrote it.

    The rank or process is "" if unknown. `level` is "E", "W" or "I", or "" if the line has none.
    `hit` means that the line may report a failure.
    """

    number: int
    source: str
    text: str
    level: str = ""
    hit: bool = True


class LearnedPrefixes:
    """Reads lines with prefixes of other programs, which are learned from traceback headers.

    A line that begins like the header of a traceback, except for digits, has the same prefix.
    """

    def __init__(self) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}

    def parse(self, number: int, raw: str, *, hit: bool = True, level: str = "") -> LogLine:
        """Parse line `number` of a log. `level` is the level of its record."""
        line = parse_line(number, raw, hit=hit, level=level)
        for pattern in self._patterns.values():
            if match := pattern.match(line.text):
                text = line.text[match.end() :]
                inner = parse_line(number, text, hit=hit)
                label = CHANGING.sub("", match[0]).strip()
                source = " ".join(filter(None, (line.source, label, inner.source)))
                return LogLine(number, source, inner.text, line.level or inner.level, hit)
        place = line.text.find(HEADER)
        if 0 < place <= LONGEST_PREFIX and line.text[:place].strip():
            shape = DIGITS.sub("0", line.text[:place])
            if len(self._patterns) < MOST_PREFIXES or shape in self._patterns:
                exact = r"\d{1,12}".join(map(re.escape, DIGITS.split(line.text[:place])))
                self._patterns[shape] = re.compile(exact)
        return line


def parse_line(number: int, raw: str, *, hit: bool = True, level: str = "") -> LogLine:
    """Parse line `number` of a log. `level` is the level of its record."""
    text = raw[:LONGEST]
    if len(raw) > LONGEST:
        text = raw[: LONGEST // 2] + " … " + raw[-LONGEST // 2 :]
    if "#0" in text:  # as syslog writes control characters
        text = text.replace("#033", "\x1b").replace("#015", "").replace("#011", "\t")
    if "[" in text or "\x1b" in text:
        text = ESCAPES.sub("", text)
    if not text.isprintable():
        text = text.translate(CONTROLS)
    labels: list[str] = []
    level = WORDS.get(level, "")
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
                    if letter and (not groups.get("ray") or letter in "FC")
                    else WORDS.get(word or "", level)
                )
                text = text[match.end() :]
                break
        else:
            break
    if text.lstrip().startswith(("│", "\u00d7", "╰", "[std")):
        text = PROGRAM.sub("", text).removesuffix("│").rstrip()
    if level in ("", "E") and _is_harmless(text):
        level = "W"
    return LogLine(number, " ".join(labels), text.rstrip(), level, hit)


def _is_harmless(text: str) -> bool:
    low = text.lower()
    return (
        any(word in low for word in _HARMLESS_WORDS)
        and ((AFTER if EXCEPTION.match(text) else HARMLESS).search(text)) is not None
    )
