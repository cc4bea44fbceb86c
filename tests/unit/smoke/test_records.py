"""Tests format and order of test records, and the choice of runs that count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, LockStale
from imgbuild.smoke import records
from imgbuild.smoke.records import ImageContent, RecordedRun, SmokeRecords
from imgbuild.smoke.result import FirstFailure
from imgbuild.values import Arch
from tests.support.rows import each_row

TARGET = "small"
FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64
LAYERS = {FIRST: ("sha256:" + "a" * 64,), SECOND: ("sha256:" + "b" * 64, "sha256:" + "c" * 64)}
CONTENTS = {config: ImageContent(diff_ids=diff_ids) for config, diff_ids in LAYERS.items()}


def run(
    started: str = "2026-11-21T14:48:17Z", *, good: bool = True, **changes: object
) -> RecordedRun:
    """A run of the gpu tier in the first image."""
    fields: dict[str, object] = {
        "started": started,
        "arch": Arch.X86_64,
        "tier": "gpu",
        "result": "pass" if good else "fail",
        "digest": "sha256:" + "d" * 64,
        "config": FIRST,
        "gpu": ("NVIDIA H200",),
        "driver": "580.159.04",
        "versions": {"torch": "2.6.0"},
        "seconds": 373.7,
        "passed": 12,
        "failed": 0 if good else 1,
        "skipped": 5,
        "first": None if good else FirstFailure(case="nccl", message="no peers"),
        "through": "unpacked",
        **changes,
    }
    return RecordedRun(**fields)  # type: ignore[arg-type]


RUNS = some.builds(
    run,
    some.sampled_from(["2026-11-21T14:48:17Z", "2026-11-22T01:00:00Z", "2026-11-22T01:00:01Z"]),
    good=some.booleans(),
    arch=some.sampled_from(list(Arch)),
    tier=some.sampled_from(records.TIERS),
    config=some.sampled_from(sorted(LAYERS)),
    gpu=some.lists(some.sampled_from(["NVIDIA H200", "Tesla T4"]), max_size=2).map(tuple),
    through=some.sampled_from(["docker", "unpacked", "apptainer 1.4.5 --unsquash"]),
    seconds=some.floats(0, 1e6),
    driver=some.text(max_size=8),
    caches=some.text(max_size=8),
)


@given(some.lists(RUNS), some.lists(RUNS))
def test_smoke_records_are_merged_and_read_back_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, ones: list[RecordedRun], others: list[RecordedRun]
) -> None:
    images = tmp_path_factory.mktemp("images")
    together = list({entry.key: entry for entry in (*ones, *others)}.values())
    for part in (ones, others):
        smoke_records = records.read_records(images, TARGET)
        codec.write_document(
            records.records_path(images, TARGET), records.merge_runs(smoke_records, part, CONTENTS)
        )
    read = records.read_records(images, TARGET)
    assert read == records.merge_runs(SmokeRecords(target=TARGET), reversed(together), CONTENTS)
    assert [entry.key for entry in read.runs] == sorted(entry.key for entry in together)
    assert read.images == {config: CONTENTS[config] for config in sorted(read.images)}
    data = records.records_path(images, TARGET).read_bytes()
    assert codec.encode(codec.decode(data, SmokeRecords, file="records")) == data


@given(some.lists(RUNS))
def test_latest_smoke_run_counts_for_each_tier_and_gpu(runs: list[RecordedRun]) -> None:
    smoke_records = records.merge_runs(SmokeRecords(target=TARGET), runs, CONTENTS)
    counted = records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[FIRST])
    kinds = [(entry.tier, frozenset(entry.gpu)) for entry in counted]
    expected = {
        (entry.tier, frozenset(entry.gpu))
        for entry in smoke_records.runs
        if (entry.config, entry.arch) == (FIRST, Arch.X86_64)
    }
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == expected
    for entry, kind in zip(counted, kinds, strict=True):
        rivals = [
            other
            for other in smoke_records.runs
            if (other.config, other.arch) == (FIRST, Arch.X86_64)
            and (other.tier, frozenset(other.gpu)) == kind
        ]
        assert entry.started == max(other.started for other in rivals)
        if entry.good:
            assert all(other.good for other in rivals if other.started == entry.started)


def test_failed_smoke_run_counts_until_a_later_run_passes() -> None:
    early, late = run("2026-11-21T00:00:00Z"), run("2026-11-23T00:00:00Z")
    failure = run("2026-11-22T00:00:00Z", good=False, through="docker")
    smoke_records = records.merge_runs(SmokeRecords(target=TARGET), [failure, early], CONTENTS)
    assert records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[FIRST]) == (failure,)
    smoke_records = records.merge_runs(smoke_records, [late], {})
    assert records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[FIRST]) == (late,)
    assert len(smoke_records.runs) == 3


def test_smoke_runs_of_other_images_do_not_count() -> None:
    smoke_records = records.merge_runs(SmokeRecords(target=TARGET), [run()], CONTENTS)
    assert records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[FIRST]) == (run(),)
    assert records.counted_runs(smoke_records, Arch.ARM64, FIRST, LAYERS[FIRST]) == ()
    assert records.counted_runs(smoke_records, Arch.X86_64, SECOND, LAYERS[SECOND]) == ()
    assert records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[SECOND]) == ()
    assert records.counted_runs(smoke_records, Arch.X86_64, FIRST, LAYERS[FIRST][1:]) == ()


def test_summary_of_a_smoke_run_counts_cases() -> None:
    assert records.run_summary(run()) == "gpu on NVIDIA H200, driver 580.159.04, 2026-11-21"
    two = run(tier="multi-gpu", gpu=("NVIDIA H200",) * 2, good=False, driver="")
    assert records.run_summary(two) == "multi-gpu failed on 2 NVIDIA H200, 2026-11-21"
    assert records.run_summary(run(tier="cpu", gpu=(), driver="")) == "cpu, 2026-11-21"


def test_concurrent_processes_record_runs(tmp_path: Path) -> None:
    runs = [run(f"2026-11-21T00:00:{second:02}Z") for second in range(24)]

    def add(entry):
        records.add_runs(tmp_path, TARGET, [entry], CONTENTS, Store.open())

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(add, runs))
    assert records.read_records(tmp_path, TARGET).runs == tuple(runs)
    assert [path.name for path in (tmp_path / TARGET).iterdir()] == ["smoke.json"]


def test_missing_file_of_smoke_records_is_empty_and_adding_reports_a_change(
    tmp_path: Path,
) -> None:
    assert records.read_records(tmp_path, TARGET) == SmokeRecords(target=TARGET)
    assert records.add_runs(tmp_path, TARGET, [run()], CONTENTS, Store.open())
    assert not records.add_runs(tmp_path, TARGET, [run()], CONTENTS, Store.open())
    assert records.add_runs(tmp_path, TARGET, [run(caches="nothing")], CONTENTS, Store.open())
    assert records.read_records(tmp_path, TARGET).runs == (run(caches="nothing"),)


def test_file_of_smoke_records_has_one_line_per_entry(tmp_path: Path) -> None:
    records.add_runs(tmp_path, TARGET, [run(good=False)], CONTENTS, Store.open())
    lines = records.records_path(tmp_path, TARGET).read_text().splitlines()
    assert f'      "diff_ids": ["{LAYERS[FIRST][0]}"]' in lines
    assert '      "gpu": ["NVIDIA H200"],' in lines
    assert '      "first": {"case": "nccl", "message": "no peers"},' in lines


@each_row(
    ("old", "new", "words"),
    [
        ('"target": "small"', '"target": "other"', "target: wrong target (found other)"),
        (
            '"result": "pass"',
            '"result": "fail"',
            "runs[0].result: does not match the numbers of cases",
        ),
        (
            '"failed": 0',
            '"failed": 2',
            "runs[0].result: does not match the numbers of cases (found pass",
        ),
        (
            '"passed": 12',
            '"passed": 0',
            "runs[0].result: does not match the numbers of cases (found pass",
        ),
        (f'"config": "{FIRST}"', f'"config": "{SECOND}"', "runs[0].config: unknown digest"),
        ('"through": "unpacked"', '"through": "magic"', "expected one of docker, podman"),
        ('"date": "2026-11-21T14:48:17Z"', '"date": "yesterday"', "runs[0].date"),
        ('"seconds": 373.7', '"seconds": -1', "$.runs[0].seconds"),
        ('"driver": "580.159.04",', "", None),
        ('"tier": "gpu",', "", "required field `tier` - at `$.runs[0]`"),
        ('"tier": "gpu"', '"tier": "tpu"', "Invalid enum value 'tpu' - at `$.runs[0].tier`"),
        ('"runs": [', '"runs": [[', "Expected `object`, got `array` - at `$.runs[0]`"),
    ],
)
def test_error_for_damaged_smoke_records_has_location_and_value(
    tmp_path: Path, old: str, new: str, words: str | None
) -> None:
    records.add_runs(tmp_path, TARGET, [run()], CONTENTS, Store.open())
    path = records.records_path(tmp_path, TARGET)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    if words is None:
        assert records.read_records(tmp_path, TARGET).runs[0].driver == ""
        return
    with pytest.raises(InputError) as caught:
        records.read_records(tmp_path, TARGET)
    message = "\n".join(map(str, caught.value.problems))
    assert words in message, message
    assert str(path) in message
    assert caught.value.hint == records.REMEDY
    before = path.read_bytes()
    with pytest.raises(InputError):
        records.add_runs(tmp_path, TARGET, [run("2026-11-25T00:00:00Z")], CONTENTS, Store.open())
    assert path.read_bytes() == before


def test_duplicate_smoke_runs_and_unused_contents_are_an_error(tmp_path: Path) -> None:
    doubled = SmokeRecords(target=TARGET, images=CONTENTS, runs=(run(), run(caches="nothing")))
    codec.write_document(records.records_path(tmp_path, TARGET), doubled)
    with pytest.raises(InputError, match="has 2 problems") as caught:
        records.read_records(tmp_path, TARGET)
    messages = [str(problem) for problem in caught.value.problems]
    assert "runs[1]: duplicate of runs[0]" in messages[0]
    assert f"images.{SECOND}: is not used by any run" in messages[1]


def test_smoke_records_in_an_unsupported_format_are_an_error(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(SmokeRecords(target=TARGET), format=2)
    codec.write_document(records.records_path(tmp_path, TARGET), newer)
    with pytest.raises(LockStale, match=r"unsupported format 2 \(expected 1\)"):
        records.read_records(tmp_path, TARGET)
