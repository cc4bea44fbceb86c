"""Computes `data.js`, the data of the site's forms.

The GPUs of an image, the order of images, and other results of imgbuild's rules are computed here.
The browser only compares versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from imgbuild.audit.binaries import gpus
from imgbuild.audit.checks import rules
from imgbuild.doctor.host import Host, HostGpu
from imgbuild.doctor.targets import (
    TargetNeeds,
    diagnose_host,
    is_compiled,
    is_special,
    judge_target,
    restriction_text,
    target_needs,
)
from imgbuild.plan.image_digests import LayerDigests
from imgbuild.project import conda_packages, installers
from imgbuild.project.images import PACKAGES, PARTS, PLAIN_IMAGES, TARGET_PARTS
from imgbuild.report import Floors
from imgbuild.resolve import choose, source_only
from imgbuild.resolve.source_only import WheelNeeds
from imgbuild.site import gpu_names
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.grid import gpu_results
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.site.scripts import packed_script
from imgbuild.values import Arch, Bytes, Digest, normalize_package

DATA_FORMAT = 1
FILE = "data.js"
VARIABLE = "imgbuildData"
FULL_DRIVER = '"full driver"'  # the label in machine.js
# What packages compile at first use with nvcc, of which wheels exist from CUDA 13 on (matrix.yaml).
COMPILED_PACKAGES = {
    "deepspeed": "published only as source, and built without its operators (FusedAdam, offload),"
    " which compile at first use with nvcc; this image has none (images of CUDA 13 can have it)"
}
COMPARED_FILE = "compared.js"
COMPARED_VARIABLE = "imgbuildCompared"


def data_scripts(sources: SiteSources, catalogue: SiteCatalogue) -> dict[str, bytes]:
    """Return the scripts `data.js` and `compared.js`, which assign data to variables."""
    data = browser_data(sources, catalogue)
    compared = compared_data(catalogue, data["images"])
    return {
        FILE: packed_script(VARIABLE, data),
        COMPARED_FILE: packed_script(COMPARED_VARIABLE, compared),
    }


def browser_data(sources: SiteSources, catalogue: SiteCatalogue) -> dict[str, Any]:
    """The data of targets, images (in the order of doctor), GPUs, drivers, versions and reasons.

    Shared texts are referenced by index: `requires` contains indexes into `lines`. `restriction` is
    the remark for drivers between `driver` and `driverFull`, with {} in place of the driver.
    """
    locked = _locked_targets(catalogue)
    numbers = {target.name: number for number, target in enumerate(locked)}
    images = _images(sources, locked, numbers)
    wheels = [*dict.fromkeys(image["wheel"] for image in images)]
    images = [image | {"wheel": wheels.index(image["wheel"])} for image in images]
    return {
        "format": DATA_FORMAT,
        "registry": catalogue.registry,
        "targets": [_target(target) for target in locked],
        "images": images,
        "wheels": wheels,
        "restriction": restriction_text("{}", FULL_DRIVER),
        "gpus": gpu_names.gpu_name_table(),
        "capabilities": gpu_names.known_capabilities(),
        "branches": whole_branches(),
        "releases": [
            {"cuda": release.cuda, "driver": gpus.load_drivers().oldest_driver(release.cuda)}
            for release in gpus.load_drivers().releases
        ],
        **_package_versions(locked, images),
        **_requirement_data(catalogue),
        "compiled": COMPILED_PACKAGES,
        "forms": _file_forms(),
        "sources": {name: source_only.absence_text(name) for name in source_only.PROJECTS},
        "unlocked": [_unlocked_target(target) for target in catalogue.targets if not target.lock],
        "constraints": [
            {
                "package": entry.package,
                "versions": entry.versions,
                "needs": entry.needs,
                "missing": entry.missing,
                "text": str(entry),
            }
            for entry in sources.learned
            if not entry.unused
        ],
        "rules": [
            {
                "package": rule.package,
                "versions": rule.versions,
                "other": rule.other,
                "clash": rule.clash,
                "why": " ".join(rule.why.split()),
                "cure": " ".join(rule.cure.split()),
            }
            for rule in rules.load_rules()
            if rule.other
        ],
        "refusals": [
            {"what": item.what, "reason": item.reason, "target": item.target}
            for item in catalogue.refusals
            if item.source == "refused update"
        ],
        "notes": [
            msgspec.to_builtins(note)
            for note in catalogue.notes
            if note.stated or len(note.packages) > 1
        ],
    }


def _locked_targets(catalogue: SiteCatalogue) -> list[SiteTarget]:
    return [target for target in catalogue.targets if target.lock and target.digests]


def _requirement_data(catalogue: SiteCatalogue) -> dict[str, Any]:
    numbers: dict[str, int] = {}
    requires = {
        package: {
            version: [numbers.setdefault(line, len(numbers)) for line in lines]
            for version, lines in versions.items()
        }
        for package, versions in catalogue.requires.items()
    }
    costs = {"weights": choose.WEIGHTS, "engines": choose.ENGINES}
    return {"lines": [*numbers], "requires": requires, **costs}


def _file_forms() -> dict[str, Any]:
    """Return what `declared.js` must know to read Dockerfiles and Conda environments."""
    table = conda_packages.load_conda_table()
    valued = installers.OPTIONS_WITH_VALUE | installers.INDEX | installers.CHOICES
    omitted = {*table.debian, *table.absent, *table.libraries, *conda_packages.INSTALLERS}
    return {
        "images": PACKAGES,
        "parts": PARTS,
        "own": {name: name for name in TARGET_PARTS},
        "plain": sorted(PLAIN_IMAGES),
        "options": sorted(valued),
        "renamed": table.renamed | {name: name for name in sorted(table.not_libraries)},
        "cuda": sorted(table.cuda),
        "omitted": sorted(omitted),
        "prefixes": table.library_prefixes,
    }


def _unlocked_target(target: SiteTarget) -> dict[str, Any]:
    """Return a row of the matrix without a lock and an image."""
    row = target.row
    return {
        "name": target.name,
        "cuda": row.cuda,
        "python": row.python,
        "arches": row.arch,
        "pins": row.pins,
        "needs": "; ".join(target.needs),
    }


def compared_data(catalogue: SiteCatalogue, images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data for the comparison of two images, in addition to `data.js`.

    `debian` maps packages and versions to the number of a set. `sets` contains the lists in each
    set. `lists` contains the list of each image, or -1 for none. `layers` contains the names and
    sizes of layers, which are numbered in this order. `stacks` contains the layer numbers of each
    image. `same` maps a layer to the first layer with the same digest, if the names differ.
    """
    locked = _locked_targets(catalogue)
    pages = [(each, arch) for each in catalogue.debian for arch in Arch]
    users = {
        user: number
        for number, (each, arch) in enumerate(pages)
        for user in each.users
        if user[1] == arch
    }
    having: dict[str, dict[str, list[int]]] = {}
    for number, (each, arch) in enumerate(pages):
        for name, version, only in each.packages if number in users.values() else ():
            if only in ("", arch):
                having.setdefault(name, {}).setdefault(version, []).append(number)
    debian, sets = _number_sets(having)
    stacks = [_stack(locked[image["target"]], image["arch"]) for image in images]
    by_name: dict[str, dict[Digest, Bytes]] = {}
    for stack in stacks:
        for layer in stack:
            by_name.setdefault(layer.name, {})[layer.digest] = layer.size
    numbered = [(name, digest) for name, layers in by_name.items() for digest in layers]
    numbers = {named: number for number, named in enumerate(numbered)}
    first: dict[Digest, int] = {}
    for number, (_, digest) in enumerate(numbered):
        first.setdefault(digest, number)
    return {
        "debian": debian,
        "sets": sets,
        "lists": [users.get((locked[each["target"]].name, each["arch"]), -1) for each in images],
        "layers": [(name, *layers.values()) for name, layers in by_name.items()],
        "stacks": [[numbers[layer.name, layer.digest] for layer in stack] for stack in stacks],
        "same": {
            number: first[digest]
            for number, (_, digest) in enumerate(numbered)
            if first[digest] != number
        },
    }


def _stack(target: SiteTarget, arch: Arch) -> tuple[LayerDigests, ...]:
    return tuple(target.digests.arch[arch].layers) if target.digests else ()


def _number_sets(
    having: Mapping[str, Mapping[str, Sequence[int]]],
) -> tuple[dict[str, dict[str, int]], list[tuple[int, ...]]]:
    """Number the sets. Returns the set number by package and version, and the sets.

    A set is a list of ranges: first number, last number, next first number, and so on.
    """
    numbers: dict[tuple[int, ...], int] = {}
    versions = {
        name: {
            version: numbers.setdefault(_ranges(every), len(numbers))
            for version, every in having[name].items()
        }
        for name in sorted(having)
    }
    return versions, [*numbers]


def _ranges(numbers: Sequence[int]) -> tuple[int, ...]:
    firsts = [each for each in numbers if each - 1 not in numbers]
    lasts = [each for each in numbers if each + 1 not in numbers]
    return tuple(itertools.chain.from_iterable(zip(firsts, lasts, strict=True)))


def _target(target: SiteTarget) -> dict[str, Any]:
    row = target.row
    return {
        "name": target.name,
        "cuda": row.cuda,
        "python": row.python,
        "base": row.base,
        "recommended": row.recommended,
        "special": target.lock is not None and is_special(target.lock),
        "retired": bool(row.retired),
        "pins": [f"{name} {version}" for name, version in row.pins.items()],
        "incompatible": target.incompatible,
        "digest": target.digests.digest if target.digests else "",
    }


def _images(
    sources: SiteSources, locked: Sequence[SiteTarget], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the image of each target and architecture, in the order of doctor."""
    offers = [
        target_needs(sources.project.images, target.lock)
        for target in locked
        if target.lock is not None
    ]
    order = [verdict.target for verdict in diagnose_host(Host(arch=None), offers).verdicts]
    by_name = {target_needs.target: target_needs for target_needs in offers}
    images = []
    for name in order:
        shown = {image.arch: image for image in locked[numbers[name]].page.images}
        for arch in by_name[name].floors:
            image = shown[arch]
            results = gpu_results(image.runs)
            tests = {"tested": [*results.passed], "failed": [*results.failed]}
            data = image_data(by_name[name], arch, numbers[name], image.size)
            wheel = wheel_name_part(locked[numbers[name]], arch)
            images.append(data | tests | {"unpacked": image.unpacked, "wheel": wheel})
    return images


def wheel_name_part(target: SiteTarget, arch: Arch) -> str:
    """Return what the file names of compiled wheels for an image contain, or "" without torch."""
    torch = target.lock.arch[arch].versions.get("torch") if target.lock else None
    if not torch:
        return ""
    row = target.row
    needs = WheelNeeds(python=row.python, cuda=row.cuda, torch=torch, machine=arch.wheel)
    name = needs.file_name("flash-attn", "99") or ""  # later than all special cases
    return name.partition("+")[2].removesuffix(".whl")


def image_data(target_needs: TargetNeeds, arch: Arch, number: int, size: Bytes) -> dict[str, Any]:
    """Return the image of target `number` on `arch`. `gpus` is None if they are unknown."""
    floors = target_needs.floors[arch]
    known = bool(floors.gpu or floors.gpu_ptx)
    able, later = _accepted_capabilities(target_needs, arch) if known else ([], [])
    return {
        "target": number,
        "arch": arch,
        "cuda": floors.cuda,
        "driver": floors.driver,
        "driverFull": floors.driver_full,
        "gpus": able if known else None,
        "later": later,
        "size": size,
    }


def _accepted_capabilities(target_needs: TargetNeeds, arch: Arch) -> tuple[list[str], list[str]]:
    """The capabilities that doctor accepts for an image, and capabilities with only PTX kernels."""
    able, later = [], []
    for capability in gpu_names.known_capabilities():
        gpu = HostGpu(name="GPU", capability=capability)
        if judge_target(Host(arch=arch, gpus=(gpu,)), target_needs).fits:
            able.append(capability)
            if is_compiled(target_needs.floors[arch], gpu):
                later.append(capability)
    return able, later


def whole_branches() -> bool:
    """Whether doctor treats a driver branch ("580") as the newest release of this branch."""
    floors = Floors(cuda="13.0", driver="580.65.06")
    target_needs = TargetNeeds(target="", cuda="13.0", as_of="", floors={Arch.X86_64: floors})
    return judge_target(Host(arch=Arch.X86_64, driver="580"), target_needs).fits


def _package_versions(
    locked: Sequence[SiteTarget], images: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the number of a set by package and version, and the images in each set."""
    having: dict[str, dict[str, list[int]]] = {}
    for number, image in enumerate(images):
        lock = locked[image["target"]].lock
        resolution = lock.arch[image["arch"]].versions if lock else {}
        for name, version in resolution.items():
            having.setdefault(normalize_package(name), {}).setdefault(version, []).append(number)
    versions, sets = _number_sets(having)
    return {"versions": versions, "sets": sets}
