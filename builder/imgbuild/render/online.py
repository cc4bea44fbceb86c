"""The variant of a Dockerfile for people who have Docker and its folder, and nothing else.

Comes in: a Dockerfile, its lock, a registry that has the base, and addresses. Goes out: the same
steps, but FROM names the published base by digest, and a stage of its own fetches the wheels. The
steps that install stay without network and check the same hashes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from imgbuild.errors import InputError
from imgbuild.lock import Lock
from imgbuild.render.addresses import Addresses
from imgbuild.render.dockerfile import Build, Dockerfile, Install, Stage
from imgbuild.resolution import Built, Resolution
from imgbuild.values import Arch


def online(made: Dockerfile, lock: Lock, registry: str | None, addresses: Addresses) -> Dockerfile:
    """`made` with addresses; InputError if nobody says which registry has the base."""
    stages = tuple(
        _stage(stage, lock.arch[Arch.parse(stage.arch)], addresses) for stage in made.stages
    )
    reference = _reference(made, lock, registry)
    base = msgspec.structs.replace(made.base, reference=reference)
    return msgspec.structs.replace(made, base=base, stages=stages)


def build_files(lock: Lock, arches: Iterable[Arch]) -> dict[str, bytes]:
    """File name → requirements, with hashes, of the builds of packages that have no wheel."""
    return {
        _requires_file(built): "".join(
            f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n"
            for wheel in built.requires
        ).encode()
        for arch in arches
        for built in lock.arch[arch].built
    }


def _reference(made: Dockerfile, lock: Lock, registry: str | None) -> str:
    if lock.base.kind == "registry":
        return lock.base.image
    if registry is None:
        message = f"{made.target}: no registry has its base {made.base.name}"
        hint = (
            "push what `imgbuild build --only base` makes, and say where: registry: HOST/NAME in"
            " matrix.yaml, or --registry HOST/NAME"
        )
        raise InputError(message, hint=hint)
    return f"{registry}@{made.base.digest}"


def _stage(stage: Stage, resolution: Resolution, addresses: Addresses) -> Stage:
    urls = {addresses(wheel.package, wheel) for wheel in resolution.wheels}
    for built in resolution.built:
        urls.add(addresses(built.package, built.sdist))
        urls |= {addresses(wheel.package, wheel) for wheel in built.requires}
    return msgspec.structs.replace(
        stage,
        wheels=f"wheels-{stage.arch}",
        urls=tuple(sorted(urls)),
        installs=tuple(_install(install, resolution) for install in stage.installs),
    )


def _install(install: Install, resolution: Resolution) -> Install:
    built = {f"{item.package}=={item.version}": item for item in resolution.built}
    return msgspec.structs.replace(
        install,
        requirements=tuple(each for each in install.requirements if each not in built),
        builds=tuple(
            Build(requirement=each, env=built[each].env, requires=_requires_file(built[each]))
            for each in install.requirements
            if each in built
        ),
    )


def _requires_file(built: Built) -> str:
    return f"build-{built.package}.txt"
