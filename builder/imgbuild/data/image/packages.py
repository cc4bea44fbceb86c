#!@PREFIX@/bin/python -I
"""pip and uv of the image: what they install for a user comes to lie next to the image's packages.

Python imports the image's packages first, so they keep their versions. A user who cannot write to
the image gets a folder of that user, PYTHONUSERBASE, which is an environment for uv as well.
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


def main():
    program, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    words = [word for word in arguments if not word.startswith("-")]
    if program == "uv":
        verb = words[1] if words[:1] == ["pip"] and len(words) > 1 else ""
        command, environment = [str(Path(sys.prefix, "bin", "uv")), *arguments], dict(os.environ)
        active = environment.get("VIRTUAL_ENV", sys.prefix)
        if verb not in CHANGES + READS or active != sys.prefix or any(
            ELSEWHERE.fullmatch(word) for word in arguments
        ):
            os.execv(command[0], command)
    else:
        verb = words[0] if words else ""
        refuse_other_environment(verb)
        command, environment = [sys.executable, "-m", "pip", *arguments], dict(os.environ)
    for_user = not os.access(SITE, os.W_OK)
    if for_user and verb == "uninstall":
        refuse_image_packages(words[words.index(verb) + 1 :])
        if program != "uv":  # pip removes only what is in the environment of its Python
            command[0] = str(Path(make_environment(), "bin", "python"))
    with tempfile.TemporaryDirectory() as folder:
        if program == "uv":
            if for_user:
                environment["VIRTUAL_ENV"] = make_environment()
            if verb == "install":
                constraints = Path(folder, "constraints.txt")
                constraints.write_text(
                    "".join(f"{name}=={version}\n" for name, version in installed().items())
                )
                command += ["--constraints", str(constraints)]
        status = subprocess.run(command, env=environment).returncode
    if verb == "install" and for_user:
        report(status)
    return status


def installed():
    """Name → version of the image's packages that keep their versions."""
    pairs = (path.name.removesuffix(".dist-info").split("-") for path in SITE.glob("*.dist-info"))
    return {name: version for name, version in sorted(pairs) if normalized(name) not in FREE}


def refuse_other_environment(verb):
    """End with an error if an environment is active that has no pip of its own."""
    active = os.environ.get("VIRTUAL_ENV", sys.prefix)
    if verb in CHANGES and active != sys.prefix:
        sys.exit(
            f"error: this pip belongs to {sys.prefix}, and {active} is active, which has none\n"
            "hint: uv pip install PACKAGE"
        )


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def refuse_image_packages(words):
    """End with an error if a package of the image is to be removed."""
    ours = {normalized(name) for name in installed()} | FREE
    names = [word for word in words if normalized(word) in ours]
    if names:
        sys.exit(
            f"error: {', '.join(names)}: part of the image, which only root can change\n"
            f"hint: {README} says how to get an image with other packages"
        )


def make_environment():
    """The user's folder as an environment, in which uv sees the image's packages as installed."""
    base = Path(os.environ.get("PYTHONUSERBASE") or Path.home() / ".local/share/imgbuild/packages")
    site = base / SITE.relative_to(sys.prefix)
    try:
        (base / "bin").mkdir(parents=True, exist_ok=True)
        site.mkdir(parents=True, exist_ok=True)
        if base.parent.name == ".imgbuild-packages":  # in a folder of the user's project
            (base.parent / ".gitignore").write_text("*\n")
        (base / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
        for name in ("python", "python3"):
            link(base / "bin" / name, os.path.realpath(sys.executable))
        for info in SITE.glob("*.dist-info"):
            (site / info.name).mkdir(exist_ok=True)
            for path in info.iterdir():
                link(site / info.name / path.name, path)
    except OSError as error:
        sys.exit(
            f"error: {error.filename}: {error.strerror}\n"
            "hint: set PYTHONUSERBASE to a folder in which you can write"
        )
    return str(base)


def link(path, target):
    if not path.is_symlink():
        path.symlink_to(target)


def report(status):
    if status == 0:
        base = os.environ.get("PYTHONUSERBASE", "the user's folder")
        print(
            f"Installed in {base}, not in the image. To have a package in the image:"
            " imgbuild add PACKAGE",
            file=sys.stderr,
        )
    else:
        print(
            "The image's packages keep their versions (/opt/imgbuild/constraints.txt)."
            f" {README} says how to get others.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
