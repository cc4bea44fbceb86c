"""The effects of maintainer scripts, from the reviewed table, applied to the merged tree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.deb import accounts, certificates, database, libraries
from imgbuild.deb.archive import DebContents
from imgbuild.deb.table import (
    Alternative,
    AnyEffect,
    Compute,
    Copy,
    DebFile,
    DebFolder,
    DebGroup,
    DebLink,
    Diversion,
    Owner,
    Table,
)
from imgbuild.deb.tree import DebTree
from imgbuild.errors import IntegrityError
from imgbuild.matrix.model import User
from imgbuild.oci.tar import Member, MemberKind
from imgbuild.values import Arch


def sources(table: Table) -> frozenset[str]:
    """Paths (no leading slash) that effects copy from: they must be unpacked even if left out."""
    copies = (e for entry in table.packages.values() for e in entry.effects if isinstance(e, Copy))
    return frozenset(copy.source.lstrip("/") for copy in copies)


def apply(
    tree: DebTree, packages: Sequence[DebContents], table: Table, arch: Arch, user: User
) -> None:
    """Do to `tree` what the scripts of `packages` would, in order of the packages' names."""
    entries = [table.packages[p.name] for p in packages if p.name in table.packages]
    effects = [
        effect for entry in entries for effect in entry.effects if effect.arch in ("", arch.debian)
    ]
    for effect in effects:
        _simple(tree, effect)
    alternatives: dict[str, list[Alternative]] = {}
    for effect in effects:
        if isinstance(effect, Alternative) and tree.real(effect.path) is not None:
            alternatives.setdefault(effect.name, []).append(effect)
    for choices in alternatives.values():
        _choose(tree, choices)
    computed = {effect.what for effect in effects if isinstance(effect, Compute)}
    if "accounts" in computed:
        groups = [effect for effect in effects if isinstance(effect, DebGroup)]
        accounts.install(tree, groups, user)
    if "certificates" in computed:
        certificates.install(tree)
    if "libraries" in computed:
        _libraries(tree, packages, arch)
    diversions = [effect for effect in effects if isinstance(effect, Diversion)]
    database.install(tree, packages, arch, alternatives, diversions)


def _simple(tree: DebTree, effect: AnyEffect) -> None:
    match effect:
        case DebFolder():
            mode = int(effect.mode, 8)
            tree.put(Member(path=effect.path, kind=MemberKind.FOLDER, mode=mode, gid=effect.gid))
        case DebFile():
            tree.file(effect.path, effect.text.encode(), mode=int(effect.mode, 8), gid=effect.gid)
        case DebLink():
            tree.link(effect.path, effect.target)
        case Copy():
            tree.file(effect.path, _copied(tree, effect))
        case Owner():
            member = tree.real(effect.path)
            if member is None:
                message = f"no file {effect.path} in the base, whose owner an effect changes"
                raise IntegrityError(message, hint="the effects table does not fit these packages")
            mode = int(effect.mode, 8)
            tree.put(msgspec.structs.replace(member, gid=effect.gid, mode=mode))
        case _:
            pass  # groups, alternatives, diversions and computed files need all packages together


def _copied(tree: DebTree, effect: Copy) -> bytes:
    data = tree.read(effect.source)
    if not effect.match and not effect.fill:
        return data
    lines = data.decode().splitlines()
    unused = effect.fill.keys() - set(lines)
    selected = [line for line in lines if re.search(effect.match, line)]
    if unused or not selected:
        message = f"{effect.source} has no line {', '.join(sorted(unused)) or effect.match}"
        raise IntegrityError(message, hint="the effects table does not fit these packages")
    # A placeholder that is filled with nothing takes its line with it.
    filled = [effect.fill.get(line, line) for line in selected if effect.fill.get(line) != ""]
    return ("\n".join(filled) + "\n").encode()


def _choose(tree: DebTree, choices: Sequence[Alternative]) -> None:
    best = max(choices, key=lambda choice: choice.priority)
    links: Mapping[str, tuple[str, str]] = {
        best.name: (best.link, best.path),
        **{slave.name: (slave.link, slave.path) for slave in best.slaves},
    }
    for name, (link, path) in links.items():
        if tree.real(path) is not None:  # man pages are left out
            tree.link(f"etc/alternatives/{name}", path)
            tree.link(link, f"/etc/alternatives/{name}")


def _libraries(tree: DebTree, packages: Sequence[DebContents], arch: Arch) -> None:
    version = next(p.control["Version"] for p in packages if p.name == "libc-bin")
    data, links = libraries.cache(tree, arch, version)
    for link in links:
        tree.put(link)
    tree.file("etc/ld.so.cache", data)
