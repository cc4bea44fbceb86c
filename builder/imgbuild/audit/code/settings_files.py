"""Checks keys of YAML and JSON files that Python code passes to classes of packages.

The code loads a file and passes it with `**`, or an argument parser of transformers or TRL reads
it. The number of objects that such a parser returns is checked too.
"""

# A separate module: one check.
from __future__ import annotations

import ast
import itertools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.loaded_files import FileSections
from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.named_files import find_text, parse_settings, place_key
from imgbuild.audit.code.shell import Word, shell_commands
from imgbuild.audit.names import classes, signatures
from imgbuild.audit.names.model import CallSignature
from imgbuild.audit.names.scopes import import_path
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.text import dotted_name
from imgbuild.audit.source.tree import walk_tree
from imgbuild.errors import FetchFailed
from imgbuild.matrix.notes import nearest_choice
from imgbuild.report import Severity
from imgbuild.system.syntax import valid_source

KEY, COUNT = "IMG409", "IMG111"
# Searches for literals are fast.
_LOADING = (b"yaml.safe_load", b"yaml.full_load", b"yaml.load", b"json.load", b"OmegaConf.load")
_PARSING = (b"HfArgumentParser(", b"TrlParser(")
_NAMED_FILE = re.compile(rb"\.(?:ya?ml|json)[\"']")
_PARSERS = {
    "transformers.hf_argparser:HfArgumentParser": False,
    "trl.scripts.utils:TrlParser": True,
    "trl.scripts._hf_argparser:HfArgumentParser": False,
}
_FILE_METHODS = {"parse_yaml_file": (".yaml", ".yml"), "parse_json_file": (".json",)}
_CONFIG_METHOD = "parse_args_and_config"
_PARSING_METHODS = frozenset(
    (*_FILE_METHODS, _CONFIG_METHOD, "parse_args_into_dataclasses", "parse_dict")
)
# Keywords with which these methods accept other keys, or return more objects.
_LENIENT = frozenset(
    ("allow_extra_keys", "return_remaining_strings", "fail_with_unknown_args")
) | frozenset(("separate_remaining_strings", "args_filename", "args_file_flag"))
_ENVIRONMENT = "env"  # a section of files of TRL


class _Accepted(NamedTuple):
    """The keys that a callable accepts, and its name with the version of its package."""

    names: frozenset[str]
    what: str


def check_settings_files(
    make_code: Callable[[], CodeSet], texts: Sequence[CodeText]
) -> Iterator[CodeFinding]:
    """Yield findings for keys of files that the classes that receive them do not accept."""
    check: _Check | None = None
    for text in texts:
        if text.kind == "python" and _may_pass_settings(text.source):
            check = check or _Check(make_code(), texts)
            yield from check.findings(text)


def _may_pass_settings(source: bytes) -> bool:
    """Whether a source may pass the content of a file that it names, or have a parser."""
    if any(word in source for word in _PARSING):
        return True
    if b".yaml" not in source and b".yml" not in source and b".json" not in source:
        return False
    return (
        b"**" in source
        and any(word in source for word in _LOADING)
        and _NAMED_FILE.search(source) is not None
    )


class _Check:
    def __init__(self, code: CodeSet, texts: Sequence[CodeText]) -> None:
        self._code = code
        self._texts = texts
        self._modules = {text.file: name for name, text in code.code_by_module.items()}
        self._view = code.path([]).view(code)

    def findings(self, text: CodeText) -> Iterator[CodeFinding]:
        """Yield the findings in the files that a Python file loads."""
        tree = valid_source(text.source)
        facts = self._code.module(self._modules.get(text.file, ""))
        if tree is None or not isinstance(facts, ModuleFacts):
            return
        try:
            loaded = FileSections(tree)
            for call, scope, section in loaded.calls():
                file = find_text(self._texts, section.path, text)
                accepted = self._accepted(facts, call.func, scope)
                if file is not None and accepted is not None:
                    yield from _key_findings(file, section.keys, section.removed, accepted)
            yield from self._parser_findings(loaded, text, facts, tree)
        except (FetchFailed, RecursionError):
            return

    def _accepted(
        self, facts: ModuleFacts, node: ast.expr, scope: str, *, any_code: bool = False
    ) -> _Accepted | None:
        """Return what a callable of a package accepts as keywords, or None if it is unknown.

        With `any_code`, the callable can be a class of the user.
        """
        name = dotted_name(node)
        resolved = (
            classes.resolve_expression(self._view, facts, name, scope=scope) if name else None
        )
        resolved = classes.follow_assignment(self._view, resolved) if resolved is not None else None
        owner = self._code.owner(resolved.home.module) if resolved and resolved.home else None
        if resolved is None or owner is None or (owner == CODE and not any_code):
            return None
        signature = signatures.find_signature(self._view, resolved)
        if signature is None or signature.varkw:
            return None
        version = "" if owner == CODE else f" of {owner} {self._code.version(owner)}"
        return _Accepted(_keywords(signature), f"{import_path(resolved)}{version}")

    def _parser_findings(
        self, loaded: FileSections, text: CodeText, facts: ModuleFacts, tree: ast.Module
    ) -> Iterator[CodeFinding]:
        """Yield findings for argument parsers that are bound to a name."""
        for node in walk_tree(tree) if any(word in text.source for word in _PARSING) else ():
            value = node.value if isinstance(node, ast.Assign) else None
            bound_name = dotted_name(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if not isinstance(value, ast.Call) or "Parser" not in dotted_name(value.func):
                continue
            scope = loaded.scope(node)
            resolved = classes.resolve_expression(
                self._view, facts, dotted_name(value.func), scope=scope
            )
            home, owner = resolved.home, getattr(resolved.definition, "name", "")
            if home is None or f"{home.module}:{owner}" not in _PARSERS:
                continue
            around = loaded.around(node)[-1]
            types = _class_nodes(value, around.bound)
            uses = _method_calls(around.node, bound_name)
            if types and around.bound.get(bound_name) is value and uses is not None:
                accepted = [self._accepted(facts, each, scope, any_code=True) for each in types]
                for call in uses:
                    yield from _count_findings(text, loaded, call, len(types))
                    file = self._parsed_file(text, loaded, call)
                    if file is not None and None not in accepted:
                        names = frozenset().union(*(each.names for each in accepted if each))
                        what = ", ".join(each.what for each in accepted if each)
                        yield from _key_findings(file, (), frozenset(), _Accepted(names, what))

    def _parsed_file(self, text: CodeText, loaded: FileSections, call: ast.Call) -> CodeText | None:
        """Return the file that a parser reads, from its argument or from a command line."""
        method = getattr(call.func, "attr", "")
        if _is_lenient(call):
            return None
        if method in _FILE_METHODS:
            given = [*call.args, *(word.value for word in call.keywords)]
            path = loaded.path(given[0], loaded.around(call)) if len(given) == 1 else ""
            paths = [path] if path else self._arguments(text, _FILE_METHODS[method])
        elif method == _CONFIG_METHOD and not call.args and not call.keywords:
            paths = self._options(text)
        else:
            return None
        files = {file.file: file for path in paths if (file := find_text(self._texts, path, text))}
        return next(iter(files.values())) if len(files) == 1 else None

    @cached_property
    def _commands(self) -> Sequence[tuple[Word, ...]]:
        shells = [text for text in self._texts if text.kind == "shell" and b".py" in text.source]
        return [
            command
            for text in shells
            for command in shell_commands(text.source.decode(errors="replace"))
        ]

    def _script_words(self, text: CodeText) -> Iterator[Sequence[Word]]:
        """Yield the words after a script's name in the commands that run it."""
        for command in self._commands:
            for at, word in enumerate(command):
                path = posixpath.normpath(word.text)
                if path.endswith(".py") and f"/{text.file}".endswith(f"/{path.lstrip('./')}"):
                    yield command[at + 1 :]

    def _arguments(self, text: CodeText, ends: tuple[str, ...]) -> list[str]:
        """Return the files that commands pass to a script as the only argument."""
        return [
            words[0].text
            for words in self._script_words(text)
            if len(words) == 1 and words[0].literal and words[0].text.endswith(ends)
        ]

    def _options(self, text: CodeText) -> list[str]:
        """Return the files that commands pass to a script with `--config`."""
        return [
            after.text
            for words in self._script_words(text)
            for word, after in itertools.pairwise(words)
            if word.text == "--config" and after.literal
        ]


def _keywords(signature: CallSignature) -> frozenset[str]:
    return frozenset(each.name for each in signature.parameters if each.kind != "positional")


def _class_nodes(call: ast.Call, bound: Mapping[str, ast.expr | None]) -> list[ast.expr]:
    """Return the classes that an argument parser is created with, or [] if they are unknown."""
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "dataclass_types")]
    if len(given) != 1 or len(call.keywords) > 1:
        return []
    node = given[0]
    value = bound.get(node.id) if isinstance(node, ast.Name) else None
    node = value if isinstance(value, (ast.Tuple, ast.List)) else node
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return elements if all(map(dotted_name, elements)) else []


def _method_calls(node: ast.AST, name: str) -> list[ast.Call] | None:
    """Return the calls of a parser's methods, or None if it is used in other ways."""
    calls: list[ast.Call] = []
    uses = 0
    for each in walk_tree(node):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
            uses += 1
        elif isinstance(each, ast.Call):
            owner, _, method = dotted_name(each.func).rpartition(".")
            if owner == name and method in _PARSING_METHODS:
                calls.append(each)
    return calls if uses == len(calls) else None


def _is_lenient(call: ast.Call) -> bool:
    """Whether a call of a parser may accept other keys, or return more objects."""
    is_open = any(word.arg is None or word.arg in _LENIENT for word in call.keywords)
    return is_open or len(call.args) > 1 or any(isinstance(a, ast.Starred) for a in call.args)


def _count_findings(
    text: CodeText, loaded: FileSections, call: ast.Call, count: int
) -> Iterator[CodeFinding]:
    """Yield the finding for a parser's result that is assigned to another number of names."""
    statement = loaded.parent(call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if not names or any(isinstance(each, ast.Starred) for each in names):
        return
    if len(names) != count and not _is_lenient(call):
        yield text.finding(
            call.lineno,
            call.col_offset + 1,
            code=COUNT,
            severity=Severity.ERROR,
            message=f"unpacks {len(names)} values from a parser of {count} classes,"
            f" which returns {count}",
        )


def _key_findings(
    file: CodeText, keys: Sequence[str], removed: frozenset[str], accepted: _Accepted
) -> Iterator[CodeFinding]:
    section = parse_settings(file)
    for key in keys:
        section = section.get(key) if isinstance(section, Mapping) else None
    for key in section if isinstance(section, Mapping) else ():
        if not isinstance(key, str) or key in accepted.names or key in removed:
            continue
        if key == _ENVIRONMENT and not keys:
            continue
        message = f"{key} is passed to {accepted.what}, which does not accept it"
        yield file.finding(
            *place_key(file, ".".join((*keys, key))),
            code=KEY,
            severity=Severity.ERROR,
            message=message,
            instead=nearest_choice(key, accepted.names) or "",
        )
