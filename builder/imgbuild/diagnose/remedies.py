"""Finds the cures that the message of an exception contains or implies.

Many messages contain advice ("Consider reducing …"), which is quoted. Others are of a type with a
known cure, which is in `data/diagnose/facts/remedies.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from imgbuild.diagnose import rules
from imgbuild.system import files, yaml_data

MOST_ADVICE = 240  # characters
# A sentence with advice begins with one of these.
OPENINGS = (
    *("[Pp]lease", "[Tt]ry", "[Cc]onsider", "Set", "Use", "Install", "Run"),
    r"(?<![\])'\"`] )(?:set|use|install)(?= [`'\"\w-])",
    r"(?<![\])'\"`] )run(?= [`'\"]?(?:pip|python|accelerate|hf|git|apt)\b)",
    *("Upgrade", "Downgrade", "Either (?:set|pass|use|enable|disable|remove|specify)"),
    *(
        "Pass",
        "Call",
        "Specify",
        "Reduce",
        "Reducing",
        "Increase",
        "Increasing",
        "Decrease",
        "Decreasing",
        "Enable",
    ),
    *("Disable", "Add", "Create", "Remove", "Make sure", "Ensure", "Rename", "Change"),
    *("Update", "Provide"),
    *(
        "Configure",
        "Restart",
        "Download",
        "Instead",
        "Did you mean",
        "Perhaps you",
        "H(?:INT|int)(?=:)",
    ),
    r"(?:To|In order to) (?:fix|solve|resolve|avoid|disable|enable|use|run|overcome|work around)\b",
    r"To [\w' ]{3,60}, (?:set|use|pass|run|add|install|make|call|please|you|specify|update)\b",
    r"(?:[Yy]ou|Users?) (?:can|could|should|may|need to|must|have to|might)(?!'t| not)\b",
    r"(?:Do not|Don't) (?:set|use|pass|call|specify|mix|enable)\b",
    r"--[\w-]{2,40} (?:should|must|needs to)\b",
    r"If (?:you|this|the|that|your)\b.{1,120}?(?=,)",
)
ADVICE = re.compile(
    r"(?:^|(?<=[.!?;:)\]'\"`])\s{1,9}|(?<=\))\.(?=--\w)|\n\s{0,9}|"
    r", (?=please|try|consider|use|set|run)|\s?(?:=>|->|;|—)\s?)"
    rf"(?P<advice>(?:{'|'.join(OPENINGS)})(?!\w)[^\n]{{6,}}?)(?=[.!?](?:\s|$)|\n|$)"
)
# Advice without use here: reports to maintainers, places of logs, options of debuggers.
IDLE = re.compile(
    r"(?i)(?:file|open|report|raise|submit|create) (?:an? |this )?(?:issue|bug|ticket)|"
    r"(?:issue|bug) (?:report )?(?:at|on|in) |check the (?:stack|logs?|trace)|"
    r"see (?:the )?(?:stack|logs?|above|below)|for (?:more )?(?:details|information)|"
    r"TORCHDYNAMO_VERBOSE|TORCH_LOGS|DEBUG=|LOGERR_DBG|refer to|contact|for debugging|"
    r"please (?:check|see|try again)\W*$"
)


class MessageRemedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cure for messages that contain `match`.

    `means` describes such messages. A `weak` cure is less useful than one derived from the place of
    the error. A `first` cure is more useful.
    """

    match: str
    cure: str
    means: str = ""
    weak: bool = False
    first: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled `match`. Compiled on first use, because most messages need few patterns."""
        return _compile_pattern(self.match)


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=1)
def load_remedies() -> tuple[MessageRemedy, ...]:
    """Load the types of messages with their cures, in order."""
    return yaml_data.load_yaml_data(
        files.data("diagnose/facts/remedies.yaml"), tuple[MessageRemedy, ...]
    )


# Advice that names no action: what to compare or verify.
VAGUE = re.compile(
    r"(?i)(?:please |you should |make sure |ensure )*(?:double[- ])?(?:check|verify|see)\b"
)
# A variable that a message proposes within a sentence.
VARIABLE = re.compile(
    r"(?:[Ss]et(?:ting)?|[Ee]xport|[Uu]s(?:e|ing)|with)"
    r" (?P<set>[A-Z][A-Z0-9_]{4,60}=[\w:.,-]{1,60})"
)


def message_advice(message: str) -> str:
    """Return the first sentence of a message that proposes an action, or "" if there is none."""
    sentences = [
        text
        for match in ADVICE.finditer(message[:2000])
        if not IDLE.search(text := re.sub(r"\s+", " ", match["advice"]).strip())
    ]
    variable = VARIABLE.search(message[:2000])
    if variable is not None and not IDLE.search(variable["set"]):
        sentences.append(f"set {variable['set']}")
    text = min(sentences, key=is_vague, default="")
    return text if len(text) <= MOST_ADVICE else f"{text[:MOST_ADVICE]}…"


def is_vague(advice: str) -> bool:
    """Whether the advice only states what to check."""
    return VAGUE.match(advice) is not None


def find_remedy(message: str, package: str, call: str) -> MessageRemedy | None:
    """Return the remedy for an exception with this message, with its placeholders replaced.

    Return None if the message is not of a known type.
    """
    for row in load_remedies():
        if match := row.pattern.search(message[:1000]):
            groups = {name: value or "" for name, value in match.groupdict().items()}
            groups |= {"package": package, "call": call}
            return msgspec.structs.replace(
                row,
                cure=_filled(row.cure, groups),
                means=_filled(row.means, groups),
            )
    return None


def _filled(text: str, groups: Mapping[str, str]) -> str:
    """Return `text` with its placeholders replaced.

    An article before "the package" is corrected.
    """
    full = rules.fill_placeholders(text, groups)
    full = re.sub(r"\bthe installed the package\b", "the installed package", full)
    return re.sub(r"\b(an?|another) ((?:newer )?)the package\b", r"\1 \2release", full)


def find_cure(message: str, package: str, call: str) -> str:
    """Return the cure for an exception with this message.

    Return "" if the message is not of a known type.
    """
    remedy = find_remedy(message, package, call)
    return remedy.cure if remedy else ""
