"""Finds the reasons for the failures in a log."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from imgbuild.audit.names import releases
from imgbuild.diagnose import (
    binary_reasons,
    calls,
    existence,
    failed_commands,
    flight,
    frames,
    incomplete,
    lines,
    log,
    machines,
    memory_reasons,
    message_reasons,
    model_code,
    parameter_reasons,
    process_reasons,
    program_reasons,
    python_reasons,
    ranking,
    requirements,
    resolution_reasons,
    rules,
    shadowed,
    shape_reasons,
    state_dicts,
    value_reasons,
)
from imgbuild.diagnose.exceptions import QUOTED, LoggedException, quoted_exception, root_causes
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import LogFinding, LogFindings, Reason
from imgbuild.diagnose.log import LogEvent, ParsedLog
from imgbuild.diagnose.ranking import RankedReason
from imgbuild.diagnose.rules import FailureRule, FindingRole
from imgbuild.errors import InputError

STDIN = Path("-")
MOST_TEXTS = 8000
NEAR = 60  # lines between the last frame of a traceback without an exception and the log's end
REPORTS = re.compile(r"(?i)(?:\S{1,60}: )?(?:fatal|error|failed|aborted|abort)\b.{0,12}[: ]\S")
FAILURE = re.compile(
    r"(?i)\b(?:\w{0,60}error|fatal|failed|failure|fails|\w{0,60}exception|abort(?:ed)?)\b"
)
WIDE = 50  # rules of a lower priority match lines of many programs
# A message that is a failure even without its type.
BARE = re.compile(
    r"(?:undefined symbol:|No module named|cannot import name|Could not override|Value error,|"
    r"\S{1,200}: error while loading shared libraries|"
    r".{0,80}\bimport \W?\w{2,40}\W.{0,12}undefined|"
    r"(?:[Ee]rror|[Ff]ailed to [\w ]{2,40}): \S{1,120} got an unexpected keyword argument|"
    r"(?:\w+Error: |Failed to import from [\w.]+ with \w+\(.)/\S{1,300}\.so[\w.]*: "
    r"(?:undefined|version)|"
    r"\S+\.so[\w.]*: (?:undefined|cannot open|version [`'])|.{0,300}CUDA initialization: |"
    r"[A-Za-z_][\w.]{0,120}\(\) got an unexpected keyword argument) ?\S"
)
MISFIT = re.compile(r"unexpected keyword argument|cannot import name")
# Errors that code expects and handles: the exception that follows is more specific.
LOOKUPS = (
    *("KeyError", "AttributeError", "StopIteration", "IndexError", "LookupError"),
    *("HTTPError", "URLError", "ImportError", "ModuleNotFoundError"),
)


def diagnose_log(stream: BinaryIO, name: str) -> LogFindings:
    """Return the findings in a log. Raises InputError if the log is not text."""
    return ranking.rank_reasons(_log_reasons(stream, name))


def _log_reasons(stream: BinaryIO, name: str, file: str = "") -> list[RankedReason]:
    """Return the reasons in a log. `file` is the name to show, if there are several logs."""
    parsed = log.parse_log(lines.read_lines(stream, name))
    return [
        RankedReason(parsed.exceptions, reason, event, file) for reason, event in _reasons(parsed)
    ]


def first_finding_sentence(text: str) -> str:
    """Return the first finding in a log as a sentence.

    Return "" if the confidence is low, or if there is no finding.
    """
    findings = likely_findings(diagnose_log(io.BytesIO(text.encode("utf-8", "replace")), "log"))
    return finding_sentence(findings[0]) if findings else ""


def likely_findings(result: LogFindings) -> tuple[LogFinding, ...]:
    """Return the findings, or nothing if the confidence of the first one is low."""
    low = not result.findings or result.findings[0].confidence == "low"
    return () if low else result.findings


def finding_sentence(finding: LogFinding) -> str:
    """Return a finding as a sentence."""
    return f"{finding.code}: {finding.cause}; cure: {finding.cure}"


def diagnose_paths(paths: Sequence[Path]) -> LogFindings:
    """Return the findings in logs, or in flight-recorder dumps of several ranks.

    The files may be in a folder. `STDIN` is read from stdin. Raises InputError for a file
    that cannot be read.
    """
    dumps: list[flight.RankDump] = []
    reasons: list[RankedReason] = []
    files = list(_files(dict.fromkeys(paths)))
    for file in files:
        name = "stdin" if file == STDIN else str(file)
        try:
            with _open(file) as stream:
                if flight.is_dump(stream.peek(4096)):  # a pipe cannot be read twice
                    data = stream.read(flight.LARGEST_DUMP + 1)
                    if len(data) > flight.LARGEST_DUMP:
                        message = f"{name}: larger than {flight.LARGEST_DUMP >> 20} MB"
                        raise InputError(
                            message,
                            hint="dumps of the flight recorder are smaller",
                        )
                    dumps.append(flight.read_dump(data, name))
                else:
                    reasons += _log_reasons(stream, name, name if len(files) > 1 else "")
        except OSError as error:
            message = f"{name}: {error.strerror or error}"
            raise InputError(message, hint="pass a log, or - for stdin") from error
    ranked = ranking.rank_reasons(reasons)
    causes = (*flight.flight_findings(dumps), *ranked.findings)
    return msgspec.structs.replace(ranked, findings=causes[: ranking.MOST_FINDINGS])


def _open(file: Path) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext(sys.stdin.buffer) if file == STDIN else file.open("rb")


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files in `paths`.

    In a folder, only regular files are included, because a pipe has no end.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        try:
            files = [file for file in sorted(path.iterdir()) if file.is_file()]
        except OSError as error:
            message = f"{path}: {error.strerror or error}"
            raise InputError(message, hint="pass the files in the folder") from error
        if not files:
            message = f"{path}: no files"
            raise InputError(message, hint="pass a log, or the folder that contains logs or dumps")
        yield from files


def _reasons(value: ParsedLog) -> Iterator[tuple[Reason, LogEvent]]:
    texts = value.event_texts[:MOST_TEXTS]
    failed = value.failed or (
        value.is_single_message and not any(event.level in ("I", "W") for event in value.events)
    )
    explained: set[int | None] = set()
    given: set[int] = set()  # lines
    leading: list[str] = []  # texts of failed commands that explain the first exception
    allowed: dict[str, bool] = {}
    first = _first_exception(value)
    replaced = _replaced_exceptions(value)
    for event in value.events:
        if value.is_harmless(event):
            continue
        reason = _event_reason(value, event, texts, allowed, failed=failed)
        if reason is not None:
            reason = _compared_reason(value, event, reason, first, leading)
        if reason is not None and event.exception in replaced:
            reason = msgspec.structs.replace(reason, confidence="low", weak=True)
        if reason is not None and (failed or not reason.failed):
            explained.add(event.exception)
            given.add(event.number)
            if reason.follows and _is_preceded(value, event):
                reason = _mark_as_consequence(reason)
            yield reason, event
    if (stopped := process_reasons.watchdog_reason(value)) is not None:
        reason, number = stopped
        text = f"watchdog at line {number}"
        event = next(
            (e for e in value.events if e.number == number),
            LogEvent(number=number, source="", text=text),
        )
        role: FindingRole = "consequence" if _is_preceded(value, event) else "cause"
        yield msgspec.structs.replace(reason, role=role), event
    if (launcher := process_reasons.launcher_reason(value)) is not None:
        reason, line = launcher
        yield reason, LogEvent(number=line.number, source=line.source, text=line.text)
    yield from _truncated_trace_reasons(value)
    if first is None:
        yield from _unfinished_log_reasons(value, given)
    elif first[1].exception not in explained:
        yield (_mark_as_consequence(first[0]) if leading else first[0]), first[1]


def _compared_reason(
    value: ParsedLog,
    event: LogEvent,
    reason: Reason,
    first: tuple[Reason, LogEvent] | None,
    leading: list[str],
) -> Reason | None:
    """Return the reason for an event, compared with the first exception.

    It is marked as a consequence of a better one. Texts of failed commands that explain the first
    exception are added to `leading`.
    """
    # A sentence about a symptom is from a description, not from a program's output.
    if reason.role == "symptom" and event.exception is None:
        return reason if first is None and value.is_excerpt else None
    if event.number in value.statements.continuations and QUOTED.search(event.text):
        reason = msgspec.structs.replace(reason, weak=True)  # the program says that it continues
    if any(failed_commands.leads_to(each, event.text) for each in leading):
        return _mark_as_consequence(reason)
    if _leads_to_exception(event, first):
        leading.append(event.text)
        return reason
    # The exception of a program that continues explains more than its earlier failures.
    minor = first is not None and event.exception is None and _is_minor(reason)
    return _mark_as_consequence(reason) if minor else reason


def _leads_to_exception(event: LogEvent, first: tuple[Reason, LogEvent] | None) -> bool:
    """Whether a line before the first exception is the failure of a command that explains it."""
    if first is None or event.exception is not None or event.number >= first[1].number:
        return False
    return event.level not in ("I", "W") and failed_commands.leads_to(event.text, first[1].text)


def _replaced_exceptions(value: ParsedLog) -> set[int | None]:
    """Return the numbers of exceptions whose handlers fail because versions do not match."""
    return {
        each.context
        for each in value.exceptions
        if each.context is not None and MISFIT.search(each.text)
    }


def _truncated_trace_reasons(value: ParsedLog) -> Iterator[tuple[Reason, LogEvent]]:
    """Yield the reason for a traceback without its exception, if the log ends with it."""
    cut = value.cut
    if cut is None or value.number - cut.number >= NEAR:
        return
    if any(each.traced and each.number != cut.number for each in value.exceptions):
        return
    trace = [each for each in reversed(value.cut_frames) if not each.file.startswith("<frozen")]
    code = trace[0].code if trace else ""
    reason = incomplete.truncated_reason(trace) or _cut_import_reason(code, value.facts)
    if reason is not None:
        yield reason, LogEvent(number=cut.number, source="", text=cut.code or cut.file)


def _cut_import_reason(code: str, facts: LogFacts) -> Reason | None:
    """Return the reason if `code` imports a name that a version of the package removed."""
    for module, name in incomplete.imported_names(code):
        names = releases.name_existence(module, name)
        if names is not None and names.removing_version:
            text = f"cannot import name '{name}' from '{module}'"
            reason = python_reasons.python_reason(text, facts)
            return msgspec.structs.replace(reason, confidence="medium") if reason else None
    return None


def _unfinished_log_reasons(
    value: ParsedLog, given: Collection[int]
) -> Iterator[tuple[Reason, LogEvent]]:
    """Yield reasons for a log without an exception.

    The lines `given` have a reason. The others come from a line with an error, or from the end of a
    truncated traceback.
    """
    if any(each.traced for each in value.exceptions):
        return
    described = None if given or value.succeeded else incomplete.described_reason(value)
    if described is not None:
        line = value.last[0]
        yield described, LogEvent(number=line.number, source=line.source, text=line.text)
        return
    cut = value.cut
    single = value.number == 1  # such as the message of a program in C++
    if value.failed or cut is not None or single:
        for event in value.events:
            if value.is_survived(event.number, None):
                continue
            reports = event.level == "E" or (not event.level and REPORTS.match(event.text))
            if not event.level and single:
                reports = FAILURE.search(event.text) is not None and event.text[:1] != "{"
            if reports and not (cut is not None and event.number > cut.number):
                if event.number in given:
                    return
                yield message_reasons.reported_reason(event.text), event
                return
    if cut is not None and value.number - cut.number < NEAR:
        event = LogEvent(number=cut.number, source="", text=cut.code or cut.file)
        yield message_reasons.cut_off_reason(cut), event


def _is_preceded(value: ParsedLog, event: LogEvent) -> bool:
    """Whether an exception that does not wrap another one precedes an event."""
    return any(
        exception.traced
        and not exception.is_wrapper
        and not exception.is_warning
        and exception.number < event.number
        and not (
            event.exception is not None and index in root_causes(value.exceptions, event.exception)
        )
        for index, exception in enumerate(value.exceptions)
    )


def _mark_as_consequence(reason: Reason) -> Reason:
    return msgspec.structs.replace(reason, confidence="low", role="consequence")


def _event_reason(
    value: ParsedLog,
    event: LogEvent,
    texts: Sequence[str],
    allowed: dict[str, bool],
    *,
    failed: bool,
) -> Reason | None:
    """Return the reason for an event, from a rule or else from facts.

    `allowed` maps codes to booleans.
    """
    exception = None if event.exception is None else value.exceptions[event.exception]
    traced = exception.frames if exception else ()
    places = tuple(f"{f.package or f.file}:{f.file}:{f.name}:{f.code}" for f in traced)
    unreal = python_reasons.unknown_name_reason(event.text)
    if unreal is not None and (failed or value.is_excerpt):
        return unreal
    certain = (
        (shadowed.shadowing_reason(exception) if exception else None)
        or shape_reasons.shape_reason(event.text)
        or resolution_reasons.installed_conflict_reason(event.text, texts)
    )
    if certain is not None:
        return certain
    text = exception.condition if exception and not exception.message else ""
    for rule, groups in rules.matching_rules(
        f"{event.text}: {text}" if text else event.text, places
    ):
        if rule.code not in allowed:
            allowed[rule.code] = rule.conditions_hold(value.facts, texts, value.last_lines)
        if allowed[rule.code]:
            wide = rule.confidence != "high" and rule.priority < WIDE
            if exception is None and wide and _stated_reason(event.text, value.facts) is not None:
                continue  # the message of a known program is more specific
            user = frames.using_package(exception or _next_exception(value, event))
            named = {**rule.named_groups(texts), **groups}
            measured = _measured_reason(rule.code, event.text, exception, value.facts)
            return measured or _rule_reason(rule, named, user, event, value.facts)
    variable = python_reasons.variable_reason(event.text, value.facts)
    if variable is not None:
        stated = value.is_excerpt and event.text.startswith("Unknown vLLM")
        return variable if failed or value.script or stated else None
    if exception is not None and (exception.is_warning or value.is_handled(event.number)):
        return binary_reasons.start_reason(event.text) if exception.is_warning else None
    if exception is None:
        noted = existence.noted_argument_reason(event.text, value.facts) if failed else None
        return noted or _line_reason(value, event, failed=failed)
    return _exception_reason(value, event, exception)


def _exception_reason(
    value: ParsedLog, event: LogEvent, exception: LoggedException
) -> Reason | None:
    """Return the reason for an exception from its message and the packages of its frames."""
    last = frames.innermost_frame(exception)
    caller, code = frames.raising_package(exception), last.code if last else ""
    if last is None:
        caller = frames.raising_package(_handling(value, event.exception))
    elif last.is_standard and exception.name == "NameError":  # typing evaluates an annotation
        caller = frames.package_above(exception, "")
    above = frames.package_above(exception, caller)
    reason = (
        shadowed.cycle_reason(exception)
        or parameter_reasons.parameter_reason(event.text, caller, above, value.facts)
        or calls.passed_argument_reason(event.text, caller, above, value.facts)
        or calls.called_by_name_reason(event.text, code, caller, above, value.facts)
        or value_reasons.value_reason(event.text)
        or binary_reasons.binary_reason(event.text, value.facts, caller)
        or requirements.requirement_reason(
            event.text, frames.checking_package(exception, caller), above
        )
        or model_code.model_code_reason(event.text, value.facts, caller)
        or python_reasons.python_reason(event.text, value.facts, caller, code)
        or ("NCCL error" in event.text and program_reasons.program_reason(event.text))
        or None
    )
    if reason is None or exception.traced:
        return reason
    return _survived_error_reason(reason, value, event)


def _measured_reason(
    code: str, text: str, exception: LoggedException | None, facts: LogFacts
) -> Reason | None:
    """Return a reason from sizes, versions or frames, which say more than the rule `code`."""
    if code in state_dicts.CODES:
        return state_dicts.state_dict_reason(text, code)
    if code == shadowed.CODE:
        return shadowed.cycle_reason(exception)
    if code == memory_reasons.GENERAL:
        return memory_reasons.memory_reason(text)
    if code == existence.UNUSED:
        return existence.unused_arguments_reason(text, facts)
    if code == binary_reasons.NO_OPERATORS:
        return binary_reasons.other_torch_reason(facts, "its compiled operators were not loaded")
    if "std::bad_alloc" in text:
        return binary_reasons.other_torch_reason(facts, "its libraries abort at import")
    return None


def _rule_reason(
    rule: FailureRule, groups: Mapping[str, str], user: str, event: LogEvent, facts: LogFacts
) -> Reason:
    """Return the reason from a rule that applies.

    `user` is the import name of the failing package.
    """
    weak = event.level in ("I", "W") and not rule.warns
    texts = {**groups, "user": releases.package_name(user) or "a package"}
    pin = requirements.pin_cure(rule.requires, user, facts) if rule.requires else ""
    cause, cure = machines.machine_reason(rule.code, event.text, facts)
    cure = cure or rules.fill_placeholders(rule.cure, texts)
    return Reason(
        code=rule.code,
        cause=cause or rules.fill_placeholders(rule.cause, texts),
        role=rule.role,
        cure=f"{pin}; else {cure}" if pin else cure,
        confidence=rule.confidence,
        source="rule",
        failed=rule.failed or weak,
        priority=rule.priority,
        follows=rule.follows,
        weak=weak,
    )


def _is_minor(reason: Reason) -> bool:
    """Whether the reason is a program's message that the calling Python program may survive."""
    return reason.code == program_reasons.CODE and reason.source == "first"


def _stated_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the reason for a line in which a known program states its failure."""
    return (
        resolution_reasons.resolution_reason(text, facts)
        or existence.command_reason(text, facts)
        or value_reasons.value_reason(text)
        or program_reasons.program_reason(text)
    )


def _line_reason(value: ParsedLog, event: LogEvent, *, failed: bool) -> Reason | None:
    """Return the reason for a line that is not an exception."""
    text = event.text
    if not failed and (not value.is_excerpt or event.level in ("I", "W")):
        explained = value.is_single_message and event.level != "I"
        explained = explained or (value.is_excerpt and "undefined symbol" in text)
        return binary_reasons.binary_reason(text, value.facts) if explained else None
    stated = _stated_reason(text, value.facts)
    if stated is not None:
        return msgspec.structs.replace(stated, weak=event.level in ("I", "W"))
    after = _next_exception(
        value, event
    )  # a logger's line before the traceback with the same message
    caller = frames.raising_package(after) if after is not None and after.message == text else ""
    reason = (
        binary_reasons.binary_reason(text, value.facts)
        or (
            requirements.requirement_reason(text) if value.note or value.is_single_message else None
        )
        or python_reasons.python_reason(text, value.facts, caller)
    )
    return None if reason is None else _survived_error_reason(reason, value, event)


def _survived_error_reason(reason: Reason, value: ParsedLog, event: LogEvent) -> Reason:
    """Return the reason for an error in a line, which the program may have survived."""
    weak = event.level in ("I", "W") or "Warning: " in event.text
    if value.note and not weak:
        weak = event.exception is not None  # a line that states a failure explains more
        stated = weak or BARE.search(event.text) is not None or reason.code == requirements.CODE
    else:
        stated = value.is_excerpt and BARE.match(event.text) is not None
    return msgspec.structs.replace(
        reason,
        failed=not stated,
        weak=weak,
        confidence="medium" if weak and reason.confidence == "high" else reason.confidence,
    )


def _next_exception(value: ParsedLog, event: LogEvent) -> LoggedException | None:
    """Return the exception of the traceback that follows a line."""
    near = (each for each in value.exceptions if 0 <= each.number - event.number < NEAR)
    return next(near, None)


def _handling(value: ParsedLog, index: int | None) -> LoggedException | None:
    """Return the exception that was raised while the exception at `index` was handled.

    Only exceptions of the same program are considered.
    """
    return next(
        (each for each in value.exceptions if index is not None and each.context == index), None
    )


def _first_exception(value: ParsedLog) -> tuple[Reason, LogEvent] | None:
    """Return the first exception that is neither a wrapper nor a warning, with a reason.

    Its message explains the exception.
    """
    for index, exception in enumerate(value.exceptions):
        if not exception.traced or exception.is_warning or exception.is_wrapper:
            continue
        if exception.name in LOOKUPS and _is_followed(value, index):
            continue
        if value.is_handled(exception.number) or value.is_survived(exception.number, exception):
            continue
        event = LogEvent(
            number=exception.number, source=exception.source, text=exception.text, exception=index
        )
        return message_reasons.exception_reason(exception, value.facts) or _unknown_reason(
            exception
        ), event
    return _repeated_exception(value)


def _repeated_exception(value: ParsedLog) -> tuple[Reason, LogEvent] | None:
    """Return the exception whose message the first wrapper repeats, with a reason.

    Used if the log contains only wrappers.
    """
    for index, exception in enumerate(value.exceptions):
        inner = quoted_exception(exception) if exception.traced else None
        if inner is None:
            continue
        event = LogEvent(
            number=exception.number, source=exception.source, text=inner.text, exception=index
        )
        reason = python_reasons.python_reason(
            inner.text, value.facts
        ) or message_reasons.exception_reason(inner, value.facts)
        return (reason, event) if reason is not None else None
    return None


def _unknown_reason(exception: LoggedException) -> Reason:
    text = re.sub(r"\s+", " ", exception.text)[:300]
    return Reason(
        code="IMG999",
        cause=f"the first exception is {text}",
        confidence="low",
        source="first",
        cure="the log does not show where it was raised: include the lines before it; to report the"
        " failure, add the output of imgbuild doctor --collect",
    )


def _is_followed(value: ParsedLog, index: int) -> bool:
    """Whether another exception was raised while an exception was handled."""
    return any(
        index in root_causes(value.exceptions, later)
        for later in range(index + 1, min(index + 6, len(value.exceptions)))
        if value.exceptions[later].name != "SystemExit"  # exits because of the exception
        and value.exceptions[later].text != value.exceptions[index].text  # of another process
    )
