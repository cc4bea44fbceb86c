#!/opt/venv/bin/python -I
"""pip and uv of the image: what they install for a user lies next to the packages of the image.

Python imports the packages of the image first, and they keep their versions. A user who cannot
write to the environment has a folder, PYTHONUSERBASE, which is an environment for uv as well.
"""

import contextlib
import io
import os
import re
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

README = "/opt/imgbuild/README"
FREE = {"pip", "setuptools", "uv", "wheel"}  # builds of packages may need newer ones
CHANGES = ("install", "uninstall", "sync")
READS = ("check", "freeze", "list", "show", "tree")
# Options of `pip install`, by the names of its parser, with which no environment is changed, or
# another one.
PIP_ELSEWHERE = ("dry_run", "target_dir", "prefix_path", "root_path")
IN_SUBPROCESS = "_PIP_RUNNING_IN_SUBPROCESS"
# Options of `uv pip` that name another environment, those with which none is changed, and those of
# uv that take a value and may stand before its verb.
ELSEWHERE = re.compile(r"(--python|--target|--prefix|--system)(=.*)?|-[pt].*")
NO_CHANGE = {"--dry-run", "--help", "-h"}
VALUED = {
    "--allow-insecure-host", "--cache-dir", "--color", "--config-file", "--directory", "--project",
}  # fmt: skip

SITE = Path(sysconfig.get_path("purelib"))


def main() -> int:
    """Run the program by whose name this file was started; its status."""
    program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    for_user = not os.access(SITE, os.W_OK)
    if program == "uv":
        return run_uv(arguments, for_user=for_user)
    return run_pip(arguments, for_user=for_user)


def run_pip(arguments: list[str], *, for_user: bool) -> int:
    """Run pip. pip.conf has constraints for all; for a user, packages that were added keep, too."""
    verb, names, elsewhere = parsed(arguments)
    command = [sys.executable, "-m", "pip", *arguments]
    active = os.environ.get("VIRTUAL_ENV") or sys.prefix
    if verb in CHANGES and active != sys.prefix:
        message = f"this pip belongs to {sys.prefix}, and {active} is active, which has none"
        return fail(message, "uv pip install PACKAGE")
    if for_user and verb == "uninstall":
        if ours := of_image(names):
            return fail_for_image(ours)
        command[0] = str(make_environment() / "bin" / "python")  # pip removes from its own only
    if verb != "install":
        return run(command)
    if for_user and not elsewhere:
        make_folder()
    constrained = for_user and os.environ.get("PIP_CONFIG_FILE") != os.devnull
    status = run_constrained(command) if constrained else run(command)
    return finished(status, for_user=for_user and not elsewhere)


def parsed(arguments: list[str]) -> "tuple[str, list[str], bool]":
    """Verb and names of packages of pip's arguments, and whether it leaves the environment alone.

    Without a verb if pip refuses the arguments, prints help, works on another Python, or has no
    such parser.
    """
    printed = io.StringIO()  # pip prints its errors and help when it runs
    os.environ[IN_SUBPROCESS] = "1"  # else its parser starts pip of the Python of --python
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            from pip._internal.cli.main_parser import parse_command
            from pip._internal.commands import create_command

            verb, rest = parse_command(arguments)
            options, names = create_command(verb).parse_args(rest)
    except (Exception, SystemExit):  # noqa: BLE001  # what pip raises, or lacks in another version
        return "", [], True
    finally:
        del os.environ[IN_SUBPROCESS]
    if getattr(options, "python", None):
        return "", [], True
    return verb, names, any(getattr(options, name, None) for name in PIP_ELSEWHERE)


def run_uv(arguments: list[str], *, for_user: bool) -> int:
    """Run uv. Its verb `pip` works on the image's environment and the folder of the user."""
    command = [str(Path(sys.prefix, "bin", "uv")), *arguments]
    words = uv_words(arguments)
    verb = words[1] if words[:1] == ["pip"] and len(words) > 1 else ""
    active = os.environ.get("VIRTUAL_ENV") or sys.prefix
    elsewhere = active != sys.prefix or any(ELSEWHERE.fullmatch(word) for word in arguments)
    if verb not in CHANGES + READS or elsewhere:
        os.execv(command[0], command)
    if for_user and verb == "uninstall" and (ours := of_image(words[2:])):
        return fail_for_image(ours)
    environment = dict(os.environ)
    if for_user:
        environment["VIRTUAL_ENV"] = str(make_environment())
        environment.setdefault("UV_LINK_MODE", "copy")  # its cache is on another file system
    if verb not in ("install", "sync"):
        return run(command, environment)
    status = run_constrained(command, environment)
    return finished(status, for_user=for_user and not NO_CHANGE.intersection(arguments))


def uv_words(arguments: list[str]) -> list[str]:
    """The arguments of uv that are neither options nor the values of its general options."""
    pairs = zip(["", *arguments], arguments)  # noqa: B905  # the last one precedes nothing
    return [word for before, word in pairs if not word.startswith("-") and before not in VALUED]


def run_constrained(command: list[str], environment: "dict[str, str] | None" = None) -> int:
    """The status of `command` with the packages of the environment as constraints."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        lines = (f"{name}=={version}\n" for name, version in kept())
        constraints.write_text("".join(lines), encoding="utf-8")
        return run([*command, "-c", str(constraints)], environment)


def run(command: list[str], environment: "dict[str, str] | None" = None) -> int:
    """The status of `command`, also of one that a signal ended."""
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
    except KeyboardInterrupt:  # the command got it as well
        return 130
    return 128 - status if status < 0 else status


def kept() -> "list[tuple[str, str]]":
    """Name and version of the packages of the image that keep their versions."""
    names = sorted(path.name.removesuffix(".dist-info") for path in SITE.glob("*.dist-info"))
    pairs = [(name, version) for name, _, version in (text.partition("-") for text in names)]
    return [(name, version) for name, version in pairs if normalized(name) not in FREE]


def normalized(name: str) -> str:
    """The name of a package as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def of_image(names: list[str]) -> list[str]:
    """Those of `names` that are packages of the image."""
    ours = {normalized(name) for name, _ in kept()} | FREE
    return [name for name in names if normalized(name) in ours]


def make_folder() -> Path:
    """The user's folder; what is made in it can be changed by those who can change the project."""
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local/share/imgbuild/packages")
    site = base / SITE.relative_to(sys.prefix)
    try:
        if base.parent.name != ".imgbuild-packages":
            site.mkdir(parents=True, exist_ok=True)
        else:  # in the folder of the user's project
            project = base.parent.parent.stat()
            sticky = project.st_mode & stat.S_ISVTX  # each user's files are their own there
            shared = 0 if sticky else stat.S_IMODE(project.st_mode) & 0o022
            os.umask(os.umask(0o077) & ~shared)
            for folder in (base.parent, base, base / "bin", *ancestors(site, base)):
                share(folder, project.st_gid, shared)
            write(base.parent / ".gitignore", "*\n")
        (base / "bin").mkdir(exist_ok=True)
    except OSError as error:
        sys.exit(fail_for_folder(error))
    return base


def ancestors(path: Path, base: Path) -> list[Path]:
    """The folders from below `base` down to `path`."""
    return [folder for folder in reversed([path, *path.parents]) if base in folder.parents]


def share(folder: Path, group: int, shared: int) -> None:
    """Make `folder`, unless it is there, for the users that can write to the project."""
    try:
        folder.mkdir()
    except FileExistsError:
        return
    inherited = 0
    if shared & stat.S_IWGRP:
        with contextlib.suppress(OSError):  # a group of which this user is no member
            os.chown(folder, -1, group)
            inherited = stat.S_ISGID
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | shared | inherited)


def write(path: Path, text: str) -> None:
    """Write `text`, unless the file has it: it may be another user's."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def make_environment() -> Path:
    """The user's folder as an environment, in which uv sees the image's packages as installed."""
    base = make_folder()
    site = base / SITE.relative_to(sys.prefix)
    try:
        write(base / "pyvenv.cfg", Path(sys.prefix, "pyvenv.cfg").read_text(encoding="utf-8"))
        for name in ("python", "python3"):
            link(base / "bin" / name, Path(os.path.realpath(sys.executable)))
        for info in SITE.glob("*.dist-info"):
            (site / info.name).mkdir(exist_ok=True)
            for path in info.iterdir():
                link(site / info.name / path.name, path)
    except OSError as error:
        sys.exit(fail_for_folder(error))
    return base


def link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`, unless it is there."""
    if not path.is_symlink():
        path.symlink_to(target)


def finished(status: int, *, for_user: bool) -> int:
    """`status`, after a line about where the packages are, or why they are not."""
    if status:
        say(f"The packages of the image keep their versions. {README} says how to get others.")
    elif for_user:
        place = os.environ.get("PYTHONUSERBASE", "the user's folder")
        say(f"Installed in {place}. To add a package to the image itself: imgbuild add PACKAGE")
    return status


def fail_for_folder(error: OSError) -> int:
    """The status of an error: the user's folder cannot be made."""
    message = f"{error.filename}: {error.strerror}"
    return fail(message, "set PYTHONUSERBASE to a folder in which you can write")


def fail_for_image(names: list[str]) -> int:
    """The status of an error: packages of the image cannot be removed."""
    message = f"{', '.join(names)}: part of the image, which only root can change"
    return fail(message, f"{README} says how to get an image with other packages")


def fail(message: str, hint: str) -> int:
    """The status of an error."""
    say(f"error: {message}\nhint: {hint}")
    return 2


def say(text: str) -> None:
    """Print a message for people."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
