"""pip and uv of the image: what they install for a user lies next to the packages of the image.

Python imports the packages of the image first, and they keep their versions. A user who cannot
write to the environment has a folder, PYTHONUSERBASE, which is an environment for uv as well.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

README = "/opt/imgbuild/README"
FREE = {"pip", "setuptools", "uv", "wheel"}  # builds of packages may need newer ones
CHANGES = ("install", "uninstall", "sync")
READS = ("check", "freeze", "list", "show", "tree")
# Options of `uv pip` that name another environment.
ELSEWHERE = re.compile(r"(--python|--target|--prefix|--system)(=.*)?|-[pt].*")

SITE = Path(sysconfig.get_path("purelib"))


def main() -> int:
    """Run the program by whose name this file was started; its status."""
    program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    words = [word for word in arguments if not word.startswith("-")]
    for_user = not os.access(SITE, os.W_OK)
    if program == "uv":
        return run_uv(arguments, words, for_user=for_user)
    verb = words[0] if words else ""
    active = os.environ.get("VIRTUAL_ENV") or sys.prefix
    if verb in CHANGES and active != sys.prefix:
        message = f"this pip belongs to {sys.prefix}, and {active} is active, which has none"
        return fail(message, "uv pip install PACKAGE")
    python = sys.executable
    if for_user and verb == "uninstall":
        if ours := of_image(words[1:]):
            return fail_for_image(ours)
        python = str(make_environment() / "bin" / "python")  # pip removes from its environment only
    return finished(verb, run([python, "-m", "pip", *arguments]), for_user=for_user)


def run_uv(arguments: list[str], words: list[str], *, for_user: bool) -> int:
    """Run uv. Its verb `pip` works on the image's environment and the folder of the user."""
    command = [str(Path(sys.prefix, "bin", "uv")), *arguments]
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
    if verb != "install":
        return run(command, environment)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        lines = (f"{name}=={version}\n" for name, version in kept())
        constraints.write_text("".join(lines), encoding="utf-8")
        status = run([*command, "--constraints", str(constraints)], environment)
    return finished(verb, status, for_user=for_user)


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


def make_environment() -> Path:
    """The user's folder as an environment, in which uv sees the image's packages as installed."""
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local/share/imgbuild/packages")
    site = base / SITE.relative_to(sys.prefix)
    try:
        (base / "bin").mkdir(parents=True, exist_ok=True)
        site.mkdir(parents=True, exist_ok=True)
        if base.parent.name == ".imgbuild-packages":  # in the folder of the user's project
            (base.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        settings = Path(sys.prefix, "pyvenv.cfg").read_text(encoding="utf-8")
        (base / "pyvenv.cfg").write_text(settings, encoding="utf-8")
        for name in ("python", "python3"):
            link(base / "bin" / name, Path(os.path.realpath(sys.executable)))
        for info in SITE.glob("*.dist-info"):
            (site / info.name).mkdir(exist_ok=True)
            for path in info.iterdir():
                link(site / info.name / path.name, path)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        sys.exit(fail(message, "set PYTHONUSERBASE to a folder in which you can write"))
    return base


def link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`, unless it is there."""
    if not path.is_symlink():
        path.symlink_to(target)


def finished(verb: str, status: int, *, for_user: bool) -> int:
    """`status`, after a line about where the packages are, or why they are not."""
    if verb == "install" and for_user and status == 0:
        place = os.environ.get("PYTHONUSERBASE", "the user's folder")
        say(f"Installed in {place}. To add a package to the image itself: imgbuild add PACKAGE")
    elif verb == "install" and status:
        say(f"The packages of the image keep their versions. {README} says how to get others.")
    return status


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
