"""What the parts of an evaluation need of one another; `evaluation` has its only implementation."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from imgbuild.audit.main_path.sources import ModuleTree
from imgbuild.audit.main_path.values import CallFrame, Instance


class Interpreter(ABC):
    """One evaluation of code in a package set.

    `strict`: decorators that are not understood change what a function does. `trying`: the number
    of `try` statements around the current one whose handlers may catch.
    """

    strict: bool
    trying: int

    @abstractmethod
    def choose(self) -> bool:
        """Whether an unknown condition holds in this evaluation."""

    @abstractmethod
    def step(self, count: int = 1) -> None:
        """Count steps; TooHardError after too many."""

    @abstractmethod
    def may_raise(self) -> None:
        """Within `try`, end in an exception of unknown class in some evaluations."""

    @abstractmethod
    def value(self, node: ast.expr, frame: CallFrame) -> object:
        """The value of an expression."""

    @abstractmethod
    def read(self, name: str, frame: CallFrame) -> object:
        """The value of a name."""

    @abstractmethod
    def attribute(self, value: object, name: str) -> object:
        """The attribute of a value; Raised if it is certain to have none."""

    @abstractmethod
    def assign_attribute(self, instance: Instance, name: str, value: object) -> None:
        """Set an attribute of an object."""

    @abstractmethod
    def parent(self, frame: CallFrame, given: Sequence[object]) -> object:
        """The result of `super()` in a method."""

    @abstractmethod
    def apply(self, called: object, given: Sequence[object], named: Mapping[str, object]) -> object:
        """The result of a call. An argument ... means others that are unknown."""

    @abstractmethod
    def source(self, module: str) -> ModuleTree | None:
        """The source of a module, if it can be read."""

    @abstractmethod
    def absolute(self, node: ast.ImportFrom, module: str) -> str:
        """The module that an import in `module` names."""

    @abstractmethod
    def version(self, package: str) -> str | None:
        """The version of an installed package; Raised if it is absent, None if unknown."""

    @abstractmethod
    def present(self, module: str) -> bool | None:
        """Whether a module can be found; None if unknown."""

    @abstractmethod
    def owner(self, module: str) -> str | None:
        """The package that has a module; "" if it is absent, None if unknown."""

    @abstractmethod
    def imported(self, module: str) -> object:
        """The module; Raised if it is absent, UNKNOWN if unknown."""
