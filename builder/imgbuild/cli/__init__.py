"""The command line: one file per verb, named as the verb. Only `main` ends the process."""

from __future__ import annotations

import itertools
import sys

from imgbuild.errors import ImgbuildError, InputError, Interrupted, NoSolution, WorkFailed
from imgbuild.system.console import console

STOPPED = "interrupted; what was finished is kept, run the same command to go on"


def main() -> None:
    """Run the command line; the exit status is 0, that of the error's class, or a command's own."""
    words = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    console.configure(verbosity=0, json="--json" in words)  # for a command line that is wrong
    try:
        from imgbuild.cli import _app

        status = _app.run_verb()
    except ImgbuildError as error:
        status = report(error)
    except KeyboardInterrupt:
        status = report(Interrupted(STOPPED))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        hint = "check that the folder exists, may be written to and has room"
        status = report(WorkFailed(f"{place}{error.strerror or error}", hint=hint))
    sys.exit(status)


def report(error: ImgbuildError) -> int:
    """Say what went wrong, every problem of it, on stderr; under `--json` on stdout as data too.

    The exit status of the error.
    """
    problems = error.problems if isinstance(error, InputError) else ()
    reasons = error.reasons if isinstance(error, NoSolution) else ()
    nearest = error.nearest if isinstance(error, NoSolution) else ()
    details = [str(problem) for problem in problems] or [f"because {reason}" for reason in reasons]
    details += [f"nearest: {world}" for world in nearest]
    console.error("\n  ".join((error.message, *details)), hint=error.hint)
    if console.json:
        from imgbuild.cli import _options

        document = {
            "error": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "hint": error.hint,
            "problems": problems,
            "reasons": reasons,
            "nearest": nearest,
        }
        _options.answer(document, [], json=True)
    return error.exit_code
