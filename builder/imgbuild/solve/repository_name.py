"""Reads the package name of a git repository from its build files."""

from __future__ import annotations

from collections.abc import Iterable

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.lock import addresses
from imgbuild.project import fetch, local_package
from imgbuild.project.model import DeclaredName
from imgbuild.project.project_files import ProjectFiles
from imgbuild.project.reading import ProjectReading
from imgbuild.solve import git_tree
from imgbuild.values import normalize_package

FORM = "write the requirement as NAME @ git+https://HOST/PATH@REV"


def read_repository_name(text: str, place: str, context: Context) -> str:
    """Return the package name of the git repository at URL `text`.

    `place` is the place of the URL, for error messages. Raises InputError for an unusable URL and
    for a repository without a static name, and FetchFailed if the repository cannot be fetched.
    """
    address, tree = git_tree.fetch_git_url(text, place, context, form=FORM)
    texts = git_tree.build_texts(tree, context.store, str(address))
    with context.store.scratch() as folder:
        for name, content in texts.items():
            (folder / name).write_text(content, encoding="utf-8")
        package = local_package.describe_package(ProjectReading(ProjectFiles(folder)), ".")
    if package is None or not package.name:
        label = f"{place}: {addresses.strip_secrets(text)}"
        message = f"{label}: its pyproject.toml, setup.cfg and setup.py contain no package name"
        raise InputError(message, hint=FORM)
    return normalize_package(package.name)


def read_repository_names(
    declared: Iterable[DeclaredName], context: Context
) -> tuple[dict[str, str], list[ImgbuildError]]:
    """Map each repository, without revision, to its package name.

    The second value contains the errors of unreadable repositories.
    """
    names: dict[str, str] = {}
    failures: list[ImgbuildError] = []
    for each in declared:
        try:
            names[fetch.repository_url(each.name)] = read_repository_name(
                each.name, str(each.place), context
            )
        except ImgbuildError as error:
            failures.append(error)
    return names, failures


def add_name(word: str, context: Context) -> str:
    """Prefix a git URL on the command line with its package name. Other words are unchanged."""
    if not word.startswith(addresses.GIT):
        return word
    return f"{read_repository_name(word, 'the command line', context)} @ {word}"
