"""Checks that a matrix is consistent and that its names exist, after checks of types.

`check_targets` checks targets, including targets that extend published targets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import urlsplit

from imgbuild.matrix import settings
from imgbuild.matrix.check_targets import (
    check_drops,
    check_environment,
    check_labels,
    check_specifier,
    check_target,
)
from imgbuild.matrix.extension import Extension
from imgbuild.matrix.fields import (
    ARCHIVE_URL,
    DEBIAN_PACKAGE,
    LIST_URL,
    STANDALONE_PREFIX,
    STANDALONE_RELEASES,
)
from imgbuild.matrix.model import (
    Base,
    DebianBase,
    Image,
    Layers,
    Matrix,
    PackageIndex,
    Sdist,
    StandalonePython,
    Target,
)
from imgbuild.matrix.notes import ProblemNotes, ValuePath, nearest_choice
from imgbuild.matrix.settings import check_folder

PLACEHOLDERS = ("cuda_tag", "torch")


def check_matrix(notes: ProblemNotes, matrix: Matrix) -> None:
    """Check the whole matrix."""
    indexes, default = matrix.indexes, matrix.default_index
    notes.check_choice(("default_index",), default, indexes, "index", of=("indexes",))
    for name, index in indexes.items():
        # An index without a URL is uv's default on this machine, so only one can have none. If the
        # default is unknown, the index without a URL may be intended.
        if index.url is None and name != default and default in indexes:
            message = "only the default index can omit the url"
            notes.note(("indexes", name), message, key=True, expected="url: https://…")
        check_index(notes, ("indexes", name), index)
    for name, base in matrix.bases.items():
        _base(notes, ("bases", name), base)
    _image(notes, matrix.image)
    if any(
        isinstance(base, DebianBase) and base.standalone_python for base in matrix.bases.values()
    ):
        _check_python_folder(notes, matrix.image)
    extras = [package for group in matrix.extras.values() for package in group]
    rows = row_packages(matrix.targets.values())
    names = dict.fromkeys([*matrix.requires, *matrix.sdists, *extras, *rows])
    # The order includes packages that no target pins, such as transformers, which others require.
    order = [text for text in matrix.layers.order if not set(text) & set("*?[")]
    _layers(notes, matrix.layers, dict.fromkeys([*names, *order]))
    check_sdists(notes, matrix.sdists)
    check_sdist_packages(notes, matrix.sdists, names)
    if not matrix.targets:
        notes.note(("targets",), "no target is defined", expected="at least one target")
    for name, target in matrix.targets.items():
        check_target(notes, ("targets", name), target, matrix)
    check_drops(notes, (), matrix.drop)
    for package, requirement in matrix.requires.items():
        check_specifier(notes, ("requires", package, "spec"), requirement.spec)
    for name, group in matrix.extras.items():
        for package, requirement in group.items():
            check_specifier(notes, ("extras", name, package, "spec"), requirement.spec)


def row_packages(rows: Iterable[Target | Extension]) -> list[str]:
    """Return the packages of `rows`, in order."""
    return [package for row in rows for package in (*row.pins, *row.requires, *row.indexes)]


def check_sdists(notes: ProblemNotes, sdists: Mapping[str, Sdist]) -> None:
    """Check the environment variables for builds of sdists."""
    for name, sdist in sdists.items():
        check_environment(notes, ("sdists", name, "env"), sdist.env)


def check_sdist_packages(
    notes: ProblemNotes, sdists: Mapping[str, Sdist], packages: Collection[str]
) -> None:
    """Check that builds of sdists require only `packages`."""
    for name, sdist in sdists.items():
        for number, package in enumerate(sdist.requires):
            notes.check_choice(("sdists", name, "requires", number), package, packages, "package")


def check_index(notes: ProblemNotes, path: ValuePath, index: PackageIndex) -> None:
    """Check the URL of an index, if it is specified."""
    if index.url is None:
        return
    here, url = (*path, "url"), index.url
    for placeholder in re.findall(r"\{([^}]*)\}", url):
        if placeholder not in PLACEHOLDERS:
            value, near = f"{{{placeholder}}}", nearest_choice(placeholder, PLACEHOLDERS)
            expected = ", ".join(f"{{{option}}}" for option in PLACEHOLDERS)
            notes.note(here, "unknown placeholder", value=value, expected=expected, near=near)
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("https", "http", "file") and (
            parts.netloc or parts.scheme == "file"
        )
    except ValueError:
        right = False
    if _check_login(notes, here, url) and not right:
        notes.note(here, "not a URL", value=url, expected="https://host/path")


def check_mirrors(notes: ProblemNotes, path: ValuePath, addresses: Iterable[str]) -> None:
    """Record URLs with credentials, because images would contain the credentials."""
    for number, url in enumerate(addresses):
        _check_login(notes, (*path, number), url)


def _check_login(notes: ProblemNotes, path: ValuePath, url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    if parts.username is None and parts.password is None:
        return True
    # The value is omitted, because errors are copied into logs.
    message = "the URL contains a username or password"
    notes.note(
        path, message, expected="a URL without credentials, which belong in netrc or keyring"
    )
    return False


def debian_packages(
    notes: ProblemNotes, path: ValuePath, packages: tuple[str, ...], *, example: str
) -> None:
    """Check the names of Debian packages. Messages contain `example`, a valid name."""
    notes.check_duplicates(path, packages)
    expected = f"a Debian package name, such as {example}"
    for number, package in enumerate(packages):
        notes.check_form((*path, number), package, DEBIAN_PACKAGE, expected)


def _base(notes: ProblemNotes, path: ValuePath, base: Base) -> None:
    if isinstance(base, DebianBase):
        debian_packages(notes, (*path, "packages"), base.packages, example="libc6-dev")
        debian_packages(notes, (*path, "tools"), base.tools, example="htop")
        check_mirrors(notes, (*path, "mirrors"), base.mirrors)
        check_mirrors(notes, (*path, "security"), base.security or ())
        if base.standalone_python is not None:
            _check_standalone(notes, (*path, "python"), base.standalone_python)
    else:
        check_folder(notes, (*path, "interpreter"), base.interpreter)


def _check_standalone(notes: ProblemNotes, path: ValuePath, source: StandalonePython) -> None:
    if source.version not in STANDALONE_RELEASES:
        message = f"a standalone Python {source.version} is not supported"
        expected = f"one of {', '.join(STANDALONE_RELEASES)}"
        notes.note((*path, "version"), message, value=source.version, expected=expected)
    if not source.archives:
        expected = "a URL for each architecture"
        notes.note((*path, "archives"), "no archive is listed", expected=expected)
    for arch, url in source.archives.items():
        here = (*path, "archives", arch)
        if _check_login(notes, here, url):
            notes.check_form(
                here, url, ARCHIVE_URL, "https://host/path/NAME.tar.gz, without a query"
            )
    if source.releases is not None:
        here = (*path, "releases")
        if _check_login(notes, here, source.releases):
            notes.check_form(here, source.releases, LIST_URL, "https://host/path/NAME")
    for arch in source.sha256:
        if arch not in source.archives:
            message = f"there is no archive for {arch}"
            expected = f"archives: {{{arch}: https://…}}"
            notes.note((*path, "sha256", arch), message, key=True, expected=expected)


def _check_python_folder(notes: ProblemNotes, image: Image) -> None:
    for field, folder_path in (
        ("prefix", image.prefix),
        ("workdir", image.workdir),
        ("cache", image.cache),
    ):
        both = (f"{folder_path}/", f"{STANDALONE_PREFIX}/")
        if both[0].startswith(both[1]) or both[1].startswith(both[0]):
            message = f"{STANDALONE_PREFIX} is reserved for the standalone Python of a base"
            notes.note(("image", field), message, value=folder_path, expected="another folder")


def _image(notes: ProblemNotes, image: Image) -> None:
    check_folder(notes, ("image", "prefix"), image.prefix)
    check_folder(notes, ("image", "workdir"), image.workdir)
    check_folder(notes, ("image", "cache"), image.cache)
    check_folder(notes, ("image", "user", "home"), image.user.home)
    check_environment(notes, ("image", "env"), image.env)
    check_labels(notes, ("image", "labels"), image.labels)
    for number, word in enumerate(image.entrypoint[:1]):
        check_folder(notes, ("image", "entrypoint", number), word)
    values = {name: variable.value for name, variable in image.env.items()}
    settings.environment_first(notes, ("image", "env"), image.prefix, values, "value")


def _layers(notes: ProblemNotes, layers: Layers, packages: Collection[str]) -> None:
    notes.check_duplicates(("layers", "named"), layers.named)
    notes.check_duplicates(("layers", "order"), layers.order)
    for number, package in enumerate(layers.named):
        notes.check_choice(("layers", "named", number), package, packages, "package")
    named, groups, limit = len(layers.named), layers.groups, layers.limit
    least = groups + named + 3
    if least > limit:
        message = (
            f"{groups} groups, {named} named packages and 3 layers for base,"
            f" environment and files exceed the limit of {limit} layers"
        )
        field = "limit" if notes.place_of(("layers", "limit"), True) else "groups"
        value = limit if field == "limit" else groups
        expected = f"a limit of at least {least}, or fewer groups and named packages"
        path, of = ("layers", field), ("layers", "groups")
        notes.note(path, message, value=value, expected=expected, of=of)
