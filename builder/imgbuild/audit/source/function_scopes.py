"""What the names of a function are, and the attributes of self in a class.

A name that is bound to two kinds of things has no type: what cannot be told is not recorded.
"""

from __future__ import annotations

from imgbuild.audit.source.facts import Field

# A local name of which nothing is known, or of which different things were said.
UNTYPED = ""
NONE = "None"


class Types:
    """Types of names, each kept only while all that binds the name agrees."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        """No name yet."""
        self.names: dict[str, str] = {}

    def bind(self, name: str, kind: str) -> None:
        """A binding of a name, to an expression of this type ("" if it cannot be told).

        None is what a name holds until it gets its value, and says nothing.
        """
        known = self.names.get(name)
        if known is None or known == NONE:
            self.names[name] = kind
        elif kind == NONE:
            return
        elif known not in (kind, kind.removesuffix("()")):
            self.names[name] = known.removesuffix("()") if known == f"{kind}()" else UNTYPED

    def blur(self, name: str) -> None:
        """Forget the type of a name: it is asked for with isinstance, or bound by other means."""
        if name in self.names:
            self.names[name] = UNTYPED


class Scope:
    """A function, class or module that is being read."""

    __slots__ = ("imported", "instance", "kind", "locals", "name", "owner", "parent", "selves")

    def __init__(self, name: str, kind: str, parent: Scope | None) -> None:
        """A scope by its qualified name; `kind` is "module", "class" or "function"."""
        self.name = name
        self.kind = kind
        self.parent = parent
        self.locals = Types()
        self.imported: set[str] = set()
        # In a method: what its first parameter is called, and the class.
        self.instance = ""
        self.owner: ClassScope | None = parent.owner if parent and kind == "function" else None

    def inner(self, name: str) -> str:
        """The qualified name of something defined here."""
        return f"{self.name}.{name}" if self.name else name


class ClassScope(Scope):
    """A class that is being read: what its methods assign on self."""

    __slots__ = ("assigned", "dynamic", "fields", "methods")

    def __init__(self, name: str, parent: Scope) -> None:
        """A class by its qualified name."""
        super().__init__(name, "class", parent)
        self.owner = self
        self.assigned = Types()
        self.dynamic = False
        self.fields: dict[str, Field] = {}
        self.methods: list[str] = []
