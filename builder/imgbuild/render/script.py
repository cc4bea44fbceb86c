"""Renders a shell script that installs a lock.

Packages with omitted files are installed into separate folders. These packages, and packages that
must be built, are installed last.
"""

# A separate module: an output format.
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import BuiltWheel, LockedFile, Resolution, installed_wheels
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import omitted_paths
from imgbuild.render import builds, templates
from imgbuild.render.addresses import Addresses
from imgbuild.render.dockerfile import OmittedFiles, omitted_files
from imgbuild.system import quoting
from imgbuild.system.quoting import QuotedText
from imgbuild.values import Arch

HOST = ("NVIDIA_", "PATH", "VIRTUAL_ENV")  # variables that only a container or `activate` sets


class RequirementLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a requirements file.

    `plain` is for the default index or a folder of wheels. `with_url` has a URL, for a package from
    another index.
    """

    plain: str
    with_url: str = ""


class SeparateInstall(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is installed in a separate step, because it has omitted files or no wheel.

    For a package without a wheel, `requires` lists build requirements in addition to installed
    packages, and `env` is the environment of the build.
    """

    package: str
    line: RequirementLine
    omission: OmittedFiles | None = None
    sdist: str = ""
    requires: tuple[RequirementLine, ...] = ()
    env: dict[str, str] = {}


class InstallScript(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the script's template."""

    target: str
    arch: Arch
    python: str
    glibc: str
    requirements: tuple[RequirementLine, ...]
    alone: tuple[SeparateInstall, ...]
    versions: dict[str, str]
    wanted: tuple[str, ...]
    env: dict[str, str]
    links: dict[str, str]


def create_script(
    lock: Lock, target_digests: TargetDigests, arch: Arch, addresses: Addresses
) -> InstallScript:
    """Create the script for `lock`. Raises InputError if a package cannot be built on `arch`."""
    resolution = lock.arch[arch]
    omissions = _omissions(lock, resolution)
    floors = target_digests.arch[arch].floors
    return InstallScript(
        target=lock.target,
        arch=arch,
        python=lock.base.python,
        glibc=(floors.glibc if floors else "") or lock.base.glibc,
        requirements=tuple(
            _line(lock, wheel.package, wheel.version, (wheel,), addresses)
            for wheel in resolution.wheels
            if wheel.package not in omissions
        ),
        alone=(
            *(
                SeparateInstall(
                    package=wheel.package,
                    line=_line(lock, wheel.package, wheel.version, (wheel,), addresses),
                    omission=omissions[wheel.package],
                )
                for wheel in resolution.wheels
                if wheel.package in omissions
            ),
            *(
                _separate_install(lock, arch, each, omissions.get(each.package), addresses)
                for each in resolution.built
            ),
        ),
        versions=dict(sorted(resolution.versions.items())),
        wanted=tuple(sorted(lock.requirements)),
        env=_environment(lock),
        links=_links(lock),
    )


def _omissions(lock: Lock, resolution: Resolution) -> dict[str, OmittedFiles]:
    wheels = installed_wheels(resolution)
    omit = omitted_paths(lock.drop, wheels)
    return {
        wheel.package: omitted_files(lock, wheel, omit[wheel.package], lock.base.python)
        for wheel in wheels
        if wheel.package in omit
    }


def _line(
    lock: Lock, package: str, version: str, files: Sequence[LockedFile], addresses: Addresses
) -> RequirementLine:
    """Return the line for a package with the hashes of `files`. The first file is on an index."""
    hashes = [file.sha256 for file in files]
    with_url = ""
    if package in lock.indexes or (lock.project and package in lock.project.sources):
        url = addresses(package, files[0])
        with_url = quoting.requirement_line(package, version, hashes, url=url)
    return RequirementLine(
        plain=quoting.requirement_line(package, version, hashes), with_url=with_url
    )


def _separate_install(
    lock: Lock, arch: Arch, built: BuiltWheel, less: OmittedFiles | None, addresses: Addresses
) -> SeparateInstall:
    versions = lock.arch[arch].versions
    files = (built.sdist, built.wheel)
    return SeparateInstall(
        package=built.package,
        line=_line(lock, built.package, built.version, files, addresses),
        omission=less,
        sdist=built.sdist.file,
        requires=tuple(
            _line(lock, wheel.package, wheel.version, (wheel,), addresses)
            for wheel in builds.build_requirements(lock, arch, built)
            if versions.get(wheel.package) != wheel.version
        ),
        env=built.env,
    )


def script_text(script: InstallScript, name: str, images: Path) -> str:
    """Return the text of the script `name`.sh."""
    return templates.render_template("script.j2", script, images=images, stem=name)


def _environment(lock: Lock) -> dict[str, str]:
    """Return the variables of the image, for a shell in which $venv and $cache are set."""
    return {
        name: _relocate_value(lock, value)
        for name, value in lock.settings.env.items()
        if not name.startswith(HOST)
    }


def _links(lock: Lock) -> dict[str, str]:
    prefix = lock.settings.prefix + "/"
    return {
        path.removeprefix(prefix): to
        for path, to in lock.settings.links.items()
        if path.startswith(prefix)
    }


def _relocate_value(lock: Lock, value: str) -> str:
    quoted = quoting.for_double_quotes(value)
    for folder, name in ((lock.settings.prefix, "$venv"), (lock.settings.cache, "$cache")):
        if quoted == folder or quoted.startswith(folder + "/"):
            quoted = name + quoted.removeprefix(folder)
    return QuotedText(f'"{quoted}"')
