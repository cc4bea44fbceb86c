"""Reads the exceptions in a log: type, message, frames and chained exceptions.

Several processes may write to a log at the same time, so each source has a separate traceback. A
log may start inside a traceback. Tracebacks that Ray and multiprocessing repeat from other
processes have no header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from imgbuild.diagnose import owners
from imgbuild.diagnose.prefixes import LogLine

MOST_FRAMES = 60  # of a traceback; the last
MOST_MESSAGE = 4000  # characters
MOST_CONTINUATION = 12  # lines of a message after its first
MOST_SOURCES = 4096
NARROW = 55  # characters of a line that rich breaks
LINE = "\n"
MOST_CODE = 200  # characters of a line of code
MOST_EXCEPTIONS = 3000

MARKS = re.compile(r"[\s^~]+$|\d{1,7} ")  # below code; the lines around it in IPython's
HEADER = re.compile(r"Traceback \(most recent call last\)")
FRAME = re.compile(
    r'\s{0,60}(?:File "|(?=[^\s"]{1,400}\.py", line \d))(?P<file>[^"]{1,400})",'
    r" line (?P<line>\d{1,7})(?:, in (?P<name>.{1,120}))?"
)
RICH_FRAME = re.compile(
    r"\s{0,20}(?P<file>/[^\s:]{1,300}\.py):(?P<line>\d{1,7}) in"
    r" (?P<name>[\w<>.]{1,120})"
)
# IPython's: File ~/lib/x.py:12, in f(a), Cell In[6], line 14; older: /lib/x.py in f(self)
NOTEBOOK_FRAME = re.compile(
    r"(?:File \[?(?P<file>(?:[A-Za-z]:)?[^\s:\"]{1,300}):(?P<line>\d{1,7})\]?"
    r"(?:\(http[^\s)]{1,400}\))?(?:, in (?P<name>[\w.<>]{1,120})|$)|"
    r"(?P<cell>Cell In ?\[\d{1,6}\]), line (?P<row>\d{1,7})|"
    r"\[?(?P<old>(?:/|~/|<ipython-input-)[^\s:()\]]{1,300})\]?(?:\(https?://[^\s)]{1,80}\))? in"
    r" (?P<function><module>|<cell line: \d{1,6}>|[\w<>]{1,120})(?:\(|$))"
)
ARROW = re.compile(r"-{2,6}> ?\[?(?P<line>\d{1,7})\]? ?(?:\([^\s)]{1,120}\))?(?P<code>.*)")
NAMED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?P<wrapped>\(\w{1,80}\))?"
    r"(?::\s?(?P<message>.*))?$"
)
# The start of a name that the end of the log or of a quotation truncates.
TRUNCATED = re.compile(r"(?:[a-z_]\w*\.)+(?!error$|timeout$|\w*error$)[a-z_]\w*$")
# Names that are those of exceptions wherever they begin a line.
LIKELY = re.compile(
    r"(?:(?:[a-z_]\w{0,60}\.){0,8}(?:_?[A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Timeout|"
    r"TimeoutExpired|"
    r"NotFound|UnpicklingError|Failed|FailureKind|Mismatch|Overflow|RepoError|Died|Unavailable|Ended|Incompatible|"
    r"Unsupported|OutOfResources|Divergence)|"
    r"ArrowInvalid|BadZipFile|InvalidSchema|InvalidVersion|InvalidSpecifier|InvalidRequirement|InvalidURL|"
    r"\w{0,40}LimitHit|Exception)|"
    r"(?:[a-z_]\w{0,60}\.){1,8}(?:exc|errors?|exceptions?)\.[A-Z]\w{1,80}(?=:))"
    r"(?:\(\w{1,80}\))?(?::|$)"
)
# In the middle of a line: the part of an exception that a warning or log call repeats.
QUOTED = re.compile(
    r"(?<![\w.])(?P<type>[A-Z]\w{1,60}(?:Error|Exception))(?::\s?|\((?=['\"]))(?P<message>.{3,})",
    re.ASCII,  # a letter of another script may precede it
)
EXIT_FUNCTIONS = ("_exitfunc", "_run_exitfuncs")  # of weakref and atexit
# torch.compile's: the exception of its backend follows, which may be one of its own code.
RAISED = re.compile(r"^backend='?\w+'? raised:$")
INTERNAL = re.compile(
    r"(?:NameError|AssertionError|KeyError|IndexError|AttributeError|TypeError)\b"
)
RAISE = re.compile(r"raise (?P<type>[A-Za-z_][\w.]{0,120})(?:\((?P<message>.*))?")
# It re-raises the previous exception, whose class may take other arguments.
AGAIN = re.compile(r"raise type\(\w{1,20}\)\(")
# pydantic's: the names of fields, each followed by an indented line.
FIELDS = re.compile(r"^\d+ validation errors? for ")
FIELD = re.compile(r"[\w.\[\]`,() -]{1,120}")
LAST_ERROR = "Last error:"  # of NCCL, which follows on the next line
CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"
# Exceptions that pass on the failure of another process or thread.
WRAPPERS = re.compile(
    r"RayTaskError|RayActorError|ActorDiedError|ActorUnavailableError|WorkerCrashedError|"
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|"
    r"RemoteTraceback|EngineDeadError|BrokenProcessPool|SystemExit|KeyboardInterrupt|"
    r"BrokenPipeError|ConnectionResetError|EOFError|CancelledError|DistBackendError|"
    r"DatasetGenerationError|CheckpointException"
)
WRAPPING_MESSAGES = re.compile(
    r"^backend='?\w+'? raised:?$|An issue was found when launching the training|"
    r"One or more (?:background )?(?:tasks|workers) failed|"
    r"Engine core initialization failed|Engine process failed to start|EngineCore (?:failed|died|"
    r"encountered)|"
    r"[Ss]ee root cause above|[Ss]ee stack trace|WorkerProc (?:failed to start|initialization"
    r" failed)|"
    r"(?:Failed to import|Could not import module).{0,200}(?:because of the following|look up to"
    r" see|Are this object)|"
    r"DataLoader worker .{0,60}exited unexpectedly|Caught \w+ in |Background loop has errored|"
    r"Cancelled by|Server (?:is )?(?:died|not running)|EngineCore .{0,40}died|"
    r"The actor (?:is dead|died)|TCPStore.{0,80}(?:Broken pipe|closed)|Rank \d+ .{0,60}terminated"
)

# The module, or the body of the answer, follows on the next line.
UNFINISHED = re.compile(r"^(?:cannot import name '\w{1,80}'|Error code: \d{3})$")
# vLLM's: the message of a worker's exception.
FORWARDED = re.compile(r"^Worker failed with error ['\"](.{3,}?)['\"], please check the stack.*$")


class TraceFrame(msgspec.Struct, frozen=True):
    """A place in a traceback. `number` is the line in the log, and `code` the source line."""

    file: str
    line: int
    name: str
    number: int
    code: str = ""

    @property
    def package(self) -> str:
        """The import name of the package that contains the file, or "" for other code."""
        return owners.package_of_file(self.file)

    @property
    def is_standard(self) -> bool:
        """Whether the file is part of Python's standard library, or is a generated file."""
        return owners.is_standard(self.file)


# Its join() raises the exception of a child process, as a text in older releases.
SPAWN = re.compile(r"torch/multiprocessing/spawn\.py$")
# It removes what processes left when they end, and prints what is already removed.
TRACKER = "multiprocessing/resource_tracker.py"
PROGRESS = re.compile(r"\d{1,3}%\|")  # a progress bar
# The call of a main function at the end of a program, which rarely handles its exceptions.
MAIN = re.compile(r"(?:sys\.exit\(|raise SystemExit\(|asyncio\.run\()?(?:\w+\.)?(?:main|cli|app)\(")


class LoggedException(msgspec.Struct, kw_only=True):
    """An exception in a log, at the line that contains its type.

    `cause` and `context` are the numbers of the exceptions to which it is chained, in the order of
    the log. A `traced` exception follows frames or starts a line. Other exceptions are quoted in a
    sentence.
    """

    number: int
    source: str
    type: str
    message: str
    frames: tuple[TraceFrame, ...] = ()
    cause: int | None = None
    context: int | None = None
    traced: bool = True
    level: str = ""

    @property
    def text(self) -> str:
        """The type and message, as Python prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def condition(self) -> str:
        """The condition of a failed assertion, from its code, or "" for other exceptions."""
        code = self.frames[-1].code if self.frames and self.name == "AssertionError" else ""
        return code if code.startswith("assert ") else ""

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]

    @property
    def is_uncaught(self) -> bool:
        """Whether a traceback starts where a program calls its main function."""
        frame = self.frames[0] if self.frames else None
        return frame is not None and frame.name == "<module>" and bool(MAIN.match(frame.code))

    @property
    def is_wrapper(self) -> bool:
        """Whether the exception only reports the failure of another process or call."""
        if self.type == "Exception" and self.frames and SPAWN.search(self.frames[-1].file):
            return True
        if self.context is not None and self.frames and AGAIN.match(self.frames[-1].code):
            return True
        return bool(WRAPPERS.search(self.type) or WRAPPING_MESSAGES.search(self.message[:400]))

    @property
    def is_warning(self) -> bool:
        """Whether the exception is a warning, an intentional exit, or from a cleanup helper.

        Python ignores exceptions of functions that run when the interpreter exits.
        """
        return (
            self.name.endswith("Warning")
            or bool(self.frames and self.frames[0].name in EXIT_FUNCTIONS)
            or self.text in ("SystemExit: 0", "KeyboardInterrupt")
            or bool(self.frames and self.frames[-1].file.endswith(TRACKER))
        )


class _UnfinishedTrace(msgspec.Struct):
    """The unfinished traceback of a source."""

    frames: list[TraceFrame] = []
    indent: int | None = None
    open: bool = False
    cause: int | None = None
    context: int | None = None
    last: int | None = None  # the exception whose message may continue
    continuation: int = 0
    code: str = ""  # the line of code below the latest frame
    before: str = ""  # the line before this one


class ExceptionReader:
    """Reads lines in order. `exceptions` contains the complete exceptions."""

    def __init__(self) -> None:
        self.exceptions: list[LoggedException] = []
        self.cut_frames: list[TraceFrame] = []  # of a traceback that the log does not complete
        self._traces: dict[str, _UnfinishedTrace] = {}

    def read_line(self, line: LogLine) -> bool:
        """Read a line. Return whether it is part of a traceback, or contains an exception."""
        trace = self._traces.get(line.source)
        if trace is None:
            if len(self._traces) >= MOST_SOURCES:
                return False
            trace = self._traces[line.source] = _UnfinishedTrace()
        text = line.text.lstrip()
        if HEADER.search(text):
            trace.frames, trace.open, trace.last = [], True, None
            trace.indent = len(line.text) - len(text)
            return True
        if frame := _frame(line):
            if not trace.open:
                trace.frames, trace.open, trace.indent = [], True, None
            trace.last, trace.code = None, ""
            trace.frames.append(frame)
            del trace.frames[:-MOST_FRAMES]
            return True
        if text.startswith((CAUSE, CONTEXT)):
            self._add_unnamed(line.source, trace)
            last = len(self.exceptions) - 1
            index = next(
                (
                    i
                    for i in range(last, max(last - 50, -1), -1)
                    if self.exceptions[i].source == line.source
                ),
                None,
            )
            if text.startswith(CAUSE):
                trace.cause = index
            else:
                trace.context = index
            trace.last = None
            return True
        if self._read_exception_line(line, text, trace):
            return True
        if trace.open and trace.frames and text:
            _add_code(trace, text)
        trace.before = text
        return self._continue_message(line, text, trace)

    def open(self, line: LogLine) -> bool:
        """Whether a line follows a frame of a traceback that is not complete."""
        trace = self._traces.get(line.source)
        return trace is not None and trace.open and bool(trace.frames)

    def close(self) -> None:
        """Add tracebacks that the end of the log truncates, with their last line."""
        for source, trace in self._traces.items():
            if trace.open and trace.frames:
                latest = self.cut_frames[-1].number if self.cut_frames else 0
                if trace.frames[-1].number > latest:
                    self.cut_frames = list(trace.frames)
            self._add_unnamed(source, trace)

    def _add_unnamed(self, source: str, trace: _UnfinishedTrace) -> None:
        """Add the exception of a traceback without a last line.

        Its type and message are read from the code that raises it.
        """
        match = RAISE.match(trace.code) if trace.open and trace.frames else None
        if match is None or not match["type"].rpartition(".")[2][0].isupper():
            return
        self._add_exception(
            LoggedException(
                number=trace.frames[-1].number,
                source=source,
                type=match["type"],
                message=(match["message"] or "").rstrip(")"),
                frames=tuple(trace.frames),
                cause=trace.cause,
                context=trace.context,
            )
        )
        trace.frames, trace.open, trace.cause, trace.context = [], False, None, None

    def _read_exception_line(self, line: LogLine, text: str, trace: _UnfinishedTrace) -> bool:
        """Read a line. Return whether it contains the type of an exception."""
        likely = LIKELY.match(text)
        if likely and not trace.frames and self._read_compiler_line(text, trace):
            return True
        indent = len(line.text) - len(text)
        if trace.open and trace.frames and not likely:
            limit = trace.indent if trace.indent is not None else max(indent, 0)
            if indent > limit or not (match := NAMED.match(text)) or _is_code(text, trace.indent):
                return False
        elif likely:
            match = NAMED.match(text)
        else:
            return self._read_quoted(line, text)
        if match is None or TRUNCATED.match(text):
            return False
        added = self._add_exception(
            LoggedException(
                number=line.number,
                source=line.source,
                type=match["type"] + (match["wrapped"] or ""),
                message=FORWARDED.sub(r"\1", (match["message"] or "").strip())[:MOST_MESSAGE],
                frames=tuple(trace.frames),
                cause=trace.cause,
                context=trace.context,
                traced=line.level not in ("I", "W") or bool(trace.frames),
                level=line.level,
            )
        )
        if added and not trace.frames and trace.before.startswith("assert "):
            self._state_condition(trace.before)
        if added and match["message"] is not None:  # without a colon it has no message
            trace.last = len(self.exceptions) - 1
        trace.frames, trace.open, trace.cause, trace.context = [], False, None, None
        trace.indent = None
        trace.continuation = 0
        return True

    def _state_condition(self, code: str) -> None:
        """Use the condition on the line before an assertion without frames as its message."""
        exception = self.exceptions[-1]
        if exception.name == "AssertionError" and not exception.message:
            exception.message = f"{code.removeprefix('assert ')[:MOST_CODE]} is false"

    def _read_compiler_line(self, text: str, trace: _UnfinishedTrace) -> bool:
        """Read a backend's error that torch.compile quotes. Return whether the line contains one.

        The line is added to the message of the exception.
        """
        before = self.exceptions[trace.last] if trace.last is not None else None
        if before is None or not RAISED.search(before.message) or not INTERNAL.match(text):
            return False
        before.message = f"{before.message}\n{text}"[:MOST_MESSAGE]
        return True

    def _read_quoted(self, line: LogLine, text: str) -> bool:
        """Add an exception that a line mentions in a sentence, as not traced.

        Returns False, because the line is not part of a traceback.
        """
        if not line.hit or (match := QUOTED.search(text)) is None:
            return False
        self._add_exception(
            LoggedException(
                number=line.number,
                source=line.source,
                type=match["type"],
                message=_unquoted(match["message"])[:MOST_MESSAGE],
                traced=False,
                level=line.level or "W",
            )
        )
        return False

    def _add_exception(self, exception: LoggedException) -> bool:
        """Add an exception. Return False if the limit is reached."""
        if len(self.exceptions) >= MOST_EXCEPTIONS:
            return False
        self.exceptions.append(exception)
        return True

    def _continue_message(self, line: LogLine, text: str, trace: _UnfinishedTrace) -> bool:
        """Read a line. Return whether it continues the message of the previous exception."""
        if trace.last is None:
            return False
        trace.continuation += 1
        if trace.continuation > MOST_CONTINUATION or not text or line.level in ("I", "W"):
            trace.last = None
            return False
        exception, wrapped = self.exceptions[trace.last], False
        if (
            (not line.text[:1].isspace() or PROGRESS.match(text))
            and exception.message
            and not exception.message.endswith(":")
            and not (wrapped := _wraps(exception, text))
            and not (FIELDS.search(exception.message) and FIELD.fullmatch(text))
            and not (text == LAST_ERROR and "nccl" in exception.message)
        ):
            trace.last = None  # the next line of the log
            return False
        if len(exception.message) < MOST_MESSAGE:
            joined = f"{exception.message}{' ' if wrapped else LINE}{text}"
            exception.message = joined[:MOST_MESSAGE].lstrip("\n")
        return False


def _frame(line: LogLine) -> TraceFrame | None:
    """Return the place in a traceback line by Python, rich or IPython."""
    match = FRAME.match(line.text) or RICH_FRAME.match(line.text)
    if match is not None:
        name = match["name"] or "<module>"
        return TraceFrame(match["file"], int(match["line"]), name, line.number)
    match = NOTEBOOK_FRAME.match(line.text)
    if match is None:
        return None
    file = match["file"] or match["cell"] or match["old"]
    name = match["name"] or match["function"] or "<module>"
    name = "<module>" if name.startswith("<cell line") else name
    return TraceFrame(file, int(match["line"] or match["row"] or 0), name, line.number)


def _add_code(trace: _UnfinishedTrace, text: str) -> None:
    """Add the line of code below a frame: the first line, or the line that IPython marks."""
    latest = trace.frames[-1]
    if match := ARROW.match(text):
        line = latest.line or int(match["line"])
        code = match["code"].strip()[:MOST_CODE]
        trace.frames[-1] = msgspec.structs.replace(latest, line=line, code=code)
    elif not latest.code and not MARKS.match(text):
        trace.frames[-1] = msgspec.structs.replace(latest, code=text[:MOST_CODE])
    trace.code = text


def _wraps(exception: LoggedException, text: str) -> bool:
    """Whether a line continues the message of an exception that rich wrapped."""
    if FIELDS.search(exception.message):
        return False
    length = len(exception.type) + len(exception.message.rpartition("\n")[2])
    if exception.message.endswith((" *", " +", " =", "\n^")) or UNFINISHED.search(
        exception.message
    ):
        return True
    return length >= NARROW and exception.message[-1] not in ".!?'\")" and text[0].islower()


def _unquoted(text: str) -> str:
    """Return a quoted message without the surrounding quotation marks and brackets."""
    text = text.rstrip(")\u201d\u300d\uff09")
    for mark in "'\"":
        if text.startswith(mark) and text.count(mark) <= 2:
            text = text.strip(mark)
        elif text.count(mark) % 2:
            text = text.rstrip(mark)
    return text


def _is_code(text: str, indent: int | None) -> bool:
    """Whether a line below a frame without a header is code instead of an exception."""
    return indent is None and not re.match(
        r"[A-Z]\w*(?:\.\w+)*(?::|$)|(?:\w+\.)+[A-Z]\w*(?::|$)", text
    )


# Wrappers that repeat the message of the exception in their last line, without its type.
REPEATED = re.compile(r"because of the following error[^\n]{0,60}\n(?P<text>[^\n]{4,2000})\s*$")
TYPES = (
    ("has no attribute", "AttributeError"),
    ("No module named", "ModuleNotFoundError"),
    ("cannot import name", "ImportError"),
    ("unexpected keyword", "TypeError"),
)


def quoted_exception(exception: LoggedException) -> LoggedException | None:
    """Return the exception whose message a wrapper repeats, or None if there is none."""
    match = REPEATED.search(exception.message)
    if match is None:
        return None
    text = match["text"].strip()
    kind = next((name for words, name in TYPES if words in text), "ImportError")
    return msgspec.structs.replace(exception, type=kind, message=text, frames=())


def root_causes(exceptions: list[LoggedException], index: int) -> Iterator[int]:
    """Yield the numbers of the exceptions before `index` in its chain, nearest first."""
    seen = {index}
    while True:
        before = exceptions[index].cause
        if before is None:
            before = exceptions[index].context
        if before is None or before in seen:
            return
        seen.add(before)
        yield before
        index = before


def direct_causes(exceptions: list[LoggedException], index: int) -> Iterator[int]:
    """Yield the numbers of the exceptions from which `index` was raised, nearest first."""
    while (before := exceptions[index].cause) is not None and before < index:
        yield before
        index = before
