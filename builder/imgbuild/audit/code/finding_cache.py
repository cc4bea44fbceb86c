"""Caches findings in Python files, and the states of conditions in packages.

The findings in a file depend on the package set, on the file, and on the user's modules that it
uses directly or indirectly. Of these modules, usually only the summaries matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from imgbuild.audit.code.code_set import CODE, CodeSet
from imgbuild.audit.code.file_cache import FileCache, decode_value
from imgbuild.audit.code.model import CodeFinding
from imgbuild.audit.code.reading import CodeFacts
from imgbuild.audit.main_path.guards import GuardState, guard_results
from imgbuild.audit.source.facts import Guard
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.report import Evidence
from imgbuild.values import sha256

FINDINGS_FACT = "code-findings"
CONDITIONS_FACT = "code-conditions"
Conditions = tuple[tuple[Guard, GuardState], ...]


class FileFindings(msgspec.Struct, frozen=True):
    """The findings in a file.

    `local` contains the evidence that was omitted because its subject is the user's own code.
    """

    findings: tuple[CodeFinding, ...] = ()
    local: tuple[Evidence, ...] = ()


class FindingCache:
    """Caches the findings in the files of a user's code."""

    def __init__(self, store: Store, key: str, code: CodeSet, facts: CodeFacts) -> None:
        """Open the cache. `key` stands for the package set and the code of the checks."""
        self._cache = FileCache(store, FINDINGS_FACT, key, list(code.code_by_module.values()))
        self._store = store
        # Conditions on missing modules are true if the user has a module of that name.
        roots = sorted({name.partition(".")[0] for name in code.names()})
        self._conditions_key = sha256(" ".join((key, *roots)).encode())
        files = {name: text.file for name, text in code.code_by_module.items()}
        contents = {name: f"{name} {facts.digests[file]}" for name, file in files.items()}
        seen = {name: f"{name} {facts.summaries[file].interface}" for name, file in files.items()}
        nodes = code.names()
        content = {name: contents.get(name, f"{name} several") for name in nodes}
        uses = {
            name: _used_modules(facts.summaries[files[name]].named, nodes) if name in files else ()
            for name in nodes
        }
        bodies = reachable_digests(content, uses)

        def _bodies(here: str, modules: Collection[str]) -> str:
            used = _used_modules([each or here for each in modules], nodes)
            return "".join(f" {bodies[each]}" for each in sorted(used))

        interfaces = {name: seen.get(name, content[name]) for name in nodes}
        for name, file in files.items():
            contents[name] += _bodies(name, facts.summaries[file].evaluated)
            interfaces[name] += _bodies(name, facts.summaries[file].binding)
        reached = reachable_digests(interfaces, uses)
        self._keys = {
            file: sha256(f"{contents[name]} {reached[name]}".encode())
            for name, file in files.items()
        }

    def read(self, file: str) -> FileFindings | None:
        """Return the findings in a file, or None if they are not in the cache."""
        data = self._cache.read(file, self._keys[file])
        return decode_value(data, FileFindings) if data is not None else None

    def write(self, file: str, findings: FileFindings) -> None:
        """Set the findings in a file. `save` writes them."""
        self._cache.write(file, self._keys[file], msgspec.msgpack.encode(findings))

    def read_conditions(self) -> Conditions:
        """Return the states of conditions in packages."""
        return read_fact(self._store, CONDITIONS_FACT, self._conditions_key, Conditions) or ()

    def write_conditions(self, conditions: Conditions) -> None:
        """Store the states of conditions in packages."""
        write_fact(self._store, CONDITIONS_FACT, self._conditions_key, conditions)

    def save(self) -> None:
        """Store the findings that were set."""
        self._cache.save()


def package_conditions(code: CodeSet) -> Conditions:
    """Return the states of conditions in packages that were determined."""
    states = guard_results(code)
    owners = {guard: code.owner(guard.subject.partition(":")[0]) for guard in states}
    return tuple(
        (guard, state)
        for guard, state in states.items()
        if state is not None and owners[guard] not in (None, CODE)
    )


def _used_modules(named: Collection[str], modules: Collection[str]) -> Collection[str]:
    """Return the user's modules among `named`, with their parents."""
    used: set[str] = set()
    for each in named:
        name = each.removesuffix(".*")
        if name != each:
            used.update(module for module in modules if module.startswith(f"{name}."))
        while name:
            if name in modules:
                used.add(name)
            name = name.rpartition(".")[0]
    return used


def reachable_digests(
    content: Mapping[str, str], uses: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Map each node to a digest of the content of all nodes that it reaches through `uses`.

    The graph can contain cycles. Uses Tarjan's algorithm: the nodes of a cycle have the same
    digest.
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
                    cycle = [waiting.pop()]
                    while cycle[-1] != node:
                        cycle.append(waiting.pop())
                    followed = {each for member in cycle for each in uses[member]}
                    below = {digests[each] for each in followed if each in digests}
                    parts = [*sorted(content[each] for each in cycle), "", *sorted(below)]
                    digests |= dict.fromkeys(cycle, sha256(" ".join(parts).encode()))
            elif following not in number:
                work.append((following, iter(uses[following])))
            elif following not in digests:
                lowest[node] = min(lowest[node], number[following])
    return digests
