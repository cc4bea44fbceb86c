"""Composes the default configuration of a Hydra program from the YAML files of its wheel."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.errors import FetchFailed
from imgbuild.system import yaml_data

OPEN_VALUE = object()  # a part of the configuration whose keys are unknown
_MAIN_DECORATOR = re.compile(rb"hydra\.main\(([^)]*)\)")
_SETTING = re.compile(r"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']")
_DEFAULT = re.compile(r"(?:override\s+)?/?([\w./-]+?)(?:@([\w.]+))?$")
_CHOICE = re.compile(r"\$\{(\w+)\}")
_DEPTH = 8


class HydraProgram:
    """A Hydra program: the folder with its configurations, and the name of the default one."""

    def __init__(
        self, package_set: ImportablePackages, package: str, folder: str, name: str
    ) -> None:
        self.package = package
        self.folder = folder
        self.name = name
        self._set = package_set
        self.files = tuple(
            path for path in package_set.files(package) if path.startswith(f"{folder}/")
        )
        self.options = group_options(path.removeprefix(f"{folder}/") for path in self.files)

    def compose_configuration(self, name: str, first: Mapping[str, bytes] | None = None) -> Any:
        """Return the configuration `name` as Hydra composes it, or None if it does not exist.

        `first` maps paths to contents of files that take precedence over the package's files, such
        as files from `--config-path`.
        """
        try:
            return self._compose_nested(name, 0, first or {})
        except (yaml.YAMLError, FetchFailed, RecursionError, ValueError):
            return None  # ValueError: a number or a day that does not exist

    def find_text(self, text: str) -> tuple[str, int]:
        """Return the first configuration file and line that contain `text`, or ("", 0)."""
        for file in self.files:
            data = self._set.read(self.package, file) if file.endswith(".yaml") else None
            at = (data or b"").find(text.encode())
            if data is not None and at >= 0:
                return file, data.count(b"\n", 0, at) + 1
        return "", 0

    def _compose_nested(self, name: str, depth: int, first: Mapping[str, bytes]) -> Any:
        data = first.get(f"{name}.yaml")
        if data is None:
            data = self._set.read(self.package, f"{self.folder}/{name}.yaml")
        if data is None or depth > _DEPTH:
            return None
        content = yaml_data.parse_yaml(data) or {}
        defaults = content.pop("defaults", []) if isinstance(content, dict) else []
        if not isinstance(defaults, list) or not all(map(_is_entry, defaults)):
            return OPEN_VALUE
        chosen_options: dict[str, str] = {}
        result: Any = {}
        merged = False
        for entry in defaults:
            if entry == "_self_":
                result, merged = _merge_trees(result, content), True
                continue
            group, package, chosen = _entry(entry, posixpath.dirname(name))
            chosen = _CHOICE.sub(lambda match: chosen_options.get(match[1], match[0]), chosen)
            chosen_options[group] = chosen
            part: Any = {}
            if chosen:
                part = self._compose_nested(posixpath.join(group, chosen), depth + 1, first)
            if part is None or part is OPEN_VALUE:
                part = OPEN_VALUE
            for key in reversed(package.split(".") if package else []):
                part = {key: part}
            result = _merge_trees(result, part)
        return result if merged else _merge_trees(result, content)


def group_options(paths: Iterable[str]) -> dict[str, frozenset[str]]:
    """Map each config group to its options, which are the names of YAML files in a folder.

    The group "" is the top folder.
    """
    options: dict[str, set[str]] = {}
    for path in paths:
        stem, suffix = posixpath.splitext(path)
        group, name = posixpath.split(stem)
        options.setdefault(group, set()).update([name] if suffix == ".yaml" else [])
    return {group: frozenset(names) for group, names in options.items()}


def find_hydra_program(package_set: ImportablePackages, module: str) -> HydraProgram | None:
    """Return the Hydra program that a module defines, or None if it defines none."""
    package = package_set.owner(module)
    path = package_set.modules_of(package).get(module, "") if package is not None else ""
    try:
        main = (
            _MAIN_DECORATOR.search(package_set.read(package or "", path) or b"") if path else None
        )
    except FetchFailed:
        main = None
    if package is None or main is None:
        return None
    settings = dict(_SETTING.findall(main[1].decode("utf-8", "replace")))
    folder = posixpath.join(posixpath.dirname(path), settings.get("config_path", ""))
    name = settings.get("config_name", "config").removesuffix(".yaml")
    return HydraProgram(package_set, package, posixpath.normpath(folder), name)


def class_targets(tree: Any) -> Iterator[str]:
    """Yield the class paths in the `_target_` keys of a configuration."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            named = node.get("_target_")
            if isinstance(named, str) and "$" not in named:
                yield named
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and bool(entry))


def _entry(entry: Any, folder: str) -> tuple[str, str, str]:
    """Return the group, position and file of an entry of `defaults`.

    The position is a key in the configuration.
    """
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


def _merge_trees(first: Any, second: Any) -> Any:
    if first is OPEN_VALUE or second is OPEN_VALUE:
        return OPEN_VALUE
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return {
        **first,
        **{
            key: _merge_trees(first.get(key), value) if isinstance(first.get(key), dict) else value
            for key, value in second.items()
        },
    }
