"""The command line: one small function a verb. Only this module's `main` ends the process."""

from __future__ import annotations

import sys

from imgbuild import codec
from imgbuild.console import console
from imgbuild.errors import ImgbuildError, InputError, Interrupted, WorldImpossible


def main() -> None:
    """Run the command line; the exit status is 0 or that of the error's class."""
    from imgbuild.cli.app import app

    try:
        app()
    except ImgbuildError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        report(Interrupted("interrupted; what was finished is kept, run the same command to go on"))
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.exit(0)


def report(error: ImgbuildError) -> None:
    """Say what went wrong, every problem of it, on stderr; under `--json` on stdout as data too."""
    problems = error.problems if isinstance(error, InputError) else ()
    reasons = error.reasons if isinstance(error, WorldImpossible) else ()
    details = [str(problem) for problem in problems] or [f"because {reason}" for reason in reasons]
    console.error("\n  ".join((error.message, *details)), hint=error.hint)
    if console.json:
        document = {
            "error": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "hint": error.hint,
            "problems": problems,
            "reasons": reasons,
        }
        console.data(codec.encode(document).decode())
