"""Renders a Dockerfile that downloads its inputs.

The installation steps have no network access, and check the same hashes as in other Dockerfiles.
"""

# A separate module: an output format.
from __future__ import annotations

from collections.abc import Iterable

import msgspec

from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Resolution
from imgbuild.render import builds
from imgbuild.render.addresses import Addresses
from imgbuild.render.dockerfile import ArchStage, DockerfileModel, SdistBuild, WheelLayer
from imgbuild.system import quoting
from imgbuild.values import Arch


def online_dockerfile(
    dockerfile: DockerfileModel, lock: Lock, reference: str, addresses: Addresses
) -> DockerfileModel:
    """Add URLs to `dockerfile`, and use the published base `reference`."""
    stages = tuple(
        _stage(stage, lock, Arch.parse(stage.arch), addresses) for stage in dockerfile.stages
    )
    base = msgspec.structs.replace(dockerfile.base, reference=reference)
    return msgspec.structs.replace(dockerfile, base=base, stages=stages)


def build_files(lock: Lock, arches: Iterable[Arch]) -> dict[str, bytes]:
    """Return the requirements files with hashes for builds from sdists, by name."""
    return {
        builds.file_name(built.package, arch): "".join(
            f"{quoting.requirement_line(wheel.package, wheel.version, (wheel.sha256,))}\n"
            for wheel in builds.build_requirements(lock, arch, built)
        ).encode()
        for arch in arches
        for built in lock.arch[arch].built
    }


def base_reference(dockerfile: DockerfileModel, lock: Lock, registry: str | None) -> str:
    """Return the reference of the published base of `dockerfile`, by digest.

    Raises InputError if no registry is specified.
    """
    if lock.base.kind == "registry":
        return lock.base.image
    if registry is None:
        message = f"{dockerfile.target}: the base {dockerfile.base.name} is not in a registry"
        hint = (
            f"run imgbuild push {dockerfile.target} HOST/NAME --only base, and pass --registry "
            "HOST/NAME or set registry: in matrix.yaml"
        )
        raise InputError(message, hint=hint)
    return f"{registry}@{dockerfile.base.digest}"


def _stage(stage: ArchStage, lock: Lock, arch: Arch, addresses: Addresses) -> ArchStage:
    resolution = lock.arch[arch]
    urls = {addresses(wheel.package, wheel) for wheel in resolution.wheels}
    for built in resolution.built:
        urls.add(addresses(built.package, built.sdist))
        urls |= {
            addresses(wheel.package, wheel)
            for wheel in builds.build_requirements(lock, arch, built)
        }
    return msgspec.structs.replace(
        stage,
        wheels=f"wheels-{stage.arch}",
        urls=tuple(sorted(urls)),
        installs=tuple(_online_layer(install, resolution, arch) for install in stage.installs),
    )


def _online_layer(install: WheelLayer, resolution: Resolution, arch: Arch) -> WheelLayer:
    built = {f"{item.package}=={item.version}": item for item in resolution.built}
    less = {omission.requirement: omission for omission in install.omissions}
    return msgspec.structs.replace(
        install,
        requirements=tuple(each for each in install.requirements if each not in built),
        omissions=tuple(each for each in install.omissions if each.requirement not in built),
        builds=tuple(
            SdistBuild(
                requirement=each,
                env=built[each].env,
                requires=builds.file_name(built[each].package, arch),
                omission=less.get(each),
            )
            for each in (*install.requirements, *less)
            if each in built
        ),
    )
