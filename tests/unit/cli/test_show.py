"""Tests that the output of `imgbuild show` and `imgbuild list` is correct and fits 80 columns."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import msgspec
import pytest

from imgbuild.errors import InputError, LockStale, NothingSelected
from imgbuild.lock import lock_file
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.plan.image_digests import read_digests
from imgbuild.render.readme import readme_text as readme_of
from imgbuild.show import guide, page, table
from imgbuild.system.amounts import size_text
from imgbuild.values import Arch
from tests.support import smoke_records, terminal
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, SampleProject

ROOT = Path(__file__).parents[3]


def test_page_of_an_image_has_digest_size_tests_and_commands(
    imgbuild: Command, sample: SampleProject
) -> None:
    done = imgbuild("show", TARGET)
    assert (done.status, done.stderr) == (0, "")
    image = sample.target_digests.arch[Arch.X86_64]
    assert done.stdout.splitlines()[0] == TARGET
    assert f"  {image.manifest}" in done.stdout
    assert f"{size_text(image.size)} to pull" in done.stdout
    largest = max(layer.size for layer in image.layers)
    assert f" {size_text(largest)}, " in done.stdout.partition("Largest layers")[2]
    assert "  State          locked" in done.stdout
    assert "no test record" in done.stdout
    commands = done.stdout.partition("\nCommands\n")[2].splitlines()
    assert commands[:3] == [
        f"  imgbuild build {TARGET}",
        f"  imgbuild load {TARGET}",
        f"  imgbuild run {TARGET} -- python -c 'import torch'",
    ]
    launch = "torchrun --standalone --nproc-per-node 8 train.py"
    job = f"imgbuild slurm {TARGET} --gpus 8 -- {launch} > job.sh"
    words = "--format k8s-job --gpus 8 --registry HOST/REPOSITORY"
    pod = f"imgbuild render {TARGET} {words} -- {launch} > job.yaml"
    guide_lines = imgbuild("show", TARGET, "--guide").stdout.splitlines()
    for line in (job, f"imgbuild push {TARGET} HOST/REPOSITORY", pod):
        assert line in " ".join(each.strip() for each in commands).replace(" \\ ", " ")
        assert f"    {line}" in guide_lines
    assert "No registry is set, so nothing can be pulled" in done.stdout
    assert "docker pull" not in done.stdout
    (page,) = json.loads(imgbuild("show", TARGET, "--json").stdout)
    assert page["digest"] == sample.target_digests.digest
    assert [each["layers"] for each in page["images"]] == [len(image.layers)]


def test_page_of_two_architectures_has_the_digest_of_the_index(
    imgbuild: Command,
) -> None:
    words = ("cu130-vllm", "--matrix", str(ROOT / "matrix.yaml"))
    lines = imgbuild("show", *words).stdout.splitlines()
    place = lines.index("x86_64 and arm64")
    assert lines[place + 1] == f"  {imgbuild('digest', *words).stdout.split()[-1]}"
    assert lines[place + 3] == "x86_64"


def test_commands_on_the_page_of_an_image_without_torch_do_not_import_torch(
    sample: SampleProject,
) -> None:
    lock = sample.lock
    arch = {
        name: msgspec.structs.replace(
            locked, wheels=tuple(each for each in locked.wheels if each.package != "torch")
        )
        for name, locked in lock.arch.items()
    }
    session = open_session(sample.matrix, SessionOptions())
    [row] = table.create_rows(session.matrix, session.select_targets([TARGET]))
    target_page = page.target_page(
        row, msgspec.structs.replace(lock, arch=arch), sample.target_digests, None
    )
    assert f"imgbuild run {TARGET} -- python --version" in target_page.commands


@pytest.mark.usefixtures("sample")
def test_target_without_lock_has_a_page(imgbuild: Command) -> None:
    done = imgbuild("show", UNLOCKED)
    assert done.status == 0
    assert "not locked" in done.stdout
    assert done.stdout.splitlines()[-1] == f"  imgbuild lock {UNLOCKED}"


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    "words",
    [
        ["show", TARGET, "--sbom", "spdx", "--output", "matrix.yaml/x"],
        ["push", TARGET, "localhost:1/a/b", "--digest-file", "matrix.yaml/x"],
        ["pull", "localhost:1/a/b:c", "--output", "matrix.yaml/x"],
        ["smoke", TARGET, "--tier", "static", "--junit", "matrix.yaml/x"],
        ["ci", "report", "--summary", "matrix.yaml/x"],
        ["ci", "report", "--issues", "matrix.yaml/x"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_show_refuses_an_unwritable_output_file_early(imgbuild: Command, words: list[str]) -> None:
    done = imgbuild(*words)
    assert (done.status, done.stdout) == (2, "")
    first, hint = done.stderr.splitlines()
    assert first.startswith("error: cannot write matrix.yaml/x: ")
    assert hint.startswith("hint: choose another ")


def test_packages_option_lists_the_packages_of_the_lock(
    imgbuild: Command, sample: SampleProject
) -> None:
    locked = sample.lock.arch[Arch.X86_64]
    done = imgbuild("show", TARGET, "--packages")
    rows = [tuple(line.split()) for line in done.stdout.splitlines()[1:]]
    assert [row[:2] for row in rows] == [
        *((wheel.package, wheel.version) for wheel in locked.wheels),
        *((deb.package, deb.version) for deb in locked.debs),
    ]
    (packages,) = json.loads(imgbuild("show", TARGET, "--packages", "--json").stdout)
    assert packages["wheels"] == {wheel.package: wheel.version for wheel in locked.wheels}
    assert packages["debs"] == {deb.package: deb.version for deb in locked.debs}


def test_licences_of_wheels_are_counted(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"), "--arch", "x86_64")
    words = ("show", "cu130-verl0.9", "--packages", *matrix_options)
    (listed,) = json.loads(imgbuild(*words, "--json").stdout)
    assert listed["licences"].keys() == listed["wheels"].keys()
    assert listed["licences"]["vllm"] == "Apache-2.0"
    number = [*listed["licences"].values()].count("MIT")
    assert f"licences of the wheels: MIT {number}, " in imgbuild(*words).stderr


def test_packages_that_are_built_from_sdists_are_listed(imgbuild: Command) -> None:
    lock = lock_file.read_lock(ROOT / "images", "cu128-verl0.6")
    resolution = lock.arch[Arch.X86_64]
    assert resolution.built
    done = imgbuild("show", "cu128-verl0.6", "--packages", "--matrix", str(ROOT / "matrix.yaml"))
    lines = [line.split() for line in done.stdout.splitlines()]
    for built in resolution.built:
        assert [built.package, built.version, built.wheel.file] in lines
    assert f"{len(resolution.versions)} wheels" in done.stderr


def test_guide_of_an_image_has_the_readme_and_catalogue_data(
    imgbuild: Command, sample: SampleProject
) -> None:
    done = imgbuild("show", TARGET, "--guide")
    assert done.status == 0
    readme = readme_of(
        sample.lock,
        open_session(sample.matrix, SessionOptions()).matrix.targets[TARGET],
        sample.folder / "images",
    )
    before, _, rest = done.stdout.partition("\n## Image\n")
    sections = readme.split("\n## ")
    assert [part for part in sections if part not in before] == [
        part for part in sections if part.startswith("Add a package")
    ]
    image = sample.target_digests.arch[Arch.X86_64]
    assert sample.target_digests.digest in rest
    assert f"- x86_64: {size_text(image.size)} to download" in rest
    assert "- x86_64: no test record for this digest" in rest
    (value,) = json.loads(imgbuild("show", TARGET, "--guide", "--json").stdout)
    assert value["page"]["digest"] == sample.target_digests.digest
    assert value["readme"].rstrip("\n") == before.rstrip("\n")
    assert imgbuild("show", UNLOCKED, "--guide").status == LockStale.exit_code


def test_known_issues_are_in_the_guide_and_change_no_digest(
    imgbuild: Command, sample: SampleProject
) -> None:
    digest = imgbuild("digest", TARGET).stdout
    text = sample.matrix.read_text("utf-8")
    row = f"  {TARGET}:\n"
    issue = "    known_issues:\n      - >-\n        DPO fails\n        offline.\n"
    sample.matrix.write_text(text.replace(row, row + issue, 1), "utf-8")
    assert (
        "\n\n## Known issues\n\n- DPO fails offline.\n\n## Image\n"
        in imgbuild("show", TARGET, "--guide").stdout
    )
    assert imgbuild("digest", TARGET).stdout == digest != ""
    sample.matrix.write_text(text.replace(row, f'{row}    known_issues: [""]\n', 1), "utf-8")
    assert "known_issues[0]" in imgbuild("show", TARGET, "--guide").stderr


def test_guide_has_corrections_of_the_readme_in_the_image(
    imgbuild: Command, tmp_path: Path
) -> None:
    digest = ("digest", "cu130-vllm0.33.0", "--matrix", str(tmp_path / "matrix.yaml"))
    text = (ROOT / "matrix.yaml").read_text("utf-8")
    (tmp_path / "images").symlink_to(ROOT / "images")
    (tmp_path / "matrix.yaml").write_text(text, "utf-8")
    before = imgbuild(*digest).stdout
    note = "(trl vllm-serve) needs a GPU that no trainer uses."
    (tmp_path / "matrix.yaml").write_text(text.replace(note, "needs another GPU."), "utf-8")
    shown = imgbuild("show", "cu130-vllm0.33.0", "--guide", *digest[2:]).stdout
    assert "- TRL's server mode needs another GPU." in shown
    assert guide.CORRECTED in shown
    assert imgbuild(*digest).stdout == before != ""


def test_guide_of_image_without_user_packages_has_no_pip(imgbuild: Command) -> None:
    done = imgbuild("show", TARGET, "--guide", "--matrix", str(ROOT / "matrix.yaml"))
    assert "    pip install PACKAGE" not in done.stdout
    assert f"imgbuild init --extends {TARGET}, then imgbuild add PACKAGE" in done.stdout
    assert "- x86_64, gpu on NVIDIA " in done.stdout


@pytest.mark.parametrize("part", [(), ("--guide",)])
def test_page_of_an_image_lists_gpus_supported_through_ptx(
    imgbuild: Command, part: tuple[str, ...]
) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"), "--arch", "x86_64")
    text = " ".join(imgbuild("show", "cu130-vllm", *part, *matrix_options).stdout.split())
    lock = lock_file.read_lock(ROOT / "images", "cu130-vllm")
    floors = read_digests(ROOT / "images", lock).arch[Arch.X86_64].floors
    assert floors
    ptx = floors.gpu_ptx
    assert ptx
    assert f"; the driver compiles some code for {', '.join(ptx)} at first use" in text
    assert "T4, RTX 20 (7.5), A100, A30 (8.0), A10, A40, RTX 30 (8.6), L4, L40S" in text


def test_page_of_an_image_shows_equal_test_notes_once() -> None:
    lines = [
        "(pid=1759) WARNING:2026-11-25 12:38:33,554:No accelerator. Falling back to 'nvidia'.",
        "WARNING:2026-11-25 12:38:11,079:No accelerator. Falling back to 'nvidia'.",
        "W 348 348] network_util.cc:330: falling back to hostname resolution",
        "(Worker pid=7) WARNING 11-25 12:38:11 [warmup.py:12] No cache. Falling back to default.",
        "[warmup.py:14] No cache. Falling back to default.",
        "Whole words stay: 8 of them. Skipping.",
        "/opt/venv/lib/python3.13/site-packages/trl/a.py:4: late",
    ]
    assert page.distinct_notes(lines) == [
        "No accelerator. Falling back to 'nvidia'.",
        "network_util.cc:330: falling back to hostname resolution",
        "[warmup.py:12] No cache. Falling back to default.",
        "Whole words stay: 8 of them. Skipping.",
        "trl/a.py:4: late",
    ]


def test_file_names_are_complete_or_omitted_on_a_terminal(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    whole = imgbuild("show", "cu124-vllm", "--packages", *matrix_options).stdout
    files = [line.split()[-1] for line in whole.splitlines()]
    with terminal.terminal_stdout(monkeypatch) as screen:
        done = imgbuild("show", "cu124-vllm", "--packages", *matrix_options)
    assert [line.split() for line in screen.lines] == [
        line.split()[:2] for line in whole.splitlines()
    ]
    assert "to see file names, " in done.stderr
    with terminal.terminal_stdout(monkeypatch) as screen:
        monkeypatch.setenv("COLUMNS", "200")
        imgbuild("show", "cu124-vllm", "--packages", *matrix_options)
    assert [line.split()[-1] for line in screen.lines] == files


def test_requirements_of_a_target_are_shown_once(imgbuild: Command) -> None:
    done = imgbuild("show", "cu128-verl0.7", "--matrix", str(ROOT / "matrix.yaml"))
    assert "  State          needs a wheel of flash-attn in wheels/\n" in done.stdout


@pytest.mark.usefixtures("sample")
def test_show_options_for_different_parts_cannot_be_combined(imgbuild: Command) -> None:
    done = imgbuild("show", TARGET, "--layers", "--variables")
    assert (done.status, "--layers and --variables cannot be combined" in done.stderr) == (2, True)
    done = imgbuild("show", TARGET, "--output", "x")
    assert (done.status, "--output requires --sbom" in done.stderr) == (2, True)


def test_pages_and_list_of_this_repository_fit_80_columns(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    pages = imgbuild("show", "--all", *matrix_options).stdout.splitlines()
    assert len(pages) > 200
    assert [line for line in pages if len(line) > 80 and not line.startswith("  docker ")] == []
    layers = imgbuild("show", "--all", "--layers", *matrix_options).stdout.splitlines()
    assert len(layers) > 500
    assert [line for line in layers if len(line) > 80] == []


USUAL = ["name", "CUDA", "torch", "engine", "trl", "with", "tested"]


@pytest.mark.parametrize(
    ("width", "more", "month", "stacks"),
    [
        (80, [], False, False),
        (100, [], False, True),
        (120, ["Python"], True, True),
        (200, ["Python", "driver", "also", "arch", "pull"], True, True),
    ],
)
def test_list_uses_the_width_of_the_terminal(
    imgbuild: Command,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    more: list[str],
    *,
    month: bool,
    stacks: bool,
) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    with terminal.terminal_stdout(monkeypatch) as screen:
        monkeypatch.setenv("COLUMNS", str(width))
        imgbuild("list", "--all", *matrix_options)
    head, *rows = screen.lines
    assert [name for name in head.split() if name not in more] == USUAL
    assert [name for name in head.split() if name not in USUAL] == more
    assert max(map(len, screen.lines)) <= width
    text = "\n".join(rows)
    # Every stack has its name even in the narrowest table.
    for stack in ("SGLang 0.5.23", "vLLM 0.33.0", "verl", "unsloth", "deepspeed", "ray"):
        assert stack in text
    # Locked without a pin.
    assert "ray" in next(row for row in rows if row.startswith("cu126-vllm "))
    assert ("verl 0.9.1, ray 2.60.0" in text) == stacks
    assert ("verl, ray " in text) == (not stacks)
    assert ("(retired)" in text) == stacks
    assert any(" H200 2026-" in row for row in rows) == month
    assert any(row.endswith(" H200") for row in rows) == (not month)


def test_list_shows_paragraphs_on_a_narrow_terminal(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("list", "--wide", "--matrix", str(ROOT / "matrix.yaml"))
    with terminal.terminal_stdout(monkeypatch) as screen:
        monkeypatch.setenv("COLUMNS", "80")
        imgbuild(*words)
    assert max(map(len, screen.lines)) <= 80
    start = screen.lines.index("cu130-verl-sglang")
    text = " ".join(line.strip() for line in screen.lines[start:]).partition("  ")[0]
    assert "arch x86_64, arm64" in text
    assert "also: sglang 0.5.13.post1, ray 2.60.0" in text
    assert "state: locked tested: x86_64 " in text
    # Without a terminal: a table, one line for each target.
    table = imgbuild(*words).stdout.splitlines()
    assert table[0].split()[:2] == ["target", "recommended"]
    assert len({line.split()[0] for line in table}) == len(table)


@pytest.mark.parametrize(
    ("gpu", "has", "lacks"),
    [
        ("H200", "cu126-vllm", "cu130-verl0.9"),
        ("2 H100", "cu130-verl0.9", "cu126-vllm"),
        ("nvidia h200", "cu126-vllm", "cu130-verl0.9"),
        ("80GB HBM3", "cu130-verl0.9", "cu126-vllm"),
    ],
)
def test_targets_that_passed_on_a_gpu_are_listed(
    imgbuild: Command, gpu: str, has: str, lacks: str
) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    lines = imgbuild("list", "--tested", gpu, *matrix_options).stdout.splitlines()
    names = {line.split()[0] for line in lines}
    assert has in names
    assert lacks not in names
    failed = imgbuild("list", "--tested", "H200", *matrix_options).stderr
    hint = "to show the failures, run: imgbuild show TARGET --tests"
    assert f"cu130-vllm0.20.2 (retired); {hint}" in failed
    failed = imgbuild("list", "--tested", "H200", "--cuda", "12.6", *matrix_options).stderr
    assert "failed" not in failed
    done = imgbuild("list", "--tested", "RTX 4090", *matrix_options)
    assert done.status == NothingSelected.exit_code
    assert "--tested RTX 4090" in done.stderr


def test_list_shows_whole_versions_without_a_terminal(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    table = imgbuild("list", *matrix_options).stdout.splitlines()
    assert table[0].split() == USUAL
    assert "…" not in "".join(table)
    assert any("0.8.5.post1" in line for line in table)


def test_list_marks_recommended_targets_and_shows_them_first(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    rows = json.loads(imgbuild("list", "--json", *matrix_options).stdout)
    marked = [bool(row["recommended"]) for row in rows]
    number = sum(marked)
    assert marked == [True] * number + [False] * (len(rows) - number)
    stacks = [row["recommended"] for row in rows[:number]]
    assert len(set(stacks)) == number
    for row in rows[:number]:
        tiers = {run["tier"] for image in row["images"] for run in image["runs"]}
        assert tiers & {"gpu", "multi-gpu"}, row["target"]
    table = imgbuild("list", *matrix_options).stdout.splitlines()
    assert [line.split()[1] == "*" for line in table[1:]] == marked


def test_list_combines_its_filters(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"), "--json")

    @functools.cache
    def _names(*words: str) -> frozenset[str]:
        rows = json.loads(imgbuild("list", *words, *matrix_options).stdout)
        return frozenset(row["target"] for row in rows)

    verl = _names("--with", "verl")
    assert {"cu130-vllm", "cu128-verl0.6"} <= verl
    assert {"cu130-vllm", "cu130-flashinfer"} <= _names("--with", "verl>=0.9") < verl
    assert _names("--with", "verl", "--cuda", "12.8") == {"cu128-verl0.6", "cu128-verl0.7"}
    # A package that no row pins is looked up in the locks.
    assert "cu124-vllm" in _names("--with", "transformers<5", "--cuda", "12")
    older = _names("--gpu", "sm_80")
    assert older == _names("--gpu", "8.0")
    assert "cu124-vllm" in older
    assert "cu124-vllm" not in _names("--gpu", "sm_120")
    assert older == _names("--gpu", "NVIDIA A100-SXM4-80GB")
    # GH200 is arm64: targets for x86_64 alone are omitted, though they have code for 9.0.
    hopper = _names("--gpu", "GH200")
    assert "cu130-vllm" in hopper < _names("--gpu", "H100")
    old_driver = _names("--driver", "535")
    assert "cu124-vllm" in old_driver
    assert not any(name.startswith("cu130") for name in old_driver)
    assert "cu130-vllm" in _names("--driver", "580") == _names("--driver", "580.65.06")
    assert "cu130-vllm" not in _names("--driver", "580.65.05")
    assert _names("--python", "3.13") == {"cu130-vllm0.33.0", "cu128-unsloth2026.10"}
    assert _names("--python", "3") > _names("--python", "3.11")
    both = _names("--python", "3.12,3.13")
    assert both == _names("--python", "3.12") | _names("--python", "3.13")
    assert both == _names("--python", "3.12", "--python", "3.13") == _names("--python", ">=3.12")
    assert _names("--python", ">=3.12,<3.13") == _names("--python", "3.12")
    assert _names("--gpu", "GH200") == _names("--gpu", "GH200", "--arch", "arm64")
    desktop = _names("--gpu", "RTX 5090", "--arch", "x86_64")
    several = _names("--gpu", "RTX 5090", "--gpu", "GH200")
    assert several == desktop & _names("--gpu", "GH200") != desktop


def test_list_without_a_result_names_filters_and_the_nearest_target(imgbuild: Command) -> None:
    matrix_options = ("--matrix", str(ROOT / "matrix.yaml"))
    done = imgbuild("list", "--with", "verl", "--cuda", "12.6", *matrix_options)
    assert done.status == NothingSelected.exit_code
    assert "no target matches --with verl --cuda 12.6" in done.stderr
    assert "without --cuda 12.6, these targets match: cu130-verl0.9" in done.stderr
    done = imgbuild("list", "--with", "verl==0.9.9", *matrix_options)
    assert "nearest: the target cu" in done.stderr
    done = imgbuild("list", "--gpu", "agx orin", "--driver", "580", *matrix_options)
    assert "to show the reasons, run: imgbuild doctor --gpu 'agx orin' --driver 580" in done.stderr
    done = imgbuild("list", "--gpu", "V100", *matrix_options)
    assert "GPU V100 has compute capability 7.0, but images require at least 7.5" in done.stderr
    assert "at least" not in imgbuild("list", "--gpu", "A100", "--cuda", "11").stderr
    done = imgbuild("list", "--with", "flash_attn>=2", *matrix_options)
    assert "no image has flash-attn: it is published only as source" in done.stderr
    assert 'without it: attn_implementation="sdpa"' in done.stderr
    for words in (
        ("--gpu", "hopper"), ("--with", "verl>="), ("--driver", "new"), ("--python", "3.x"),
    ):  # fmt: skip
        assert imgbuild("list", *words, *matrix_options).status == InputError.exit_code


@pytest.mark.usefixtures("sample")
def test_at_most_three_targets_are_suggested_for_a_misspelled_name(imgbuild: Command) -> None:
    done = imgbuild("show", "cu124-vlm", "--matrix", str(ROOT / "matrix.yaml"))
    assert done.status == NothingSelected.exit_code
    hint = done.stderr.splitlines()[-1]
    assert "did you mean cu124-vllm" in hint
    assert hint.count("cu1") <= 3
    assert "`imgbuild list`" in hint


@pytest.mark.usefixtures("sample")
def test_show_compares_two_targets_side_by_side(imgbuild: Command) -> None:
    done = imgbuild("show", TARGET, UNLOCKED)
    head, *rows = done.stdout.splitlines()
    assert head.split() == [TARGET, UNLOCKED]
    cells = {row[3:].split("  ")[0]: row for row in rows}
    assert cells["CUDA"].split() == ["CUDA", "12.4", "13.0"]
    assert rows[2].startswith("=  Python ") == (len(set(rows[2].split()[2:])) == 1)
    assert f"imgbuild diff {TARGET} {UNLOCKED}" in done.stderr
    wide = imgbuild("show", "cu124-vllm", "cu130-verl0.9", "--matrix", str(ROOT / "matrix.yaml"))
    assert max(map(len, wide.stdout.splitlines())) <= 80
    both = json.loads(imgbuild("show", TARGET, UNLOCKED, "--json").stdout)
    assert [each["row"]["target"] for each in both] == [TARGET, UNLOCKED]


def test_show_tests_prints_a_table_of_results_by_gpu(
    imgbuild: Command, sample: SampleProject
) -> None:
    none = imgbuild("show", TARGET, "--tests")
    assert none.stdout.splitlines()[-1] == "no test record for this digest"
    smoke_records.answer_file(sample, smoke_records.PASSED, smoke_records.FAILED)
    smoke_records.answer_file(sample, name="cpu.json", tier="cpu", gpu=[], driver="")
    for name in ("gpu.json", "cpu.json"):
        assert imgbuild("smoke", "--import", name).status == 0
    lines = imgbuild("show", TARGET, "--tests").stdout.splitlines()
    first, head, cpu, gpu, failure, known, *passed, skipped, case = lines[:12]
    assert "equal configuration" not in imgbuild("show", TARGET).stdout
    assert first.startswith(f"{TARGET} x86_64, digest ")
    assert head.split()[:5] == ["GPU", "tier", "passed", "failed", "skipped"]
    assert cpu.split()[:5] == ["none", "cpu", "1", "0", "1"]
    assert gpu.split()[:5] == ["H200", "gpu", "1", "1", "0"]
    assert failure.startswith("first failure of gpu on H200: nccl: RuntimeError")
    assert known == f"known issues and what to use instead: imgbuild show {TARGET} --guide"
    name = f"  {smoke_records.PASSED.name}"
    assert passed == ["passed, cpu: 1", name, "passed, gpu on H200: 1", name]
    assert skipped == "skipped, cpu: 1"
    assert case == "  sglang: the lock has no sglang"
    assert [line.split(":")[0] for line in lines[13::2]] == ["  cpu", "  gpu"]
    [answer] = json.loads(imgbuild("show", TARGET, "--tests", "--json").stdout)
    assert [run["tier"] for run in answer["runs"]] == ["cpu", "gpu"]
    words = ("show", "cu124-vllm0.8.5", "--tests", "--matrix", str(ROOT / "matrix.yaml"))
    lines = imgbuild(*words).stdout.splitlines()
    unnamed = next(number for number, line in enumerate(lines) if "passed, gpu on H200" in line)
    passed, skipped = lines[unnamed + 1].split("; "), " ".join(lines[unnamed + 2 :])
    assert "  device" in passed
    assert "sglang: the lock has no sglang" in skipped
    assert "sglang" not in passed
    first = lines[lines.index("skipped, gpu on H200: 23") + 1]
    assert first.startswith("  known limitation: vllm xgrammar, unpadded vocabulary; vllm guidance")
    assert first.endswith("or the backends outlines and lm-format-enforcer")


def test_layers_are_shown_as_bars_only_on_a_terminal(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("show", "cu124-vllm", "--layers", "--matrix", str(ROOT / "matrix.yaml"))
    table_lines = imgbuild(*words).stdout.splitlines()
    assert table_lines[0].split() == ["#", "layer", "MB", "unpacked", "contents", "digest"]
    with terminal.terminal_stdout(monkeypatch) as screen:
        imgbuild(*words)
    assert len(screen.lines) == len(table_lines) - 1
    assert max(map(len, screen.lines)) <= 80
    (torch,) = [line for line in screen.lines if line.split()[1] == "torch"]
    assert torch.count("█") == max(line.count("█") for line in screen.lines)
