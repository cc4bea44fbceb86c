"""Which images were proven where, as data: `images/TARGET/smoke.json`, the ledger of a target.

Comes in: runs of the smoke tests that somebody made. Goes out: the file, canonical JSON beside the
lock, and what of it counts for an image.

A run is of an image's content: the digest of its configuration, and by that under `images` the diff
ids of its layers. The manifest's digest stands there for people: a change of annotations gives
another one and leaves the proof as it is. Runs are only ever added, also those that failed. For a
content and an architecture, the latest run of each tier on each kind of GPU counts, whatever ran
it: a failure outweighs an earlier pass, and a later pass outweighs the failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, LockStale, Problem
from imgbuild.report import Tier
from imgbuild.values import Arch, Digest, sha256

LEDGER_FORMAT = 1
FILE = "smoke.json"
REMEDY = "restore it from git; `imgbuild smoke --record` and `--import` write it"
TIERS: tuple[Tier, ...] = get_args(Tier)
NO_PROOF = "no proof of this digest"
# Packages whose versions a run names; the lock of the same configuration has the rest.
ASKED = (
    "torch", "vllm", "sglang", "transformers", "trl", "verl", "tensordict", "deepspeed", "unsloth",
    "ray", "flashinfer-python", "triton",
)  # fmt: skip
# What the tests ran in: the first word of `through`, which a version may follow. "unpacked" and
# "unsquashfs" are root folders made of the layers and of the SIF without imgbuild.
PLACES = ("docker", "podman", "apptainer", "root", "unpacked", "unsquashfs")

Result = Literal["pass", "fail"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Moment = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="UTC, 2026-11-21T14:48:17Z"
    ),
]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first case that failed, and the first real error of its log."""

    case: str
    message: str


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of one tier in one image.

    `digest` is the manifest's at that time, `config` its configuration's. `gpu` has the name of
    each GPU that was there, `driver` its release ("580.159.04"); both are empty for tiers without
    GPUs. `versions` are those of the lock for the packages that people ask for. `date` is when it
    began, `seconds` its wall clock from container to end; `passed`, `failed` and `skipped` count
    cases, of which `jobs` ran at a time, `share` of them on the GPUs. `through` says what it ran in
    (PLACES), `sif` is the digest of the SIF where there was one. `caches`: what the image's caches
    held at the start, "" where nobody said. `stranger`: by a user that the image does not know, its
    files read-only.
    `report` is where below the project the whole report is kept, "" if it is not.
    """

    date: Moment
    arch: Arch
    tier: Tier
    result: Result
    digest: Digest
    config: Digest
    gpu: tuple[str, ...] = ()
    driver: str = ""
    versions: dict[str, str]
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    passed: Count
    failed: Count
    skipped: Count
    first: Stop | None = None
    through: str
    sif: Digest | None = None
    stranger: bool = False
    jobs: Annotated[int, msgspec.Meta(ge=1)] = 1
    share: Annotated[int, msgspec.Meta(ge=1)] = 1
    caches: str = ""
    report: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it this run: recorded again, it takes its own place."""
        return (self.date, self.arch, self.tier, self.config, self.through, *self.gpu)

    @property
    def good(self) -> bool:
        """It passed."""
        return self.result == "pass"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What an image is made of: the diff ids of its layers, the lowest first."""

    diff_ids: tuple[Digest, ...]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a target, by date. `images`: the digest of a configuration → its content."""

    format: int = LEDGER_FORMAT
    target: str
    images: dict[Digest, Content] = {}
    runs: tuple[Run, ...] = ()


def ledger_path(images: Path, target: str) -> Path:
    """Where the ledger of `target` stands in the folder `images`."""
    return images / target / FILE


def read_ledger(images: Path, target: str) -> Ledger:
    """The ledger of `target`, empty if there is none; InputError, with all problems, if damaged."""
    path = ledger_path(images, target)
    if not path.exists():
        return Ledger(target=target)
    found = codec.read(path, Ledger, what="ledger of proofs", hint=REMEDY)
    if found.format != LEDGER_FORMAT:
        message = f"{path}: format {found.format}; this imgbuild reads {LEDGER_FORMAT}"
        raise LockStale(message, hint="use the imgbuild that wrote it")
    problems = tuple(_faults(found, target, str(path)))
    if problems:
        count = f"{len(problems)} problem" + "s" * (len(problems) != 1)
        message = f"{path} has {count}"
        raise InputError(message, problems=problems, hint=REMEDY)
    return found


def _faults(found: Ledger, target: str, file: str) -> Iterable[Problem]:
    def _problem(path: str, message: str, value: object, expected: str = "") -> Problem:
        return Problem(
            file=file, path=path, message=message, value=str(value), expected=expected or None
        )

    if found.target != target:
        yield _problem("target", "it is another target's", found.target, target)
    keys: dict[tuple[str, ...], int] = {}
    for number, run in enumerate(found.runs):
        place = f"runs[{number}]"
        if run.config not in found.images:
            known = "one that `images` lists with its diff ids"
            yield _problem(f"{place}.config", "no content is known of it", run.config, known)
        if run.good != (run.passed > 0 and not run.failed):
            counts = f"{run.result}, {run.passed} passed, {run.failed} failed"
            yield _problem(f"{place}.result", "it is not what the cases say", counts)
        if (run.first is not None) != (run.failed > 0):
            yield _problem(f"{place}.first", "it must name a failed case if one failed", run.first)
        if run.through.partition(" ")[0] not in PLACES:
            known = f"one of {', '.join(PLACES)}"
            yield _problem(f"{place}.through", "nothing runs tests so", run.through, known)
        if keys.setdefault(run.key, number) != number:
            yield _problem(place, f"it is runs[{keys[run.key]}] again", run.date)
    for config in found.images.keys() - {run.config for run in found.runs}:
        yield _problem(f"images.{config}", "no run is of it", config)


def merge(ledger: Ledger, runs: Iterable[Run], images: Mapping[Digest, Content]) -> Ledger:
    """`ledger` with `runs`, of whose `images` the content is known. A run is there once."""
    together = {run.key: run for run in (*ledger.runs, *runs)}
    ordered = tuple(run for _, run in sorted(together.items()))
    contents = {**ledger.images, **images}
    named = sorted({run.config for run in ordered})
    return msgspec.structs.replace(
        ledger, images={config: contents[config] for config in named}, runs=ordered
    )


def add(
    images: Path,
    target: str,
    runs: Iterable[Run],
    contents: Mapping[Digest, Content],
    store: Store,
) -> bool:
    """Put `runs` into the ledger of `target`; False if all stood there. Several may do so at once.

    InputError if the ledger is damaged: it is not written over.
    """
    with store.exclusive(f"proofs-{sha256(str(ledger_path(images, target)).encode())}"):
        known = read_ledger(images, target)
        return codec.write(ledger_path(images, target), merge(known, runs, contents))


def counting(
    ledger: Ledger, arch: Arch, config: Digest, diff_ids: tuple[Digest, ...]
) -> tuple[Run, ...]:
    """The runs that count for an image: the latest of each tier on each kind of GPU, tier by tier.

    None if the content of that configuration is another one.
    """
    if ledger.images.get(config) != Content(diff_ids=diff_ids):
        return ()
    latest: dict[tuple[int, tuple[str, ...]], Run] = {}
    for run in ledger.runs:
        if (run.config, run.arch) == (config, arch):
            kind = (TIERS.index(run.tier), tuple(sorted(set(run.gpu))))
            latest[kind] = max(latest.get(kind, run), run, key=lambda one: (one.date, not one.good))
    return tuple(run for _, run in sorted(latest.items()))


def words(run: Run) -> str:
    """A run in a few words: "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21"."""
    kinds = {name: run.gpu.count(name) for name in sorted(set(run.gpu))}
    named = " and ".join(f"{n} {name}" if n > 1 else name for name, n in kinds.items())
    parts = [
        f"{run.tier}{'' if run.good else ' failed'}{f' on {named}' if named else ''}",
        *([f"driver {run.driver}"] if run.driver else []),
        run.date[:10],
    ]
    return ", ".join(parts)


def shown(versions: Mapping[str, str]) -> dict[str, str]:
    """Of a world's `versions` those that people ask for."""
    return {name: versions[name] for name in ASKED if name in versions}
