"""Findings in Python files, cached by the files on which they depend.

The findings in a file depend on the package set, on the file, on the user's modules that it uses,
directly or through others, and on the names of all files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from imgbuild.audit.code.code_set import CodeSet
from imgbuild.audit.code.model import CodeFinding
from imgbuild.audit.code.reading import digest
from imgbuild.audit.packages.library import pack, unpack
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.cache.store import Store
from imgbuild.report import Evidence
from imgbuild.values import sha256

KEPT = "code-findings"


class FileFindings(msgspec.Struct, frozen=True):
    """The findings in a file. `local`: the evidence that was left out as local to the user."""

    findings: tuple[CodeFinding, ...] = ()
    local: tuple[Evidence, ...] = ()


class FindingCache:
    """The findings in the files of a user's code in the cache."""

    def __init__(self, store: Store, key: str, code: CodeSet) -> None:
        """`key` stands for the package set and for the code of the checks."""
        self._store = store
        content = {name: digest(text) for name, text in code.code.items()}
        everything = sorted((name, text.file) for name, text in code.code.items())
        key = sha256(repr((key, everything)).encode())
        uses = {name: _used(code, name) for name in content}
        self._keys = {
            code.code[name].file: f"{key} {content[name]} {reached}"
            for name, reached in reach(content, uses).items()
        }

    def read(self, file: str) -> FileFindings | None:
        """The findings in a file; None if they are not in the cache."""
        data = self._store.fact(KEPT, self._keys[file])
        return unpack(data, FileFindings) if data is not None else None

    def write(self, file: str, findings: FileFindings) -> None:
        """Store the findings in a file."""
        self._store.put_fact(KEPT, self._keys[file], pack(findings))


def _used(code: CodeSet, name: str) -> frozenset[str]:
    """The modules of the user that a module names, with their parents."""
    facts = code.module(name)
    if not isinstance(facts, ModuleFacts):
        return frozenset()
    modules = code.code
    used: set[str] = set()
    for each in _named(facts):
        name = each.removesuffix(".*")
        if name != each:
            used.update(module for module in modules if module.startswith(f"{name}."))
        while name:
            if name in modules:
                used.add(name)
            name = name.rpartition(".")[0]
    return frozenset(used)


def _named(facts: ModuleFacts) -> Iterator[str]:
    yield facts.module
    for line in facts.imports:
        yield f"{line.module}.{line.name}" if line.name not in ("", "*") else line.module
    for target in (*facts.lazy.values(), *facts.aliases.values()):
        yield target.replace(":", ".")
    yield from facts.lazy_stars
    for call in facts.calls:
        yield from call.literals  # importlib.import_module("a.b")


def reach(content: Mapping[str, str], uses: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Node → a digest of the content of all nodes that it reaches through `uses`, including cycles.

    Tarjan's algorithm: the nodes of a cycle have one digest.
    """
    digests: dict[str, str] = {}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    for root in content:
        work = [(root, iter(uses[root]))] if root not in number else []
        while work:
            node, rest = work[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                waiting.append(node)
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    start = waiting.index(node)
                    cycle, waiting = waiting[start:], waiting[:start]
                    followed = {each for member in cycle for each in uses[member]}
                    below = {digests[each] for each in followed if each in digests}
                    parts = [*sorted(content[each] for each in cycle), "", *sorted(below)]
                    digests |= dict.fromkeys(cycle, sha256(" ".join(parts).encode()))
            elif following not in number:
                work.append((following, iter(uses[following])))
            elif following not in digests:
                lowest[node] = min(lowest[node], number[following])
    return digests
