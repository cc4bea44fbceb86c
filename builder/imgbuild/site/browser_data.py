"""The data that answers questions in the browser, `data.js`.

What depends on a rule is computed here with the rule's own code: which GPUs an image runs on, the
order of images, the architecture of a machine by its GPU. The browser compares versions alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from imgbuild.audit.binaries import gpus
from imgbuild.audit.checks import rules
from imgbuild.doctor.host import Host, HostGpu
from imgbuild.doctor.targets import TargetNeeds, diagnose, driver_text, judge, offer
from imgbuild.report import Floors
from imgbuild.site import gpu_names
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.values import Arch, Bytes, normalize

DATA_FORMAT = 1
FILE = "data.js"
VARIABLE = "imgbuildData"


def script(sources: SiteSources, catalogue: SiteCatalogue) -> bytes:
    """The file `data.js`, which assigns the data to a variable: pages need no server to read it."""
    text = json.dumps(browser_data(sources, catalogue), separators=(",", ":"))  # ASCII alone
    return f"var {VARIABLE} = {text};\n".encode()


def browser_data(sources: SiteSources, catalogue: SiteCatalogue) -> dict[str, Any]:
    """The data: targets, images in doctor's order, GPUs, drivers, versions, reasons."""
    locked = [target for target in catalogue.targets if target.lock and target.digests]
    numbers = {target.name: number for number, target in enumerate(locked)}
    images = _images(sources, locked, numbers)
    return {
        "format": DATA_FORMAT,
        "targets": [_target(target, catalogue.registry) for target in locked],
        "images": images,
        "gpus": gpu_names.table(),
        "capabilities": gpu_names.capabilities(),
        "branches": whole_branches(),
        "releases": [
            {"cuda": release.cuda, "driver": gpus.load().oldest(release.cuda)}
            for release in gpus.load().releases
        ],
        "versions": _package_versions(locked, images),
        "requires": catalogue.requires,
        "constraints": [
            {
                "package": entry.package,
                "versions": entry.versions,
                "needs": entry.needs,
                "missing": entry.missing,
                "text": str(entry),
            }
            for entry in sources.learned
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
            for rule in rules.load()
            if rule.other
        ],
        "refusals": [
            {"what": item.what, "reason": item.reason, "target": item.target}
            for item in catalogue.refusals
            if item.source == "refused update"
        ],
    }


def _target(target: SiteTarget, registry: str) -> dict[str, Any]:
    row = target.row
    digest = target.digests.digest if target.digests else ""
    return {
        "name": target.name,
        "summary": row.summary,
        "cuda": row.cuda,
        "python": row.python,
        "asOf": row.as_of,
        "recommended": row.recommended,
        "retired": bool(row.retired),
        "pins": [f"{name} {version}" for name, version in row.pins.items()],
        "pull": f"{registry}@{digest}" if registry and digest else "",
    }


def _images(
    sources: SiteSources, locked: Sequence[SiteTarget], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The image of each target and architecture, in the order in which doctor prefers targets."""
    offers = [
        offer(sources.project.images, target.lock) for target in locked if target.lock is not None
    ]
    order = [verdict.target for verdict in diagnose(Host(arch=None), offers).verdicts]
    by_name = {target_needs.target: target_needs for target_needs in offers}
    images = []
    for name in order:
        sizes = {image.arch: image.size for image in locked[numbers[name]].page.images}
        images += [
            image_data(by_name[name], arch, numbers[name], sizes.get(arch, 0))
            for arch in by_name[name].floors
        ]
    return images


def image_data(target_needs: TargetNeeds, arch: Arch, number: int, size: Bytes) -> dict[str, Any]:
    """The image of target `number` on `arch`. `gpus` is None if nothing is known of them.

    `olderDriver` is the remark on drivers between `driver` and `driverFull`, with {} for theirs.
    """
    floors = target_needs.floors[arch]
    known = bool(floors.gpu or floors.gpu_ptx)
    able, later = _able(target_needs, arch) if known else ([], [])
    return {
        "target": number,
        "arch": arch,
        "cuda": floors.cuda,
        "driver": floors.driver,
        "driverFull": floors.driver_full,
        "olderDriver": driver_text("{}", floors),
        "gpus": able if known else None,
        "later": later,
        "size": size,
    }


def _able(target_needs: TargetNeeds, arch: Arch) -> tuple[list[str], list[str]]:
    """The capabilities that doctor accepts for an image, and those with a remark on compiling."""
    able, later = [], []
    for capability in gpu_names.capabilities():
        gpu = HostGpu(name="GPU", capability=capability)
        verdict = judge(Host(arch=arch, gpus=(gpu,)), target_needs)
        if verdict.fits:
            able.append(capability)
            if verdict.remarks:
                later.append(capability)
    return able, later


def whole_branches() -> bool:
    """Whether doctor counts a driver without its last numbers ("580") as the newest of these."""
    floors = Floors(cuda="13.0", driver="580.65.06")
    target_needs = TargetNeeds(target="", cuda="13.0", as_of="", floors={Arch.X86_64: floors})
    return judge(Host(arch=Arch.X86_64, driver="580"), target_needs).fits


def _package_versions(
    locked: Sequence[SiteTarget], images: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, list[int]]]:
    """Package → version → numbers of the images that have it."""
    versions: dict[str, dict[str, list[int]]] = {}
    for number, image in enumerate(images):
        lock = locked[image["target"]].lock
        resolution = lock.arch[image["arch"]].versions if lock else {}
        for name, version in resolution.items():
            versions.setdefault(normalize(name), {}).setdefault(version, []).append(number)
    return {name: versions[name] for name in sorted(versions)}
