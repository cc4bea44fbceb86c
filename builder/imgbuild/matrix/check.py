"""Checks of a matrix beyond its types: names that exist, parts that agree with each other.

A value may have gaps where the YAML did not fit its type. These are reported already, so checks
skip them. Targets are checked in `check_targets`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from imgbuild.errors import Problem
from imgbuild.matrix import flashinfer
from imgbuild.matrix.validate import Path, PlainDocument, dotted, nearest

VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
LABEL = r"[a-z0-9]+([.-][a-z0-9]+)*"
DEBIAN_PACKAGE = r"[a-z0-9][a-z0-9+.-]+"
FOLDER = r"(/[A-Za-z0-9._+-]+)+"
PLACEHOLDERS = ("cuda_tag", "torch")
OWN_LABELS = (
    "org.opencontainers.image.title",
    *(
        f"dev.imgbuild.{name}"
        for name in ("target", "base", "cuda", "python", "flashinfer", "as-of", "gpu")
    ),
)


LISTED = 30  # choices that an error lists


class Notes:
    """Collects problems; finds their line and column from the path."""

    def __init__(self, walked: PlainDocument, file: str) -> None:
        self.walked = walked
        self.file = file
        self.problems: list[Problem] = []

    def note(
        self,
        path: Path,
        message: str,
        *,
        key: bool = False,
        value: object = None,
        expected: str | None = None,
        near: str | None = None,
    ) -> None:
        """Note a problem with the value at `path`, or with its key."""
        places = self.walked.keys if key else self.walked.places
        line, column = places.get(path) or self.walked.keys.get(path) or (None, None)
        self.problems.append(
            Problem(
                file=self.file,
                message=message,
                line=line,
                column=column,
                path=dotted(path) or None,
                value=None if value is None else str(value),
                expected=expected,
                nearest=near,
            )
        )

    def known(self, path: Path, name: Any, names: Iterable[str], what: str) -> None:
        """Note it if `name` is none of `names`, of which there are `what`."""
        choices = list(names)
        if isinstance(name, str) and name not in choices:
            listed = ", ".join(choices[:LISTED]) + (", …" if len(choices) > LISTED else "")
            expected = f"one of {listed}" if choices else f"{what}, of which there are none"
            near = nearest(name, choices)
            self.note(path, f"unknown {what}", value=name, expected=expected, near=near)

    def form(
        self, path: Path, text: Any, pattern: str, expected: str, *, key: bool = False
    ) -> None:
        """Note it if `text` has another form than `pattern`."""
        if isinstance(text, str) and not re.fullmatch(pattern, text):
            message = "the name has another form" if key else "the text has another form"
            self.note(path, message, key=key, value=text, expected=expected)

    def once(self, path: Path, items: Any) -> None:
        """Note each item that is in a list more than once."""
        twice = [item for item, count in Counter(texts(items)).items() if count > 1]
        for item in twice:
            places = [number for number, other in enumerate(items) if other == item]
            self.note((*path, places[-1]), f"{item} is listed twice", expected="each item once")


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one in place of a gap."""
    return value if isinstance(value, dict) else {}


def texts(value: Any) -> list[str]:
    """The texts of a list, without its gaps."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def plain(patterns: Any) -> list[str]:
    """The texts that are names, not patterns of several."""
    return [text for text in texts(patterns) if not set(text) & set("*?[")]


def packages(matrix: Mapping[str, Any]) -> list[str]:
    """Every package that the matrix names, in its order."""
    found = [*table(matrix.get("requires")), *table(matrix.get("sdists"))]
    for group in table(matrix.get("extras")).values():
        found.extend(table(group))
    for target in table(matrix.get("targets")).values():
        for field in ("pins", "requires", "indexes"):
            found.extend(table(table(target).get(field)))
    return list(dict.fromkeys(found))


def check_shared(notes: Notes) -> None:
    """Check everything except the targets."""
    matrix = table(notes.walked.value)
    indexes = table(matrix.get("indexes"))
    if "indexes" in matrix:
        notes.known(("default_index",), matrix.get("default_index"), indexes, "index")
    default = matrix.get("default_index")
    for name, index in indexes.items():
        # Where the default is not known, the index without a url may be the one that was meant.
        alone = default not in indexes or name == default
        _index(notes, ("indexes", name), table(index), alone=alone)
    for name, base in table(matrix.get("bases")).items():
        _base(notes, ("bases", name), table(base))
    _image(notes, table(matrix.get("image")))
    layers = table(matrix.get("layers"))
    # What no target pins is known by its place in the order: transformers follows from the others.
    _layers(notes, layers, list(dict.fromkeys([*packages(matrix), *plain(layers.get("order"))])))
    for name, sdist in table(matrix.get("sdists")).items():
        path: Path = ("sdists", name)
        environment(notes, (*path, "env"), table(sdist).get("env"))
    if "targets" in matrix and matrix["targets"] == {}:
        notes.note(("targets",), "no target is defined", expected="at least one target")


def check_sdists(notes: Notes, extended: Iterable[str] = ()) -> None:
    """Check that builds of sdists need packages of the matrix or of those in `extended`."""
    matrix = table(notes.walked.value)
    names = dict.fromkeys([*packages(matrix), *extended])
    for name, sdist in table(matrix.get("sdists")).items():
        for number, package in enumerate(texts(table(sdist).get("requires"))):
            notes.known(("sdists", name, "requires", number), package, names, "package")


def environment(notes: Notes, path: Path, variables: Any) -> None:
    """Check the names and values of environment variables."""
    for name, variable in table(variables).items():
        here = (*path, name)
        notes.form(here, name, VARIABLE, "letters, digits and _, as a shell takes them", key=True)
        value = variable if isinstance(variable, str) else table(variable).get("value")
        if isinstance(value, str) and "\n" in value:
            notes.note(here, "the value has several lines", value=repr(value), expected="one line")
        if name == flashinfer.VARIABLE:
            message = "imgbuild sets this variable itself, from the target's mode"
            notes.note(here, message, key=True, expected="flashinfer: {mode: …}")
        if name == "LD_LIBRARY_PATH":
            message = "LD_LIBRARY_PATH would hide the driver's libraries that the runtime provides"
            notes.note(here, message, key=True, expected="links, or no variable")


def labels(notes: Notes, path: Path, given: Any) -> None:
    """Check the names of labels; those that imgbuild sets itself are refused."""
    for name in table(given):
        here = (*path, name)
        notes.form(here, name, LABEL, "a reversed domain name, such as org.example.team", key=True)
        if name in OWN_LABELS or name.startswith("dev.imgbuild.version."):
            message = "imgbuild sets this label itself, from the target"
            notes.note(here, message, key=True, expected="another name")


def folder(notes: Notes, path: Path, text: Any) -> None:
    """Check that `text` is an absolute path of plain names."""
    expected = "an absolute path without . or .., such as /opt/venv"
    if isinstance(text, str) and {".", ".."} & set(text.split("/")):
        notes.note(path, "the path is not normal", value=text, expected=expected)
    else:
        notes.form(path, text, FOLDER, expected)


def _index(notes: Notes, path: Path, index: Mapping[str, Any], *, alone: bool) -> None:
    url = index.get("url")
    if url is None:
        # Its files would come from wherever uv looks on this machine: one index may do so.
        if not alone:
            message = "only the default index may have no url"
            notes.note(path, message, key=True, expected="url: https://…")
        return
    for placeholder in re.findall(r"\{([^}]*)\}", url):
        names = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
        near = nearest(placeholder, PLACEHOLDERS)
        if placeholder not in PLACEHOLDERS:
            message = "unknown placeholder"
            notes.note(
                (*path, "url"), message, value=f"{{{placeholder}}}", expected=names, near=near
            )
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("https", "http", "file") and (
            parts.netloc or parts.scheme == "file"
        )
    except ValueError:
        right = False
    if without_login(notes, (*path, "url"), url) and not right:
        notes.note((*path, "url"), "not an address", value=url, expected="https://host/path")


def _base(notes: Notes, path: Path, base: Mapping[str, Any]) -> None:
    notes.once((*path, "packages"), base.get("packages"))
    for number, package in enumerate(texts(base.get("packages"))):
        expected = "a Debian package name, such as libc6-dev"
        notes.form((*path, "packages", number), package, DEBIAN_PACKAGE, expected)
    folder(notes, (*path, "interpreter"), base.get("interpreter"))
    mirrors(notes, (*path, "mirrors"), base.get("mirrors"))


def mirrors(notes: Notes, path: Path, found: object) -> None:
    """Note the addresses that hold a login: they travel with pushed images."""
    for number, url in enumerate(texts(found)):
        without_login(notes, (*path, number), url)


def without_login(notes: Notes, path: Path, url: str) -> bool:
    """Note an address that holds a user name or password; whether it holds none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    if parts.username is None and parts.password is None:
        return True
    # The value is left out on purpose: an error is copied into logs.
    message = "the url holds a user name or password"
    notes.note(path, message, expected="a url without it: put the login into netrc or keyring")
    return False


def _image(notes: Notes, image: Mapping[str, Any]) -> None:
    for field in ("prefix", "workdir", "cache"):
        folder(notes, ("image", field), image.get(field))
    folder(notes, ("image", "user", "home"), table(image.get("user")).get("home"))
    environment(notes, ("image", "env"), image.get("env"))
    labels(notes, ("image", "labels"), image.get("labels"))
    for number, word in enumerate(texts(image.get("entrypoint"))[:1]):
        folder(notes, ("image", "entrypoint", number), word)
    prefix, env = image.get("prefix"), table(image.get("env"))
    path = table(env.get("PATH")).get("value")
    if isinstance(prefix, str) and isinstance(path, str) and path.split(":")[0] != f"{prefix}/bin":
        message = "the environment's commands do not come first"
        expected = f"{prefix}/bin:…, as image.prefix says"
        notes.note(("image", "env", "PATH", "value"), message, value=path, expected=expected)
    venv = table(env.get("VIRTUAL_ENV")).get("value")
    if isinstance(prefix, str) and isinstance(venv, str) and venv != prefix:
        message = "not the environment of the image"
        expected = f"{prefix}, as image.prefix says"
        notes.note(("image", "env", "VIRTUAL_ENV", "value"), message, value=venv, expected=expected)


def _layers(notes: Notes, layers: Mapping[str, Any], known: list[str]) -> None:
    named = layers.get("named")
    notes.once(("layers", "named"), named)
    notes.once(("layers", "order"), layers.get("order"))
    for number, package in enumerate(named if isinstance(named, list) else ()):
        notes.known(("layers", "named", number), package, known, "package")
    groups, limit = layers.get("groups"), layers.get("limit", 40)
    if isinstance(groups, int) and isinstance(limit, int):
        least = groups + len(texts(named)) + 3
        if least > limit:
            message = (
                f"{groups} groups, {len(texts(named))} named packages and 3 layers for base,"
                f" environment and files exceed the limit of {limit} layers"
            )
            path: Path = ("layers", "limit") if "limit" in layers else ("layers", "groups")
            value = limit if "limit" in layers else groups
            expected = f"a limit of at least {least}, or fewer of them"
            notes.note(path, message, value=value, expected=expected)
