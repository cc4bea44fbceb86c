"""Reads and writes the test records of a target, `images/TARGET/smoke.json`.

A run belongs to the content of an image: the configuration digest and, under `images`, the diff IDs
of the layers. The manifest digest is only informative, because it depends on annotations. Runs are
never removed. Failed runs are recorded, too. For the same content and architecture, only the latest
run of each tier on each type of GPU is valid, regardless of the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, InputProblem, LockStale
from imgbuild.report import TierName
from imgbuild.smoke.result import CaseMessage, FirstFailure, RunOutcome
from imgbuild.system.amounts import format_count
from imgbuild.values import Arch, Digest, sha256

RECORDS_FORMAT = 1
FILE = "smoke.json"
REMEDY = "restore the file from git; only `imgbuild smoke --record` and `--import` write it"
TIERS: tuple[TierName, ...] = get_args(TierName)
CASES: dict[TierName, str] = {
    "static": "every module is imported; files, versions and libraries are compared with the lock;"
    " without a GPU",
    "cpu": "tokenizers, data loading, a Ray job and training steps of small models, without a GPU",
    "gpu": "kernels; vLLM and SGLang, also as servers (vllm serve, trl vllm-serve, sglang serve);"
    " training steps of TRL, verl, DeepSpeed and Unsloth with small models, on one GPU",
    "multi-gpu": "on two GPUs: NCCL; vLLM and SGLang with tensor parallelism, vLLM with data"
    " parallelism; a GRPO step of TRL with vLLM in server mode; SFT with FSDP2 and DeepSpeed",
}  # what each tier runs; cases of packages that an image does not have are skipped
DIGITS = len("sha256:") + 12  # of a digest in a text
NO_RECORD = "no test record for this digest"
# Packages whose versions a run lists; the lock of the same configuration has the others.
LISTED_PACKAGES = (
    "torch", "vllm", "sglang", "transformers", "trl", "verl", "tensordict", "deepspeed", "unsloth",
    "ray", "flashinfer-python", "triton",
)  # fmt: skip
# The engine of the tests: the first word of `through`, which a version may follow. "unpacked" and
# "unsquashfs" are root folders of the layers and of the SIF, created without imgbuild.
PLACES = ("docker", "podman", "apptainer", "root", "unpacked", "unsquashfs")

CaseCount = Annotated[int, Meta(ge=0)]
RunTime = Annotated[
    str,
    Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="UTC, 2026-11-21T14:48:17Z"),
]


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a `SmokeRun` in a test record.

    `digest` is the digest of the manifest during the run, and `config` is the digest of the
    configuration. `gpu` contains the name of each GPU, and `driver` is the driver release
    ("580.159.04"). Both are empty for tiers without GPUs. `versions` contains the locked versions
    of packages in LISTED_PACKAGES. The field `started` is named `date` in the file. `seconds` is
    the wall-clock time of container and tests. `passed`, `failed` and `skipped` are numbers of
    cases. `further` contains the failed cases after `first`, and `skips` the skipped cases, with
    messages (empty in records from before 2026-11-28). `passes` contains the names of passed cases
    in tiers other than static (empty in records from before 2026-11-30). `notes` contains log lines
    about packages that run without an optional part. `jobs` is the number of parallel cases, and
    `share` the number of parallel cases on GPUs. `through` is the engine (PLACES). `sif` is the
    digest of the SIF file, if any. `caches` is the content of the image's caches at the start, or
    "" if unknown. `arbitrary_user` is set if the user was not in the image's /etc/passwd, and files
    of the image were read-only.
    """

    started: RunTime = msgspec.field(name="date")
    arch: Arch
    tier: TierName
    result: RunOutcome
    digest: Digest
    config: Digest
    gpu: tuple[str, ...] = ()
    driver: str = ""
    versions: dict[str, str] = {}
    seconds: Annotated[float, Meta(ge=0)]
    passed: CaseCount
    failed: CaseCount
    skipped: CaseCount
    first: FirstFailure | None = None
    further: tuple[CaseMessage, ...] = ()
    passes: tuple[str, ...] = ()
    skips: tuple[CaseMessage, ...] = ()
    notes: tuple[str, ...] = ()
    through: str
    sif: Digest | None = None
    arbitrary_user: bool = False
    jobs: Annotated[int, Meta(ge=1)] = 1
    share: Annotated[int, Meta(ge=1)] = 1
    caches: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The identity of the run, which a new run with the same identity replaces."""
        return (self.started, self.arch, self.tier, self.config, self.through, *self.gpu)

    @property
    def good(self) -> bool:
        """Whether the run passed."""
        return self.result == "pass"

    @property
    def gpu_models(self) -> str:
        """The GPUs without manufacturer and memory, such as "2 H100", or "" without a GPU."""
        names = [name.removeprefix("NVIDIA ").partition(" ")[0] for name in self.gpu if name]
        kinds = {name: names.count(name) for name in sorted(names)}
        return " and ".join(f"{n} {name}" if n > 1 else name for name, n in kinds.items())

    @property
    def gpus(self) -> str:
        """The GPUs with their numbers, such as "2 NVIDIA H200", or "" for tiers without GPUs."""
        kinds = sorted(Counter(self.gpu).items())
        return " and ".join(f"{number} {name}" if number > 1 else name for name, number in kinds)


class ImageContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an image: the diff IDs of its layers, bottom layer first."""

    diff_ids: tuple[Digest, ...]


class SmokeRecords(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a target, sorted by date. `images` maps configuration digests to contents."""

    format: int = RECORDS_FORMAT
    target: str
    images: dict[Digest, ImageContent] = {}
    runs: tuple[RecordedRun, ...] = ()


def records_path(images: Path, target: str) -> Path:
    """Return the path of the test records of `target` in the folder `images`."""
    return images / target / FILE


def read_records(images: Path, target: str) -> SmokeRecords:
    """Return the test records of `target`, which are empty if the file is missing.

    Raises InputError, with all problems, if the file is damaged, and LockStale if it has another
    format.
    """
    path = records_path(images, target)
    if not path.exists():
        return SmokeRecords(target=target)
    smoke_records = codec.read_document(
        path, SmokeRecords, what="file of test records", hint=REMEDY
    )
    if smoke_records.format != RECORDS_FORMAT:
        message = f"{path}: unsupported format {smoke_records.format} (expected {RECORDS_FORMAT})"
        raise LockStale(message, hint="use the version of imgbuild that wrote the file")
    problems = tuple(_faults(smoke_records, target, str(path)))
    if problems:
        message = f"{path} has {format_count(len(problems), 'problem')}"
        raise InputError(message, problems=problems, hint=REMEDY)
    return smoke_records


def _faults(smoke_records: SmokeRecords, target: str, file: str) -> Iterable[InputProblem]:
    def _problem(path: str, message: str, value: object, expected: str = "") -> InputProblem:
        return InputProblem(
            file=file, path=path, message=message, value=str(value), expected=expected or None
        )

    if smoke_records.target != target:
        yield _problem("target", "wrong target", smoke_records.target, target)
    keys: dict[tuple[str, ...], int] = {}
    for number, run in enumerate(smoke_records.runs):
        place = f"runs[{number}]"
        if run.config not in smoke_records.images:
            yield _problem(f"{place}.config", "unknown digest", run.config, "a key of `images`")
        if run.good != (run.passed > 0 and not run.failed):
            counts = f"{run.result}, {run.passed} passed, {run.failed} failed"
            yield _problem(f"{place}.result", "does not match the numbers of cases", counts)
        if (run.first is not None) != (run.failed > 0):
            text = "must be set if a case failed, and otherwise omitted"
            yield _problem(f"{place}.first", text, run.first)
        if run.through.partition(" ")[0] not in PLACES:
            choices = f"one of {', '.join(PLACES)}"
            yield _problem(f"{place}.through", "invalid value", run.through, choices)
        if keys.setdefault(run.key, number) != number:
            yield _problem(place, f"duplicate of runs[{keys[run.key]}]", run.started)
    for config in smoke_records.images.keys() - {run.config for run in smoke_records.runs}:
        yield _problem(f"images.{config}", "is not used by any run", config)


def merge_runs(
    recorded: SmokeRecords, runs: Iterable[RecordedRun], images: Mapping[Digest, ImageContent]
) -> SmokeRecords:
    """Add `runs` to `recorded`, replacing runs with the same key. `images` has their contents."""
    together = {run.key: run for run in (*recorded.runs, *runs)}
    ordered = tuple(run for _, run in sorted(together.items()))
    contents = {**recorded.images, **images}
    named = sorted({run.config for run in ordered})
    return msgspec.structs.replace(
        recorded, images={config: contents[config] for config in named}, runs=ordered
    )


def add_runs(
    images: Path,
    target: str,
    runs: Iterable[RecordedRun],
    contents: Mapping[Digest, ImageContent],
    store: Store,
) -> bool:
    """Add `runs` to the test records of `target`. Returns False if all were already recorded.

    Several processes can add runs at the same time. Raises InputError if the file is damaged.
    """
    with store.hold_lock(f"records-{sha256(str(records_path(images, target)).encode())}"):
        smoke_records = read_records(images, target)
        merged = merge_runs(smoke_records, runs, contents)
        return codec.write_document(records_path(images, target), merged, below=images.parent)


def counted_runs(
    recorded: SmokeRecords, arch: Arch, config: Digest, diff_ids: tuple[Digest, ...]
) -> tuple[RecordedRun, ...]:
    """Return the latest run of an image in each tier on each type of GPU, sorted by tier.

    Returns () if the recorded content of `config` differs from `diff_ids`.
    """
    if recorded.images.get(config) != ImageContent(diff_ids=diff_ids):
        return ()
    latest: dict[tuple[int, tuple[str, ...]], RecordedRun] = {}
    for run in recorded.runs:
        if (run.config, run.arch) == (config, arch):
            kind = (TIERS.index(run.tier), tuple(sorted(set(run.gpu))))
            latest[kind] = max(
                latest.get(kind, run),
                run,
                key=lambda candidate: (candidate.started, not candidate.good),
            )
    return tuple(run for _, run in sorted(latest.items()))


def run_summary(run: RecordedRun) -> str:
    """Return a summary of a run, such as "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21"."""
    parts = [
        f"{run.tier}{'' if run.good else ' failed'}{f' on {run.gpus}' if run.gpus else ''}",
        *([f"driver {run.driver}"] if run.driver else []),
        run.started[:10],
    ]
    return ", ".join(parts)


def other_digests(runs: Iterable[RecordedRun], digest: Digest) -> list[str]:
    """Describe the `runs` of images whose digest differs from `digest`.

    These runs are valid, because only annotations of the images differ.
    """
    return [
        f"{' and '.join(dict.fromkeys(run.tier for run in same))} {equal_image(other)}"
        for other, same in runs_by_other_digest(runs, digest).items()
    ]


def runs_by_other_digest(
    runs: Iterable[RecordedRun], digest: Digest
) -> dict[Digest, list[RecordedRun]]:
    """Return the runs of images whose digest differs from `digest`, by digest."""
    others: dict[Digest, list[RecordedRun]] = {}
    for run in runs:
        if run.digest != digest:
            others.setdefault(run.digest, []).append(run)
    return others


def equal_image(digest: Digest) -> str:
    """Return a note about a run of an image with the digest `digest` but the same content."""
    return f"on an image with the same configuration, {digest[:DIGITS]}…"


def listed_versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of packages in LISTED_PACKAGES."""
    return {name: versions[name] for name in LISTED_PACKAGES if name in versions}
