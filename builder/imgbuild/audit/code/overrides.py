"""Hydra's overrides (`a.b=1`) against the configuration in a wheel (separate: one check)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml

from imgbuild.audit.code.shell import Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.main_path.configuration import OPEN, program
from imgbuild.matrix.notes import nearest
from imgbuild.system import yaml_data

KEY, TYPE, EXISTS = "IMG401", "IMG402", "IMG403"
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)

Problem = tuple[Word, str, str, str]  # word, code, message, instead


def check(
    sources: PackageSources, package: str, module: str, words: Sequence[Word]
) -> Iterator[Problem]:
    """Overrides that the Hydra program `module` of a package rejects."""
    tree, groups, name = _configuration(sources, module, words)
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
        if present is OPEN:
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
    sources: PackageSources, module: str, words: Sequence[Word]
) -> tuple[Any, frozenset[str], str]:
    """The composed configuration of a program, its groups and its name; None if it has none."""
    main = program(sources.package_set, module)
    if main is None:
        return None, frozenset(), ""
    name = main.name
    for at, word in enumerate(words):
        if word.text.startswith(("--config-path", "--config-dir", "-cp", "-cd")):
            return None, frozenset(), ""
        if word.text.startswith(("--config-name", "-cn")):
            after = words[at + 1].text if at + 1 < len(words) else ""
            name = word.text.partition("=")[2] or after
    return main.composed(name), main.groups, name


def _at(tree: Any, key: str) -> Any:
    """The value at a dotted key, in a tuple; None if there is none; OPEN if that is unknown.

    Keys below null, and below references to other parts of the configuration, are unknown.
    """
    for part in key.split("."):
        if tree is OPEN or tree is None or (isinstance(tree, str) and tree.startswith("${")):
            return OPEN
        if isinstance(tree, list):
            return OPEN
        if not isinstance(tree, dict) or part not in tree:
            return None
        tree = tree[part]
    return OPEN if tree is OPEN else (tree,)


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
