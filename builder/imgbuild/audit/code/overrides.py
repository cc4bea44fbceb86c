"""Hydra's overrides (`a.b=1`) against the configuration in a wheel (separate: one check)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml

from imgbuild.audit.code.shell import Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.errors import FetchFailed
from imgbuild.matrix.notes import nearest
from imgbuild.system import yaml_data

KEY, TYPE, EXISTS = "IMG401", "IMG402", "IMG403"
_MAIN = re.compile(rb"hydra\.main\(([^)]*)\)")
_SETTING = re.compile(rb"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']")
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(?:override\s+)?/?([\w./-]+?)(?:@([\w.]+))?$")
_OPEN = object()  # a part of the configuration whose keys are not known
_DEPTH = 8

Problem = tuple[Word, str, str, str]  # word, code, message, instead


def check(
    sources: PackageSources, package: str, module: str, words: Sequence[Word]
) -> Iterator[Problem]:
    """Overrides that the Hydra program `module` of a package rejects."""
    tree, groups, name = _configuration(sources, package, module, words)
    if tree is None:
        return
    what = f"the configuration {name} of {package} {sources.package_set.version(package)}"
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        if match is None or word.text.startswith("-"):
            continue
        sign, key, value = match[1] or "", match[2], match[3]
        if key.split("@")[0] in groups or "/" in key or key.startswith("hydra."):
            continue
        present = _at(tree, key)
        if present is _OPEN:
            continue
        if present is None and not sign:
            instead = _near(tree, key)
            yield word, KEY, f"{what} has no key {key}", instead or f"+{key} to add it"
        elif present is not None and sign == "+":
            yield word, EXISTS, f"{what} already has the key {key}: +{key} fails", key
        elif present is not None and word.literal and not _fits(present[0], value):
            kind = type(present[0]).__name__
            yield word, TYPE, f"{key} of {what} is of type {kind}, not {value}", ""


def _configuration(
    sources: PackageSources, package: str, module: str, words: Sequence[Word]
) -> tuple[Any, frozenset[str], str]:
    """The composed configuration of a program, its groups and its name; None if it has none."""
    package_set = sources.package_set
    path = package_set.modules_of(package).get(module, "")
    try:
        main = _MAIN.search(package_set.read(package, path) or b"") if path else None
    except FetchFailed:
        main = None
    if main is None:
        return None, frozenset(), ""
    given = {key.decode(): value.decode() for key, value in _SETTING.findall(main[1])}
    name = given.get("config_name", "config").removesuffix(".yaml")
    for at, word in enumerate(words):
        if word.text.startswith(("--config-path", "--config-dir", "-cp", "-cd")):
            return None, frozenset(), ""
        if word.text.startswith(("--config-name", "-cn")):
            after = words[at + 1].text if at + 1 < len(words) else ""
            name = word.text.partition("=")[2] or after
    folder = posixpath.normpath(
        posixpath.join(posixpath.dirname(path), given.get("config_path", ""))
    )
    composer = _Composer(sources, package, folder)
    try:
        tree = composer.composed(name)
    except (yaml.YAMLError, FetchFailed, RecursionError):
        tree = None
    return tree, composer.groups, name


class _Composer:
    """Composes a configuration from the YAML files below a folder of a wheel, as Hydra does."""

    def __init__(self, sources: PackageSources, package: str, folder: str) -> None:
        self._set = sources.package_set
        self._package = package
        self._folder = folder
        inside = [path for path in self._set.files(package) if path.startswith(f"{folder}/")]
        self.groups = frozenset(
            posixpath.dirname(path).removeprefix(folder).strip("/") for path in inside
        ) - {""}

    def composed(self, name: str, depth: int = 0) -> Any:
        """The configuration of a file; None if there is none."""
        data = self._set.read(self._package, f"{self._folder}/{name}.yaml")
        if data is None or depth > _DEPTH:
            return None
        content = yaml_data.read(data) or {}
        defaults = content.pop("defaults", []) if isinstance(content, dict) else []
        result: Any = {}
        merged = False
        for entry in defaults:
            if entry == "_self_":
                result, merged = _merged(result, content), True
                continue
            group, package, chosen = _entry(entry, posixpath.dirname(name))
            part = self.composed(posixpath.join(group, chosen), depth + 1) if chosen else {}
            if part is None or part is _OPEN:
                part = _OPEN
            for key in reversed(package.split(".") if package else []):
                part = {key: part}
            result = _merged(result, part)
        return result if merged else _merged(result, content)


def _entry(entry: Any, folder: str) -> tuple[str, str, str]:
    """The group, the place in the configuration and the file that an entry of `defaults` names."""
    if isinstance(entry, str):
        text, _, package = entry.partition("@")
        group, _, chosen = posixpath.join(folder, text).rpartition("/")
        return group, "" if package == "_here_" else package, chosen
    (key, chosen), *_ = entry.items()
    match = _DEFAULT.match(str(key))
    if match is None:
        return "", "", ""
    group = posixpath.normpath(posixpath.join(folder, match[1]))
    package = match[2] if match[2] is not None else group.replace("/", ".")
    return group, "" if package == "_here_" else package, str(chosen or "").removesuffix(".yaml")


def _merged(first: Any, second: Any) -> Any:
    if first is _OPEN or second is _OPEN:
        return _OPEN
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return {
        **first,
        **{
            key: _merged(first.get(key), value) if isinstance(first.get(key), dict) else value
            for key, value in second.items()
        },
    }


def _at(tree: Any, key: str) -> Any:
    """The value at a dotted key, in a tuple; None if there is none; _OPEN if that is unknown.

    Keys below null, and below references to other parts of the configuration, are unknown.
    """
    for part in key.split("."):
        if tree is _OPEN or tree is None or (isinstance(tree, str) and tree.startswith("${")):
            return _OPEN
        if isinstance(tree, list):
            return _OPEN
        if not isinstance(tree, dict) or part not in tree:
            return None
        tree = tree[part]
    return _OPEN if tree is _OPEN else (tree,)


def _near(tree: Any, key: str) -> str:
    """The key that is nearest: in the same place, or with the same last part elsewhere."""
    parts = key.split(".")
    node: Any = tree
    for at, part in enumerate(parts):
        if not isinstance(node, Mapping):
            return ""
        if part not in node:
            near = nearest(part, map(str, node))
            if near:
                return ".".join((*parts[:at], near, *parts[at + 1 :]))
            break
        node = node[part]
    paths = [path for path in _paths(tree) if path.rpartition(".")[2] == parts[-1]]
    return max(paths, key=lambda path: SequenceMatcher(None, path, key).ratio(), default="")


def _paths(tree: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            yield from _paths(value, f"{prefix}{key}.")


def _fits(value: Any, text: str) -> bool:
    """Whether an override may be meant for a value of this type."""
    if text in ("null", "None", "") or "${" in text or isinstance(value, (str, type(None))):
        return True
    try:
        given = yaml_data.read(text)
    except yaml.YAMLError:
        return True
    if isinstance(value, bool):
        return isinstance(given, (bool, int))
    if isinstance(value, (int, float)):
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        return number or _is_number(text)
    return isinstance(given, type(value))


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
