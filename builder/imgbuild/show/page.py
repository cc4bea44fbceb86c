"""Collects and formats the information of `imgbuild show TARGET`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from imgbuild.audit.binaries import gpu_models
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.plan.image_digests import ImageDigests, TargetDigests
from imgbuild.plan.plan import create_plan
from imgbuild.show.table import TableRow
from imgbuild.smoke.records import RecordedRun, other_digests, run_summary
from imgbuild.system.amounts import format_count, size_text, wrap_paragraph
from imgbuild.values import Arch, Bytes, Digest

WIDTH = 80
INDENT = 2
FLASHINFER = {
    "off": "not used",
    "jit": "kernels compiled at first use",
    "prebuilt": "compiled kernels from a wheel",
}
NO_REGISTRY = "HOST/REPOSITORY"  # in commands, if the matrix has no registry
NO_REGISTRY_NOTE = (
    "No registry is set, so nothing can be pulled: build the image, or push it to a repository of"
    " your own, and set `registry: HOST/REPOSITORY` in matrix.yaml."
)
LARGEST_LAYERS = 4  # shown
GPUS = 8  # of a node, in the examples
LABEL = 14  # columns of a label, the space after it included
# Packages that are named in addition to the pins, where they are locked.
ALSO_SHOWN = (
    "transformers",
    "ray",
    "accelerate",
    "datasets",
    "peft",
    "triton",
    "flash-attn",
    "xformers",
)
# The prefix of a line in a log: process, level, time.
SITE_PACKAGES = re.compile(r"/\S+/site-packages/")
SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")
ORIGIN = re.compile(
    r"(\((\w+ )?pid=\d+\) *)?((DEBUG|INFO|WARNING|ERROR|[DIWE])\b[: ]*)?"
    r"((\d{4}-)?\d\d-\d\d[ T])?(\d\d:\d\d:\d\d([.,]\d+)?:? *)?(\d+ \d+\] *)?"
)


class PageImage(msgspec.Struct, frozen=True, kw_only=True):
    """The image for one architecture.

    `size` is the download size. `unpacked` is the size of the layers on disk, except layers with an
    unknown size. `gpu` lists the compute capabilities that all libraries support. `gpu_ptx` lists
    the compute capabilities for which some libraries contain only PTX. `driver` is the oldest
    supported driver. `runs` lists the latest run of each tier of smoke tests on each kind of GPU.
    `largest` maps the largest layers to their download sizes.
    """

    arch: Arch
    digest: Digest
    size: Bytes
    unpacked: Bytes
    layers: int
    wheels: int
    debs: int
    gpu: tuple[str, ...]
    gpu_ptx: tuple[str, ...]
    driver: str
    glibc: str
    runs: tuple[RecordedRun, ...]
    largest: dict[str, Bytes] = {}


class TargetPage(msgspec.Struct, frozen=True, kw_only=True):
    """A target: the row in the matrix, the digest and images of the lock, and commands to copy.

    Without a lock, `digest` is None and `images` is empty. `security` is the date of the security
    updates in a base of Debian packages, "none" without updates, or "" for other bases. `also` maps
    other packages to locked versions.
    """

    row: TableRow
    security: str
    digest: Digest | None
    images: tuple[PageImage, ...]
    commands: tuple[str, ...]
    also: dict[str, str] = {}


def target_page(
    row: TableRow,
    lock: Lock | None,
    target_digests: TargetDigests | None,
    registry: str | None,
    *,
    writable: bool = True,
) -> TargetPage:
    """Create the page of a target. `lock` and `target_digests` are None without a current lock.

    `writable` is true if the matrix is in a checkout, where the target can be locked.
    """
    runs = {image.arch: image.runs for image in row.images}
    images = []
    if lock is not None and target_digests is not None:
        images = [
            _image(lock, arch, target_digests.arch[arch], runs.get(arch, ()))
            for arch in row.arch
            if arch in target_digests.arch
        ]
    debian = lock is not None and lock.base.kind == "debian"
    dates = (
        {resolution.security for resolution in lock.arch.values() if resolution.security}
        if lock
        else set()
    )
    return TargetPage(
        row=row,
        security=min(dates, default="none" if debian else ""),
        digest=target_digests.digest if target_digests else None,
        images=tuple(images),
        commands=tuple(_commands(row, lock, target_digests, registry, writable=writable)),
        also=_also_shown_versions(row, lock) if lock else {},
    )


def _also_shown_versions(row: TableRow, lock: Lock) -> dict[str, str]:
    """Versions of unpinned packages in ALSO. A package has several if architectures differ."""
    named: dict[str, str] = {}
    for package in ALSO_SHOWN:
        versions = {each.versions.get(package, "") for each in lock.arch.values()} - {""}
        if versions and package not in row.pins:
            named[package] = " or ".join(sorted(versions))
    return named


def _image(
    lock: Lock, arch: Arch, target_digests: ImageDigests, runs: Sequence[RecordedRun]
) -> PageImage:
    locked, floors = lock.arch[arch], target_digests.floors
    names = [layer.name for layer in create_plan(lock, arch).layers]
    sized = zip(names, (layer.size for layer in target_digests.layers), strict=True)
    largest = sorted(sized, key=lambda each: each[1], reverse=True)[:LARGEST_LAYERS]
    return PageImage(
        arch=arch,
        digest=target_digests.manifest,
        size=target_digests.size,
        unpacked=sum(layer.unpacked for layer in target_digests.layers),
        layers=len(target_digests.layers),
        wheels=len(installed_wheels(locked)),
        debs=len(locked.debs),
        gpu=tuple(floors.gpu) if floors else (),
        gpu_ptx=tuple(floors.gpu_ptx) if floors else (),
        driver=(floors.driver or "") if floors else "",
        glibc=(floors.glibc or "") if floors else "",
        runs=tuple(runs),
        largest=dict(largest),
    )


def _commands(
    row: TableRow,
    lock: Lock | None,
    target_digests: TargetDigests | None,
    registry: str | None,
    *,
    writable: bool,
) -> Iterator[str]:
    name = shlex.quote(row.target)
    if lock is None or target_digests is None:
        if writable:
            yield f"imgbuild lock {name}"
        else:
            yield f"imgbuild lock {name}  # in a clone of imgbuild"
            yield f"imgbuild init --lock CLONE --extends {name}  # in a project's folder"
        return
    yield f"imgbuild build {name}"
    yield f"imgbuild load {name}"
    has_torch = all("torch" in locked.versions for locked in lock.arch.values())
    command = "python -c 'import torch'" if has_torch else "python --version"
    yield f"imgbuild run {name} -- {command}"
    yield f"imgbuild render {name} --format compose -- python train.py > compose.yaml"
    yield f"imgbuild build {name} --format sif"
    launch = f"torchrun --standalone --nproc-per-node {GPUS}" if has_torch else "python"
    yield f"imgbuild slurm {name} --gpus {GPUS} -- {launch} train.py > job.sh"
    place = registry or NO_REGISTRY
    if not registry:
        yield f"imgbuild push {name} {place}"
    job = f"imgbuild render {name} --format k8s-job --gpus {GPUS} --registry {place}"
    yield f"{job} -- {launch} train.py > job.yaml"
    if registry:
        yield f"docker pull {place}@{target_digests.digest}"
        yield f"apptainer pull {name}.sif docker://{registry}@{target_digests.digest}"


def page_lines(page: TargetPage) -> Iterator[str]:
    """Yield the page as text with 80 columns. Only commands can be longer."""
    row = page.row
    yield row.target
    yield from _wrap_text(row.summary, INDENT)
    yield ""
    yield from _fields(row, page.security, page.also)
    if page.digest and len(page.images) > 1:
        yield from ("", " and ".join(image.arch for image in page.images), f"  {page.digest}")
    for image in page.images:
        yield ""
        yield from _image_lines(image)
    for arch, reason in row.exclude.items():
        yield ""
        yield from _wrap_text(f"{arch}: not available, {reason}", 0)
    yield ""
    yield "Commands"
    for command in page.commands:
        yield from _command(command)
    if any(NO_REGISTRY in command for command in page.commands):
        yield from _wrap_text(NO_REGISTRY_NOTE, INDENT)
    if page.images:
        name = shlex.quote(row.target)
        parts = "--guide, --tests, --layers, --packages, --history"
        yield ""
        yield from _wrap_text(f"More: imgbuild show {name} {parts}", INDENT, "")


def _command(command: str) -> list[str]:
    """Return a command as lines, after its comment. A long command is continued with a backslash.

    Words in quotes are not broken.
    """
    plain, mark, comment = command.partition("  # ")
    lines = ["  "]
    for word in SHELL_WORD.findall(plain):
        if len(lines[-1]) + len(word) > WIDTH - len(" \\") and lines[-1].strip():
            lines[-1] += "\\"
            lines.append("    ")
        lines[-1] += f"{word} "
    return [*([f"  # {comment}"] if mark else []), *map(str.rstrip, lines)]


def _fields(row: TableRow, security: str, also: Mapping[str, str]) -> Iterator[str]:
    updates = {"": "", "none": ", no security updates"}
    pins = ", ".join(f"{name} {version}" for name, version in row.pins.items())
    fields = {
        "Versions": f"CUDA {row.cuda}, Python {row.python}, {pins}",
        **({"Also": ", ".join(f"{name} {each}" for name, each in also.items())} if also else {}),
        "FlashInfer": FLASHINFER.get(row.flashinfer, row.flashinfer),
        "Base": row.base + updates.get(security, f", security updates of {security}"),
        "As of": row.as_of,
        "State": "; ".join(
            [row.state, *(reason for reason in row.reasons if reason not in row.state)]
        ),
    }
    if row.retired:
        fields["Retired"] = row.retired
    for label, value in fields.items():
        yield from _field(label, value)


def _image_lines(image: PageImage) -> Iterator[str]:
    yield str(image.arch)
    yield f"  {image.digest}"
    yield from _field(
        "Size", f"{size_text(image.size)} to pull, {size_text(image.unpacked)} unpacked"
    )
    largest = (f"{name} {size_text(size)}" for name, size in image.largest.items())
    yield from _field("Largest layers", ", ".join(largest))
    debs = f", {format_count(image.debs, 'Debian package')}" if image.debs else ""
    yield from _field(
        "Contents",
        f"{format_count(image.layers, 'layer')}, {format_count(image.wheels, 'wheel')}{debs}",
    )
    needs = [f"glibc {image.glibc}"] if image.glibc else []
    needs += [f"NVIDIA driver {image.driver}"] if image.driver else []
    if needs:
        yield from _field("Needs at least", ", ".join(needs))
    if gpus := image_gpus(image):
        yield from _field("GPUs", gpus)
    yield from _field("Tested", "; ".join(map(run_summary, image.runs)) or "no test record")
    for text in other_digests(image.runs, image.digest):
        yield from _field("", text)


def image_gpus(image: PageImage) -> str:
    """Return the GPUs that the image supports, or "" if unknown."""
    return gpu_models.gpu_list(image.gpu, image.gpu_ptx, image.arch)


def distinct_notes(notes: Iterable[str]) -> list[str]:
    """Remove process names, times and site-packages from log lines, and then duplicate lines."""
    messages: dict[str, str] = {}
    for note in notes:
        text = SITE_PACKAGES.sub("", ORIGIN.sub("", note, count=1))
        messages.setdefault(re.sub(r"\d+", "0", text), text)
    return list(messages.values())


def _field(label: str, value: str) -> list[str]:
    first = f"  {label}"
    column = INDENT + LABEL + 1
    return _wrap_text(value, column, first.ljust(column))


def _wrap_text(text: str, indent: int, first: str | None = None) -> list[str]:
    space = " " * indent
    return wrap_paragraph(text, WIDTH, space if first is None else first, space)
