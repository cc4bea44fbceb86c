"""Checks Hydra configurations of users, and `hydra.compose` in Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imgbuild.audit.code import overrides
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.named_files import parse_settings, place_key
from imgbuild.audit.code.shell import Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.main_path.configuration import OPEN_VALUE, HydraProgram, find_hydra_program
from imgbuild.audit.source.text import string_value
from imgbuild.audit.source.tree import walk_tree
from imgbuild.matrix.notes import nearest_choice
from imgbuild.report import Severity
from imgbuild.system.syntax import valid_source

UNKNOWN_KEY_CODE = "IMG406"
# Packages with Hydra programs that users configure with their own files, by a module of each.
PROGRAMS = {"verl": "verl.trainer.main_ppo"}
_INITIALIZERS = ("initialize_config_module", "initialize_config_dir", "initialize")


def check_hydra_files(sources: PackageSources, texts: Sequence[CodeText]) -> Iterator[CodeFinding]:
    """Yield findings for nonexistent keys in users' configurations and in overrides in Python."""
    for package, module in PROGRAMS.items():
        if package not in sources.package_set.wheels:
            continue
        main = find_hydra_program(sources.package_set, module)
        if main is None:
            continue
        for text in texts:
            if text.kind == "yaml" and b"defaults:" in text.source:
                yield from _file_findings(sources, main, text, texts)
            elif text.kind == "python" and b"compose(" in text.source and b"hydra" in text.source:
                yield from _python_findings(sources, main, text)


def _file_findings(
    sources: PackageSources, main: HydraProgram, text: CodeText, texts: Sequence[CodeText]
) -> Iterator[CodeFinding]:
    """Yield findings for keys that the extended configuration lacks although it has their parents.

    Options of groups that neither the package nor the user defines are also reported.
    """
    content = parse_settings(text)
    defaults = content.get("defaults") if isinstance(content, Mapping) else None
    if not isinstance(defaults, list):
        return
    names = [each.strip("/") for each in defaults if isinstance(each, str)]
    name = next((each for each in names if f"{main.folder}/{each}.yaml" in main.files), "")
    tree = main.compose_configuration(name) if name else None
    if not isinstance(tree, Mapping):
        return
    version = f"{main.package} {sources.package_set.version(main.package)}"
    for group, chosen in _chosen_defaults(defaults):
        own = f"/{group}/{chosen}.y"
        if overrides.lacks_option(main.options, group, chosen) and not any(
            own in f"/{each.file}" for each in texts if each.kind == "yaml"
        ):
            yield text.finding(
                *place_key(text, "defaults"),
                code=overrides.OPTION,
                severity=Severity.ERROR,
                message=f"the configuration of {version} has no {chosen} in the group {group}",
                instead=nearest_choice(chosen, main.options[group]) or "",
            )
    for path in _unknown_keys(tree, content, ""):
        line, column = place_key(text, path)
        yield text.finding(
            line,
            column,
            code=UNKNOWN_KEY_CODE,
            severity=Severity.WARNING,
            message=f"{path} has no effect, because the configuration {name} of {version}, which"
            " this file extends, does not define it",
            instead=overrides.nearest_key(tree, path),
        )


def _chosen_defaults(defaults: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the group and option of each entry in a defaults list that contains both."""
    for each in defaults:
        words = each.rpartition("/")[::2] if isinstance(each, str) else ("", "")
        for key, chosen in each.items() if isinstance(each, Mapping) else [words]:
            group = (
                (key if isinstance(key, str) else "")
                .removeprefix("override")
                .strip()
                .partition("@")[0]
                .strip("/")
            )
            if group and isinstance(chosen, str):
                yield group, chosen.partition("@")[0].removesuffix(".yaml")


def _unknown_keys(tree: Any, content: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    """Yield the keys of `content` that are missing in `tree`.

    The user's own sections are skipped.
    """
    for key, value in content.items():
        path = f"{prefix}{key}"
        if not prefix and (key in ("defaults", "hydra") or key not in tree):
            continue
        if not isinstance(tree, Mapping) or not tree:
            return  # an empty section takes any keys
        if key not in tree:
            yield path
        elif isinstance(value, Mapping) and isinstance(tree[key], Mapping):
            yield from _unknown_keys(tree[key], value, f"{path}.")


def _python_findings(
    sources: PackageSources, main: HydraProgram, text: CodeText
) -> Iterator[CodeFinding]:
    """Yield findings for overrides in calls of `compose` with the package's configuration."""
    tree = valid_source(text.source)
    if tree is None:
        return
    calls = [node for node in walk_tree(tree) if isinstance(node, ast.Call)]
    places = [string_value(value) or "" for call in calls for value in _places(call)]
    here = main.folder.replace("/", ".")
    if not any(place == here or place.rstrip("/").endswith(main.folder) for place in places):
        return
    for call in calls:
        if _callee_name(call) != "compose":
            continue
        given = {each.arg: each.value for each in call.keywords}
        name = string_value(
            given.get("config_name", call.args[0] if call.args else ast.Constant(""))
        )
        composed = main.compose_configuration((name or "").removesuffix(".yaml")) if name else None
        listed = given.get("overrides", call.args[1] if len(call.args) > 1 else None)
        if (
            composed is None
            or composed is OPEN_VALUE
            or not isinstance(listed, (ast.List, ast.Tuple))
        ):
            continue
        words = [word for item in listed.elts if (word := _word(item)) is not None]
        for word, code, message, instead in overrides.compare_overrides(
            sources,
            main.package,
            overrides.ComposedTree(composed, main.options, name or ""),
            words,
        ):
            yield text.finding(
                word.line,
                word.column,
                code=code,
                severity=Severity.WARNING if code == overrides.TYPE else Severity.ERROR,
                message=message,
                instead=instead,
            )


def _callee_name(call: ast.Call) -> str:
    """Return the last component of a callee's name."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _places(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that initializes Hydra with a folder or module."""
    if _callee_name(call) not in _INITIALIZERS:
        return []
    return [*call.args[:1], *(each.value for each in call.keywords if each.arg != "version_base")]


def _word(item: ast.expr) -> Word | None:
    """Return an override as a word, or None if it is not a string.

    For an f-string, only the part before the first placeholder is known.
    """
    text, literal = string_value(item), True
    if isinstance(item, ast.JoinedStr) and item.values:
        text, literal = string_value(item.values[0]), False
    if text is None or "=" not in text:
        return None
    return Word(text, item.lineno, item.col_offset + 1, literal)
