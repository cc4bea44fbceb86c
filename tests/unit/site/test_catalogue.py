"""Tests the site's data on each target, read from the matrix, locks, digests and test records."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import cast

import msgspec
import pytest

from imgbuild.matrix import project_paths
from imgbuild.show.lock_changes import VersionChange
from imgbuild.site import browser_data, catalogue, grid, limits, pages, requirements, test_runs
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.history import SiteHistory
from imgbuild.site.model import SiteCatalogue, SiteTarget, UpdateCost
from imgbuild.smoke.result import FirstFailure
from imgbuild.system.reporter import SILENT_REPORTER
from imgbuild.values import Arch
from tests.support.site_history import CHANGE, HISTORY

ROOT = Path(__file__).parents[3]


def target(example_site: SiteCatalogue, name: str) -> SiteTarget:
    return next(each for each in example_site.targets if each.name == name)


def test_catalogue_page_shows_every_row_of_the_matrix(
    example_site: SiteCatalogue, sources: SiteSources
) -> None:
    assert {each.name for each in example_site.targets} == set(sources.matrix.targets)
    locked = {each.name for each in example_site.targets if each.digests}
    assert locked == set(project_paths.catalogue_project().locked_targets())
    assert target(example_site, "cu130-flashinfer").needs


def test_image_page_has_digests_layers_and_packages_of_the_lock(
    example_site: SiteCatalogue,
) -> None:
    shown = target(example_site, "cu130-verl0.9")
    digests = json.loads((ROOT / "images/cu130-verl0.9/digests.json").read_text())
    assert shown.digests is not None
    assert shown.digests.digest == digests["digest"]
    drawn = shown.layers
    assert drawn is not None
    assert drawn.arches == (Arch.X86_64, Arch.ARM64)
    for number, arch in enumerate(drawn.arches):
        layers = {each["name"]: each["size"] for each in digests["arch"][arch]["layers"]}
        bars = {bar.name: bar.sizes[number] for bar in drawn.bars if bar.sizes[number]}
        assert drawn.numbers[number] == len(layers) == len(bars) + drawn.small[number]
        assert bars.items() <= layers.items()
        small = [size for name, size in layers.items() if name not in bars]
        assert drawn.small_sizes[number] == sum(small)
    lock = json.loads((ROOT / "images/cu130-verl0.9/lock.json").read_text())
    names = {wheel["package"] for each in lock["arch"].values() for wheel in each["wheels"]}
    assert names <= {package.name for package in shown.packages}


def test_image_page_marks_a_package_of_one_architecture(example_site: SiteCatalogue) -> None:
    only = {
        each.name: each.only for each in target(example_site, "cu130-sglang").packages if each.only
    }
    assert only
    assert set(only.values()) <= {*Arch}


def test_page_shows_correct_differences_from_similar_targets(example_site: SiteCatalogue) -> None:
    shown = target(example_site, "cu124-vllm0.8.5")
    near = shown.neighbours
    assert near.names[0] == "cu124-trl0.17"
    assert list(near.packages) == sorted(near.packages)
    trl = next(line for line in near.differences if line.name == "trl")
    assert (trl.own, trl.others[0]) == ("0.18.2", "0.17.0")
    assert shown.digests is not None
    size = sum(layer.size for layer in shown.digests.arch[Arch.X86_64].layers)
    assert 0 < near.missing[0] < size - 3_900_000_000
    retired = {each.name for each in example_site.targets if each.row.retired}
    assert all(not retired & {*each.neighbours.names} for each in example_site.targets)


def test_image_page_lists_debian_packages_once(example_site: SiteCatalogue) -> None:
    names = Counter(each.name for each in example_site.debian)
    assert max(names.values()) == 1
    assert len({each.page for each in example_site.debian}) == 2  # Debian 12 and 13
    users = [user for each in example_site.debian for user in each.users]
    assert len(users) == len(set(users))
    assert len(example_site.debian) < len(users) / 2
    ((arch, packages),) = target(example_site, "cu124-vllm").debian
    assert (arch, packages.name) == (Arch.X86_64, "debian-12")
    text = dict(pages.site_pages(example_site, HISTORY))[f"debian/{packages.page}.html"].decode()
    for name, version, _ in packages.packages:
        assert f"\n{name} {version}" in text


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("cu130-ray", "gpu", "passed on H100"),
        ("cu124-vllm0.7.2", "retired", "retired"),
        ("cu130-flashinfer", "unlocked", "needs the index flashinfer-cache"),
        ("cu130-unsloth", "untested", "no test record"),
    ],
)
def test_catalogue_grid_shows_the_state_of_each_combination(
    example_site: SiteCatalogue, name: str, state: str, words: str
) -> None:
    found = grid.target_state(target(example_site, name))
    assert found[0] == state
    assert words in found[1]


def test_catalogue_grid_has_every_target_once(example_site: SiteCatalogue) -> None:
    cells = Counter(
        cell.target for row in example_site.grid.rows for cells in row.cells for cell in cells
    )
    assert cells == Counter(each.name for each in example_site.targets)
    assert example_site.grid.engines == ("vLLM", "SGLang", "no engine")
    releases = [row.cuda for row in example_site.grid.rows]
    assert releases == sorted(releases, key=float, reverse=True)
    names = [cell.target for cell in example_site.grid.rows[0].cells[0]]
    assert names[0] == "cu130-vllm0.33.0"  # the newest
    assert names.index("cu130-vllm") < names.index("cu130-vllm0.26.0")  # which is retired
    cell = example_site.grid.rows[0].cells[0][0]
    assert (cell.engine, cell.labels) == ("vLLM 0.33.0", ("TRL 1.16.0", "transformers 5.20.2"))


def test_main_versions_include_pins_and_frameworks(example_site: SiteCatalogue) -> None:
    verl = dict(target(example_site, "cu130-verl0.9").versions)
    assert "transformers" not in target(example_site, "cu130-verl0.9").row.pins
    assert (verl["verl"], verl["transformers"]) == ("0.9.1", "5.10.4")
    assert next(iter(verl)) == "torch"


def test_test_record_of_an_equal_image_names_the_tested_digest(example_site: SiteCatalogue) -> None:
    lines = test_runs.test_lines(target(example_site, "cu124-trl0.17"))
    others = test_runs.other_digests(target(example_site, "cu124-trl0.17"))
    assert {each.digest for each in others} == {
        line.run.digest for line in lines if line.run.digest != line.current
    }
    first = next(each for each in others if "multi-gpu" in each.runs)
    assert first.runs == "multi-gpu on 2 NVIDIA H200"
    assert (
        first.digest != first.current == target(example_site, "cu124-trl0.17").page.images[0].digest
    )
    assert test_runs.other_digests(target(example_site, "cu124-vllm")) == []


def with_failed_run(example_site: SiteCatalogue, name: str) -> SiteCatalogue:
    """The catalogue after a failed GPU run of target `name`."""
    first = FirstFailure(case="trl rloo", message="no loss <is> reported")
    chosen = target(example_site, name)
    image = next(each for each in chosen.page.images if any(run.gpu for run in each.runs))
    run = [run for run in image.runs if run.gpu][-1]
    failed = msgspec.structs.replace(run, result="fail", failed=1, first=first)
    runs = tuple(failed if each is run else each for each in image.runs)
    changed = msgspec.structs.replace(image, runs=runs)
    images = tuple(changed if each is image else each for each in chosen.page.images)
    shown = msgspec.structs.replace(
        chosen, page=msgspec.structs.replace(chosen.page, images=images)
    )
    targets = tuple(shown if each is chosen else each for each in example_site.targets)
    return msgspec.structs.replace(example_site, targets=targets)


def test_test_runs_are_listed_by_gpu_with_failures_first(example_site: SiteCatalogue) -> None:
    changed = with_failed_run(example_site, "cu130-vllm")
    groups = dict(test_runs.lines_by_gpu(changed.targets))
    assert list(groups)[-1] == test_runs.NO_GPU
    assert sum(map(len, groups.values())) == sum(
        len(image.runs) for each in changed.targets for image in each.page.images
    )
    of_h200 = [*groups["H200"], *groups["2 H200"]]
    assert any(line.target == "cu130-vllm" and not line.run.good for line in of_h200)
    for name, lines in groups.items():
        states = [line.run.good for line in lines]
        assert states == sorted(states)
        numbers = {len(line.run.gpu) for line in lines}
        assert numbers == ({0} if name == test_runs.NO_GPU else {2 if name[0] == "2" else 1})


def test_images_can_be_filtered_by_the_number_of_tested_gpus(example_site: SiteCatalogue) -> None:
    (image, *_) = target(example_site, "cu130-verl0.9").page.images
    assert [*grid.gpu_results(image.runs).passed] == ["H100", "2 H100"]
    (image, *_) = target(example_site, "cu126-vllm").page.images
    assert [*grid.gpu_results(image.runs).passed] == ["H200"]


def test_all_pages_show_the_same_test_results(
    sources: SiteSources, example_site: SiteCatalogue
) -> None:
    """The forms' data, chips of Images, cells of Matrix and groups of Tests agree."""
    data = browser_data.browser_data(sources, example_site)
    forms: dict[tuple[str, str], tuple[list[str], list[str]]] = {
        (data["targets"][each["target"]]["name"], each["arch"]): (each["tested"], each["failed"])
        for each in data["images"]
    }
    locked = [each for each in example_site.targets if each.lock]
    passed: dict[tuple[str, str], set[str]] = {}
    for name, lines in test_runs.lines_by_gpu(locked):
        for line in lines if name != test_runs.NO_GPU else ():
            if line.run.good:
                passed.setdefault((line.target, line.run.arch), set()).add(name)
    for one in locked:
        _, words = grid.target_state(one)
        shown = cast("list[dict[str, str]]", pages.FILTERS["runs"](one.page.images))
        chips = {chip["label"]: chip["state"] for chip in shown}
        for image in one.page.images:
            tested, failed = forms[one.name, image.arch]
            assert {*tested} == passed.get((one.name, image.arch), set())
            labels = {f"{image.arch}: {name}": "gpu" for name in tested}
            labels |= {f"{image.arch}: {name}": "failed" for name in failed}
            assert labels.items() <= chips.items()
            assert all(name in words for name in (*tested, *failed)), (one.name, words)
    assert forms["cu128-unsloth2026.10", "x86_64"] == (["H200"], ["multi-gpu failed on 2 H200"])
    assert forms["cu124-trl0.17", "x86_64"] == (["H100", "2 H200"], [])


def test_test_notes_are_about_the_current_build(sources: SiteSources) -> None:
    """The page shows notes next to the records of the current image."""
    earlier = re.compile(r"earlier build|(it|image) had passed|With the packages of \d{4}")
    notes = {name: each.tested for name, each in sources.matrix.targets.items()}
    assert [name for name, text in notes.items() if earlier.search(" ".join(text.split()))] == []


def test_guide_of_an_image_is_on_its_page(example_site: SiteCatalogue) -> None:
    """The guide is the output of `imgbuild show --guide`, with HTML escaped."""
    shown = dict(pages.site_pages(example_site, HISTORY))
    page = shown["targets/cu130-verl0.9.html"].decode()
    assert "<li>Ports: 8265 Ray's dashboard and jobs, 6379 Ray's head, 8000 vllm serve." in page
    assert "<h3>vLLM</h3><pre><code>vllm serve MODEL\n" in page
    text = "## A\n\n- *a* <b>b</b> [c](javascript:d) ![e](f)\n\nText:\n\n    <i>\n"
    hostile = msgspec.structs.replace(target(example_site, "cu130-verl0.9"), guide=text)
    changed = msgspec.structs.replace(example_site, targets=(hostile,))
    page = dict(pages.site_pages(changed, HISTORY))["targets/cu130-verl0.9.html"].decode()
    assert "<li>*a* &lt;b>b&lt;/b> [c](javascript:d) ![e](f)" in page
    assert "<pre><code>&lt;i>\n</code></pre>" in page


def test_failed_case_of_a_run_is_shown(example_site: SiteCatalogue) -> None:
    shown = dict(pages.site_pages(with_failed_run(example_site, "cu130-vllm"), HISTORY))
    for page in ("tests.html", "targets/cu130-vllm.html"):
        text = shown[page].decode()
        assert "<strong>Failed: trl rloo</strong> no loss &lt;is> reported" in text


def test_pages_without_a_registry_name_one_page_with_what_to_do(
    example_site: SiteCatalogue,
) -> None:
    without = msgspec.structs.replace(example_site, registry="")
    shown = dict(pages.site_pages(without, HISTORY))
    start = shown["start.html"].decode()
    assert "<strong>No registry is set for this site</strong>" in start
    assert "start the workflow <code>nightly</code>" in start
    for path, data in shown.items():
        if path.startswith("targets/") and b"#digests" in data:
            assert b"../start.html#get" in data, path
            assert b"docker pull @" not in data
    assert b"No registry is set" not in dict(pages.site_pages(example_site, HISTORY))["start.html"]


def test_changes_begin_with_the_main_packages(example_site: SiteCatalogue) -> None:
    names = [*(f"a{number}" for number in range(20)), "vllm"]
    changes = tuple(VersionChange(package=name, old="1", new="2") for name in names)
    shown = target(example_site, "cu130-vllm")
    first = msgspec.structs.replace(CHANGE, changes=changes)
    changed = msgspec.structs.replace(
        example_site, targets=(msgspec.structs.replace(shown, history=(first, first)),)
    )
    page = dict(pages.site_pages(changed, HISTORY))["targets/cu130-vllm.html"].decode()
    assert page.count("<ul class=packages><li>vllm 1 → 2") == 2
    assert page.count("<summary>11 more") == 1  # older changes refer to the data
    assert page.count("<a href=../history.json>11 more</a>") == 1


def test_limits_of_the_catalogue_follow_from_its_test_records(example_site: SiteCatalogue) -> None:
    found = limits.catalogue_limits(with_failed_run(example_site, "cu130-vllm"))
    assert "cu130-vllm" in found.failed
    assert "cu130-vllm" not in limits.catalogue_limits(example_site).failed
    untested = dict(found.untested)
    assert len(untested[Arch.ARM64]) == found.numbers[Arch.ARM64]
    assert "H200" in found.gpus
    text = dict(pages.site_pages(example_site, HISTORY))["limits.html"].decode()
    assert "<h2 id=security>Security" in text
    for line in limits.limit_texts().splitlines():
        if line.startswith("- Licences"):
            assert line.removeprefix("- ") in text


def test_skipped_cases_are_listed_by_reason(example_site: SiteCatalogue) -> None:
    shown = dict(pages.site_pages(example_site, HISTORY))
    text = shown["targets/cu130-verl0.9.html"].decode()
    assert "sglang tensor parallel: the lock has no sglang" in text
    assert "trl sft, zero3 on two GPUs; deepspeed step: the lock has no deepspeed" in text
    assert "are linked with the driver" in text
    assert "libcuda.so.1" not in text
    text = shown["targets/cu124-vllm0.8.5.html"].decode()
    known = "Known limitation: vllm xgrammar, unpadded vocabulary; vllm guidance, unpadded"
    assert known in text
    assert "max_num_seqs=1, or the backends outlines and lm-format-enforcer<" in text


def test_image_status_names_failures_and_gpus_of_other_tests(example_site: SiteCatalogue) -> None:
    def _standing(name: str) -> str:
        return test_runs.test_summary(target(example_site, name).page.images[0])

    failed = _standing("cu130-vllm0.20.2")
    assert "gpu failed on NVIDIA H200; multi-gpu failed on 2 NVIDIA H200" in failed
    assert _standing("cu130-ray").endswith("no other GPU was tested")
    arm64 = target(example_site, "cu130-verl0.9").page.images[1]
    assert test_runs.test_summary(arm64) == "not tested"


def test_update_downloads_the_package_layer_and_version_lists(
    example_site: SiteCatalogue,
) -> None:
    def _update(name: str, package: str) -> UpdateCost:
        updates = target(example_site, name).layers.updates  # type: ignore[union-attr]
        return next(each for each in updates if each.package == package)

    old, new = _update("cu124-vllm", "trl"), _update("cu130-verl0.9", "trl")
    assert (old.layers, old.size) == (("trl",), 438_573)
    assert new.layers == ("trl", "files")
    trl, both = (
        target(example_site, name).digests.arch[Arch.X86_64].layers  # type: ignore[union-attr]
        for name in ("cu124-trl0.17", "cu124-vllm0.8.5")
    )
    differing = {layer.name for layer in both} - {
        layer.name for layer in both if layer.digest in {each.digest for each in trl}
    }
    assert differing >= {*_update("cu124-vllm0.8.5", "trl").layers}  # bases differ, too


def test_page_of_a_stale_lock_has_no_digest(
    sources: SiteSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    for name in ("lock.json", "digests.json", "smoke.json"):
        source = ROOT / "images/cu126-vllm" / name
        place = images / "cu126-vllm" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source.read_bytes().replace(b"0.20.0", b"0.20.1"))
    (tmp_path / "matrix.yaml").touch()
    project = project_paths.Project(matrix=tmp_path / "matrix.yaml")
    monkeypatch.setattr(catalogue, "checkout_commit", lambda _: "")
    chosen = {"cu126-vllm": sources.matrix.targets["cu126-vllm"]}
    matrix = msgspec.structs.replace(sources.matrix, targets=chosen)
    changed = msgspec.structs.replace(sources, project=project, matrix=matrix)
    shown = catalogue.read_catalogue(changed, None, SiteHistory(), reporter=SILENT_REPORTER)
    (only,) = shown.targets
    assert "does not match the lock" in only.stale
    assert (only.lock, only.digests, only.commands) == (None, None, ())


def test_requirements_between_main_packages_are_listed_newest_first(
    example_site: SiteCatalogue,
) -> None:
    shown = dict(requirements.requirements_between(example_site.requires))
    versions = [version for version, _ in shown["vllm"]]
    assert versions.index("0.33.0") < versions.index("0.9.2") < versions.index("0.8.5.post1")
    assert "torch==2.7.0" in dict(shown["vllm"])["0.9.2"]


def test_layer_bars_of_both_architectures_have_one_scale(example_site: SiteCatalogue) -> None:
    layers = target(example_site, "cu130-verl0.9").layers
    assert layers is not None
    bars = sorted((max(bar.sizes), bar.scale) for bar in layers.bars)
    assert [scale for _, scale in bars] == sorted(scale for _, scale in bars)
    assert bars[-1][1] == 100
    assert bars[0][1] >= catalogue.DRAWN_LAYERS


def test_known_incompatibilities_match_the_versions_of_the_image(
    example_site: SiteCatalogue,
) -> None:
    found = {target.name: target.incompatible for target in example_site.targets}
    assert any("transformers 4.52.4: " in text for text in found["cu124-vllm"])
    assert not any("transformers" in text for text in found["cu124-vllm0.8.5"])
    assert any(text.startswith("trl 0.18.2 with vllm 0.8.5") for text in found["cu124-vllm0.8.5"])
