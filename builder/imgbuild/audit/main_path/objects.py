"""Evaluates objects: construction, attributes, methods.

A class is followed if all of its base classes can be read, its metaclass is known, and all of its
decorators are in `_TRANSPARENT_DECORATORS`.
"""

# A separate module: a level of the interpreter.
from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.audit.main_path.interpreter import Interpreter
from imgbuild.audit.main_path.values import (
    UNKNOWN,
    CallFrame,
    ClassValue,
    FunctionValue,
    MethodValue,
    ModuleValue,
    ObjectInstance,
    SuperValue,
    release_value,
)
from imgbuild.audit.names.classes import class_ancestors, find_metaclass, full_name
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, Field, Function, ModuleFacts
from imgbuild.audit.source.text import dotted_name

DATACLASS = "dataclasses.dataclass"
OBJECT = "builtins.object"
ABSENT_ATTRIBUTE = ModuleValue("")  # no class has an attribute
# Decorators of classes that do not change construction and methods.
_TRANSPARENT_DECORATORS = frozenset(
    (
        *(DATACLASS, "typing.final", "typing_extensions.final", "functools.total_ordering"),
        *("typing.runtime_checkable", "typing_extensions.runtime_checkable"),
    )
)
_GETTERS = frozenset(("property", "functools.cached_property"))
_HOOKS = frozenset(("__getattribute__", "__setattr__", "__getattr__"))
_OBJECT_METHODS = frozenset(("__init__", "__new__"))  # the methods of `object` that are followed
_OVERLOADS = frozenset(("typing.overload", "typing_extensions.overload"))
_TRUTH = frozenset(("__bool__", "__len__"))


class _ClassLevel(msgspec.Struct, frozen=True):
    home: ModuleFacts
    definition: Class

    @property
    def value(self) -> ClassValue:
        return ClassValue(self.definition.name, self.home.module, self.definition.line)

    def functions(self, name: str) -> Sequence[Function]:
        every = module_scopes(self.home).functions.get(f"{self.definition.name}.{name}", ())
        return [
            function
            for function in every
            if _OVERLOADS.isdisjoint(full_name(self.home, d) for d in function.decorators)
        ]

    def has(self, name: str) -> bool:
        definition = self.definition
        return (
            name in definition.methods
            or name in definition.attributes
            or any(field.name == name for field in definition.fields)
        )

    def dataclass_decorator(self) -> str:
        """The dataclass decorator as written, or "" if there is none."""
        for text in self.definition.decorators:
            if full_name(self.home, text.partition("(")[0]) == DATACLASS:
                return text
        return ""


class ObjectModel:
    """Evaluates the classes and objects in an evaluation."""

    def __init__(self, interpreter: Interpreter, package_set: ImportablePackages) -> None:
        self._interpreter = interpreter
        self._package_set = package_set
        self._chains: dict[ClassValue, tuple[_ClassLevel, ...]] = {}

    def construct_object(
        self, kind: ClassValue, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        """Return the constructed object, or UNKNOWN if the class is not followed."""
        chain = self._chain(kind)
        if not chain:
            return UNKNOWN
        constructor = self.member(chain, chain[0].value, "__new__")
        if constructor is ABSENT_ATTRIBUTE:
            instance: object = self.empty_instance(kind)
        else:
            instance = self._interpreter.apply_call(constructor, (kind, *given), named)
        if not isinstance(instance, ObjectInstance) or instance.kind != kind:
            return instance
        self._initialize(chain, instance, given, named)
        return instance

    def empty_instance(self, kind: ClassValue) -> ObjectInstance:
        """Return an object without attributes."""
        decides = any(level.has(name) for level in self._chain(kind) for name in _TRUTH)
        return ObjectInstance(kind, truth=None if decides else True)

    def _initialize(
        self,
        chain: Sequence[_ClassLevel],
        instance: ObjectInstance,
        given: Sequence[object],
        named: Mapping[str, object],
    ) -> None:
        """Call the first `__init__` in the chain, or the generated one of a dataclass."""
        for at, level in enumerate(chain):
            text = level.dataclass_decorator()
            if level.has("__init__"):
                method = self.member(chain[at:], instance, "__init__")
                if not isinstance(method, MethodValue):
                    release_value(instance)
                self._interpreter.apply_call(method, given, named)
                return
            if text and "init=False" not in text.replace(" ", ""):
                self._dataclass(chain, at, instance, given, named)
                return

    def _dataclass(
        self,
        chain: Sequence[_ClassLevel],
        at: int,
        instance: ObjectInstance,
        given: Sequence[object],
        named: Mapping[str, object],
    ) -> None:
        """Run the generated `__init__` of a dataclass, which calls `__post_init__`."""
        fields: dict[str, tuple[_ClassLevel, Field]] = {}
        for level in reversed(chain[at:]):
            if level.dataclass_decorator():
                fields.update((each.name, (level, each)) for each in level.definition.fields)
        fields = {
            name: (level, each)
            for name, (level, each) in fields.items()
            if each.annotation and "ClassVar" not in each.annotation
        }
        places = [name for name, (_, each) in fields.items() if each.init]
        keyword_only = any("kw_only" in level.dataclass_decorator() for level in chain) or any(
            "KW_ONLY" in each.annotation for _, each in fields.values()
        )
        open_ = any(item is ... for item in given) or (keyword_only and bool(given))
        passed = {} if open_ else {**dict(zip(places, given, strict=False)), **named}
        late: list[object] = []
        for name, (level, each) in fields.items():
            if open_:
                value: object = UNKNOWN
            elif name in passed:
                value = passed[name]
            else:
                value = self._default(level, name)
            if "InitVar" in each.annotation:
                late.append(value)
            else:
                self.assign_attribute(instance, name, value)
        after = self.member(chain, instance, "__post_init__")
        if after is not ABSENT_ATTRIBUTE:
            self._interpreter.apply_call(after, late, {})

    def _default(self, level: _ClassLevel, name: str) -> object:
        node = self._bound_expression(level, name)
        if not isinstance(node, ast.Call) or dotted_name(node.func).rpartition(".")[2] != "field":
            return self._constant(level, node)
        value = next((keyword.value for keyword in node.keywords if keyword.arg == "default"), None)
        return self._constant(level, value)

    def call_object_method(self, name: str, given: Sequence[object]) -> object:
        """Return the result of a method that a class inherits from `object`."""
        if name == "__new__" and given and isinstance(given[0], ClassValue):
            return self.empty_instance(given[0])
        if name == "__setattr__" and len(given) == 3 and isinstance(given[0], ObjectInstance):
            instance, attribute, value = given
            if isinstance(instance, ObjectInstance) and isinstance(attribute, str):
                self.assign_attribute(instance, attribute, value)
                return None
        if name != "__init__":
            release_value(tuple(given))
        return None if name == "__init__" else UNKNOWN

    # -- attributes

    def attribute(self, value: ObjectInstance | ClassValue | SuperValue, name: str) -> object:
        """Return an attribute of an object, a class or `super()`, or UNKNOWN."""
        owner = value.owner if isinstance(value, SuperValue) else value
        kind = owner.kind if isinstance(owner, ObjectInstance) else owner
        chain = self._chain(kind)
        if not chain:
            return UNKNOWN
        if isinstance(value, SuperValue):
            places = [at for at, level in enumerate(chain) if level.value == value.after]
            if not places:
                return UNKNOWN
            chain = chain[places[0] + 1 :]
        elif isinstance(value, ObjectInstance):
            if any(level.has(hook) for level in chain for hook in _HOOKS):
                return UNKNOWN
            if name in value.attributes:
                return value.attributes[name]
        member = self.member(chain, owner, name)
        if member is ABSENT_ATTRIBUTE:
            if name in _OBJECT_METHODS:
                return ModuleValue(f"{OBJECT}.{name}")
            release_value(owner)  # `__dict__` may change it
            return UNKNOWN
        is_open = isinstance(value, ObjectInstance) and value.open
        return UNKNOWN if is_open and not isinstance(member, MethodValue) else member

    def member(
        self, chain: Sequence[_ClassLevel], owner: ObjectInstance | ClassValue, name: str
    ) -> object:
        """Return the attribute of `owner` from the first class that has it, or ABSENT."""
        for level in chain:
            if not level.has(name):
                continue
            functions = level.functions(name)
            if len(functions) != 1 or set(functions[0].guards) - set(level.definition.guards):
                constant = not functions and name not in level.definition.attributes
                return (
                    self._constant(level, self._bound_expression(level, name))
                    if constant
                    else UNKNOWN
                )
            return self._method(level, functions[0], owner, name)
        return ABSENT_ATTRIBUTE

    def _method(
        self, level: _ClassLevel, function: Function, owner: ObjectInstance | ClassValue, name: str
    ) -> object:
        source = self._interpreter.source(level.home.module)
        node = source.find_function(function.name, function.line) if source is not None else None
        if node is None or any(field.name == name for field in level.definition.fields):
            return UNKNOWN
        value = FunctionValue(node, CallFrame(level.home.module), level.value)
        decorators = {full_name(level.home, text) for text in function.decorators}
        if "staticmethod" in decorators or name == "__new__":
            return value
        if "classmethod" in decorators:
            return MethodValue(value, owner.kind if isinstance(owner, ObjectInstance) else owner)
        if isinstance(owner, ClassValue):
            return value
        if decorators & _GETTERS:
            return self._interpreter.apply_call(MethodValue(value, owner), (), {})
        return MethodValue(value, owner)

    def _bound_expression(self, level: _ClassLevel, name: str) -> ast.expr | None:
        """Return the only expression that is assigned to a name in a class body, or None."""
        source = self._interpreter.source(level.home.module)
        node = source.find_class(level.definition.line) if source is not None else None
        values: list[ast.expr | None] = []
        if source is None or name in source.stored:
            return None
        for statement in source.bindings_in(node).get(name, ()) if node is not None else ():
            plain = isinstance(statement, (ast.Assign, ast.AnnAssign))
            values.append(getattr(statement, "value", None) if plain else None)
        return values[0] if len(values) == 1 else None

    def _constant(self, level: _ClassLevel, node: ast.expr | None) -> object:
        """Return the value of an expression in a class body.

        Returns UNKNOWN for lists, dicts and objects.
        """
        if node is None:
            return UNKNOWN
        frame = self.class_frame(level.value)
        value = self._interpreter.value(node, frame)
        return UNKNOWN if isinstance(value, (list, dict, ObjectInstance)) else value

    def class_frame(self, kind: ClassValue) -> CallFrame:
        """Return the frame for expressions in a class body. The names of the body are unknown."""
        frame = CallFrame(kind.module)
        source = self._interpreter.source(kind.module)
        node = source.find_class(kind.line) if source is not None else None
        if source is not None and node is not None:
            frame.names.update(dict.fromkeys(source.bindings_in(node), UNKNOWN))
        return frame

    def assign_attribute(self, instance: ObjectInstance, name: str, value: object) -> None:
        """Set an attribute. A collection becomes unknown, because it may be changed in place."""
        chain = self._chain(instance.kind)
        if any(level.has(hook) for level in chain for hook in _HOOKS):
            instance.open = True
            return
        has_method = any(name in level.definition.methods for level in chain)
        is_followed = not instance.open and not has_method and not isinstance(value, (list, dict))
        instance.attributes[name] = value if is_followed else UNKNOWN

    # -- classes

    def _chain(self, kind: ClassValue) -> tuple[_ClassLevel, ...]:
        """Return the method resolution order of a class, or () if the class is not followed."""
        if kind not in self._chains:
            self._chains[kind] = self._ancestors(kind)
        return self._chains[kind]

    def _ancestors(self, kind: ClassValue) -> tuple[_ClassLevel, ...]:
        facts = self._package_set.module(kind.module) if kind.module else None
        if not isinstance(facts, ModuleFacts):
            return ()
        definitions = [definition for definition in facts.classes if definition.line == kind.line]
        if len(definitions) != 1:
            return ()
        start = LookupResult(state="defined", definition=definitions[0], home=facts)
        levels = []
        for lookup in class_ancestors(self._package_set, start):
            if not isinstance(lookup.definition, Class) or lookup.home is None or lookup.ambiguous:
                return ()
            levels.append(_ClassLevel(lookup.home, lookup.definition))
        changed = any(
            full_name(level.home, text.partition("(")[0]) not in _TRANSPARENT_DECORATORS
            for level in levels
            for text in level.definition.decorators
        )
        if changed or find_metaclass(self._package_set, start) is None:
            return ()
        return tuple(levels)
