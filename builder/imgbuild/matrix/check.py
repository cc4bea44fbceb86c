"""Checks of a matrix beyond its types: names that exist, parts that agree with each other.

A value may have gaps where the YAML did not fit its type. These are reported already, so checks
skip them. Targets are checked in `check_targets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from imgbuild.matrix import flashinfer, settings
from imgbuild.matrix.fields import DEBIAN_PACKAGE, VERSION_LABEL
from imgbuild.matrix.notes import Notes, Path, nearest, table, texts
from imgbuild.matrix.settings import folder

PLACEHOLDERS = ("cuda_tag", "torch")
OWN_LABELS = (
    "org.opencontainers.image.title",
    *(
        f"dev.imgbuild.{name}"
        for name in ("target", "base", "cuda", "python", "flashinfer", "as-of", "gpu")
    ),
)


def plain(patterns: Any) -> list[str]:
    """The texts that are names, not patterns of several."""
    return [text for text in texts(patterns) if not set(text) & set("*?[")]


def packages(matrix: Mapping[str, Any]) -> list[str]:
    """Every package that the matrix names, in its order."""
    names = [*table(matrix.get("requires")), *table(matrix.get("sdists"))]
    for group in table(matrix.get("extras")).values():
        names.extend(table(group))
    for target in table(matrix.get("targets")).values():
        for field in ("pins", "requires", "indexes"):
            names.extend(table(table(target).get(field)))
    return list(dict.fromkeys(names))


def check_shared(notes: Notes, value: Any) -> None:
    """Check everything except the targets."""
    matrix = table(value)
    indexes = table(matrix.get("indexes"))
    if "indexes" in matrix:
        notes.choice(("default_index",), matrix.get("default_index"), indexes, "index")
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


def check_sdists(notes: Notes, value: Any, extended: Iterable[str] = ()) -> None:
    """Check that builds of sdists need packages of the matrix or of those in `extended`."""
    matrix = table(value)
    names = dict.fromkeys([*packages(matrix), *extended])
    for name, sdist in table(matrix.get("sdists")).items():
        for number, package in enumerate(texts(table(sdist).get("requires"))):
            notes.choice(("sdists", name, "requires", number), package, names, "package")


def environment(notes: Notes, path: Path, variables: Any) -> None:
    """Check the names of environment variables; one that imgbuild sets itself is refused."""
    settings.environment(notes, path, variables)
    if flashinfer.VARIABLE in table(variables):
        message = "imgbuild sets this variable itself, from the target's mode"
        here = (*path, flashinfer.VARIABLE)
        notes.note(here, message, key=True, expected="flashinfer: {mode: …}")


def labels(notes: Notes, path: Path, given: Any) -> None:
    """Check the names of labels; those that imgbuild sets itself are refused."""
    settings.labels(notes, path, given)
    for name in table(given):
        if name in OWN_LABELS or name.startswith(VERSION_LABEL):
            message = "imgbuild sets this label itself, from the target"
            notes.note((*path, name), message, key=True, expected="another name")


def _index(notes: Notes, path: Path, index: Mapping[str, Any], *, alone: bool) -> None:
    url = index.get("url")
    if url is None:
        # Its files would come from wherever uv looks on this machine: one index may do so.
        if not alone:
            message = "only the default index may have no url"
            notes.note(path, message, key=True, expected="url: https://…")
        return
    for placeholder in re.findall(r"\{([^}]*)\}", url):
        names = ", ".join(f"{{{option}}}" for option in PLACEHOLDERS)
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


def mirrors(notes: Notes, path: Path, addresses: object) -> None:
    """Note the addresses that hold a login: they travel with pushed images."""
    for number, url in enumerate(texts(addresses)):
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
    environment_values(notes, ("image", "env"), image.get("prefix"), image.get("env"))


def environment_values(notes: Notes, path: Path, prefix: Any, variables: Any) -> None:
    """Check that the values of variables agree with the environment's folder `prefix`."""
    values = {name: table(variable).get("value") for name, variable in table(variables).items()}
    settings.environment_first(notes, path, prefix, values, "value")


def _layers(notes: Notes, layers: Mapping[str, Any], package_names: list[str]) -> None:
    named = layers.get("named")
    notes.once(("layers", "named"), named)
    notes.once(("layers", "order"), layers.get("order"))
    for number, package in enumerate(named if isinstance(named, list) else ()):
        notes.choice(("layers", "named", number), package, package_names, "package")
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
