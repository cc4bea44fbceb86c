"""Creates the members of layers without packages: environment, imgbuild's files, users' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from imgbuild.oci.tar import LayerMember, MemberKind, file_member, folder_member, link_member
from imgbuild.plan.plan import COMMANDS, AddedFilesRecipe, FilesRecipe, UserPackages, VenvRecipe
from imgbuild.system import files, quoting

DATA = files.data("image")
HOME = "opt/imgbuild"

# Builds of a user's packages may need newer versions than those in the image.
UNCONSTRAINED = ("pip", "setuptools", "uv", "wheel")

# Parts of environment.sh: for a cache folder writable by any user, and by one user only.
SHARED_WORDS = {
    "@MAKE@": 'mkdir -p "$imgbuild_folder" 2>/dev/null && [ -w "$imgbuild_folder" ]',
    "@UNLESS@": "which any user can write, unless the root is read-only",
}
# A folder created by others may contain their compiled code. Apptainer's shell has no `test -O`.
PRIVATE_WORDS = {
    "@MAKE@": '(umask 077 && mkdir -p "$imgbuild_folder") 2>/dev/null && [ -w "$imgbuild_folder" ]'
    ' && [ "$(stat -Lc %u "$imgbuild_folder" "${imgbuild_folder%/*}" | sort -u)" = "$(id -u)" ]',
    "@UNLESS@": "unless this user cannot write there",
}

ACTIVATE = """\
# Sourced by an interactive shell. The image's environment has the same settings already.
export VIRTUAL_ENV={prefix}
export PATH="{prefix}/bin:$PATH"
"""


def venv_members(recipe: VenvRecipe) -> tuple[LayerMember, ...]:
    """Return an empty virtual environment with links to the interpreter of the base."""
    prefix = recipe.prefix.strip("/")
    home, _, _ = recipe.interpreter.rpartition("/")
    config = (
        f"home = {quoting.require_plain_word(home)}\n"
        f"include-system-site-packages = {'true' if recipe.user_site is True else 'false'}\n"
        f"version = {quoting.require_plain_word(recipe.python)}\n"
    )
    return (
        folder_member(f"{prefix}/include"),
        folder_member(f"{prefix}/lib/python{recipe.python}/site-packages"),
        link_member(f"{prefix}/lib64", "lib"),
        link_member(f"{prefix}/bin/python", recipe.interpreter),
        link_member(f"{prefix}/bin/python3", "python"),
        link_member(f"{prefix}/bin/python{recipe.python}", "python"),
        file_member(
            f"{prefix}/bin/activate",
            ACTIVATE.format(prefix=quoting.require_plain_word(recipe.prefix)),
        ),
        file_member(f"{prefix}/pyvenv.cfg", config),
    )


def files_members(recipe: FilesRecipe) -> tuple[LayerMember, ...]:
    """Return the entry point, the home, work and cache folders, and accounts on a registry base."""
    user = recipe.user
    private = recipe.private is True
    words = {
        **(PRIVATE_WORDS if private else SHARED_WORDS),
        "@CACHE@": quoting.require_plain_word(recipe.cache),
    }
    environment = _template("environment.sh", words)
    if recipe.user_packages:
        workdir = quoting.require_plain_word(recipe.workdir.rstrip("/"))
        environment += _template("user_packages.sh", {"@WORKDIR@": workdir})
    members = [
        file_member(f"{HOME}/entrypoint", _template("entrypoint", words), mode=0o755),
        file_member(f"{HOME}/environment.sh", environment),
    ]
    members.append(
        LayerMember(
            path=user.home.strip("/"),
            kind=MemberKind.FOLDER,
            mode=0o755,
            uid=user.uid,
            gid=user.gid,
        )
    )
    # Containers run with any user ID: Kubernetes and Apptainer choose it. For a user without write
    # access to a private cache folder, environment.sh creates one under /tmp.
    members.append(folder_member(recipe.workdir.strip("/"), mode=0o1777))
    cache = folder_member(recipe.cache.strip("/"), mode=0o700 if private else 0o1777)
    if private:
        cache = msgspec.structs.replace(cache, uid=user.uid, gid=user.gid)
    members.append(cache)
    members.extend(link_member(path.strip("/"), to) for path, to in recipe.links.items())
    if recipe.readme:
        members.append(file_member(f"{HOME}/README", recipe.readme))
    if recipe.user_packages:
        members.extend(_user_packages(recipe.user_packages))
    if recipe.passwd:
        entry = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/bash"
        members.append(file_member("etc/passwd", _add_line(recipe.passwd, entry)))
        members.append(
            file_member("etc/group", _add_line(recipe.group, f"{user.name}:x:{user.gid}:"))
        )
    return tuple(members)


def _user_packages(recipe: UserPackages) -> Iterator[LayerMember]:
    """Yield files that allow users without write access to the environment to add packages.

    `pip.conf` also applies to root. Virtual environments with system site packages include the
    packages of the image.
    """
    prefix = recipe.prefix.strip("/")
    site = f"/{prefix}/lib/python{recipe.python}/site-packages"
    yield _constraints(recipe)
    yield file_member(f"{prefix}/pip.conf", f"[install]\nconstraint = /{HOME}/constraints.txt\n")
    words = {"@FREE@": '", "'.join(UNCONSTRAINED)}  # a list in quotes there
    program = (
        f"#!{quoting.require_plain_word(f'/{prefix}')}/bin/python"
        f" -I\n{_template('packages.py', words)}"
    )
    yield file_member(f"{HOME}/packages.py", program, mode=0o755)
    for name in ("pip", "pip3", "uv"):
        yield link_member(f"{COMMANDS.strip('/')}/{name}", "../packages.py")
    added = f"site.addsitedir({site!r})"
    outside = recipe.site or "/usr/lib/python3/dist-packages"
    yield file_member(
        f"{outside.strip('/')}/imgbuild.pth",
        f"import site, sys; {site!r} in sys.path or {added}\n",
    )


def _constraints(recipe: UserPackages) -> LayerMember:
    versions = sorted(item for item in recipe.versions.items() if item[0] not in UNCONSTRAINED)
    lines = "".join(f"{name}=={version}\n" for name, version in versions)
    return file_member(f"{HOME}/constraints.txt", lines)


def added_members(
    recipe: AddedFilesRecipe, contents: Mapping[str, bytes]
) -> tuple[LayerMember, ...]:
    """Return the files and links that a user adds. `contents` maps paths to the bytes of files.

    imgbuild's parent folders and those in the recipe are included, because their owners and modes
    are not the default.
    """
    members = [
        file_member(path.strip("/"), contents[path], mode=int(file.mode, 8))
        for path, file in recipe.files.items()
    ]
    members.extend(link_member(path.strip("/"), to) for path, to in recipe.links.items())
    if recipe.user_packages:
        members.append(_constraints(recipe.user_packages))
    placed = [member.path for member in members]
    folders = {
        path.strip("/"): LayerMember(
            path=path.strip("/"), kind=MemberKind.FOLDER, mode=int(each.mode, 8), uid=each.uid,
            gid=each.gid,
        )
        for path, each in recipe.folders.items()
    }  # fmt: skip
    folders |= {  # above the base, so that they take precedence
        member.path: member
        for member in files_members(recipe.below)
        if member.kind is MemberKind.FOLDER
        and any(path.startswith(f"{member.path}/") for path in placed)
    }
    return (*folders.values(), *members)


def _template(name: str, words: Mapping[str, str]) -> str:
    text = (DATA / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _add_line(text: str, line: str) -> str:
    name = line.partition(":")[0]
    number = line.split(":")[2:3]
    rows = [row for row in text.split("\n") if row and row.partition(":")[0] != name]
    # The first line with a user ID is used: this one precedes other accounts of the base with it.
    same = (place for place, row in enumerate(rows) if row.split(":")[2:3] == number)
    rows.insert(next(same, len(rows)), line)
    return "\n".join(rows) + "\n"
