"""Defines how lookups access modules, and the results of lookups."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from imgbuild.audit.source.facts import (
    AssignedName,
    Class,
    Function,
    ModuleFacts,
    OpaqueModule,
    Parameter,
)


class Modules(Protocol):
    """A collection of modules by name."""

    def module(self, name: str) -> ModuleFacts | OpaqueModule | None:
        """Return the module with this dotted name, or None if there is none."""


@runtime_checkable
class Searchable(Protocol):
    """A collection of modules that supports a text search, so that not every module must be read.

    Otherwise, a name that transformers lazily imports from one of its models would be looked up in
    hundreds of models.
    """

    def mentioning(self, package: str, word: str) -> Iterable[str]:
        """Return the modules below the module `package` whose source contains `word`."""

    def read_ahead(self, package: str) -> None:
        """Read the modules below the module `package` in advance, if that is cheap."""


class ModuleSources(Protocol):
    """Answers questions about the source of modules for which the facts are not sufficient."""

    def attribute_raises(self, facts: ModuleFacts, name: str) -> bool:
        """Return whether the `__getattr__` of the module raises AttributeError for a name."""

    def wrapper_keywords(self, facts: ModuleFacts, decorator: str) -> frozenset[str] | None:
        """Return the keywords that a decorator, as written in the module, adds to a function.

        Return None if the decorator may change the parameters in another way.
        """

    def accepted_keywords(self, facts: ModuleFacts, function: Function) -> frozenset[str] | None:
        """Return the keywords that a function accepts in `**kwargs`, or None for any keyword."""

    def computed_attributes(self, facts: ModuleFacts, definition: Class) -> frozenset[str] | None:
        """Return the attributes that a class of the module sets with computed names.

        Return None if it may have attributes with any name.
        """

    def is_unchecked(self, chain: Sequence[LookupResult]) -> bool:
        """Whether a class and all its bases belong to code whose own attributes are not checked."""

    def defines_once(self, method: str) -> bool:
        """Whether a user's code defines a function or method with this name only once."""

    def is_registered(self, text: str) -> bool:
        """Whether a user's code may register a name, such as that of a quantization."""

    def mentions(self, facts: ModuleFacts, text: str) -> bool:
        """Whether the source of a module contains a text."""

    def enumeration_values(self, facts: ModuleFacts, definition: Class) -> frozenset[str]:
        """Return the values of an enumeration of strings, or none if they are unknown."""

    def bound_expression(self, facts: ModuleFacts, name: str) -> ast.expr | None:
        """Return the expression to which a module binds a name, or None if it is unknown."""

    def compared_values(self, facts: ModuleFacts, field: str) -> frozenset[str]:
        """Return the strings that the package of a module accepts for a field.

        These are all strings with which it compares the field if it raises an exception for others,
        else none.
        """

    def returned_counts(self, facts: ModuleFacts, function: Function) -> frozenset[int]:
        """Return the numbers of values in the `return` statements of a function.

        0 stands for an unknown number.
        """

    def may_be_assigned(self, owners: tuple[tuple[str, str], ...], name: str) -> bool:
        """Return whether a package assigns an attribute to instances of a class from outside.

        `owners` are the class and its bases, each as module and name.
        """

    def returns_own_class(self, facts: ModuleFacts, function: Function) -> bool:
        """Return whether a class method without an annotation returns an instance of its class."""

    def may_be_in_subclass(self, holder: LookupResult, name: str) -> bool:
        """Return whether a subclass of a class in its package may define a member."""

    def is_removed(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Return whether a release removed a member of a class from the package.

        `chain` contains the class and its bases, which do not define `name`.
        """

    def is_former(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Return whether `data/audit/former_members.yaml` lists a method of a class in `chain`."""

    def may_be_computed(self, chain: Sequence[LookupResult], name: str) -> bool:
        """Return whether a class in `chain` may have a method with a computed name.

        The values that `__getattr__` returns, except attributes of other objects, and the
        attributes that are set from a user's data are not methods.
        """


def module_sources(modules: Modules) -> ModuleSources | None:
    """Return the sources of `modules`, or None if `modules` are not a user's code."""
    attached: ModuleSources | None = getattr(modules, "sources", None)
    return attached


def cached_results(modules: Modules) -> dict[object, Any]:
    """Return the cached lookup results of `modules` (`View.results`).

    Returns an empty dict if there is no cache.
    """
    results: dict[object, Any] | None = getattr(modules, "results", None)
    return {} if results is None else results


def stdlib_module(modules: Modules, name: str) -> OpaqueModule | None:
    """Return the standard library module with this dotted name, or None if there is none."""
    module = modules.module(name)
    return module if isinstance(module, OpaqueModule) and module.why == "stdlib" else None


LookupState = Literal["defined", "absent", "unknown"]
Definition = Function | Class | AssignedName | ModuleFacts


class LookupResult(msgspec.Struct, frozen=True):
    """The result of a lookup.

    `definition` is None if the state is not "defined", and if only the existence of the name is
    known (an extension module, `__file__`). `home` is the module that contains the definition.
    `owner` is the class, possibly an ancestor, in which a member was found. `exact` is False for a
    class if instances of subclasses are possible. `trace` lists the visited modules as
    "module:name". `ambiguous` means that other conditions lead to a different definition. `tried`
    means that the name is imported in a `try`, so its module may be missing.
    """

    state: LookupState
    definition: Definition | None = None
    home: ModuleFacts | None = None
    owner: Class | None = None
    trace: tuple[str, ...] = ()
    ambiguous: bool = False
    tried: bool = False
    exact: bool = True


class CallSignature(msgspec.Struct, frozen=True):
    """The parameters of a call without self, and whether further arguments are accepted."""

    parameters: tuple[Parameter, ...] = ()
    varargs: bool = False
    varkw: bool = False

    def accepts_keyword(self, keyword: str) -> bool:
        """Return whether a keyword argument with this name is accepted."""
        return self.varkw or any(
            parameter.name == keyword and parameter.kind != "positional"
            for parameter in self.parameters
        )
