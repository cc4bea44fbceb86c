"""Reports the git repositories of a project that cannot be fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError, InputError
from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress
from imgbuild.resolve.demands import PackageDemand
from imgbuild.solve import git_tree
from imgbuild.system import threads

THREADS = 8


def repository_failures(demands: Iterable[PackageDemand], context: Context) -> list[ImgbuildError]:
    """Return an error for each repository that cannot be used, without fetching it.

    The errors contain the lines that require the repository.
    """
    named = [item for item in demands if item.installed and item.source.startswith(addresses.GIT)]
    errors = threads.run_for_each(named, lambda item, _: _failure(item, context), threads=THREADS)
    return [error for error in errors if error is not None]


def _failure(demand: PackageDemand, context: Context) -> ImgbuildError | None:
    try:
        address = addresses.parse_address(demand.source)
        if isinstance(address, GitAddress):
            git_tree.require_repository(address, context)
    except ValueError:
        return None  # the form of an address is checked where it is read
    except (FetchFailed, InputError) as error:
        places = ", ".join(map(str, demand.places))
        return type(error)(f"{places}: {demand.package}: {error.message}", hint=error.hint)
    return None


def refusal_error(errors: Sequence[ImgbuildError]) -> ImgbuildError:
    """Return one error for all `errors`: FetchFailed if a download failed, else InputError."""
    if len(errors) == 1:
        return errors[0]
    kind = FetchFailed if any(isinstance(each, FetchFailed) for each in errors) else InputError
    lines = "".join(f"\n  {each.message}" for each in errors)
    message = f"{len(errors)} git repositories of the project cannot be used:{lines}"
    return kind(message, hint=errors[0].hint)


def error_lines(errors: Sequence[ImgbuildError]) -> list[str]:
    """Format errors as lines of a longer list."""
    return [f"{error.message}; {error.hint}" if error.hint else error.message for error in errors]
