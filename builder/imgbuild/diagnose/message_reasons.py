"""Explains exceptions without a rule.

The exception's message is the cause. The frames show the package that raised the exception, and the
line of the user's program that led to it.
"""

# A separate module: by message and frames, not by a pattern.
from __future__ import annotations

import itertools
import re

from imgbuild.audit.names import releases
from imgbuild.diagnose import (
    absent_files,
    data_keys,
    owners,
    parts,
    remedies,
    requirements,
    value_reasons,
)
from imgbuild.diagnose.exceptions import LoggedException, TraceFrame
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.parts import PackagePart
from imgbuild.diagnose.rules import FindingConfidence

MOST_MESSAGE = 300  # characters
MOST_SHOWN = 100  # characters of a line of code
SENTENCE = 20  # characters of a message that explains more than its type
VALIDATION = re.compile(r"(?:Value|Assertion) error, (?P<text>.{3,600}?)(?: ?\[type=|$)", re.DOTALL)
NONE_USED = re.compile(
    r"(?:'NoneType' object (?:has no attribute '(?P<name>\w+)'|(?P<how>is not \w+))|"
    r"None (?P<other>is not an? callable))"
)
EXPRESSION = r"(?P<value>[A-Za-z_][\w.]*(?:\[['\"]?\w+['\"]?\])*)"
# A model's code, and the attributes of tensors that it reads.
MODEL = re.compile(r"transformers/models/\w+/modeling_|transformers_modules/")
OF_MATCHES = {"group", "groups", "groupdict", "span"}  # methods of re.Match
OF_TENSORS = {"device", "shape", "dtype", "size", "to", "view", "dim", "ndim", "unsqueeze"}
BUILT_IN = re.compile(r"'(?P<type>str|list|dict|int|tuple|float|set|bool)' object has no attribute")
KEY = re.compile(r"['\"]?(?P<key>[^'\"\n]{1,120})['\"]?$")
SAYS = re.compile(r"[a-z]{2} [a-z]+.*: \S|[a-z]{2} (?:is|are|was|has|not|does|cannot) [a-z]{2}")
ASSERTION = re.compile(r"assert (?P<test>.{3,150}?)(?:, ?f?['\"].*)?$")
# A failed internal check of a package, with the request to report it.
BUG = re.compile(
    r"INTERNAL ASSERT FAILED|(?i:(?:file|report|open|submit) (?:an? |this )?(?:bug|issue)\b)|"
    r"(?i:this (?:is|should be|indicates) an? bug|should (?:never|not) happen)"
)
# The likely causes of exceptions without a useful message.
UNEXPECTED = (
    *("IndexError", "KeyError", "AttributeError", "TypeError", "UnboundLocalError", "NameError"),
    *("ZeroDivisionError", "StopIteration", "RecursionError"),
)


# Their messages contain nothing that an option could change.
PLAIN = (
    *("KeyError", "UnboundLocalError", "NameError", "IndexError", "StopIteration"),
    *("RecursionError", "AttributeError"),
)
# Packages whose errors are about what their caller passes.
BELOW = (
    *("torch", "numpy", "pydantic", "pydantic_core", "jinja2", "safetensors", "omegaconf"),
    *("hydra", "click", "einops", "uvloop", "fastapi", "starlette", "dill", "multiprocess"),
    *("pyarrow", "tqdm", "tensordict", "typeguard", "beartype", "concurrent", "anyio"),
)
# The line of code, or without one the file, of a frame above the one of an imported module.
IMPORTS = re.compile(
    r"(?:from|import) |<frozen importlib|\S{0,200}importlib|.{0,80}import_module|/"
)
READS = ("__getitem__", "__getattr__", "__missing__", "__getattribute__")
# Python's own messages of these, which packages also raise with messages of theirs.
PYTHONS = re.compile(
    r"has no attribute|is not defined|referenced before|not associated|out of range|^\S{0,120}$|"
    r"maximum recursion|^['\"][^'\"]{0,120}['\"]$"
)


def exception_reason(exception: LoggedException, facts: LogFacts) -> Reason | None:
    """Return the cause of an exception without a rule.

    Return None if the exception has neither a place nor a message.
    """
    raised = _raising_frame(exception.frames)
    caller = next(
        (f for f in reversed(exception.frames) if not f.package and not f.is_standard), None
    )
    missing = _failed_lookup_reason(exception, raised, caller, facts)
    if missing is not None:
        return missing
    package = raised.package if raised else _type_package(exception.type)
    generated = bool(exception.frames) and exception.frames[-1].file.startswith("<string")
    message = _message(exception, raised)
    confidence: FindingConfidence = "medium" if len(message) > len(exception.name) + 8 else "low"
    if not package:
        if generated:
            return _generated_code_reason(message, exception, caller)
        if raised is None:
            if len(exception.message) <= SENTENCE:
                return None
            shown = message + _message_meaning(exception, "the package", None)
            return _reason_without_place(shown, _cure(exception, "the package", None), confidence)
        shown = message + _message_meaning(exception, "the package that it uses", caller)
        return Reason(
            code="IMG922",
            cause=f"{shown}, raised by the program's own code in {_place(raised)}",
            confidence=confidence,
            source="first",
            cure=_program_cure(exception, raised),
        )
    return _package_reason(exception, raised, caller, facts, message, confidence)


def _package_reason(
    exception: LoggedException,
    raised: TraceFrame | None,
    caller: TraceFrame | None,
    facts: LogFacts,
    message: str,
    confidence: FindingConfidence,
) -> Reason:
    """Return the reason for an exception that a package raised, or that its call led to."""
    package = raised.package if raised else _type_package(exception.type)
    user = _user(exception.frames)
    name = releases.package_name(user.package if user else package)
    part = parts.find_part(exception.frames, (name, package))
    version = facts.versions.get(name, "")
    shown = f"{name} {version}" if version else name
    if part is not None:
        shown += f" ({part.part})"
    other = "" if caller or user else _calling_package(exception.frames, package)
    importing = _import_cure(exception, name)
    cause = message + ("" if importing else _message_meaning(exception, name, caller))
    if user is not None:
        cause += f", raised by {releases.package_name(package)}"
        cause += f" in a call of {shown} in {_place(user)}"
    else:
        called = other and exception.name in UNEXPECTED
        cause += f", raised by {shown}{f', which {other} calls,' if called else ''}"
    if raised is not None and user is None:
        cause += f" in {_place(raised)}"
        if exception.name in UNEXPECTED and raised.code and not raised.code.endswith(("(", ",")):
            cause += f": {raised.code[:MOST_SHOWN]}"
    if caller is not None:
        cause += f", called from {owners.shorten_path(caller.file)}:{caller.line}"
    return Reason(
        code="IMG921",
        cause=cause,
        confidence=confidence,
        source="first",
        cure=_patched_code_cure(exception)
        or importing
        or _condition_cure(exception, name, caller)
        or _cure(exception, name, caller, part) + _pair(exception, name, other, facts),
    )


def _calling_package(frames: tuple[TraceFrame, ...], package: str) -> str:
    """Return the package that calls the one that raised an exception.

    The result is the name of the package on the index.
    """
    for frame in reversed(frames):
        if frame.package not in ("", package, *BELOW) and not frame.is_standard:
            return releases.package_name(frame.package)
    return ""


def _pair(exception: LoggedException, name: str, other: str, facts: LogFacts) -> str:
    """Return the end of a cure for an error that packages of different versions may cause."""
    if not other or exception.name not in UNEXPECTED:
        return ""
    pin = requirements.pin_cure(name, other.replace("-", "_"), facts)
    return f"; {other} may be for another {name}: {pin or f'imgbuild resolve {other} {name}'}"


def _user(frames: tuple[TraceFrame, ...]) -> TraceFrame | None:
    """Return the frame of the package that called a package in `BELOW`.

    Return None unless a package in `BELOW` raised the exception.
    """
    inner = next((each for each in reversed(frames) if not each.is_standard), None)
    if inner is None or inner.package not in BELOW:
        return None
    for frame in reversed(frames):
        if frame.is_standard or frame.package in BELOW:
            continue
        return frame if frame.package else None
    return None


def _message_meaning(exception: LoggedException, package: str, caller: TraceFrame | None) -> str:
    """Return the meaning of a message of Python or torch, in parentheses.

    Return "" for other messages.
    """
    at = f"{owners.shorten_path(caller.file)}:{caller.line}" if caller else "the call"
    remedy = _condition_remedy(exception, package, at)
    remedy = remedy or remedies.find_remedy(exception.text, package, at)
    return f" ({remedy.means})" if remedy and remedy.means else ""


def _call_place(caller: TraceFrame | None) -> str:
    """Describe the call in the user's code that led to an exception, if it is known."""
    return f"the call at {owners.shorten_path(caller.file)}:{caller.line}" if caller else "the call"


def _condition_text(exception: LoggedException) -> str:
    """Return the condition of a failed assertion."""
    return exception.condition.removeprefix("assert ")[:MOST_SHOWN]


def _condition_remedy(
    exception: LoggedException, package: str, at: str
) -> remedies.MessageRemedy | None:
    """Return the remedy for the condition of an assertion without a message, or None."""
    if exception.message or not exception.condition:
        return None
    remedy = remedies.find_remedy(f"{exception.text}: {exception.condition}", package, at)
    return remedy if remedy and remedy.first else None


def _condition_cure(exception: LoggedException, package: str, caller: TraceFrame | None) -> str:
    """Return the cure for the condition of an assertion without a message, or "" if unknown."""
    at = _call_place(caller)
    remedy = _condition_remedy(exception, package, at)
    return remedy.cure if remedy else ""


def _patched_code_cure(exception: LoggedException) -> str:
    """Return the cure if unsloth's generated code led to an exception, or else ""."""
    if not any("_compiled_cache/" in frame.file for frame in exception.frames):
        return ""
    return (
        "delete unsloth_compiled_cache, and install releases of unsloth and unsloth-zoo from the"
        " same date with the trl, transformers and vllm in their range (imgbuild resolve unsloth"
        " unsloth-zoo trl): the code that unsloth generates does not fit the installed ones"
    )


def _import_cure(exception: LoggedException, package: str) -> str:
    """Return the cure if a package fails while it is imported, or else ""."""
    raised = exception.frames[-1] if exception.frames else None
    imports = any(
        frame.package and frame.package == (raised.package if raised else "")
        for before, frame in itertools.pairwise(exception.frames)
        if (frame.name == "<module>" and IMPORTS.match(before.code or before.file))
        or re.match(rf"(?:from|import) {re.escape(frame.package)}\b", before.code)
    )
    advised = remedies.message_advice(exception.message) or exception.name == "OSError"
    user = next((each for each in reversed(exception.frames) if each.package != package), None)
    kinds = ("ValueError", "AssertionError", *UNEXPECTED)
    at_import = user is not None and user.name == "<module>" and exception.name in kinds
    if user and user.package and at_import and raised and raised.package == package:
        return (
            f"{user.package} calls {package} while it is imported, so no setting leads to the"
            f" message: install the {package} that {user.package} requires, or update"
            f" {user.package} (imgbuild resolve {user.package} {package})"
        )
    if not imports or package == owners.MODEL_CODE or advised:
        return ""
    names = releases.load_name_table().companions.get(package, "the packages that it imports")
    return (
        f"{package} fails while it is imported, so its version is incompatible with those"
        f" installed: update {package}, or install {names} in the range that it requires"
        f" (imgbuild resolve {package})"
    )


def _program_cure(exception: LoggedException, raised: TraceFrame) -> str:
    """Return the cure for an exception that the program's own code raised."""
    at = f"{owners.shorten_path(raised.file)}:{raised.line}"
    advice = remedies.message_advice(exception.message)
    kind = remedies.find_cure(exception.text, "the package that it uses", at)
    if advice:
        return f'follow the message: "{advice}" ({at})'
    if kind:
        return kind if at in kind else f"{kind} ({at})"
    if not exception.message and exception.condition:
        test = _condition_text(exception)
        return f"print the values of {test} at {at}, and correct the data or options they are from"
    return f"check the values at {at}; the message names what is wrong with them"


def _generated_code_reason(
    message: str, exception: LoggedException, caller: TraceFrame | None
) -> Reason:
    """Return the reason for an exception in code that a package generated.

    An example is unsloth's generated trainers.
    """
    at = f", called from {owners.shorten_path(caller.file)}:{caller.line}" if caller else ""
    return Reason(
        code="IMG924",
        cause=f"{message}, raised in generated code ({exception.frames[-1].name}){at}",
        confidence="medium",
        source="first",
        cure=_cure(exception, "the package that generates it", caller),
    )


def _reason_without_place(message: str, cure: str, confidence: FindingConfidence) -> Reason:
    return Reason(
        code="IMG924",
        cause=f"{message} (the log does not show where it was raised)",
        confidence=confidence,
        source="first",
        cure=f"{cure}; the traceback in the complete output shows the line and the package",
    )


def cut_off_reason(frame: TraceFrame) -> Reason:
    """Return the reason for a log that ends inside a traceback."""
    code = f": {frame.code}" if frame.code else ""
    return Reason(
        code="IMG999",
        cause=f"the log lacks the exception of a traceback, which was raised in or below"
        f" {_place(frame)}{code}",
        confidence="low",
        role="consequence",
        source="first",
        cure="look at the complete output: the line after the traceback names the exception",
    )


def reported_reason(text: str) -> Reason:
    """Return the reason for a log without an exception: the first line that reports an error."""
    advice = remedies.message_advice(text)
    cure = f'follow the message: "{advice}"' if advice else ""
    cure = cure or remedies.find_cure(text, "the program", "the command")
    return Reason(
        code="IMG999",
        cause=f"the first line that reports an error is: {text.strip()[:MOST_MESSAGE]}",
        confidence="low",
        role="consequence",
        source="first",
        cure=f"{cure or 'look at the lines before it'}; imgbuild doctor --collect prints what a"
        " report needs",
    )


def _raising_frame(frames: tuple[TraceFrame, ...]) -> TraceFrame | None:
    """Return the innermost frame that is outside the standard library and not only a lookup."""
    in_code = [frame for frame in frames if not frame.is_standard]
    last = in_code[-1] if in_code else None
    return next((frame for frame in reversed(in_code) if frame.name not in READS), last)


def _type_package(name: str) -> str:
    """Return the package that defines an exception.

    An example is deepspeed for deepspeed.runtime.zero.Error.
    """
    top = name.partition(".")[0] if "." in name else ""
    return "" if top in ("builtins", "json", "subprocess", "multiprocessing", "__main__") else top


def _message(exception: LoggedException, raised: TraceFrame | None) -> str:
    """Return type and message on one line.

    For an assertion without a message, the condition is used.
    """
    text = exception.message
    if match := VALIDATION.search(text):
        text = match["text"]
    text = re.sub(r"\s+", " ", text).strip().rstrip(".")
    if not text and raised is not None and (match := ASSERTION.search(raised.code)):
        text = f"{match['test']} is false"
    if len(text) > MOST_MESSAGE:
        text = f"{text[:MOST_MESSAGE]}…"
    return f"{exception.type}: {text}" if text else exception.type


def _place(frame: TraceFrame) -> str:
    where = (
        f"{owners.shorten_path(frame.file)}:{frame.line}"
        if frame.line
        else owners.shorten_path(frame.file)
    )
    return where if frame.name.startswith("<") else f"{frame.name} ({where})"


def _failed_lookup_reason(
    exception: LoggedException,
    raised: TraceFrame | None,
    caller: TraceFrame | None,
    facts: LogFacts,
) -> Reason | None:
    """Return the reason for a failed lookup of an item."""
    at = f", read in {_place(raised)}" if raised else ""
    if raised and caller and raised != caller:
        at += f", called from {owners.shorten_path(caller.file)}:{caller.line}"
    text, cause, cure = exception.message, "", ""
    if absent_files.is_absence(exception):
        cause, cure = absent_files.absence_cause(exception, raised, at)
    elif exception.name == "KeyError" and text in ("None", "''"):
        cause = f"a setting has no value (None), by which a table is read{at}"
        cure = "set the option that this line reads (in the launcher's configuration or arguments);"
        cure += " if it is already set, use another version of the package"
    elif exception.name == "KeyError" and (match := KEY.match(text)) and not SAYS.search(text):
        cause, cure = data_keys.absent_field(raised, match["key"])
        if cause:
            cause += at.replace(", read in", ":", 1)
            return Reason(code="IMG923", cause=cause, cure=cure, source="first")
        holder = _lookup_expression(raised, match["key"])
        cause = f"the key {match['key']} is absent{f' from {holder}' if holder else ''}{at}"
        cure = "compare the key with the keys in the data or configuration that this line reads"
        if raised and (package := raised.package):
            name = releases.package_name(package)
            cure += f"; if {name} looks for it itself, the weights, configuration or data are of"
            cure += f" another version than it expects: update {name}{_companions(name)}, or use a"
            cure += " model that it supports"
            if caller is None and (other := _calling_package(exception.frames, package)):
                cause += f", which {other} calls"
                cure += _pair(exception, name, other, facts)
    elif match := NONE_USED.search(text):
        cause, cure = _none_value_cause(exception, match, raised, at, outside=caller is not None)
    if not cause:
        return None
    if (part := _part(exception, raised, caller)) is not None and " does not exist" not in cause:
        cause += f" ({part.part})"
        name = releases.package_name(raised.package) if raised else ""
        cure = part.cure + _versions(exception, name)
    return Reason(code="IMG923", cause=cause, cure=cure, confidence="medium", source="first")


def _absent_input_cause(exception: LoggedException, name: str) -> tuple[str, str]:
    """Return cause and cure if a model of transformers gets None for a tensor, or empty texts."""
    models = [frame for frame in exception.frames[-4:] if MODEL.search(frame.file)]
    if not models or name not in OF_TENSORS:
        return "", ""
    cause = f".{name} of None is used in a model of transformers"
    cause += f" ({owners.shorten_path(models[-1].file)}:{models[-1].line}): its caller does not"
    cause += " pass a tensor that the installed transformers requires there (position_ids,"
    cause += " attention_mask, position embeddings), or another part of the model returned None"
    cure = "use the transformers that the calling code was written for (the requirements of the"
    cure += " project, transformers_version in config.json), or pass the argument; for images, use"
    cure += " the processor and its configuration of the same release as the model"
    return cause, cure


def _none_value_cause(
    exception: LoggedException,
    match: re.Match[str],
    raised: TraceFrame | None,
    at: str,
    *,
    outside: bool,
) -> tuple[str, str]:
    """Return cause and cure if None is used as a value.

    `outside` means that the program's own code uses it.
    """
    how = match["how"] or match["other"] or ""
    cause, cure = _absent_input_cause(exception, match["name"] or "")
    if cause:
        return cause, cure
    what = f".{match['name']} of None is used" if match["name"] else f"None {how}"
    value = _none_expression(raised, match["name"] or "", how)
    if raised and raised.package and value.isidentifier() and not outside:
        # A variable of a package's own function, which no option sets.
        name = releases.package_name(raised.package)
        why = f"{name} and what it calls (a plugin, a subclass, a worker of the caller) are of"
        why += " versions that do not fit, or this release has a fault"
        cure = f"use a release of {name}{_companions(name)}, or of the package that starts it"
        cure += f" (verl, trl, an extension of {name}) for the installed {name}"
        return f"{what}: {value}, which {name} computes, is None{at}: {why}", cure
    if match["name"] in OF_MATCHES and raised and f".{match['name']}(" in raised.code:
        return f"{what}: a regular expression has no match{at}", (
            "test the match for None before this call; the text that is searched, such as a"
            " completion of the model, does not always have the expected form"
        )
    cause = f"{what}: {value or 'a value'} is not set{at}"
    if not value:
        return cause, "check the option, file or result that this line reads; it is None"
    return cause, (
        f"set {value}, or find out why its file, configuration or model does not provide it"
    )


def _part(
    exception: LoggedException, raised: TraceFrame | None, caller: TraceFrame | None
) -> PackagePart | None:
    """Return the part of a package that looked up an item.

    Return None if the program's own code called a part that is not `first`.
    """
    if raised is None or not raised.package:
        return None
    part = parts.find_part(exception.frames, (releases.package_name(raised.package),))
    return part if part is not None and (part.first or caller is None) else None


def _companions(package: str) -> str:
    """Return packages that must be compatible with `package`, as the end of a sentence.

    Return "" if they are unknown.
    """
    names = releases.load_name_table().companions.get(package, "")
    return f" with {names} in its range (imgbuild resolve {package})" if names else ""


def _none_expression(raised: TraceFrame | None, name: str, how: str) -> str:
    """Return the expression in a line of code whose value is None, or "" if it is uncertain."""
    code = raised.code if raised else ""
    pattern = rf"\({EXPRESSION}\)"
    if name:
        pattern = rf"{EXPRESSION}\.{name}\b"
    elif "subscriptable" in how:
        pattern = r"(?P<value>[A-Za-z_][\w.]*)\["
    elif "callable" in how:
        pattern = r"(?P<value>[A-Za-z_][\w.]*)\("
    values = {match["value"] for match in re.finditer(pattern, code)}
    return values.pop() if len(values) == 1 else ""


def _lookup_expression(raised: TraceFrame | None, key: str) -> str:
    """Return the expression in a line of code in which `key` is looked up, or "" if unknown."""
    code = raised.code if raised else ""
    match = re.search(rf"{EXPRESSION}\[['\"]{re.escape(key)}['\"]\]", code)
    return match["value"] if match else ""


def _cure(
    exception: LoggedException,
    package: str,
    caller: TraceFrame | None,
    part: PackagePart | None = None,
) -> str:
    at = _call_place(caller)
    if exception.name == "ZeroDivisionError":
        return f"check that {at} gets data: an empty dataset, or one that is smaller than a batch"
    if BUG.search(exception.message):
        return (
            f"update {package}{_companions(package)}: its own check failed, and its issues may"
            " name this message; report it if the newest release also fails"
        )
    advice = remedies.message_advice(exception.message)
    allowed = value_reasons.allowed_values(exception.message)
    silent = exception.name == "AssertionError" and not exception.message
    remedy = None if silent else remedies.find_remedy(exception.text, package, at)
    if len(allowed) > 1 and not advice and not (remedy and remedy.first):
        return value_reasons.value_advice(
            value_reasons.rejected_value(exception.message, allowed), allowed, at
        )
    kind = remedy.cure if remedy else ""
    useful = remedy is not None and not remedy.weak
    if advice and not (remedy and remedy.first):
        if remedies.is_vague(advice) and useful:
            return kind
        more = useful and "install" not in advice.lower()
        return f'follow the message: "{advice}"' + (f"; else {kind}" if more else "")
    weak = remedy is None or remedy.weak or (remedy.means and caller is None and not remedy.first)
    if part is not None and (weak or (part.first and remedy and not remedy.first)):
        return part.cure + _versions(exception, package)
    plain = exception.name in PLAIN and PYTHONS.search(exception.message)
    if remedy and (remedy.means or not plain):
        return kind
    return _general_cure(exception, package, at)


def _versions(exception: LoggedException, package: str) -> str:
    """Return the end of a cure for errors from incompatible versions, or "" for other errors."""
    if exception.name not in UNEXPECTED or package not in releases.load_name_table().companions:
        return ""
    return f"; or the versions are incompatible: install {package}{_companions(package)}"


def _general_cure(exception: LoggedException, package: str, at: str) -> str:
    """Return the cure for an exception if only its package is known."""
    if not exception.message and exception.condition:
        test = _condition_text(exception)
        return (
            f"change the options or data of {at} so that {test} is true (print its values there);"
            f" if they are right, use another version of {package}{_companions(package)}: its"
            " changelog or issues may name this check"
        )
    if exception.name in UNEXPECTED or not exception.message:
        return (
            f"compare the data and options of {at} with {package}'s documentation; if they are"
            f" right, use another version of {package}{_companions(package)}: its changelog or"
            " issues may name this message"
        )
    if exception.name == "NotImplementedError":
        return f"use another option or another version of {package}, which does not implement this"
    checked = f"check what the message names in {at}"
    if names := releases.load_name_table().companions.get(package, ""):
        return (
            f"{checked}; if that is right, {package} and the packages that it uses are not"
            f" compatible: {requirements.update_command(package)}; pip check then names the"
            " versions of"
            f" {names} that it allows (imgbuild resolve {package})"
        )
    return f"{checked}, or use another release of {package}: its changelog or issues may name it"
