"""Builds the root file system of a Debian base, and applies the effects of maintainer scripts.

The members of the base layer are in byte order. They depend only on the packages, the reviewed
table of effects, the architecture and the image's user.

Files and links of a package keep their times, because programs detect new versions by these times.
Folders, and files created by effects, have a constant time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.deb import accounts, certificates, database, libraries
from imgbuild.deb.archive import DebContents, read_deb
from imgbuild.deb.table import (
    AlternativeEffect,
    AnyEffect,
    ComputeEffect,
    CopyEffect,
    DebFile,
    DebFolder,
    DebGroup,
    DebLink,
    DiversionEffect,
    EffectTable,
    OwnerEffect,
    check_scripts,
    dpkg_configuration,
    excluded_pattern,
    included_pattern,
    load_table,
)
from imgbuild.deb.tree import DebTree
from imgbuild.errors import IntegrityError
from imgbuild.lock.resolution import Deb
from imgbuild.matrix.model import User
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan.plan import AddedDebsRecipe, DebianRecipe
from imgbuild.system.boundary import convert_read_errors
from imgbuild.system.forked import processor_count
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Arch

THREADS = min(4, processor_count())  # lzma releases Python's global lock
CONFIGURATION = "etc/dpkg/dpkg.cfg.d/imgbuild"


def base_members(recipe: DebianRecipe, paths: Mapping[str, Path], spool: Path) -> list[LayerMember]:
    """Return the members of the base layer.

    Parent folders with default attributes are omitted, because the layer writer adds them. `paths`
    maps the SHA-256 of each package to its file. The contents of files are written below the folder
    `spool`, and must remain there until the layer is written. Raises IntegrityError for a damaged
    or unsafe package, two packages that ship one path, or a maintainer script that is not in the
    table. Raises InputError if the suite has no table or the user name already exists.
    """
    table = load_table(recipe.suite)
    packages = _unpack_debs(recipe.debs, table, paths, spool)
    check_scripts(table, packages)
    return _root(recipe, packages, table)


def added_members(
    recipe: AddedDebsRecipe, paths: Mapping[str, Path], spool: Path
) -> list[LayerMember]:
    """Return the members that differ between the roots with and without the added packages.

    The parent folders of members are included, because the layer writer would give them the default
    mode. `paths`, `spool` and errors are the same as for `base_members`. IntegrityError is also
    raised if a path of the base would be removed.
    """
    table = load_table(recipe.base.suite)
    packages = _unpack_debs((*recipe.base.debs, *recipe.debs), table, paths, spool)
    check_scripts(table, packages)
    added = {deb.package for deb in recipe.debs}
    base = [package for package in packages if package.name not in added]
    before = {member.path: member for member in _root(recipe.base, base, table)}
    after = {member.path: member for member in _root(recipe.base, packages, table)}
    if gone := sorted(before.keys() - after.keys()):
        message = f"adding {', '.join(sorted(added))} would remove /{', /'.join(gone[:4])}"
        raise IntegrityError(message, hint="remove the package that causes this from `packages`")
    changed = [path for path, member in after.items() if before.get(path) != member]
    retained = {
        *changed,
        *(after[path].target for path in changed if after[path].kind is MemberKind.HARD),
    }
    for path in sorted(retained):
        while path := path.rpartition("/")[0]:
            retained.add(path)
    return [member for path, member in after.items() if path in retained]


def _root(
    recipe: DebianRecipe, packages: Sequence[DebContents], table: EffectTable
) -> list[LayerMember]:
    tree = DebTree()
    for package in packages:
        for member in package.members:
            tree.add(member, package.name)
    with convert_read_errors("the Debian packages of the base"):
        apply_effects(tree, packages, table, recipe.arch, recipe.user)
    if recipe.hardened or not table.set_id:
        tree.clear_set_id()
    tree.file(CONFIGURATION, dpkg_configuration(table))
    return _drop_excluded(tree, table)


def _unpack_debs(
    debs: Sequence[Deb], table: EffectTable, paths: Mapping[str, Path], spool: Path
) -> list[DebContents]:
    needed, left_out, taken_back = (
        copied_paths(table),
        excluded_pattern(table),
        included_pattern(table),
    )

    def _is_kept(path: str, kind: MemberKind) -> bool:
        # Folders and links are kept here and removed later, if nothing below them or at their
        # target remains.
        out = left_out.match(path) is not None and taken_back.match(path) is None
        return not out or kind in (MemberKind.FOLDER, MemberKind.LINK) or path in needed

    def _unpack_one(deb: Deb, _: StopFlag) -> DebContents:
        package = read_deb(paths[deb.sha256], spool / f"{deb.sha256}.files", _is_kept)
        if (package.name, package.control.get("Version")) != (deb.package, deb.version):
            message = (
                f"{deb.file} contains {package.name} {package.control.get('Version')}, but the "
                f"lock has {deb.package} {deb.version}"
            )
            raise IntegrityError(
                message, hint="to lock the target again, run: imgbuild lock TARGET"
            )
        return package

    spool.mkdir(parents=True, exist_ok=True)
    return sorted(
        run_for_each(debs, _unpack_one, threads=THREADS), key=lambda package: package.name
    )


def _drop_excluded(tree: DebTree, table: EffectTable) -> list[LayerMember]:
    """Return the members without excluded files, links to them, and folders that only they need."""
    left_out, taken_back = excluded_pattern(table), included_pattern(table)
    all_members = tree.members()

    def _is_excluded(path: str) -> bool:
        return left_out.match(path) is not None and taken_back.match(path) is None

    files = [
        member
        for member in all_members
        if member.kind is not MemberKind.FOLDER
        and not (_is_excluded(member.path) and member.kind is not MemberKind.LINK)
    ]
    retained: set[str] = set()
    for member in files:
        if member.kind is not MemberKind.LINK or not _is_excluded(member.path):
            path = member.path
            while path and path not in retained:
                retained.add(path)
                path = path.rpartition("/")[0]
    for member in files:
        # A package's folder in usr/share/doc may be a link to that of another package.
        if member.path not in retained:
            real = tree.resolve_member(member.path)
            if real is not None and real.path in retained:
                retained.add(member.path)
    return [
        member
        for member in all_members
        if member.path in retained
        or (member.kind is MemberKind.FOLDER and not _is_excluded(member.path))
    ]


def copied_paths(table: EffectTable) -> frozenset[str]:
    """Return the paths (without leading slash) that effects copy.

    These files are unpacked even if they are excluded.
    """
    copies = (
        e for entry in table.packages.values() for e in entry.effects if isinstance(e, CopyEffect)
    )
    return frozenset(copy.source.lstrip("/") for copy in copies)


def apply_effects(
    tree: DebTree, packages: Sequence[DebContents], table: EffectTable, arch: Arch, user: User
) -> None:
    """Apply the effects of the scripts of `packages` to `tree`, in order of package names."""
    entries = [table.packages[p.name] for p in packages if p.name in table.packages]
    effects = [
        effect for entry in entries for effect in entry.effects if effect.arch in ("", arch.debian)
    ]
    for effect in effects:
        _apply_simple_effect(tree, effect)
    alternatives: dict[str, list[AlternativeEffect]] = {}
    for effect in effects:
        if isinstance(effect, AlternativeEffect) and tree.resolve_member(effect.path) is not None:
            alternatives.setdefault(effect.name, []).append(effect)
    for choices in alternatives.values():
        _choose_alternatives(tree, choices)
    computed = {effect.what for effect in effects if isinstance(effect, ComputeEffect)}
    if "accounts" in computed:
        groups = [effect for effect in effects if isinstance(effect, DebGroup)]
        accounts.install_accounts(tree, groups, user)
    if "certificates" in computed:
        certificates.install_certificates(tree)
    if "libraries" in computed:
        _libraries(tree, packages, arch)
    diversions = [effect for effect in effects if isinstance(effect, DiversionEffect)]
    database.install_database(tree, packages, arch, alternatives, diversions)


def _apply_simple_effect(tree: DebTree, effect: AnyEffect) -> None:
    match effect:
        case DebFolder():
            mode = int(effect.mode, 8)
            tree.put(
                LayerMember(path=effect.path, kind=MemberKind.FOLDER, mode=mode, gid=effect.gid)
            )
        case DebFile():
            tree.file(effect.path, effect.text.encode(), mode=int(effect.mode, 8), gid=effect.gid)
        case DebLink():
            tree.add_link(effect.path, effect.target)
        case CopyEffect():
            tree.file(effect.path, _copied_content(tree, effect))
        case OwnerEffect():
            member = tree.resolve_member(effect.path)
            if member is None:
                message = (
                    f"an effect changes the owner of {effect.path}, but this file is not in the "
                    "base"
                )
                raise IntegrityError(message, hint="correct the effects in imgbuild/data/debian")
            mode = int(effect.mode, 8)
            tree.put(msgspec.structs.replace(member, gid=effect.gid, mode=mode))
        case _:
            pass  # groups, alternatives, diversions and computed files depend on all packages


def _copied_content(tree: DebTree, effect: CopyEffect) -> bytes:
    data = tree.read(effect.source)
    if not effect.match and not effect.fill:
        return data
    lines = data.decode().splitlines()
    unused = effect.fill.keys() - set(lines)
    selected = [line for line in lines if re.search(effect.match, line)]
    if unused or not selected:
        message = f"{effect.source} has no line {', '.join(sorted(unused)) or effect.match}"
        raise IntegrityError(message, hint="correct the effects in imgbuild/data/debian")
    # A line with an empty placeholder is removed.
    filled = [effect.fill.get(line, line) for line in selected if effect.fill.get(line) != ""]
    return ("\n".join(filled) + "\n").encode()


def _choose_alternatives(tree: DebTree, choices: Sequence[AlternativeEffect]) -> None:
    best = max(choices, key=lambda choice: choice.priority)
    links: Mapping[str, tuple[str, str]] = {
        best.name: (best.link, best.path),
        **{slave.name: (slave.link, slave.path) for slave in best.slaves},
    }
    for name, (link, path) in links.items():
        if tree.resolve_member(path) is not None:  # man pages are excluded
            tree.add_link(f"etc/alternatives/{name}", path)
            tree.add_link(link, f"/etc/alternatives/{name}")


def _libraries(tree: DebTree, packages: Sequence[DebContents], arch: Arch) -> None:
    version = next(p.control["Version"] for p in packages if p.name == "libc-bin")
    data, links = libraries.library_cache(tree, arch, version)
    for link in links:
        tree.put(link)
    tree.file("etc/ld.so.cache", data)
