"""Collects the components of an image on one architecture and their dependencies.

An `Sbom` depends only on the lock, digests and `images/packages.json`. `cyclonedx` and `spdx` write
documents.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

import msgspec
from packaging.version import Version

from imgbuild.attest.sbom import needs, purl
from imgbuild.attest.sbom.licences import Licence
from imgbuild.attest.sbom.packages import Package, SbomPackages
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import default_index_name
from imgbuild.lock.resolution import BuiltWheel, Deb, Resolution, Wheel, installed_wheels
from imgbuild.plan.image_digests import LayerDigests, TargetDigests
from imgbuild.plan.plan import (
    AddedFilesRecipe,
    FilesRecipe,
    Layer,
    VenvRecipe,
    create_plan,
)
from imgbuild.values import Arch, Digest, Sha256
from imgbuild.wheel.tags import WheelTags

RELEASE_PACKAGE = "base-files"  # its version begins with Debian's release: 12.4+deb12u11
CPYTHON = "cpython"
CPYTHON_LICENCE = "PSF-2.0"  # as the SBOMs of CPython's releases state it, Misc/sbom.spdx.json
CPYTHON_CPE = "cpe:2.3:a:python:python:{}:{}:*:*:*:*:*:*"  # version, update; as NVD names it
REQUIREMENT_DEPTH = 4  # copyright files that refer to another, one after the other


class ComponentKind(enum.StrEnum):
    """The kind of a component in an SBOM."""

    IMAGE = "image"
    SYSTEM = "system"  # the distribution that debs are of
    BASE = "base"  # the registry image that this one is based on
    INTERPRETER = "interpreter"  # a standalone build of Python
    DEB = "deb"
    WHEEL = "wheel"
    SDIST = "sdist"  # the source of a wheel; not in the image
    TOOL = "tool"  # the build tool of a wheel; not in the image
    LAYER = "layer"  # files that imgbuild makes itself
    FILE = "file"  # a file of the user's repository


# Sources and build tools of wheels, which are not in the image.
OUTSIDE_KINDS = frozenset({ComponentKind.SDIST, ComponentKind.TOOL})


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """A component of an image.

    `id` is unique in the SBOM, and `layer` is the layer that contains the component. `index` is
    empty for packages from the default index. `source` is the Debian source package, or the URL of
    a package that is not from an index. `cpe` (CPE 2.3) identifies components without a package URL
    for scanners.
    """

    id: str
    kind: ComponentKind
    name: str
    version: str = ""
    file: str = ""
    sha256: Sha256 = ""
    purl: str = ""
    cpe: str = ""
    licence: Licence = Licence()
    index: str = ""
    source: str = ""
    layer: LayerDigests | None = None


class Sbom(msgspec.Struct, frozen=True, kw_only=True):
    """The components of one image.

    `needs` maps IDs of components to IDs of their dependencies, and `build_inputs` the IDs of
    wheels to IDs of their build inputs.
    """

    target: str
    arch: Arch
    digest: Digest
    created: str
    layers: tuple[LayerDigests, ...]
    image: Component
    components: tuple[Component, ...]
    needs: dict[str, tuple[str, ...]]
    build_inputs: dict[str, tuple[str, ...]] = {}


def create_sbom(
    lock: Lock, target_digests: TargetDigests, arch: Arch, sbom_packages: SbomPackages
) -> Sbom:
    """Return the SBOM of the image of `lock` on `arch`."""
    planned = create_plan(lock, arch)
    layers = {layer.id: layer for layer in target_digests.arch[arch].layers}
    maker = _ComponentFactory(lock, arch, sbom_packages, _layers_by_input(planned.layers, layers))
    parts = (
        *maker.system_components(),
        *maker.base(),
        *maker.interpreter_components(),
        *maker.deb_components(),
        *maker.wheels(),
        *maker.build_inputs(),
        *_added_components(lock, planned.layers, layers),
    )
    digest = target_digests.arch[arch].manifest
    edges = maker.dependency_edges()
    inside = [part.id for part in parts if part.kind not in OUTSIDE_KINDS]
    edges["image"] = maker.root_components(inside, edges)
    return Sbom(
        target=lock.target,
        arch=arch,
        digest=digest,
        created=planned.config.created,
        layers=target_digests.arch[arch].layers,
        image=Component(
            id="image",
            kind=ComponentKind.IMAGE,
            name=lock.target,
            version=digest,
            sha256=digest.removeprefix("sha256:"),
            purl=purl.oci_purl(lock.target, digest, arch=arch.oci),
        ),
        components=tuple(sorted(parts, key=lambda part: part.id)),
        needs=dict(sorted(edges.items())),
        build_inputs={
            f"wheel/{built.package}": (f"sdist/{built.package}", *_tools(built))
            for built in lock.arch[arch].built
        },
    )


def _layers_by_input(
    layers: tuple[Layer, ...], target_digests: Mapping[Digest, LayerDigests]
) -> dict[Sha256, LayerDigests]:
    places: dict[Sha256, LayerDigests] = {}
    for layer in layers:
        place = target_digests[layer.id]
        places.update((file.sha256, place) for file in layer.recipe.contents)
    return places


def _added_components(
    lock: Lock, layers: tuple[Layer, ...], target_digests: Mapping[Digest, LayerDigests]
) -> Iterator[Component]:
    for layer in layers:
        recipe, place = layer.recipe, target_digests[layer.id]
        if isinstance(recipe, VenvRecipe | FilesRecipe):
            yield Component(
                id=f"layer/{layer.name}",
                kind=ComponentKind.LAYER,
                name=f"{lock.target}/{layer.name}",
                sha256=place.digest.removeprefix("sha256:"),
                layer=place,
            )
        elif isinstance(recipe, AddedFilesRecipe):
            for path, file in sorted(recipe.files.items()):
                yield Component(
                    id=f"file{path}",
                    kind=ComponentKind.FILE,
                    name=path,
                    sha256=file.sha256,
                    layer=place,
                )


def _cpython_cpe(version: str) -> str:
    release = Version(version).base_version
    return CPYTHON_CPE.format(release, version.removeprefix(release) or "*")


class _ComponentFactory:
    def __init__(
        self,
        lock: Lock,
        arch: Arch,
        sbom_packages: SbomPackages,
        places: Mapping[Sha256, LayerDigests],
    ) -> None:
        self._lock = lock
        self._arch = arch
        self._known = sbom_packages.packages
        self._layers_by_input = places
        self._resolution: Resolution = lock.arch[arch]
        self._installed = installed_wheels(self._resolution)
        self._default = default_index_name(lock)
        self._addresses = lock.project.sources if lock.project is not None else {}
        self._debs = {deb.package: deb for deb in self._resolution.debs}

    @property
    def _release(self) -> str:
        release_package = self._debs.get(RELEASE_PACKAGE)
        return release_package.version.split("+")[0].split(".")[0] if release_package else ""

    def system_components(self) -> Iterator[Component]:
        """Yield the Debian release, which scanners need to match packages."""
        if self._debs:
            yield Component(
                id="system", kind=ComponentKind.SYSTEM, name="debian", version=self._release
            )

    def base(self) -> Iterator[Component]:
        manifest = self._resolution.base_manifest
        if manifest is None:
            return
        place = self._lock.base.image.partition("@")[0]
        head, slash, last = place.rpartition("/")
        name = last.partition(":")[0]
        yield Component(
            id="base",
            kind=ComponentKind.BASE,
            name=f"{head}{slash}{name}",
            version=manifest,
            sha256=manifest.removeprefix("sha256:"),
            purl=purl.oci_purl(
                name, manifest, arch=self._arch.oci, place=f"{head}{slash}{name}" if head else ""
            ),
        )

    def interpreter_components(self) -> Iterator[Component]:
        archive = self._resolution.python
        if archive:
            url = (self._lock.base.standalone or {}).get(self._arch, "")
            yield Component(
                id=f"interpreter/{CPYTHON}",
                kind=ComponentKind.INTERPRETER,
                name=CPYTHON,
                version=archive.version,
                file=archive.file,
                sha256=archive.sha256,
                purl=purl.generic_purl(CPYTHON, archive.version, url=url, sha256=archive.sha256),
                cpe=_cpython_cpe(archive.version),
                licence=Licence(CPYTHON_LICENCE),
                layer=self._layers_by_input.get(archive.sha256),
            )

    def deb_components(self) -> Iterator[Component]:
        for deb in self._resolution.debs:
            record = self._record(deb)
            source = record.source or deb.package
            version = record.source_version or deb.version
            yield Component(
                id=f"deb/{deb.package}",
                kind=ComponentKind.DEB,
                name=deb.package,
                version=deb.version,
                file=deb.file.rpartition("/")[2],
                sha256=deb.sha256,
                purl=purl.deb_purl(
                    deb.package,
                    deb.version,
                    deb.arch,
                    release=self._release,
                    source=f"{source}@{version}" if record.source else "",
                ),
                licence=self._licence(deb),
                source=f"{source} {version}" if record.file else "",
                layer=self._layers_by_input.get(deb.sha256),
            )

    def wheels(self) -> Iterator[Component]:
        for wheel in self._installed:
            yield self._wheel(f"wheel/{wheel.package}", ComponentKind.WHEEL, wheel)

    def build_inputs(self) -> Iterator[Component]:
        components = {}
        for built in self._resolution.built:
            components[built.sdist.sha256] = Component(
                id=f"sdist/{built.package}",
                kind=ComponentKind.SDIST,
                name=built.package,
                version=built.version,
                file=built.sdist.file,
                sha256=built.sdist.sha256,
                purl=purl.pypi_purl(built.package, built.version, built.sdist.file),
                index=built.index if built.index != self._default else "",
                source=self._addresses.get(built.package, ""),
            )
            for wheel in built.requires:
                components[wheel.sha256] = self._wheel(
                    f"tool/{wheel.file}", ComponentKind.TOOL, wheel
                )
        yield from components.values()

    def dependency_edges(self) -> dict[str, tuple[str, ...]]:
        base = self._lock.base
        tags = WheelTags(python=base.python, glibc=base.glibc, arch=self._arch)
        wheels = needs.wheel_dependencies(
            {wheel.package: self._record(wheel) for wheel in self._installed},
            tags.markers,
        )
        debs = needs.deb_dependencies(
            {deb.package: self._record(deb) for deb in self._resolution.debs}
        )
        wheel_edges = {
            f"wheel/{package}": _ids("wheel", others) for package, others in wheels.items()
        }
        return wheel_edges | {
            f"deb/{package}": _ids("deb", others) for package, others in debs.items()
        }

    def root_components(
        self, inside: list[str], edges: Mapping[str, tuple[str, ...]]
    ) -> tuple[str, ...]:
        """Return the requested packages and the packages without dependents."""
        lock = self._lock
        added = lock.extends.packages if lock.extends else ()
        packages = (*lock.base.packages, *(lock.base.tools or ()), *added)
        requested = {*_ids("wheel", lock.requirements), *_ids("deb", packages)}
        needed = {other for others in edges.values() for other in others}
        return tuple(sorted(part for part in inside if part in requested or part not in needed))

    def _wheel(self, name: str, kind: ComponentKind, wheel: Wheel) -> Component:
        return Component(
            id=name,
            kind=kind,
            name=wheel.package,
            version=wheel.version,
            file=wheel.file,
            sha256=wheel.sha256,
            purl=purl.pypi_purl(wheel.package, wheel.version, wheel.file),
            licence=self._licence(wheel),
            index=wheel.index if wheel.index != self._default else "",
            source=self._addresses.get(wheel.package, "") if kind is ComponentKind.WHEEL else "",
            layer=self._layers_by_input.get(wheel.sha256) if kind is ComponentKind.WHEEL else None,
        )

    def _record(self, item: Wheel | Deb) -> Package:
        return self._known.get(item.sha256, Package(file=""))

    def _licence(self, item: Wheel | Deb) -> Licence:
        record = self._record(item)
        for _ in range(REQUIREMENT_DEPTH):
            other = self._debs.get(record.copyright_package)
            if other is None:
                break
            record = self._record(other)
        return Licence(record.licence, record.license_text)


def _ids(kind: str, names: tuple[str, ...] | Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{kind}/{name}" for name in names)


def _tools(built: BuiltWheel) -> tuple[str, ...]:
    return tuple(sorted(f"tool/{wheel.file}" for wheel in built.requires))
