"""Runs the command line, and reports errors, hints and interrupts on stderr."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import signal
import sys
import tempfile
from pathlib import Path

from imgbuild.cache.settings import default_root
from imgbuild.cli._cause import report_cause
from imgbuild.cli._output import discard_stdout, print_result, stdout_error
from imgbuild.errors import (
    ImgbuildError,
    InputError,
    InputProblem,
    Interrupted,
    NoSolution,
    Terminated,
    WorkFailed,
)
from imgbuild.system import ending, files
from imgbuild.system.console import console
from imgbuild.system.control_characters import escape_control

WIDTH = 72  # columns of an excerpt
COLUMNS_BEFORE = 40  # of these at most before the place


def problem_excerpt(problem: InputProblem) -> list[str]:
    """Return the source lines of a problem: margin, line with its number, and carets."""
    if problem.source is None or problem.line is None or problem.column is None:
        return []
    at = problem.column - 1
    first = max(0, at - COLUMNS_BEFORE) if len(problem.source) > WIDTH else 0
    shown = problem.source[first : first + WIDTH].rstrip()
    before = escape_control(shown[: at - first])
    value = problem.value or ""
    length = len(value) if problem.source.startswith(value, at) else 1
    carets = "^" * max(1, min(length, WIDTH - (at - first)))
    indent = "".join("\t" if character == "\t" else " " for character in before)
    number = str(problem.line)
    margin = " " * len(number)
    return [f"{margin} |", f"{number} | {escape_control(shown)}", f"{margin} | {indent}{carets}"]


STOPPED_MESSAGE = "interrupted; completed work is kept, so run the same command again to continue"


ASCII = str.maketrans({"→": "->", "…": "...", "─": "-", "│": "|", "├": "|", "└": "`"})


def replace_unsupported(error: UnicodeError) -> tuple[str, int]:
    """Handle codec errors by replacing unsupported characters with ASCII or escapes.

    With `--json`, all unsupported characters are escaped.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    text = text if console.json else text.translate(ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


def main() -> None:
    """Run the command line, and exit with 0, the code of an error, or a command's status."""
    codecs.register_error("imgbuild", replace_unsupported)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # another encoding than UTF-8 lacks characters
            stream.reconfigure(errors="imgbuild")
    words = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    console.configure(verbosity=0, json="--json" in words)  # for an invalid command line
    ending.raise_signals()
    try:
        # Imported where an interrupt is handled. It takes a third of the time of a short verb.
        from imgbuild.cli import _app

        status = _app.run_verb()
    except KeyboardInterrupt:
        status = _report_interrupt(Interrupted(STOPPED_MESSAGE))
    except Exception as error:
        if (
            ending.received_signal() is not None
        ):  # for example from a worker that the signal terminated
            status = _report_interrupt(error)
        elif isinstance(error, ImgbuildError):
            status = report_error(error)
        elif isinstance(error, OSError):
            status = report_error(_system_error(error))
        else:
            raise
    sys.exit(status)


def _report_interrupt(error: Exception) -> int:
    """Report an interrupt by Ctrl-C or a signal. Returns the exit status as in a shell."""
    number = ending.received_signal()
    interrupted = error if isinstance(error, Interrupted) else Interrupted(STOPPED_MESSAGE)
    if number is None:
        return report_error(interrupted)
    message = f"{signal.Signals(number).name}: {interrupted.message}"
    terminated = Terminated(message, hint=interrupted.hint)
    terminated.exit_code = ending.SIGNAL_STATUS + number
    return report_error(terminated)


def _system_error(error: OSError) -> ImgbuildError:
    try:
        sys.stdout.flush()  # the rest of a result or of a help text that cannot be written
    except OSError as failure:
        discard_stdout()
        return stdout_error(failure)
    if error.errno in files.DISK_FULL_ERRORS:
        full = Path(error.filename) if error.filename else _fullest_folder()
        return files.convert_os_error(error, full, hint=files.FULL_HINT)
    place = f"{error.filename}: " if error.filename else ""
    hint = "check that the folder exists, is writable and has free space"
    return WorkFailed(f"{place}{error.strerror or error}", hint=hint)


def _fullest_folder() -> Path:
    return files.fullest_disk((default_root(), Path.cwd(), Path(tempfile.gettempdir())))


def report_error(error: ImgbuildError) -> int:
    """Print an error with all problems to stderr, and with `--json` also as JSON to stdout.

    Returns the exit status.
    """
    problems = error.problems if isinstance(error, InputError) else ()
    reasons = error.reasons if isinstance(error, NoSolution) else ()
    nearest = error.nearest if isinstance(error, NoSolution) else ()
    details = [reason if reason.startswith("…") else f"because {reason}" for reason in reasons]
    if problems:
        new = [each for each in problems if str(each) not in error.message]
        details = [line for each in new for line in (str(each), *problem_excerpt(each))]
    details += [f"suggestion: {each}" for each in nearest]
    console.error("\n  ".join((error.message, *details)), hint=error.hint)
    report_cause(error.log)
    if console.json:
        document = {
            "error": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "hint": error.hint,
            "problems": problems,
            "reasons": reasons,
            "nearest": nearest,
        }
        with contextlib.suppress(WorkFailed):  # a second error of a stdout that cannot be written
            print_result(document, [])
    return error.exit_code
