"""The lock for people without containers: a script that makes its environment and checks it.

Comes in: a lock, its seal, an architecture, and addresses for what no default index has. Goes out:
the text of a shell script that needs a Python of the right version, and uv or pip.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.lock import Lock
from imgbuild.plan import installed_wheels, omitted
from imgbuild.render import templates
from imgbuild.render.addresses import Addresses
from imgbuild.render.dockerfile import Omission, omission
from imgbuild.seal import Seal
from imgbuild.values import Arch

HOST = ("NVIDIA_", "PATH", "VIRTUAL_ENV")  # variables that only a container or `activate` sets


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What the template takes."""

    target: str
    arch: Arch
    python: str
    glibc: str
    first: tuple[str, ...]
    requirements: tuple[str, ...]
    omissions: tuple[Omission, ...]
    versions: dict[str, str]
    wanted: tuple[str, ...]
    env: dict[str, str]
    links: dict[str, str]


def script(lock: Lock, sealed: Seal, arch: Arch, addresses: Addresses) -> Script:
    """The script of `lock` on `arch`. Packages that lose files come first: no other loses any."""
    resolution = lock.arch[arch]
    omit = omitted(lock.drop, installed_wheels(resolution))
    lines = {}
    for wheel in resolution.wheels:
        name = f"{wheel.package}=={wheel.version}"
        if wheel.package in lock.indexes:
            name = f"{wheel.package} @ {addresses(wheel.package, wheel)}"
        lines[wheel.package] = f"{name} --hash=sha256:{wheel.sha256}"
    for built in resolution.built:
        hashes = f"--hash=sha256:{built.sdist.sha256} --hash=sha256:{built.wheel.sha256}"
        lines[built.package] = f"{built.package}=={built.version} {hashes}"
    floors = sealed.arch[arch].floors
    return Script(
        target=lock.target,
        arch=arch,
        python=lock.base.python,
        glibc=(floors.glibc if floors else "") or lock.base.glibc,
        first=tuple(lines[package] for package in sorted(omit)),
        requirements=tuple(lines[package] for package in sorted(lines) if package not in omit),
        omissions=tuple(
            omission(lock, wheel, omit[wheel.package], lock.base.python)
            for wheel in installed_wheels(resolution)
            if wheel.package in omit
        ),
        versions=dict(sorted(resolution.versions.items())),
        wanted=tuple(sorted(lock.requirements)),
        env=_environment(lock),
        links=_links(lock),
    )


def text(made: Script, images: Path) -> str:
    """The script's text."""
    return templates.render("script.j2", made, images=images)


def _environment(lock: Lock) -> dict[str, str]:
    """The image's variables as a shell has them that knows $venv and $cache."""
    return {
        name: _moved(lock, value)
        for name, value in lock.settings.env.items()
        if not name.startswith(HOST)
    }


def _links(lock: Lock) -> dict[str, str]:
    """Links below the environment, by their path there."""
    prefix = lock.settings.prefix + "/"
    return {
        path.removeprefix(prefix): to
        for path, to in lock.settings.links.items()
        if path.startswith(prefix)
    }


def _moved(lock: Lock, value: str) -> str:
    """A value in double quotes, in which the image's folders are the script's."""
    quoted = value
    for mark in ("\\", '"', "$", "`"):
        quoted = quoted.replace(mark, "\\" + mark)
    for folder, name in ((lock.settings.prefix, "$venv"), (lock.settings.cache, "$cache")):
        if quoted == folder or quoted.startswith(folder + "/"):
            quoted = name + quoted.removeprefix(folder)
    return f'"{quoted}"'
