"""Explains options of commands that a program does not have."""

# A separate module: one kind of message.
from __future__ import annotations

import re

from imgbuild.audit.names import parameters, releases
from imgbuild.diagnose.existence import OF_TRAINERS, existence_reason, option_reason
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

FLAG = re.compile(
    r"(?:unrecognized arguments?:|[Nn]o such option:?|[Uu]nrecognized (?:option|argument)s?:?|"
    r"unknown option) ['\"]?(?P<flag>--?[A-Za-z][\w-]*)"
)
PROGRAM = re.compile(
    r"(?:^|\s)(?P<name>[\w./-]{1,80}\.py|[a-z][\w-]{1,40}(?: [a-z-]{1,20})?): error: unrec"
)
SGLANG = re.compile(r"launch_server|sglang")
ENGINES = re.compile(r"vllm|api_server|serve|sft|grpo|dpo|trl|train")
# The commands of trl pass options that they do not have to `accelerate launch`.
LAUNCH = re.compile(r"Accelerate launch command: error: unrec")
OF_NEWER_PIP = (
    *("--config-settings", "--break-system-packages", "--dry-run", "--report", "--group"),
    *("--no-build-isolation", "--use-pep517", "--python"),
)


def flag_reason(text: str, facts: LogFacts, _caller: str) -> Reason | None:
    """Return the cause of an option that a program does not have."""
    match = FLAG.search(text)
    if match is None:
        return None
    flag = match["flag"]
    if text.startswith("no such option:") and flag in OF_NEWER_PIP:
        return Reason(
            code="IMG917",
            cause=f"this pip is older than its option {flag}",
            cure="python -m pip install -U pip in this environment, then run the command again",
        )
    name = flag.lstrip("-").replace("-", "_")
    if LAUNCH.search(text):
        changed = option_reason(flag, name, OF_TRAINERS, "IMG917", facts)
        return changed or _unknown_flag_reason(flag, "the command of trl or accelerate launch")
    program = PROGRAM.search(text)
    if program is not None and SGLANG.search(program["name"]):
        return _sglang_flag(flag, facts)
    if program is not None and not ENGINES.search(program["name"]):
        return _unknown_flag_reason(flag, program["name"])
    if flag[:2] != "--" and len(name) > 2:
        return Reason(
            code="IMG917",
            cause=f"{flag} is written with one hyphen, so it is read as an unknown option",
            cure=f"write -{flag}; if the program does not accept it either, --help lists the"
            " options of the installed version",
        )
    owners = ("EngineArgs", "AsyncEngineArgs", *OF_TRAINERS)
    changed = option_reason(flag, name, owners, "IMG917", facts)
    return changed or _unknown_flag_reason(flag, "the program")


def _sglang_flag(flag: str, facts: LogFacts) -> Reason:
    """Return the reason for an unknown option of SGLang's server."""
    name = flag.lstrip("-").replace("-", "_")
    found = parameters.accepting_releases("ServerArgs.__init__", name).get("sglang")
    if "_" in flag:
        return Reason(
            code="IMG917",
            cause=f"sglang's server has no option {flag}: its options are written with hyphens",
            cure=f"write {flag.replace('_', '-')}"
            + (f" ({found.change_sentence('it')})" if found else " if --help lists it, else omit"),
            confidence="high" if found else "medium",
        )
    if found is not None:
        return existence_reason(found, f"the option {flag}", f"remove {flag}", "IMG917", facts)
    other = releases.argument_existence("EngineArgs", name)
    if other is not None and other.spec:
        return Reason(
            code="IMG917",
            cause=f"{flag} is an option of vllm, and sglang's server was started",
            cure=f"remove {flag}; python -m sglang.launch_server --help lists sglang's options"
            " (--tp-size, --mem-fraction-static, --context-length, --reasoning-parser)",
        )
    return _unknown_flag_reason(flag, "sglang's server")


def _unknown_flag_reason(flag: str, program: str) -> Reason:
    return Reason(
        code="IMG917",
        cause=f"{program} has no option {flag} in the installed version",
        cure=f"remove {flag} or correct its name; --help lists the options; if it is documented,"
        " install the release whose documentation has it",
        confidence="medium",
    )
