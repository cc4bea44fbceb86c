"""Creates an image's root folder on this machine, in which wheels of sdists are built.

The folder is created on first use and stored in the cache. Builds cannot modify it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.container.root_folder import TREE
from imgbuild.cpython import python_archive
from imgbuild.deb import apt, debian_root
from imgbuild.errors import InputError
from imgbuild.lock.resolution import Deb, PythonArchive
from imgbuild.matrix.fields import STANDALONE_PREFIX
from imgbuild.matrix.model import Base, DebianBase, User
from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan.plan import DebianRecipe, PythonRecipe, layer_id
from imgbuild.solve import standalone
from imgbuild.values import Arch, digest_of

FORMAT = "build root 1"  # increase the number if the output of `_fill_root` changes
INTERPRETER = "usr/bin/python3"  # with which builds are started


def host_root(
    base: Base,
    user: User,
    arch: Arch,
    context: Context,
    debs: Sequence[Deb] = (),
    python: PythonArchive | None = None,
) -> Callable[[], Path]:
    """Return a function that creates the root folder of `base` on this machine.

    `arch` is the architecture of this machine. `debs` are the packages of the base and `python` is
    the archive of its standalone Python, if they are already known, for example from a lock. The
    function raises InputError for a base that does not consist of Debian packages.
    """

    @cache
    def _unpack_root() -> Path:
        if not isinstance(base, DebianBase):
            message = "sdists can be built only on Debian bases"
            raise InputError(message, hint="pin a version that has a wheel")
        chosen = tuple(debs) or apt.resolve_debs(base, arch, context).debs
        recipe = DebianRecipe(arch=arch, suite=base.suite, debs=chosen, user=user)
        archive = standalone.fetch_locked_archive(base, python, arch, context)
        added = ""
        if archive is not None:
            layer = PythonRecipe(prefix=STANDALONE_PREFIX, python=base.python, archive=archive[0])
            added = f" {layer_id(layer)}"
        digest = digest_of(f"{FORMAT} {layer_id(recipe)}{added}".encode())
        folder = context.store.unpacked(digest, kind="roots")
        if folder is None:
            with (
                context.store.scratch() as scratch,
                context.reporter.step(f"unpacking Debian {base.suite} for builds"),
            ):
                members = _members(base, recipe, context, scratch / "spool")
                if archive is not None:
                    members = _append_python(members, base.python, *archive, scratch / "python")
                _fill_root(scratch / "root" / TREE, members)
                folders = {digest: scratch / "root"}
                folder = context.store.add_unpacked(folders, kind="roots")[digest]
        return folder / TREE

    return _unpack_root


def _members(
    base: DebianBase, recipe: DebianRecipe, context: Context, spool: Path
) -> list[LayerMember]:
    wants = [FileRequest(locked=deb, urls=partial(apt.deb_urls, deb, base)) for deb in recipe.debs]
    paths = fetch_all(wants, context, title="fetching Debian packages")
    return debian_root.base_members(recipe, paths, spool)


def _append_python(
    members: Sequence[LayerMember], python: str, locked: PythonArchive, path: Path, spool: Path
) -> list[LayerMember]:
    of_archive = python_archive.archive_members(
        path, locked.file, prefix=STANDALONE_PREFIX, python=python, spool=spool
    )
    target = f"{STANDALONE_PREFIX}/bin/python{python}"
    link = LayerMember(path=INTERPRETER, kind=MemberKind.LINK, mode=0o777, target=target)
    return [*(each for each in members if each.path != INTERPRETER), *of_archive, link]


def _fill_root(root: Path, members: Sequence[LayerMember]) -> None:
    """Write `members` below `root`. The caller owns all files, which is sufficient for builds."""
    root.mkdir(parents=True)
    root.chmod(0o755)
    hard = []
    with FileReader() as files:
        for member in sorted(members, key=lambda member: member.path.encode()):
            path = root / member.path
            path.parent.mkdir(parents=True, exist_ok=True)
            match member.kind:
                case MemberKind.FOLDER:
                    path.mkdir(exist_ok=True)
                    path.chmod(0o755)  # whatever the umask: builds run as another user
                case MemberKind.LINK:
                    path.symlink_to(member.target)
                case MemberKind.HARD:
                    hard.append(member)
                case MemberKind.FILE:
                    with path.open("wb") as file:
                        for piece in content_pieces(
                            member.content or b"", member.size, member.path, files
                        ):
                            file.write(piece)
                    path.chmod(member.mode & 0o755)
    for member in hard:
        (root / member.path).hardlink_to(root / member.target)
    (root / "etc/hosts").touch()  # a mount point, which two builds at once would both make
