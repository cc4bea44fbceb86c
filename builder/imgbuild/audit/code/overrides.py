"""Compares Hydra overrides (`a.b=1`) with the configuration in a wheel."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import yaml

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.shell import Word
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.main_path.configuration import OPEN_VALUE, find_hydra_program, group_options
from imgbuild.matrix.notes import nearest_choice
from imgbuild.system import yaml_data

KEY, TYPE, EXISTS, OPTION = "IMG401", "IMG402", "IMG403", "IMG408"
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
# Names whose meaning depends on the section: an equal name in another one is no replacement.
_CONTEXTUAL = frozenset(
    ("config", "enable", "enabled", "kwargs", "mode", "name", "path", "size", "strategy", "type")
)

Problem = tuple[Word, str, str, str]  # word, code, message, instead


class ComposedTree(NamedTuple):
    """A composed configuration: the tree of keys, the options of each group, and its name."""

    tree: Any
    options: Mapping[str, frozenset[str]]
    name: str


def check_overrides(
    sources: PackageSources,
    package: str,
    module: str,
    words: Sequence[Word],
    texts: Sequence[CodeText] = (),
) -> Iterator[Problem]:
    """Yield findings for overrides that the Hydra program `module` of a package rejects.

    With `--config-path`, the configurations among the user's `texts` are searched first.
    """
    configuration = _configuration(sources, module, words, texts)
    if configuration is not None:
        yield from compare_overrides(sources, package, configuration, words)


def compare_overrides(
    sources: PackageSources,
    package: str,
    configuration: ComposedTree,
    words: Sequence[Word],
) -> Iterator[Problem]:
    """Yield findings for overrides that are invalid in a configuration."""
    tree, options, name = configuration
    what = f"the configuration {name} of {package} {sources.package_set.version(package)}"
    for word in words:
        match = _OVERRIDE.fullmatch(word.text)
        if match is None or word.text.startswith("-"):
            continue
        sign, key, value = match[1] or "", match[2], match[3]
        group = key.split("@")[0]
        if group in options:
            if word.literal and lacks_option(options, group, value):
                near_options = nearest_choice(value, options[group])
                instead = f"{sign}{key}={near_options}" if near_options else ""
                yield word, OPTION, f"{what} has no {value} in the group {group}", instead
            continue
        if "/" in key or key.startswith("hydra."):
            continue
        present = value_at(tree, key)
        if present is OPEN_VALUE:
            continue
        if present is None and not sign:
            instead = nearest_key(tree, key)
            yield word, KEY, f"{what} has no key {key}", instead or f"+{key} to add it"
        elif present is not None and sign == "+":
            yield word, EXISTS, f"{what} already has the key {key}: +{key} fails", key
        elif present is not None and word.literal and not _value_fits(present[0], value):
            kind = type(present[0]).__name__
            yield word, TYPE, f"{key} of {what} has the type {kind}, so {value} is invalid", ""


def lacks_option(options: Mapping[str, frozenset[str]], group: str, value: str) -> bool:
    """Whether a group certainly has no option `value`."""
    is_name = re.fullmatch(r"[\w-]+", value) is not None and value not in ("null", "None")
    return is_name and bool(options.get(group)) and value not in options[group]


def _configuration(
    sources: PackageSources, module: str, words: Sequence[Word], texts: Sequence[CodeText]
) -> ComposedTree | None:
    """Return the composed configuration of a program, or None if there is no configuration."""
    main = find_hydra_program(sources.package_set, module)
    if main is None:
        return None
    name = (_option(words, ("--config-name", "-cn")) or main.name).removesuffix(".yaml")
    folder = _option(words, ("--config-path", "--config-dir", "-cp", "-cd"))
    if folder is None:
        tree = main.compose_configuration(name)
        return ComposedTree(tree, main.options, name) if tree is not None else None
    first = adjacent_files(texts, folder, name)
    tree = main.compose_configuration(name, first) if first else None
    if tree is None:
        return None
    options = dict(main.options)
    for group, names in group_options(first).items():
        options[group] = options.get(group, frozenset()) | names
    return ComposedTree(tree, options, name)


def _option(words: Sequence[Word], names: tuple[str, ...]) -> str | None:
    """Return the value of a command-line option, or None if the option is not given."""
    for at, word in enumerate(words):
        option, equals, value = word.text.partition("=")
        if option in names:
            return value if equals else words[at + 1].text if at + 1 < len(words) else ""
    return None


def adjacent_files(texts: Sequence[CodeText], folder: str, name: str) -> dict[str, bytes]:
    """Return the contents of the user's files next to the configuration `name`, by relative path.

    `folder` is from the command line, and only its last component is compared. The result is empty
    if several folders contain such a file.
    """
    last = posixpath.basename(folder.rstrip("/"))
    ends = tuple(f"{last}/{name}{suffix}" for suffix in (".yaml", ".yml"))
    if not last or "$" in last or last == ".":
        ends = (f"/{name}.yaml", f"/{name}.yml")
    yamls = [text for text in texts if text.kind == "yaml"]
    roots = {
        f"/{text.file}".removesuffix(end).rstrip("/") + ("/" + last if end[0] != "/" else "")
        for text in yamls
        for end in ends
        if f"/{text.file}".endswith(end)
    }
    if len(roots) != 1:
        return {}
    root = f"{roots.pop()}/"
    return {
        f"/{text.file}".removeprefix(root).replace(".yml", ".yaml"): text.source
        for text in yamls
        if f"/{text.file}".startswith(root)
    }


def value_at(tree: Any, key: str) -> Any:
    """Return the value at a dotted key, in a tuple.

    Return None if the key is missing, and OPEN if it is unknown. Keys below null, or below
    references to other parts of the configuration, are unknown.
    """
    for part in key.split("."):
        if tree is OPEN_VALUE or tree is None or (isinstance(tree, str) and tree.startswith("${")):
            return OPEN_VALUE
        if isinstance(tree, list):
            return OPEN_VALUE
        if not isinstance(tree, dict) or part not in tree:
            return None
        tree = tree[part]
    return OPEN_VALUE if tree is OPEN_VALUE else (tree,)


def nearest_key(tree: Any, key: str) -> str:
    """Return the nearest existing key.

    This is a similar name in the same section, or the same name in another section.
    """
    parts = key.split(".")
    node: Any = tree
    for at, part in enumerate(parts):
        if not isinstance(node, Mapping):
            return ""
        if part not in node:
            close = nearest_choice(part, map(str, node))
            corrected = ".".join((*parts[:at], close, *parts[at + 1 :])) if close else ""
            if corrected and isinstance(value_at(tree, corrected), tuple):
                return corrected
            break
        node = node[part]
    same = 2 if parts[-1] in _CONTEXTUAL else 1
    paths = [path for path in _paths(tree) if path.split(".")[-same:] == parts[-same:]]

    def _similarity(path: str) -> tuple[bool, float]:
        return path.startswith(f"{parts[0]}."), SequenceMatcher(None, path, key).ratio()

    return max(paths, key=_similarity, default="")


def _paths(tree: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            yield from _paths(value, f"{prefix}{key}.")


def _value_fits(value: Any, text: str) -> bool:
    """Whether an override may be valid for a setting whose value has this type."""
    if text in ("null", "None", "") or "${" in text or isinstance(value, (str, type(None))):
        return True
    try:
        given = yaml_data.parse_yaml(text)
    except (yaml.YAMLError, ValueError):  # ValueError for a date such as 2024-13-45
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
