"""Whether the package's own code may raise when a function or class is called."""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.audit.main_path.view import View
from imgbuild.audit.names import classes
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.names.scopes import MAKERS, meaning, scopes
from imgbuild.audit.source.facts import Class, Function, ModuleFacts

_DEEPEST = 3  # calls within calls


class Raising:
    """The definitions of one package set that may raise, cached."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[tuple[str, int, int], bool] = {}

    def may_raise(self, lookup: LookupResult, depth: int = 0) -> bool:
        """Whether a definition, or a function that it calls, has a `raise` or an `assert`."""
        definition, home = lookup.definition, lookup.home
        if home is None or not isinstance(definition, (Class, Function)) or depth > _DEEPEST:
            return False
        key = (home.module, definition.line, depth)
        if key not in self._known:
            self._known[key] = False  # of what calls itself
            self._known[key] = any(
                function.raises or self._calls_what_raises(facts, function, depth)
                for facts, function in self._run_by(lookup)
            )
        return self._known[key]

    def _run_by(self, lookup: LookupResult) -> Iterator[tuple[ModuleFacts, Function]]:
        """The functions that a call of a definition runs."""
        definition, home = lookup.definition, lookup.home
        if isinstance(definition, Function) and home is not None:
            yield home, definition
            if lookup.owner is not None and "classmethod" in definition.decorators:
                owner = LookupResult(state="defined", definition=lookup.owner, home=home)
                yield from self._run_by(owner)
        elif isinstance(definition, Class):
            for ancestor in classes.ancestors(self._view, lookup):
                if isinstance(ancestor.definition, Class) and ancestor.home is not None:
                    table = scopes(ancestor.home).functions
                    for name in (*MAKERS, "__call__"):
                        for function in table.get(f"{ancestor.definition.name}.{name}", ()):
                            yield ancestor.home, function

    def _calls_what_raises(self, facts: ModuleFacts, function: Function, depth: int) -> bool:
        return any(
            self.may_raise(
                classes.follow(self._view, meaning(self._view, facts, call).found), depth + 1
            )
            for call in scopes(facts).calls.get(function.name, ())
        )
