"""Determines which targets this machine can run, and gives reasons and remarks.

Without a GPU or a driver, only the other requirements are checked, and `best` is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.audit.binaries import gpu_models, gpus
from imgbuild.audit.source.facts import GpuCode
from imgbuild.doctor.host import Host, HostGpu
from imgbuild.lock.lock_file import Lock
from imgbuild.plan.image_digests import digests_path
from imgbuild.report import Floors
from imgbuild.values import Arch

MINIMUM_SHARED_MEMORY = (
    1 << 30
)  # bytes of /dev/shm; NCCL and data loaders need more than Docker's 64 MB
COMPATIBILITY = "by minor version compatibility"
SPECIAL_PACKAGES = frozenset({"sglang", "verl", "unsloth", "deepspeed"})


class TargetNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and the requirements of its image on each architecture.

    `retired` is the reason why another target replaces this target, or "". `recommended` is set in
    the matrix. `special` is set if the target has a framework in `SPECIAL_PACKAGES`.
    """

    target: str
    cuda: str
    as_of: str
    floors: dict[Arch, Floors]
    retired: str = ""
    recommended: bool = False
    special: bool = False


class TargetFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a target can run, with `reasons` if it cannot, and `remarks` if it can.

    `complete` is set if the target can run and the driver fully supports the CUDA release.
    `limited` is set if some kernels for the GPUs exist only as PTX, and the driver may be too old
    to compile them. If the machine's driver has restrictions, `unrestricted` is the oldest driver
    without restrictions. `retired`, `recommended` and `special` are the same as in `TargetNeeds`.
    """

    target: str
    fits: bool
    complete: bool = False
    limited: bool = False
    unrestricted: str = ""
    retired: str = ""
    recommended: bool = False
    special: bool = False
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class HostDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, the results for targets, and remarks.

    `best` is the first target that can run, preferably not retired. It is "" if no target can run,
    or if no GPU and driver were found.
    """

    host: Host
    verdicts: tuple[TargetFit, ...]
    best: str = ""
    remarks: tuple[str, ...] = ()


class _ImageDigests(msgspec.Struct, frozen=True):
    floors: Floors | None = None


class _TargetDigests(msgspec.Struct, frozen=True):
    arch: dict[Arch, _ImageDigests]


def target_needs(
    images: Path, lock: Lock, retired: str = "", *, recommended: bool = False
) -> TargetNeeds:
    """Return the requirements of the image of `lock`.

    If the digests do not contain requirements, they are based on the CUDA release.
    """
    path = digests_path(images, lock.target)
    target_digests = (
        codec.read_document(path, _TargetDigests, what="digests").arch if path.exists() else {}
    )
    assumed = _assumed_floors(lock.cuda, lock.gpu)
    return TargetNeeds(
        target=lock.target,
        cuda=lock.cuda,
        as_of=lock.as_of,
        floors={
            arch: (target_digests[arch].floors if arch in target_digests else None) or assumed
            for arch in lock.arch
        },
        retired=retired,
        recommended=recommended,
        special=is_special(lock),
    )


def is_special(lock: Lock) -> bool:
    """Return whether the target has a framework in `SPECIAL_PACKAGES`."""
    return any(not SPECIAL_PACKAGES.isdisjoint(each.versions) for each in lock.arch.values())


def planned_needs(
    target: str, cuda: str, arches: Iterable[Arch], gpu: Sequence[str]
) -> TargetNeeds:
    """Return the expected requirements of a row without a lock.

    They are based on the row's CUDA release and GPUs.
    """
    assumed = _assumed_floors(cuda, gpu)
    return TargetNeeds(target=target, cuda=cuda, as_of="", floors=dict.fromkeys(arches, assumed))


def _assumed_floors(cuda: str, stated: Sequence[str]) -> Floors:
    data = gpus.load_drivers()
    later = [entry.capability for entry in data.gpus if _has_code_for(stated, entry.capability)]
    return Floors(
        cuda=cuda,
        driver=data.oldest_driver(cuda),
        driver_full=data.release_driver(cuda),
        gpu=tuple(dict.fromkeys((*stated, *later))),
    )


def diagnose_host(host: Host, offers: Iterable[TargetNeeds]) -> HostDiagnosis:
    """Compare `host` with `offers`. Complete targets are first, and unsuitable targets last.

    In each group, recommended targets are first and retired targets last. Targets without a
    framework in `SPECIAL_PACKAGES` precede the others. Otherwise, targets with the newest CUDA
    release and the latest date are first.
    """
    ordered = sorted(
        offers,
        key=lambda target_needs: (
            gpus.version_numbers(target_needs.cuda),
            target_needs.as_of,
            target_needs.target,
        ),
        reverse=True,
    )
    verdicts = sorted(
        (judge_target(host, target_needs) for target_needs in ordered),
        key=lambda fit: (
            not fit.fits,
            not fit.complete,
            fit.limited,
            fit.retired != "",
            not fit.recommended,
            fit.recommended and fit.special,
        ),
    )
    fitting = sorted((fit for fit in verdicts if fit.fits), key=lambda fit: fit.retired != "")
    return HostDiagnosis(
        host=host,
        verdicts=tuple(verdicts),
        best=fitting[0].target if fitting and is_comparable(host) else "",
        remarks=tuple(_remarks(host)),
    )


def is_comparable(host: Host) -> bool:
    """Return whether GPUs and driver are known, so that targets can be compared."""
    return host.described or bool(host.gpus and host.driver)


def limit_diagnosis(diagnosis: HostDiagnosis, targets: Collection[str]) -> HostDiagnosis:
    """Restrict the results to `targets`. The best target does not change."""
    selected = tuple(verdict for verdict in diagnosis.verdicts if verdict.target in targets)
    return msgspec.structs.replace(diagnosis, verdicts=selected)


def judge_target(host: Host, offered: TargetNeeds) -> TargetFit:
    """Return whether the target of `offered` can run on `host`, and why."""
    floors = offered.floors.get(host.arch) if host.arch is not None else None
    if floors is None:
        have = " and ".join(sorted(offered.floors))
        reason = (
            f"the image is for {have}, but {host.host_phrase} is {host.arch or 'of another kind'}"
        )
        return TargetFit(
            target=offered.target,
            fits=False,
            retired=offered.retired,
            recommended=offered.recommended,
            special=offered.special,
            reasons=(reason,),
        )
    reasons = [*_driver_reasons(host, floors), *_gpu_reasons(host.gpus, floors)]
    remarks = [
        *_driver_remarks(host, floors),
        *_gpu_remarks(host, floors),
        *_glibc_remarks(host, floors),
    ]
    known = bool(host.driver and floors.driver_full)
    complete = not reasons and known and not gpus.is_older(host.driver, floors.driver_full)
    return TargetFit(
        target=offered.target,
        fits=not reasons,
        complete=complete,
        limited=not reasons
        and any(map(functools.partial(_may_not_compile, host, floors), host.gpus)),
        unrestricted=floors.driver_full if known and not reasons and not complete else "",
        retired=offered.retired,
        recommended=offered.recommended,
        special=offered.special,
        reasons=tuple(reasons),
        remarks=tuple(remarks) if not reasons else (),
    )


def _driver_reasons(host: Host, floors: Floors) -> Iterable[str]:
    if gpus.is_older(host.driver, floors.driver):
        newest = gpus.load_drivers().newest_release(host.driver)
        up_to = f", which runs CUDA {newest} and older" if newest else ""
        yield (
            f"CUDA {floors.cuda} requires driver {floors.driver} or newer, but {host.host_phrase}"
            " has"
            f" {host.driver}{up_to}"
        )


def _driver_remarks(host: Host, floors: Floors) -> Iterable[str]:
    if not host.driver and floors.driver:
        yield f"requires driver {floors.driver} or newer"
    branch, floor = gpus.version_numbers(host.driver), gpus.version_numbers(floors.driver)
    if len(branch) == 1 and branch == floor[:1] and floor[1:] > (0,):
        yield f"requires release {floors.driver} or newer of driver branch {host.driver}"
    if gpus.is_older(host.driver, floors.driver_full) and not gpus.is_older(
        host.driver, floors.driver
    ):
        yield driver_text(host.driver, floors)


def driver_text(driver: str, floors: Floors) -> str:
    """Return a remark on a `driver` that can run an image, but not all features of the image.

    If a library contains PTX of a newer CUDA release and no machine code for some GPUs,
    `floors.driver_full` is newer than the driver of the image's CUDA release.
    """
    own, full = gpus.load_drivers().release_driver(floors.cuda), floors.driver_full
    runs = (
        f"runs on driver {driver} {COMPATIBILITY}, from {floors.driver} on, with one"
        " restriction: code that relies on the driver to compile PTX, or that calls functions"
        f" added in CUDA {floors.cuda}, fails"
    )
    if own in ("", full):
        return f"{runs}; {full} or newer has no restriction"
    return f"{runs}; {own} or newer has all functions, and {full} or newer compiles all PTX"


def restriction_text(driver: str, place: str) -> str:
    """Return a remark like `driver_text` that is the same for all images.

    `place` is where the oldest driver without the restriction is shown.
    """
    return (
        f"runs on driver {driver} {COMPATIBILITY}, with one restriction: code that"
        " relies on the driver to compile PTX, or that calls functions added in a newer"
        f" CUDA 12 release than the driver's, fails; {place} shows the"
        " oldest driver without this restriction"
    )


def shared_remarks(host: Host, fit: TargetFit, place: str) -> tuple[str, ...]:
    """Return the remarks on a target, with `restriction_text` instead of `driver_text`."""
    return tuple(
        restriction_text(host.driver, place)
        if fit.unrestricted and COMPATIBILITY in remark
        else remark
        for remark in fit.remarks
    )


def _gpu_reasons(here: Sequence[HostGpu], floors: Floors) -> Iterable[str]:
    able = {*floors.gpu, *floors.gpu_ptx}
    if not able:
        return
    for gpu in dict.fromkeys(here):
        if not gpu.capability or has_code(able, gpu.capability):
            continue
        have = ", ".join(sorted(able, key=gpus.version_numbers))
        name = gpu.name if gpu.name == gpu.capability else f"{gpu.name} ({gpu.capability})"
        if _is_tegra(gpu.capability):
            yield (
                f"the image has no code for {name}, because code for servers and desktops "
                f"({have}) does not run on a Tegra"
            )
        elif gpu.capability in _computed_capabilities():
            yield f"the image has no code for {name}, only for {have}"
        else:
            yield f"no code for {name} is known, only for {have}"


def _computed_capabilities() -> set[str]:
    return {entry.capability for entry in gpus.load_drivers().gpus}


def _is_tegra(capability: str) -> bool:
    model = gpu_models.find_gpu_model(capability)
    return model is not None and model.tegra


def has_code(able: Collection[str], capability: str) -> bool:
    """Return whether code for the capabilities `able` runs on a GPU with `capability`.

    Code runs on newer capabilities with the same major version, but a Tegra GPU runs only code for
    its exact capability. A known capability runs only if it is in `able`, because code with the
    suffix "a" runs on only one capability.
    """
    if capability in able:
        return True
    return (
        capability not in _computed_capabilities()
        and not _is_tegra(capability)
        and _has_code_for(able, capability)
    )


def _has_code_for(able: Iterable[str], capability: str) -> bool:
    codes = [GpuCode(f"sm_{name.replace('.', '')}") for name in able]
    return any(gpus.can_run(code, capability) for code in codes)


def _gpu_remarks(host: Host, floors: Floors) -> Iterable[str]:
    for gpu in dict.fromkeys(host.gpus):
        if _may_not_compile(host, floors, gpu):
            yield (
                f"some kernels for {gpu.name} are PTX only, which driver {host.driver} may be too "
                f"old to compile; {floors.driver_full} or newer can compile them"
            )
        elif is_compiled(floors, gpu):
            yield f"the driver compiles some kernels for {gpu.name} at first use"


def _may_not_compile(host: Host, floors: Floors, gpu: HostGpu) -> bool:
    return is_compiled(floors, gpu) and gpus.is_older(host.driver, floors.driver_full)


def is_compiled(floors: Floors, gpu: HostGpu) -> bool:
    """Return whether some kernels for the GPU exist only as PTX."""
    return gpu.capability in floors.gpu_ptx or (
        bool(gpu.capability)
        and not _has_code_for(floors.gpu, gpu.capability)
        and _has_code_for(floors.gpu_ptx, gpu.capability)
    )


def _glibc_remarks(host: Host, floors: Floors) -> Iterable[str]:
    if gpus.is_older(host.glibc, floors.glibc):
        yield (
            f"without a container (requirements-{host.arch}.txt), the wheels require glibc "
            f"{floors.glibc} or newer; {host.host_phrase} has {host.glibc}"
        )


def _remarks(host: Host) -> Iterable[str]:
    if host.described:
        absent = [
            name for name, given in (("driver", host.driver), ("GPU", host.gpus)) if not given
        ]
        if absent:
            yield f"no {' or '.join(absent)} is specified, so targets are not compared with it"
        return
    if not host.gpus:
        driver = f", though driver {host.driver} is loaded" if host.driver else ""
        checked = "architecture and driver are" if host.driver else "the architecture is"
        yield f"no GPU was found{driver}; only {checked} checked"
    if not host.engines:
        yield "no docker, podman or apptainer is running; `imgbuild run` uses a root folder"
    for container_engine in host.engines:
        if host.gpus and not container_engine.gpus:
            cure = _cure(container_engine.name)
            name = f"{container_engine.name} {container_engine.version}"
            yield f"{name} cannot provide GPUs to containers; {cure}"
    if not host.igzip and any(
        container_engine.name == "docker" for container_engine in host.engines
    ):
        yield "igzip is not installed; to load images faster in Docker, run: apt-get install isal"
    if host.shared_memory < MINIMUM_SHARED_MEMORY:
        size = host.shared_memory >> 20
        yield (
            f"{size} MB of shared memory; increase it for containers with --shm-size 16g or --ipc"
            " host"
        )


def _cure(name: str) -> str:
    if name == "docker":
        return "install nvidia-container-toolkit and run: nvidia-ctk runtime configure"
    return "install nvidia-container-toolkit and run: nvidia-ctk cdi generate"
