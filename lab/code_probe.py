"""Finds failures of Python files by importing modules in an environment, for lab/code_oracle.py.

The argument is `findings` or `failures`, and stdin is JSON. Prints one line of JSON. Does not
import imgbuild. Names are followed in the syntax tree of a file, through imports, assignments of
module members, calls and attributes. Code in `try`, and code that depends on a version, a platform
or installed packages, is omitted.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

CONDITION_NAMES = (
    "version",
    "available",
    "find_spec",
    "hasattr",
    "platform",
    "TYPE_CHECKING",
    "installed",
)
# Of other devices than NVIDIA's, and of Windows: the audit omits them.
OTHER_DEVICES = ("npu", "mlu", "sdaa", "musa", "xpu", "hpu", "mps", "tpu", "windll")
Failure = tuple[int, int, str]  # first and last line, and the result of Python


class UnknownObject(Exception):
    """Raised if the object of a name cannot be determined."""


class PythonFailure(Exception):
    """Raised if Python would fail with this message."""


class NotInstalled(PythonFailure):
    """Raised if a whole package is missing."""


def concerns_other_device(error: Exception) -> bool:
    """Return whether a failure depends on a missing device or another system."""
    return any(word in OTHER_DEVICES for word in re.split(r"[. ]", str(error)))


def load_module(module: str) -> Any:
    """Import a module.

    Raises PythonFailure if the module is missing, and UnknownObject if the import fails.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module == missing or module.startswith(missing + "."):
            kind = PythonFailure if "." in missing else NotInstalled
            raise kind("ModuleNotFoundError: " + module) from error
        raise UnknownObject(module + ": " + str(error)) from error
    except BaseException as error:
        raise UnknownObject(module + ": " + repr(error)) from error


def find_member(owner: Any, name: str) -> Any:
    """Return an attribute or a submodule of `owner`."""
    try:
        return getattr(owner, name)
    except AttributeError:
        pass
    except BaseException as error:
        raise UnknownObject(name + ": " + repr(error)) from error
    if inspect.ismodule(owner) and hasattr(owner, "__path__"):
        full = f"{owner.__name__}.{name}"
        if importlib.util.find_spec(full) is not None:
            return load_module(full)
    raise PythonFailure(str(getattr(owner, "__name__", owner))[:60] + " has no " + name)


def check_call(function: Any, node: ast.Call) -> None:
    """Raise PythonFailure if the signature rejects the keywords or the number of arguments."""
    if inspect.isclass(function) and issubclass(function, (BaseException, type)):
        return
    runs = function.__init__ if inspect.isclass(function) else function
    if hasattr(runs, "__wrapped__") or not inspect.isroutine(runs) or inspect.isbuiltin(runs):
        return  # its signature may be that of another function
    if type(runs).__name__ in ("wrapper_descriptor", "method_descriptor"):
        return  # not Python
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    kinds = {each.kind for each in signature.parameters.values()}
    words = [word.arg for word in node.keywords if word.arg]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for word in words:
            if word not in signature.parameters:
                raise PythonFailure(qualified_name(function) + " has no parameter " + word)
    starred = any(isinstance(each, ast.Starred) for each in node.args)
    if starred or len(words) < len(node.keywords):
        return
    try:
        signature.bind(*node.args, **dict.fromkeys(words))
    except TypeError as error:
        raise PythonFailure(qualified_name(function) + ": " + str(error)) from error


def qualified_name(value: Any) -> str:
    """Return the qualified name of a class or function."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"


class UseWalk:
    """Collects the failures of names in a file that are used whenever their function runs."""

    def __init__(self, source: bytes, folder: Path) -> None:
        self.tree = ast.parse(source)
        self.folder = folder
        self.names: dict[str, Any] = {}
        self.failures: list[Failure] = []
        self.absent: list[Failure] = []  # packages that are not installed
        self.known: dict[int, list[str]] = {}  # line → what was looked up, and is there
        self.unknown: dict[int, str] = {}

    def run(self) -> None:
        """Walk the file, and add failures to `failures`."""
        self._walk_statements(self.tree.body, dict(self.names))

    def _is_local(self, module: str) -> bool:
        root = module.partition(".")[0]
        return any(
            (folder / f"{root}.py").exists() or (folder / root).is_dir()
            for folder in (self.folder, *self.folder.parents[:4])
        )

    def _walk_statements(self, body: Sequence[ast.stmt], names: dict[str, Any]) -> None:
        later: list[tuple[ast.AST, dict[str, Any]]] = []
        for node in body:
            if isinstance(node, ast.Try):
                for name in assigned_names(node):
                    names.pop(name, None)
                continue
            if isinstance(node, ast.If):
                self._walk_branches(node, names)
                continue
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.pop(node.name, None)
                later.append((node, names))
                continue
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
                for name in assigned_names(node):
                    names.pop(name, None)
                for each in ast.iter_child_nodes(node):
                    if isinstance(each, ast.expr):
                        self._walk_expressions(each, names)
                self._walk_statements([*node.body, *getattr(node, "orelse", [])], names)
                continue
            self._walk_statement(node, names)
        for inner, outer in later:
            self._walk_definition(inner, outer)

    def _walk_branches(self, node: ast.If, names: dict[str, Any]) -> None:
        if any(word in ast.unparse(node.test) for word in CONDITION_NAMES):
            for name in assigned_names(node):
                names.pop(name, None)
            return
        self._walk_expressions(node.test, names)
        self._walk_statements([*node.body, *node.orelse], names)

    def _walk_definition(self, node: Any, names: dict[str, Any]) -> None:
        inner = dict(names)
        for each in node.decorator_list:
            self._walk_expressions(each, names)
        if isinstance(node, ast.ClassDef):
            for each in node.bases:
                self._walk_expressions(each, names)
        else:
            arguments = node.args
            listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            listed += [each for each in (arguments.vararg, arguments.kwarg) if each]
            for argument in listed:
                inner.pop(argument.arg, None)
            for default in [*arguments.defaults, *(each for each in arguments.kw_defaults if each)]:
                self._walk_expressions(default, names)
            for name in assigned_names(node):
                inner.pop(name, None)
        self._walk_statements(node.body, inner)

    def _walk_statement(self, node: ast.stmt, names: dict[str, Any]) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._walk_import(node, alias, names)
            return
        if isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                return
            for alias in node.names:
                self._walk_import_from(node, node.module, alias, names)
            return
        self._walk_expressions(node, names)
        for name in assigned_names(node):
            names.pop(name, None)

    def _walk_import(self, node: ast.stmt, alias: ast.alias, names: dict[str, Any]) -> None:
        if self._is_local(alias.name):
            names.pop(alias.asname or alias.name.partition(".")[0], None)
            return
        try:
            module = load_module(alias.name)
            root = sys.modules[alias.name.partition(".")[0]]
            names[alias.asname or root.__name__] = module if alias.asname else root
            self.known.setdefault(node.lineno, []).append(alias.name)
        except (PythonFailure, UnknownObject) as error:
            self._note_failure(node, error)

    def _walk_import_from(
        self, node: ast.stmt, module: str, alias: ast.alias, names: dict[str, Any]
    ) -> None:
        names.pop(alias.asname or alias.name, None)
        if self._is_local(module) or alias.name == "*":
            return
        try:
            names[alias.asname or alias.name] = find_member(load_module(module), alias.name)
            self.known.setdefault(node.lineno, []).append(f"{module}.{alias.name}")
        except (PythonFailure, UnknownObject) as error:
            self._note_failure(node, error)

    def _note_failure(self, node: Any, error: Exception) -> None:
        if isinstance(error, PythonFailure):
            failures = self.absent if isinstance(error, NotInstalled) else self.failures
            if not concerns_other_device(error):
                failures.append((node.lineno, node.end_lineno or node.lineno, str(error)))
        else:
            self.unknown[node.lineno] = str(error)

    def _walk_expressions(self, node: ast.AST, names: dict[str, Any]) -> None:
        for each in ast.walk(node):
            if isinstance(each, (ast.Lambda, ast.comprehension)):
                for name in assigned_names(each):
                    names = {**names}
                    names.pop(name, None)
        for each in ast.walk(node):
            if not isinstance(each, ast.expr):
                continue
            try:
                if isinstance(each, ast.Call):
                    function = self._dotted_value(each.func, names)
                    check_call(function, each)
                    self.known.setdefault(each.lineno, []).append(qualified_name(function))
                elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
                    self._dotted_value(each, names)
            except PythonFailure as error:
                line = getattr(each, "lineno", 0)
                if not concerns_other_device(error):
                    self.failures.append((line, getattr(each, "end_lineno", line), str(error)))
            except UnknownObject as error:
                self.unknown.setdefault(each.lineno, str(error))

    def _dotted_value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """Return the object of a dotted name, following only members of modules and classes."""
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.Attribute):
            owner = self._dotted_value(node.value, names)
            if ast.unparse(node.value).startswith("torch.ops"):
                raise UnknownObject(node.attr)  # registered by what is not imported here
            if inspect.ismodule(owner) or inspect.isclass(owner):
                return find_member(owner, node.attr)
        raise UnknownObject(ast.unparse(node)[:60])


def assigned_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement assigns."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.alias):
            yield each.asname or each.name.partition(".")[0]
        elif isinstance(each, ast.arg):
            yield each.arg


def find_failures(paths: Sequence[str]) -> list[tuple[str, int, int, str]]:
    """Return the failures in the Python files below `paths`, except for missing packages."""
    result = []
    for top in map(Path, paths):
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            walk = walk_file(path)
            if walk is not None:
                result += [(str(path), *each) for each in dict.fromkeys(walk.failures)]
    return result


def walk_file(path: Path) -> UseWalk | None:
    """Return the uses of names in a file, or None if this Python cannot parse the file."""
    try:
        walk = UseWalk(path.read_bytes(), path.parent)
    except (SyntaxError, ValueError):
        return None
    walk.run()
    return walk


def judge_findings(drawn: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the verdict on each finding (true, false or untried) and the reason."""
    return [judge_finding(each) for each in drawn]


def judge_finding(finding: dict[str, Any]) -> tuple[str, str]:
    """Judge a finding by the line in the file or, if that fails, by its subject."""
    path, line = Path(finding["file"]), finding["line"]
    if path.suffix == ".py":
        walk = walk_file(path)
        if walk is not None:
            for first, last, why in [*walk.failures, *walk.absent]:
                if first <= line <= last:
                    return "true", why
    evidence = finding["evidence"] or {}
    subject = evidence.get("subject", "")
    if not subject:
        return "untried", "no Python"
    dotted, _, inner = subject.partition("(")
    try:
        value: Any = None
        owner, _, inside = dotted.partition(":")
        value = import_dotted(owner)
        for name in inside.split(".") if inside else []:
            value = find_member(value, name)
        if inner:
            word = inner.removesuffix(")")
            check_call(
                value,
                ast.Call(
                    func=ast.Name(""), args=[], keywords=[ast.keyword(word, ast.Constant(None))]
                ),
            )
            raise UnknownObject(qualified_name(value) + " may take " + word)
    except PythonFailure as error:
        return "true", f"by its subject: {error}"
    except UnknownObject as error:
        return "untried", str(error)
    return "false", f"{dotted} exists"


def import_dotted(dotted: str) -> Any:
    """Return the module, or the member of a module, with a dotted name."""
    parts = dotted.split(".")
    value = load_module(parts[0])
    for name in parts[1:]:
        value = find_member(value, name)
    return value


def main() -> None:
    """Process the request on stdin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("findings", "failures"), help="what to find or check")
    what = parser.parse_args().what
    questions = json.load(sys.stdin)
    quiet = io.StringIO()
    with redirect_stdout(quiet), redirect_stderr(quiet):
        answer = find_failures(questions) if what == "failures" else judge_findings(questions)
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
