"""Reads decorators, rejected names and rejected keywords from sources in wheels.

The `__getattr__` of a module is evaluated for names that the facts do not show. A function
that raises an exception if `**kwargs` is not empty accepts no keywords other than those that it
removes first.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from weakref import ref

from imgbuild.audit.code import source_values
from imgbuild.audit.code.class_attributes import computed_attributes
from imgbuild.audit.code.decorators import (
    FunctionNode,
    changes_name,
    wrapper_keywords,
)
from imgbuild.audit.code.subclasses import Subclasses
from imgbuild.audit.main_path.answers import package_set_evaluator
from imgbuild.audit.main_path.sources import ModuleTree, read_function
from imgbuild.audit.names import classes, receivers, releases
from imgbuild.audit.names.lookup import module_index
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, Function, ModuleFacts
from imgbuild.audit.source.text import dotted_name, string_list, string_value
from imgbuild.audit.source.tree import body_nodes, walk_tree
from imgbuild.errors import FetchFailed
from imgbuild.system.syntax import valid_source

_ADVICE = 160  # characters of a table's text
_REPLACEMENT = re.compile(r"`?(?:np|numpy)\.(\w+)`?")
# An attribute of an object other than `self` that a statement may assign or delete. The pattern
# begins with the name, because a search for a literal is fast.
_STORED_ATTRIBUTE = (
    r"{name}(?!\w)(?<=\.{name})(?<!(?<![\w.])self\.{name})[ \t]*"
    r"(?:(?:\*\*|//|<<|>>|[-+*/%@&|^])?=(?!=)|[,)\]:;#\\\r\n]|in\b|\Z)"
)
# Searched from the start of each line: a search from each "setattr(" is quadratic in a long line.
_SET_BY_NAME = r"(?m:^)(?>[^\n]*?setattr\()[^\n]*[\"']{name}[\"']"
_BINDERS = frozenset(("exec", "vars", "locals"))
# Of numpy, in C: the parameters of its dispatcher are those of the function.
_COMPILED_DECORATORS = frozenset(("array_function_dispatch",))
_COMPUTING_METHODS = ("__getattr__", "__getattribute__")
_READING_METHODS = frozenset(("pop", "get"))
_DEFINITION = re.compile(rb"def ([^\s()]+)\(")
_MOST_COMPARING = 20  # modules in which comparisons with a field are searched
_HARMLESS = frozenset(("update", "join", "len", "list", "sorted", "str", "bool", "set", "dict"))
# Functions that accept the keywords in tables of another module.
_KEYWORD_TABLES = {
    "ray._private.worker.remote": ("ray._common.ray_option_utils", "ray._private.ray_option_utils")
}


class WheelSources:
    """Answers questions about the sources of a package set, and caches each answer."""

    def __init__(self, package_set: ImportablePackages, unchecked: str = "") -> None:
        """Read the sources of `package_set`. The attributes of `unchecked` are not checked."""
        self._unchecked = unchecked
        self._package_set = ref(package_set)  # which keeps this object
        self._rejected: dict[tuple[str, str], bool] = {}
        self._kept: dict[tuple[str, str], frozenset[str] | None] = {}
        self._taken: dict[tuple[str, str, int], frozenset[str] | None] = {}
        self._computed: dict[tuple[str, int], frozenset[str] | None] = {}
        self._assigned: dict[tuple[tuple[tuple[str, str], ...], str], bool] = {}
        self._compared: dict[tuple[str, str], frozenset[str]] = {}
        self._registered: frozenset[str] | None = None
        self._subclasses = Subclasses(self._content)
        self._creating: dict[tuple[str, str], bool] = {}
        self._contents: dict[str, bytes | None] = {}

    def attribute_raises(self, facts: ModuleFacts, name: str) -> bool:
        """Whether reading `name` from a module certainly raises AttributeError."""
        key = (facts.module, name)
        if key not in self._rejected:
            self._rejected[key] = False  # of a name that depends on itself
            self._rejected[key] = self._certainly_rejects(facts, name)
        return self._rejected[key]

    def wrapper_keywords(self, facts: ModuleFacts, decorator: str) -> frozenset[str] | None:
        """Return the keywords that a decorator, as written in a module, adds to a function.

        Return None if the decorator may change the parameters in another way.
        """
        key = (facts.module, decorator.partition("(")[0])
        if key not in self._kept:
            is_compiled = key[1].rpartition(".")[2] in _COMPILED_DECORATORS
            self._kept[key] = frozenset() if is_compiled else self._read_decorator(facts, key[1])
        return self._kept[key]

    def _read_decorator(self, facts: ModuleFacts, name: str) -> frozenset[str] | None:
        decorator = self._resolve_function(facts, name)
        if decorator is None:
            return None
        home, node = decorator

        def _resolve(callee: str) -> FunctionNode | None:
            function = self._resolve_function(home, callee)
            return function[1] if function is not None else None

        return wrapper_keywords(node, _resolve)

    def _resolve_function(
        self, facts: ModuleFacts, name: str
    ) -> tuple[ModuleFacts, FunctionNode] | None:
        """Return the function to which `name` refers, with its module."""
        package_set = self._package_set()
        if package_set is None:
            return None
        target = classes.follow_assignment(
            package_set, classes.resolve_expression(package_set, facts, name)
        )
        node = self._function(target.home, target.definition)
        return (target.home, node) if target.home is not None and node is not None else None

    def accepted_keywords(self, facts: ModuleFacts, function: Function) -> frozenset[str] | None:
        """Return the keywords that a function accepts in `**kwargs`.

        Return None if it may accept any.
        """
        key = (facts.module, function.name, function.line)
        if key not in self._taken:
            listing = _KEYWORD_TABLES.get(f"{facts.module}.{function.name}")
            node = self._function(facts, function) if listing is None else None
            self._taken[key] = popped_keywords(node) if node is not None else None
            if listing is not None:
                self._taken[key] = frozenset(self._keys(listing)) or None
        return self._taken[key]

    def computed_attributes(self, facts: ModuleFacts, definition: Class) -> frozenset[str] | None:
        """Return the attributes that a class sets with computed names, or None for any name."""
        key = (facts.module, definition.line)
        if key not in self._computed:
            source = self._source(facts)
            self._computed[key] = (
                computed_attributes(source, definition.line) if source is not None else None
            )
        return self._computed[key]

    def is_unchecked(self, chain: Sequence[LookupResult]) -> bool:
        """Whether a class and all its bases belong to the package that is not checked."""
        package_set = self._package_set()
        if package_set is None or not self._unchecked:
            return False
        homes = {each.home.module for each in chain if each.home is not None}
        return bool(homes) and all(package_set.owner(each) == self._unchecked for each in homes)

    @property
    def _own_contents(self) -> list[bytes]:
        """The sources of the unchecked code."""
        package_set = self._package_set()
        if package_set is None or not self._unchecked:
            return []
        paths = package_set.modules_of(self._unchecked).values()
        return [package_set.read(self._unchecked, path) or b"" for path in paths]

    def defines_once(self, method: str) -> bool:
        """Whether the unchecked code defines a function or method with this name only once."""
        return self._definitions[method.encode()] == 1

    @cached_property
    def _definitions(self) -> Counter[bytes]:
        """The numbers of definitions of functions and methods in the unchecked code, by name."""
        sources = self._own_contents
        return Counter(name for source in sources for name in _DEFINITION.findall(source))

    def is_registered(self, text: str) -> bool:
        """Whether the unchecked code may register a name, such as that of a quantization."""
        if self._registered is None:
            contents = filter(source_values.REGISTERING.search, self._own_contents)
            trees = filter(None, map(valid_source, contents))
            self._registered = frozenset().union(*map(source_values.registered_names, trees))
        return text in self._registered

    def mentions(self, facts: ModuleFacts, text: str) -> bool:
        """Whether the source of a module contains a text."""
        package_set = self._package_set()
        try:
            content = self._content(package_set, facts.module) if package_set is not None else None
        except FetchFailed:
            content = None
        return content is not None and text.encode() in content

    def enumeration_values(self, facts: ModuleFacts, definition: Class) -> frozenset[str]:
        """Return the values of an enumeration of strings, or none if they are unknown."""
        source = self._source(facts)
        for node in source.binding_statements(definition.name) if source is not None else ():
            if isinstance(node, ast.ClassDef) and node.name == definition.name:
                return source_values.enumeration_values(node)
        return frozenset()

    def bound_expression(self, facts: ModuleFacts, name: str) -> ast.expr | None:
        """Return the expression to which a module binds a name, or None if it is unknown."""
        source = self._source(facts)
        statements = list(source.binding_statements(name)) if source is not None else []
        statement = statements[0] if len(statements) == 1 else None
        return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None

    def compared_values(self, facts: ModuleFacts, field: str) -> frozenset[str]:
        """Return the strings that the package of a module accepts for a field, or none."""
        key = (facts.module.partition(".")[0], field)
        if key not in self._compared:
            try:
                self._compared[key] = self._read_comparisons(*key)
            except FetchFailed:
                self._compared[key] = frozenset()
        return self._compared[key]

    def _read_comparisons(self, top: str, field: str) -> frozenset[str]:
        package_set = self._package_set()
        below = package_set.mentioning(top, field) if package_set is not None else ()
        names = list(dict.fromkeys((top, *below)))
        text = re.compile(rb"\b%s[ \t]*(?:==|not in|in)[ \t]*[\"'(\[{]" % field.encode())
        if package_set is None or len(names) > _MOST_COMPARING:
            return frozenset()
        contents = (self._content(package_set, name) or b"" for name in names)
        if not any(map(text.search, contents)):  # parsing takes longer
            return frozenset()
        compared = source_values.ComparedValues(field)
        for name in names:
            module = package_set.module(name)
            source = self._source(module) if isinstance(module, ModuleFacts) else None
            if source is None:
                return frozenset()
            compared.add_module(source.tree)
        is_closed = compared.closed and not compared.others
        return frozenset(compared.values) if is_closed else frozenset()

    def returned_counts(self, facts: ModuleFacts, function: Function) -> frozenset[int]:
        """Return the numbers of values in the `return` statements of a function."""
        node = self._function(facts, function)
        return source_values.returned_counts(node) if node is not None else frozenset((0,))

    def may_be_assigned(self, owners: tuple[tuple[str, str], ...], name: str) -> bool:
        """Whether a module that mentions one of the classes `owners` assigns the attribute."""
        key = (owners, name)
        if key not in self._assigned:
            package_set = self._package_set()
            try:
                self._assigned[key] = package_set is None or any(
                    self._assigns_below(package_set, top, [each for _, each in owners], name)
                    for top in {module.partition(".")[0] for module, _ in owners}
                )
            except FetchFailed:
                self._assigned[key] = True
        return self._assigned[key]

    def returns_own_class(self, facts: ModuleFacts, function: Function) -> bool:
        """Whether a class method without an annotation returns `cls(…)`, or calls one that does."""
        if function.returns or function.decorators != ("classmethod",):
            return receivers.returns_self(function)
        key = (facts.module, function.name)
        if key not in self._creating:
            self._creating[key] = False  # of a method that calls itself
            node, owner = self._function(facts, function), function.name.rpartition(".")[0]
            members = module_index(facts).members
            called = _called_methods(node) if node is not None else []
            self._creating[key] = bool(called) and all(
                not method
                or any(
                    isinstance(each, Function) and self.returns_own_class(facts, each)
                    for each in members.get(f"{owner}.{method}", ())
                )
                for method in called
            )
        return self._creating[key]

    def may_be_in_subclass(self, holder: LookupResult, name: str) -> bool:
        """Whether a subclass of a class in its package may define a member."""
        package_set = self._package_set()
        return package_set is None or self._subclasses.define(package_set, holder, name)

    def is_defined_below(self, package: str, name: str) -> bool:
        """Whether a class in the modules below `package` may define a member."""
        package_set = self._package_set()
        return package_set is None or bool(
            self._subclasses.defining_modules(package_set, package, name)
        )

    def is_removed(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Whether the table of releases says that a release removed a member of a class.

        `chain` contains the class and its bases, which do not define `name`.
        """
        package_set = self._package_set()
        return package_set is not None and any(
            _is_removed(package_set, each, name) for each in chain
        )

    def is_former(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Whether `data/audit/former_members.yaml` lists a method of a class in `chain`."""
        package_set = self._package_set()
        for each in chain:
            owner = package_set.owner(each.home.module) if package_set and each.home else None
            names = releases.former_members().get(owner or "", {})
            if name in names.get(getattr(each.definition, "name", ""), "").split():
                return True
        return False

    def may_be_computed(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Whether a class in `chain` may have a method with a computed name.

        The values that `__getattr__` returns, except attributes of other objects, and the
        attributes that are set from a user's data are not methods.
        """
        package_set = self._package_set()
        if package_set is None:
            return True
        literal = re.compile(rf"[\"']{re.escape(name)}[\"']".encode())
        packages: set[str] = set()
        for ancestor in chain:
            home, owner = ancestor.home, getattr(ancestor.definition, "name", "")
            if home is None:
                continue
            packages.add(home.module.partition(".")[0])
            for method in _COMPUTING_METHODS:
                for definition in module_index(home).members.get(f"{owner}.{method}", ()):
                    node = self._function(home, definition)
                    if node is None or _delegates(node):
                        return True
        return any(
            content is None or literal.search(content)
            for content in self._contents_mentioning(package_set, packages, name)
        )

    def _contents_mentioning(
        self, package_set: ImportablePackages, packages: Iterable[str], name: str
    ) -> Iterator[bytes | None]:
        """Yield the contents of the modules of `packages` that mention a name.

        None stands for a content that is not available.
        """
        try:
            for package in sorted(packages):
                for module in (package, *package_set.mentioning(package, name)):
                    if module != package or package_set.owner(module) is not None:
                        yield self._content(package_set, module)
        except FetchFailed:
            yield None

    def _assigns_below(
        self, package_set: ImportablePackages, top: str, owners: Iterable[str], name: str
    ) -> bool:
        words = [owner.encode() for owner in owners]
        literal = re.compile(_SET_BY_NAME.format(name=re.escape(name)).encode())
        stored = re.compile(_STORED_ATTRIBUTE.format(name=re.escape(name)).encode())
        for module in package_set.mentioning(top, name):
            content = self._content(package_set, module)
            if content is None:
                return True
            if not any(word in content for word in words):
                continue
            if b"setattr(" in content and literal.search(content):
                return True
            if stored.search(content):  # few modules are parsed
                source = package_set_evaluator(package_set).source(module)
                if source is None or name in source.stored:
                    return True
        return False

    def _content(self, package_set: ImportablePackages, module: str) -> bytes | None:
        if module not in self._contents:
            owner = package_set.owner(module)
            file = package_set.modules_of(owner).get(module) if owner is not None else None
            self._contents[module] = (
                package_set.read(owner, file) if owner is not None and file is not None else None
            )
        return self._contents[module]

    def _keys(self, modules: tuple[str, ...]) -> Iterator[str]:
        """Yield the keys of top-level dictionaries in the first of these modules that exists."""
        package_set = self._package_set()
        candidates = (
            (package_set.module(name) for name in modules) if package_set is not None else ()
        )
        facts = next((each for each in candidates if isinstance(each, ModuleFacts)), None)
        source = self._source(facts) if facts is not None else None
        for statement in source.tree.body if source is not None else ():
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Dict):
                yield from filter(None, map(string_value, value.keys))

    def advice(self, module: str, name: str) -> str:
        """Return the message for a name that a module's `__getattr__` rejects, from a table."""
        package_set = self._package_set()
        facts = package_set.module(module) if package_set is not None else None
        if package_set is None or not isinstance(facts, ModuleFacts):
            return ""
        for function in module_index(facts).top.get("__getattr__", ()):
            node = self._function(facts, function)
            for table in _raising_tables(node) if node is not None else ():
                text = self._literal(package_set, facts, table).get(name)
                if text is not None:
                    return text
        return ""

    def _certainly_rejects(self, facts: ModuleFacts, name: str) -> bool:
        package_set, source = self._package_set(), self._source(facts)
        functions = module_index(facts).top.get("__getattr__", ())
        if package_set is None or source is None or len(functions) != 1:
            return False
        function = functions[0]
        if not isinstance(function, Function) or _may_bind(source, name):
            return False
        memory = package_set_evaluator(package_set)
        value = memory.function(facts, function)
        if value is None:
            return False
        try:
            outcomes = memory.all_outcomes(lambda run: run.apply_call(value, [name], {}))
        except FetchFailed:  # of the source of another module
            return False
        return bool(outcomes) and all(
            outcome.raised == AttributeError.__name__ and outcome.certain for outcome in outcomes
        )

    def _source(self, facts: ModuleFacts) -> ModuleTree | None:
        package_set = self._package_set()
        try:
            return (
                package_set_evaluator(package_set).source(facts.module)
                if package_set is not None
                else None
            )
        except FetchFailed:
            return None

    def _function(self, facts: ModuleFacts | None, definition: object) -> FunctionNode | None:
        if facts is None or not isinstance(definition, Function):
            return None
        package_set = self._package_set()
        try:
            return (
                read_function(package_set, facts.module, definition.name, definition.line)
                if package_set is not None
                else None
            )
        except FetchFailed:
            return None

    def _literal(
        self, package_set: ImportablePackages, facts: ModuleFacts, name: str
    ) -> Mapping[str, str]:
        """Return the keys and texts of a dictionary at the top of a module.

        The module defines or imports the dictionary.
        """
        table: LookupResult = classes.resolve_expression(package_set, facts, name)
        source = self._source(table.home) if table.home is not None else None
        last = getattr(table.definition, "name", name)
        for statement in source.binding_statements(last) if source is not None else ():
            for node in walk_tree(statement):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                    pairs = zip(node.value.keys, node.value.values, strict=True)
                    return {
                        key: (string_value(value) or "")[:_ADVICE]
                        for item, value in pairs
                        if item is not None and (key := string_value(item))
                    }
        return {}


def _is_removed(package_set: ImportablePackages, holder: LookupResult, name: str) -> bool:
    """Whether the table of releases says that a release removed a member of this class."""
    home, owner = holder.home, getattr(holder.definition, "name", "")
    known = releases.member_existence(owner, name) if home is not None else None
    if home is None or known is None or known.package != package_set.owner(home.module):
        return False
    return known.change(package_set.version(known.package) or "").startswith("removed")


def _called_methods(function: FunctionNode) -> list[str]:
    """Return the method m in each `return cls.m(…)` of a class method, "" for `return cls(…)`.

    Return [] if it returns something else, or assigns its first parameter.
    """
    own = next((each.arg for each in (*function.args.posonlyargs, *function.args.args)), "")
    methods: list[str] = []
    for node in body_nodes(function.body):
        if isinstance(node, (ast.Yield, ast.YieldFrom)) or changes_name(node, own):
            return []
        if isinstance(node, ast.Return):
            callee = dotted_name(node.value.func) if isinstance(node.value, ast.Call) else ""
            first, _, method = callee.partition(".")
            if first != own or "." in method:
                return []
            methods.append(method)
    return methods


def _delegates(function: FunctionNode) -> bool:
    """Whether a `__getattr__` may return an attribute of another object."""
    return any(
        isinstance(node, ast.Call) and dotted_name(node.func) == "getattr"
        for node in walk_tree(function)
    )


def recommended_name(advice: str) -> str:
    """Return the name that a message of NumPy recommends, or "" if it recommends none."""
    match = _REPLACEMENT.search(advice)
    return match[1] if match else ""


def popped_keywords(function: FunctionNode) -> frozenset[str] | None:
    """Return the keywords that a function removes from `**kwargs` before it rejects the rest.

    Return None if the function does not raise an exception, or may use `**kwargs` in other ways.
    """
    if function.args.kwarg is None:
        return None
    name = function.args.kwarg.arg
    if not any(_raises_for(statement, name) for statement in function.body):
        return None
    taken: set[str] = set()
    for node in body_nodes(function.body):
        key: ast.expr | None = None
        if isinstance(node, ast.Call):
            callee = node.func
            last = callee.attr if isinstance(callee, ast.Attribute) else dotted_name(callee)
            if any(dotted_name(each) == name for each in node.args) and last not in _HARMLESS:
                return None  # it may remove some
            if (
                dotted_name(node.func) in {f"{name}.{method}" for method in _READING_METHODS}
                and node.args
            ):
                key = node.args[0]
        elif isinstance(node, ast.Subscript) and dotted_name(node.value) == name:
            key = node.slice
        elif isinstance(node, ast.Compare) and dotted_name(node.comparators[0]) == name:
            key = node.left
        if key is not None:
            text = string_value(key)
            if text is None:
                return None
            taken.add(text)
    return frozenset(taken)


def _raises_for(statement: ast.stmt, name: str) -> bool:
    """Whether a statement is `if kwargs: raise …`."""
    if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Raise):
        return False
    test = statement.test
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Call):  # len(kwargs) > 0
        test = (
            test.left.args[0] if dotted_name(test.left.func) == "len" and test.left.args else test
        )
    return dotted_name(test) == name


def _may_bind(source: ModuleTree, name: str) -> bool:
    """Whether a module may bind a name without a statement, such as `globals()[name] = …`."""
    nodes = list(walk_tree(source.tree))
    loops = {
        dotted_name(node.target): string_list(node.iter) for node in nodes if type(node) is ast.For
    }
    return any(_binds_name(node, name, loops) for node in nodes)


def _binds_name(node: ast.AST, name: str, loops: Mapping[str, list[str] | None]) -> bool:
    if isinstance(node, ast.Subscript):
        if dotted_name(node.value) == "sys.modules":
            return dotted_name(node.slice) == "__name__"
        if not _is_globals(node.value) or not isinstance(node.ctx, ast.Store):
            return False
        names = loops.get(dotted_name(node.slice)) or string_list(node.slice)
        return names is None or name in names
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and _is_globals(node.func.value):
        return node.func.attr in ("update", "setdefault")
    return dotted_name(node.func) in _BINDERS or any(map(_is_globals, node.args))


def _is_globals(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted_name(node.func) == "globals"


def _raising_tables(function: FunctionNode) -> Iterator[str]:
    """Yield each table X that is tested in `if attr in X: raise AttributeError(…)`."""
    for node in walk_tree(function):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Compare)
            and isinstance(node.test.ops[0], ast.In)
            and isinstance(node.test.comparators[0], ast.Name)
            and isinstance(node.body[0], ast.Raise)
        ):
            yield node.test.comparators[0].id
