"""Explains failures that require the whole log."""

from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.log import ParsedLog
from imgbuild.diagnose.prefixes import LogLine
from imgbuild.diagnose.rules import FindingConfidence

TIMEOUT = "IMG908"  # of a collective
PROGRAM = re.compile(
    r"(?:\$? ?which )?(?:[\w-]{1,20}(?: is |:? {1,3}(?:->|=>|→)? ?))?"
    r"(?P<folder>/[\w./+@-]{1,200}/bin)/(?P<name>python|accelerate|torchrun|"
    r"deepspeed|vllm|trl|ray|sglang|swift|llamafactory-cli|pip)[\d.]{0,5}$"
)
# The modules that programs run.
MODULES = {
    "accelerate": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
    "pip": "pip",
    "torchrun": "torch.distributed.run",
}
# Scripts of the distribution's Python are in these folders, too.
SYSTEM = re.compile(r"^/usr/|/\.local/bin$")
PYTHON = re.compile(r"\s*Python (3\.\d{1,2})(?:\.\d+)?\s*$")
OF_PIP = re.compile(r"pip \S+ from (?P<file>/\S+) \(python (?P<version>3\.\d{1,2})\)")
MISSING = re.compile(r"No module named ['\"]?(?P<module>\w+)['\"]?(?![\w.'\"])")
INSTALLED = r"^/\S+/(?:site|dist)-packages/{}/__init__\.py$"
# The output of `pip show`.
SHOWN_NAME = re.compile(r"^Name: *(?P<name>[\w.-]+)$")
LOCATION = re.compile(r"^Location: /\S+/(?:site|dist)-packages")
SHEBANG = re.compile(r"^#!\s*(?P<python>/\S*/python[\d.]*)\s*$")
# A program that does not use the environment's PATH, or a module that another Python imports.
OTHER = re.compile(
    r"(?i)\bsudo (?P<sudo>\w+)|python3? -c\b.{0,80}(?:\bOK\b|正常|没问题|成功|works).{0,60}?"
    r"(?P<name>torchrun|accelerate|deepspeed|ray|vllm|trl)\b"
)


def launcher_reason(log: ParsedLog) -> tuple[Reason, LogLine] | None:
    """Return the reason if a short log shows a program of another Python than its python.

    It shows paths, as `which python accelerate` prints them, or the output of `pip --version`. The
    line is that of the program.
    """
    if not log.is_excerpt:
        return None
    shown = [(line, match) for line in log.last if (match := PROGRAM.match(line.text.strip()))]
    python = next((match["folder"] for _, match in shown if match["name"] == "python"), "")
    version = next((match[1] for line in log.last if (match := PYTHON.match(line.text))), "")
    for line, match in shown:
        system = python.startswith("/usr/") and SYSTEM.search(match["folder"])
        if python and match["folder"] != python and not system:
            return _other_python_reason(match["name"], match["folder"], python), line
    for line in log.last:
        pip = OF_PIP.match(line.text.strip())
        if pip is not None and version and pip["version"] != version:
            return _other_python_reason("pip", pip["file"], f"Python {version}"), line
    return _missing_module_reason(log)


def _missing_module_reason(log: ParsedLog) -> tuple[Reason, LogLine] | None:
    """Return the reason if a module is absent that the log shows in another Python."""
    shown = ((line, match) for line in log.last if (match := MISSING.search(line.text)))
    line, missing = next(shown, (None, None))
    if line is None or missing is None:
        return None
    module = missing["module"]
    texts = [each.text.strip() for each in log.last]
    installed = re.compile(INSTALLED.format(re.escape(module)))
    other = OTHER.search(line.text)
    names = {releases.package_name(module), module}
    described = next((match["name"] for t in texts if (match := SHOWN_NAME.match(t))), module)
    forms = [installed, SHEBANG, *[LOCATION] * (described in names)]
    if other is None and not any(form.match(text) for form in forms for text in texts):
        return None
    cure = f"start it with the Python that has {module}: python -m torch.distributed.run, python -m"
    cure += " accelerate.commands.launch or python -m deepspeed.launcher.runner, or activate its"
    cure += " environment and reinstall the program in it; which -a torchrun shows all"
    if other is not None and other["sudo"]:
        cure = "start it without sudo, or with the environment's own program: sudo env"
        cure += f" PATH=$PATH {other['sudo']} …, or sudo $(which python) -m MODULE"
    return Reason(
        code="IMG634",
        cause=f"{module} is installed in one Python, and the program that ran belongs to another"
        + (": sudo uses another PATH" if other and other["sudo"] else ", which is first on PATH"),
        cure=cure,
        confidence="high",
        source="rule",
        priority=80,
    ), line


def _other_python_reason(program: str, folder: str, python: str) -> Reason:
    start = f"the {program} beside the python that has the packages"
    if program in MODULES:
        start = f"python -m {MODULES[program]} … with the python that has the packages"
    return Reason(
        code="IMG634",
        cause=f"the {program} on PATH ({folder}) belongs to a different Python than the python"
        f" ({python}): packages of one are absent in the other",
        cure=f"run {start}, or activate its environment and run hash -r; which -a {program} shows"
        " all",
        confidence="high",
        source="rule",
        priority=80,
    )


def watchdog_reason(log: ParsedLog) -> tuple[Reason, int] | None:
    """Return the rank that stopped first, and the line of its watchdog.

    Return None if the log contains no report of a watchdog.
    """
    states = log.watchdogs.states
    if all(state.timed_out < 0 and state.enqueued == state.completed for state in states):
        return None
    first = min(states, key=lambda state: state.number)
    stopped, absent = log.watchdogs.stopped_first(), log.watchdogs.absent_ranks()
    different = log.watchdogs.different_operations()
    cause = "a collective of NCCL timed out: a rank did not enter it"
    confidence: FindingConfidence = "medium"
    operation = next((state.operation for state in states if state.operation), "")
    if different:
        calls = ", ".join(f"rank {state.rank} {state.operation}" for state in different[:4])
        cause = f"the ranks call different collectives as work {different[0].timed_out}: {calls}"
        confidence, operation = "high", ""
    elif stopped:
        state = stopped[0]
        who = ", ".join(str(each.rank) for each in stopped[:16])
        plural = "ranks" if len(stopped) > 1 else "rank"
        work = max(state.enqueued, state.timed_out)
        cause = (
            f"{plural} {who} stopped first, after work {work}; the other ranks wait in a later"
            " collective"
        )
        confidence = "high"
    elif 0 < len(absent) < len(states):
        who = ", ".join(map(str, absent[:16]))
        cause = (
            f"the watchdogs of all ranks but {who} timed out: {who} did not enter the collective"
        )
    if operation:
        cause += f" ({operation})"
    places: dict[str, int] = {}
    for state in states:
        places.setdefault(state.place, state.rank)
    waiting = [f"rank {rank} waits at {place}" for place, rank in places.items() if place]
    if waiting:
        cause += f"; {', '.join(waiting[:3])}"
    return Reason(
        code=TIMEOUT,
        cause=cause,
        confidence=confidence,
        follows=True,
        cure="check that rank's output for an exception or a slow step; set"
        " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 and pass the dumps to"
        " imgbuild diagnose; if the step is only slow, raise the timeout"
        " (init_process_group(timeout=…), ddp_timeout)",
    ), first.number
