"""Defines the interface between the parts of an evaluation, which `evaluation` implements."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.main_path.values import CallFrame, ObjectInstance


class Interpreter(ABC):
    """Evaluates code in a package set.

    With `strict`, unrecognized decorators change the effect of a function. `trying` is the number
    of enclosing `try` statements whose handlers may catch exceptions.
    """

    strict: bool
    trying: int

    @abstractmethod
    def choose_branch(self) -> bool:
        """Return whether the next unknown condition is true in this evaluation."""

    @abstractmethod
    def count_steps(self, count: int = 1) -> None:
        """Count a step. Raises UnsupportedCodeError if there are too many."""

    @abstractmethod
    def may_raise(self) -> None:
        """Raise an exception of unknown class in some evaluations of a `try` body."""

    @abstractmethod
    def value(self, node: ast.expr, frame: CallFrame) -> object:
        """Return the value of an expression."""

    @abstractmethod
    def read(self, name: str, frame: CallFrame) -> object:
        """Return the value to which a name is bound."""

    @abstractmethod
    def attribute(self, value: object, name: str) -> object:
        """Return the attribute `name` of a value.

        Raises EvaluatedError if the value certainly has no such attribute.
        """

    @abstractmethod
    def assign_attribute(self, instance: ObjectInstance, name: str, value: object) -> None:
        """Set an attribute of an object."""

    @abstractmethod
    def parent(self, frame: CallFrame, given: Sequence[object]) -> object:
        """Return the result of `super()` in a method."""

    @abstractmethod
    def apply_call(
        self, called: object, given: Sequence[object], named: Mapping[str, object]
    ) -> object:
        """Return the result of a call. An argument `...` represents further unknown arguments."""

    @abstractmethod
    def source(self, module: str) -> ModuleTree | None:
        """Return the source of a module, or None if it cannot be read."""

    @abstractmethod
    def absolute_module(self, node: ast.ImportFrom, module: str) -> str:
        """Return the absolute name of the module to which a `from … import` in `module` refers."""

    @abstractmethod
    def version(self, package: str) -> str | None:
        """Return the version of a package, or None if it is unknown.

        Raises EvaluatedError if the package is not installed.
        """

    @abstractmethod
    def has_module(self, module: str) -> bool | None:
        """Return whether a module can be found, or None if unknown."""

    @abstractmethod
    def owner(self, module: str) -> str | None:
        """Return the package that contains a module, or None if it is unknown.

        Returns "" if the module is missing.
        """

    @abstractmethod
    def import_module(self, module: str) -> object:
        """Return the module, or UNKNOWN if its existence is unknown.

        Raises EvaluatedError if the module is missing.
        """
