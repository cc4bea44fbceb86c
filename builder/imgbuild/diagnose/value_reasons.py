"""Explains values that argparse, click, pydantic or another validator rejects.

The finding contains the option or field, its value, and the most similar allowed value.
"""

from __future__ import annotations

import difflib
import re

from imgbuild.diagnose.finding import Reason

CODE = "IMG912"
CHOICE = re.compile(
    r"error: argument (?P<option>[\w/, -]{1,80}): invalid choice: (?P<value>'[^']{0,120}'|\S{1,80})"
    r"(?: \((?:maybe you meant.{0,80}|choose from (?P<allowed>.{1,1500}?))\)?$)?"
)
TYPED = re.compile(
    r"error: argument (?P<option>[\w/, -]{1,80}): (?P<why>(?:invalid|expected|not allowed|ignored|"
    r"must|Value|Cannot|Invalid).{0,300})"
)
REQUIRED = re.compile(
    r"error: (?:the following arguments are required: (?P<options>.{1,200})|one of the arguments"
    r" (?P<any>.{1,200}) is required|too few arguments)"
)
CLICK = re.compile(
    r"(?:^|[│|] ?)(?:Error: )?(?:"
    r"Missing (?:option|argument|parameter):? (?P<missing>'?[\w/, -]{1,80}'?)|"
    r"Invalid value(?: for (?P<option>'?[\w\[\]./, -]{1,80}'?(?: / '[\w-]{1,40}')?))?:"
    r" (?P<why>.{3,300})|Got unexpected extra arguments? (?P<extra>\(.{1,200}\))|"
    r"No such command (?P<command>'?[\w.-]{1,60}'?))"
)
NOT_ONE_OF = re.compile(r"(?P<value>'[^']{0,120}') is not one of (?P<allowed>.{1,600})")
FIELD = re.compile(
    r"(?:^|\n)(?P<field>[\w.\[\]-]{1,120})\n\s*"
    r"(?P<why>(?!Value error|Assertion)[A-Z][^\n\[]{3,300}?)"
    r" ?\[type=(?P<type>\w{1,60})(?:, input_value=(?P<value>.{1,120}?), input_type)?"
)
MODEL = re.compile(r"validation errors? for (?P<model>[\w.\[\]]{1,80})")
OLD_FIELD = re.compile(
    r"(?:^|\n)(?P<field>[\w.\[\] >-]{1,120})\n\s+(?P<why>[^\n]{3,200}) \(type=(?P<type>[\w.]{1,60})"
)
# Validators of packages: "… must be one of [a, b], got c"; the value is quoted before or after.
ONE_OF = re.compile(
    r"(?i)(?:(?:must|should|has to|needs to|can only|expected to) be (?:one of|in|either|among)\b|"
    r"expected one of|\bonly(?= [\[({'\"`])|choose (?:from|one of)|"
    r"(?:valid|available|allowed|supported|possible|known) (?:\w+ )?"
    r"(?:values|options|choices|ones|names|methods|types|backends|modes|keys)? ?"
    r"(?:are|is|include)|"
    r"(?:valid|available|allowed|supported|registered|example) (?:\w+ ){0,2}"
    r"(?:values|options|choices|names|methods|types|models|strategies)(?=: ?[\[('\"`\w])):? ?"
    r"(?P<allowed>[\[({'\"`\w][^\n]{2,1500})"
)
QUOTED = re.compile(r"['\"`]([^'\"`\n]{1,80})['\"`]")
WORD = re.compile(r"[\w./:+-]{2,80}|\b\d\b")
NO_WORDS = frozenset(
    (
        *("and", "or", "the", "one", "of", "but", "got", "is", "not", "value", "for", "given"),
        *("found", "instead"),
    )
)


def value_reason(text: str) -> Reason | None:
    """Return the cause for a value that a parser or validator rejects, or None for other texts."""
    return _command_line(text) or _validation_reason(text)


def allowed_values(text: str) -> tuple[str, ...]:
    """Return the allowed values in a message that lists them. Otherwise, the result is empty."""
    match = ONE_OF.search(text)
    if match is None:
        return ()
    return _values(re.split(r"[\])}](?=$|[^\w\[({'\"`])|\. |, (?:but )?got\b", match["allowed"])[0])


def rejected_value(text: str, allowed: tuple[str, ...]) -> str:
    """Return the value that a message rejects: the first quoted value that is not allowed."""
    rest = re.sub(r"\[[^\[\]]{0,1500}\]|\([^()]{0,1500}\)|\{[^{}]{0,1500}\}", " ", text)
    match = re.search(r"(?:got|found|given|but|is|was|received)[: ]+['\"`]?([\w./:+-]{1,80})", rest)
    candidates = [*QUOTED.findall(rest), *([match[1]] if match else [])]
    return next((each for each in candidates if each not in allowed), "")


def nearest_value(value: str, allowed: tuple[str, ...]) -> str:
    """Return the most similar allowed value, or "" if no value is similar.

    Among numbers, this is the next larger one.
    """
    if value.isdecimal() and all(each.isdecimal() for each in allowed):
        return min((each for each in allowed if int(each) > int(value)), key=int, default="")
    low = {each.lower(): each for each in allowed}
    near = difflib.get_close_matches(value.strip("'\"").lower(), low, 1, 0.6)
    return low[near[0]] if near else ""


def _values(text: str) -> tuple[str, ...]:
    quoted = QUOTED.findall(text)
    words = quoted or [each for each in WORD.findall(text) if each.lower() not in NO_WORDS]
    return tuple(dict.fromkeys(words))[:200]


def value_advice(value: str, allowed: tuple[str, ...], where: str) -> str:
    """Return the cure for a value that is not in `allowed`."""
    if not allowed:
        return f"pass a value that {where} allows: --help or the documentation lists them"
    near = nearest_value(value, allowed)
    shown = ", ".join(allowed[:12]) + (", …" if len(allowed) > 12 else "")
    if near:
        return f"use {near} for {where} (allowed: {shown})"
    return f"use one of {shown} for {where}; a value added in a newer release needs that release"


def _command(value: str, allowed: tuple[str, ...]) -> str:
    """Return the cure for a command that a program does not have."""
    shown = ", ".join(allowed[:12]) or "those that --help lists"
    near = nearest_value(value, allowed)
    what = f"write {near}" if near else "update the package, if a newer release documents it"
    return f"{what}; the installed version has {shown}"


def _command_line(text: str) -> Reason | None:
    if match := CHOICE.search(text):
        option, value = match["option"], match["value"]
        allowed = _values(match["allowed"] or "")
        if option in ("command", "subcommand", "{command}"):
            return _create_reason(
                f"the installed version has no command {value}", _command(value, allowed)
            )
        return _create_reason(
            f"{value} is not allowed for {option}", value_advice(value, allowed, option)
        )
    if match := TYPED.search(text):
        option = match["option"]
        return _create_reason(
            f"the value of {option} is wrong: {match['why']}",
            f"correct {option} in the command (a comma, quote or space too many, a unit, or a"
            " backslash followed by a space before the line's end); --help shows its form",
        )
    if match := REQUIRED.search(text):
        names = match["options"] or match["any"] or "an argument"
        return _create_reason(
            f"the command line lacks {names}",
            f"pass {names}; in a script look for a backslash followed by a space or a comment,"
            " which ends the command before it",
        )
    match = CLICK.search(text)
    if match is None:
        return None
    if match["missing"]:
        return _create_reason(
            f"the command line lacks {match['missing']}", f"pass {match['missing']}"
        )
    if match["extra"] or match["command"]:
        what = match["extra"] or match["command"]
        return _create_reason(
            f"the program has no such argument or command: {what}",
            "see --help of the installed version; quote values with spaces",
        )
    option = match["option"] or "an option"
    found = NOT_ONE_OF.search(match["why"])
    cure = f"correct the value of {option}; --help shows its form"
    if found:
        cure = value_advice(found["value"], _values(found["allowed"]), option)
    return _create_reason(f"the value of {option} is wrong: {match['why']}", cure)


def _validation_reason(text: str) -> Reason | None:
    """Return the reason for the first field that a pydantic model rejects."""
    model = MODEL.search(text)
    field = (
        (FIELD.search(text, model.end()) or OLD_FIELD.search(text, model.end())) if model else None
    )
    if model is None or field is None:
        return None
    name = f"{model['model']}.{field['field']}"
    value = field.groupdict().get("value") or ""
    kind = field["type"]
    why = re.sub(r"\s+", " ", field["why"]).strip()
    given = f" (it is {value})" if value and kind != "missing" else ""
    if kind in ("missing", "value_error.missing"):
        return _create_reason(f"{name} is required and not set", f"set {field['field']}")
    if kind in ("extra_forbidden", "unexpected_keyword_argument", "value_error.extra"):
        return None  # a name, which the releases of the package explain
    cure = f"pass a value of the type that {name} has"
    if kind in ("literal_error", "enum", "value_error.const", "type_error.enum"):
        cure = value_advice(value, _values(why.partition("be")[2] or why), field["field"])
    return _create_reason(f"the value of {name} is not allowed: {why}{given}", cure)


def _create_reason(cause: str, cure: str) -> Reason:
    return Reason(code=CODE, cause=cause, cure=cure, confidence="high")
