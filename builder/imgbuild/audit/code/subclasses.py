"""Searches the subclasses of a class in its package for a member."""

# A separate module: one question.
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from imgbuild.audit.names import classes
from imgbuild.audit.names.lookup import module_index
from imgbuild.audit.names.model import LookupResult
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.audit.source.facts import Class, ModuleFacts
from imgbuild.errors import FetchFailed

# Bases that are not subclasses of a class of a package.
_KNOWN_BASES = frozenset([
    "enum.Enum", "str", "dict", "list", "tuple", "Exception", "typing.NamedTuple",
    "typing.TypedDict", "pydantic.BaseModel", "msgspec.Struct",
])  # fmt: skip
# With more modules that mention a member, one that may define it is enough.
_MOST_MENTIONS = 100
# A line that defines a member: a method, a name in a class body, an attribute, or a string.
_BOUND_MEMBER = (
    r"[ \t]*(?:async )?def {name}\b|.*[\"']{name}[\"']"
    r"|[ \t]+(?:[\w.]+[ \t]*[,=][ \t]*)*(?:[\w.]+\.)?{name}[ \t]*[,:=]"
)


class Subclasses:
    """Caches for each class and member whether a subclass may define the member."""

    def __init__(self, read: Callable[[ImportablePackages, str], bytes | None]) -> None:
        """`read` returns the content of a module."""
        self._read = read
        self._known: dict[tuple[str, str], bool] = {}
        self._defining: dict[tuple[str, str], Sequence[str]] = {}

    def define(self, package_set: ImportablePackages, holder: LookupResult, name: str) -> bool:
        """Whether a subclass of a class in its package may define a member."""
        home, owner = holder.home, getattr(holder.definition, "name", "")
        if home is None:
            return True
        key = (f"{home.module}:{owner}", name)
        if key not in self._known:
            package = home.module.partition(".")[0]
            mentions = len(list(package_set.mentioning(package, name)))
            modules = self.defining_modules(package_set, package, name)
            self._known[key] = bool(modules) and (
                mentions > _MOST_MENTIONS
                or any(
                    self._is_in_module(package_set, module, (home.module, owner), name)
                    for module in dict.fromkeys((home.module, *modules))
                )
            )
        return self._known[key]

    def defining_modules(
        self, package_set: ImportablePackages, package: str, name: str
    ) -> Sequence[str]:
        """Return the modules below `package` in which a class may define a member."""
        key = (package, name)
        if key not in self._defining:
            word = re.compile(rf"\b{re.escape(name)}\b".encode())
            bound = re.compile(_BOUND_MEMBER.format(name=re.escape(name)).encode())
            defining: list[str] = []
            try:
                names = dict.fromkeys((package, *package_set.mentioning(package, name)))
                for module in names:
                    if len(names) > _MOST_MENTIONS and defining:
                        break  # it is unknown which of the others are subclasses
                    if module == package and package_set.owner(module) is None:
                        continue
                    content = self._read(package_set, module)
                    if content is None or any(map(bound.match, _lines_with(content, word))):
                        defining.append(module)
            except FetchFailed:
                defining.append("")  # which is unknown
            self._defining[key] = defining
        return self._defining[key]

    def _is_in_module(
        self, package_set: ImportablePackages, module: str, base: tuple[str, str], name: str
    ) -> bool:
        """Whether a module may define a member in a subclass of `base`, given as module and name.

        In a module with a subclass, the member may also have a computed name.
        """
        try:
            facts = package_set.module(module)
            content = self._read(package_set, module)
        except FetchFailed:
            return True
        if not isinstance(facts, ModuleFacts) or content is None:
            return True
        text = re.compile(rf"[\"']{re.escape(name)}[\"']".encode())
        for definition in facts.classes:
            if (module, definition.name) == base:
                continue
            result = LookupResult(state="defined", definition=definition, home=facts)
            ancestors = classes.class_ancestors(package_set, result)
            places = [
                (each.home.module, getattr(each.definition, "name", ""))
                for each in ancestors
                if each.home is not None
            ]
            defines, inherits = _defines(facts, definition, name), base in places
            if inherits and (defines or text.search(content)):
                return True
            if (defines or inherits) and any(
                each.definition is None and "".join(each.trace[:1]) not in _KNOWN_BASES
                for each in ancestors
            ):
                return True
        return False


def _defines(facts: ModuleFacts, definition: Class, name: str) -> bool:
    return (
        name in definition.methods
        or name in definition.attributes
        or f"{definition.name}.{name}" in module_index(facts).members
        or any(field.name == name for field in definition.fields)
    )


def _lines_with(content: bytes, word: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield the lines that contain a word."""
    for match in word.finditer(content):
        end = content.find(b"\n", match.end())
        yield content[content.rfind(b"\n", 0, match.start()) + 1 : end if end >= 0 else None]
