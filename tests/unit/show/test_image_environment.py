"""Tests that the report of `imgbuild show --variables` and its table match the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.lock import extension, lock_file
from imgbuild.lock.published import load_matrix
from imgbuild.matrix.model import Flashinfer, Variable
from imgbuild.show import image_environment
from imgbuild.show.image_environment import TargetEnvironment, VariableRow
from imgbuild.sif import files
from imgbuild.values import Arch
from tests.support import extended, samples
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, read_json, write_project

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "builder/imgbuild"
SCRIPTS = sorted((ROOT / "tests/data/slurm").glob("*.sh"))
SERVER = PROGRAM / "data/templates/slurm/trl-server.j2"  # what is for one trainer is in no script
OWN = ("APPTAINERENV_", "IMGBUILD_ENV_")  # what comes from --env, under a name of its own
RAY = samples.wheel("ray", "2.47.1")
OTHER = samples.resolution(samples.wheel("ray", "2.48.0"), arch=Arch.ARM64)


def result(by: str) -> dict[str, VariableRow]:
    """The table rows, by name, of the variables that `by` sets."""
    return {
        name: row
        for row in image_environment.set_variable_rows()
        if row.by == by
        for name in row.names
    }


def of(environment: TargetEnvironment, name: str) -> image_environment.ImageVariable:
    (setting,) = [item for item in environment.image if item.name == name]
    return setting


def dictionary(path: Path, function: str) -> dict[str, object]:
    """The keys and known values of dictionaries in the `function` of a Python file."""
    tree = ast.parse(path.read_text("utf-8"))
    (body,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return {
        key.value: value.value if isinstance(value, ast.Constant) else None
        for node in ast.walk(body)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


# -- the images of this repository


@pytest.fixture(scope="module")
def committed() -> dict[str, TargetEnvironment]:
    matrix, images = load_matrix(ROOT / "matrix.yaml"), ROOT / "images"
    environments = {}
    for name, target in matrix.targets.items():
        lock = (
            lock_file.read_lock(images, name)
            if lock_file.lock_path(images, name).exists()
            else None
        )
        environments[name] = image_environment.target_environment(matrix, name, target.arch, lock)
    return environments


def test_every_variable_of_every_image_has_a_reason_and_a_source(
    committed: dict[str, TargetEnvironment],
) -> None:
    lacking = [
        (environment.target, item.name)
        for environment in committed.values()
        for item in environment.image
        if not item.reason or not item.source or item.differs
    ]
    assert len(committed) > 20
    assert lacking == []


def test_files_that_define_the_variables_exist(committed: dict[str, TargetEnvironment]) -> None:
    lists = [
        each
        for environment in committed.values()
        for each in (*(x.source for x in environment.image), *(x.source for x in environment.late))
    ]
    sources = {source for each in lists for source in each}
    paths = {source for source in sources if "://" not in source and " " not in source}
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []


def test_shown_variables_match_the_lock(committed: dict[str, TargetEnvironment]) -> None:
    lock = lock_file.read_lock(ROOT / "images", "cu130-trl")
    shown = {item.name: item.value for item in committed["cu130-trl"].image}
    assert shown == lock.settings.env
    assert of(committed["cu130-trl"], "CUDA_HOME").by == "targets.cu130-trl.env"
    assert of(committed["cu130-vllm"], "CUDA_HOME").by == "FlashInfer mode jit"
    assert of(committed["cu130-vllm"], "PATH").by == "FlashInfer mode jit"
    assert of(committed["cu124-vllm"], "PATH").by == "image.env"


def test_source_of_a_variable_names_the_package_version_in_the_image(
    committed: dict[str, TargetEnvironment],
) -> None:
    environment = committed[TARGET]
    pinned, locked = of(environment, "DO_NOT_TRACK").source
    assert pinned.startswith("vllm==0.24.0 vllm/")
    assert pinned.endswith(f" (the image has 0.8.5.post1, from targets.{TARGET}.pins)")
    assert locked.endswith(" (the image has 0.33.0, from the lock)")
    absent = of(environment, "FLASHINFER_WORKSPACE_BASE").source
    assert absent[0].endswith(" (the image has no flashinfer-python)")
    [citation] = of(environment, "VLLM_CACHE_ROOT").source  # the one of vllm 0.24.0 is omitted
    assert citation.startswith("vllm==0.8.5.post1 vllm/envs.py:")
    assert "(" not in of(committed["cu130-vllm"], "DO_NOT_TRACK").source[0]
    [at_run] = {setting.source for setting in environment.late if setting.name == "LOGNAME"}
    assert at_run[1].endswith(f" (the image has 2.6.0, from targets.{TARGET}.pins)")


def test_variable_sources_are_compared_with_pins_if_no_lock_exists() -> None:
    cited = ("torch==2.7.0 torch/a.py:1", "ray==2.47.1 ray/b.py:2", "docs/x==1 .md")
    variable = Variable(value="1", reason=samples.REASON, source=cited)
    environment = image_environment.target_environment(
        samples.matrix(env={"X": variable}), "small", (), None
    )
    torch, *others = of(environment, "X").source
    assert torch == "torch==2.7.0 torch/a.py:1 (the image has 2.6.0, from targets.small.pins)"
    assert tuple(others) == cited[1:]


def test_ray_variables_are_shown_only_for_images_with_ray(
    committed: dict[str, TargetEnvironment],
) -> None:
    with_ray = {
        environment.target
        for environment in committed.values()
        if "RAY_ADDRESS" in late(environment)
    }
    assert {"cu124-vllm", "cu130-vllm", "cu130-ray"} <= with_ray
    assert not {"cu130-trl", "cu130-sglang", "cu130-vllm0.31.0"} & with_ray


def late(environment: TargetEnvironment) -> set[str]:
    return {item.name for item in environment.late}


# -- lock and matrix


def test_a_lock_that_differs_from_the_matrix_is_stale_and_shown_unchanged() -> None:
    old = samples.lock(RAY)
    variable = Variable(value="/elsewhere", reason=samples.REASON, source=("docs/x.md",))
    path = Variable(value="/opt/venv/bin:/bin", reason=samples.REASON)
    matrix = samples.matrix(env={"HF_HOME": variable, "PATH": path})
    environment = image_environment.target_environment(matrix, "small", (Arch.X86_64,), old)
    assert of(environment, "PATH").value == "/opt/venv/bin:/usr/bin:/bin"
    assert of(environment, "PATH").differs == "the matrix has '/opt/venv/bin:/bin'"
    assert of(environment, "HF_HOME").value == ""
    assert "the variable is not in the lock" in of(environment, "HF_HOME").differs
    assert of(environment, "HF_HOME").source == ("docs/x.md",)
    assert environment.locked


def test_variable_removed_from_the_matrix_is_reported() -> None:
    old = samples.lock(of=samples.matrix(env={"OLD": Variable(value="1", reason=samples.REASON)}))
    environment = image_environment.target_environment(
        samples.matrix(), "small", (Arch.X86_64,), old
    )
    assert of(environment, "OLD").differs == "the matrix does not set this variable"
    assert of(environment, "PATH").differs == ""


def test_matrix_settings_are_shown_without_a_lock() -> None:
    settings = Flashinfer(mode="jit", reason=samples.REASON)
    environment = image_environment.target_environment(
        samples.matrix(cuda="13.0", flashinfer=settings), "small", (), None
    )
    assert not environment.locked
    assert of(environment, "CUDA_HOME").by == "FlashInfer mode jit"
    assert "RAY_ADDRESS" in late(environment)


def test_variable_in_target_row_takes_precedence() -> None:
    path = Variable(value="/opt/venv/bin:/x", reason="the x is needed")
    matrix = samples.matrix(env={"PATH": path})
    environment = image_environment.target_environment(
        matrix, "small", (Arch.X86_64,), samples.lock(of=matrix)
    )
    assert (of(environment, "PATH").by, of(environment, "PATH").reason) == (
        "targets.small.env",
        path.reason,
    )


def test_folder_for_user_packages_is_specific_to_the_architecture() -> None:
    matrix = samples.matrix(user_packages=True, arch=tuple(Arch))
    matrix.image.env["PYTHONNOUSERSITE"] = Variable(value="1", reason=samples.REASON)
    lock = samples.lock(RAY, of=matrix)
    same, one = (
        image_environment.target_environment(matrix, "small", tuple(Arch), each)
        for each in (lock, msgspec.structs.replace(lock, arch={**lock.arch, Arch.ARM64: OTHER}))
    )
    [path] = [item for item in same.image if item.name == "PATH"]
    base = of(same, "PYTHONUSERBASE")
    assert (path.by, base.by) == ("user_packages", "user_packages")
    assert base.value.startswith("/workspace/.imgbuild-packages/small-")
    assert path.value.startswith("/opt/imgbuild/bin:/opt/venv/bin:")
    assert path.value.endswith(f":/bin:{base.value}/bin")
    bases = {item.by: item.value for item in one.image if item.name == "PYTHONUSERBASE"}
    assert bases["user_packages, on x86_64"] == base.value != bases["user_packages, on arm64"]
    for environment in (same, image_environment.target_environment(matrix, "small", (), None)):
        assert [item.differs for item in environment.image if item.differs] == []
        assert "PYTHONNOUSERSITE" not in {item.name for item in environment.image}


def test_variables_depend_on_the_packages_of_the_architecture() -> None:
    lock = samples.lock(RAY)
    other = {Arch.X86_64: samples.resolution(), Arch.ARM64: lock.arch[Arch.X86_64]}
    lock = msgspec.structs.replace(lock, arch=other)
    x86, arm, both = (
        image_environment.target_environment(samples.matrix(), "small", arches, lock)
        for arches in ((Arch.X86_64,), (Arch.ARM64,), (Arch.X86_64, Arch.ARM64))
    )
    assert "RAY_ADDRESS" not in late(x86)
    assert "RAY_ADDRESS" in late(arm) & late(both)


def test_an_extension_shows_published_and_added_variables(tmp_path: Path) -> None:
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    environment = image_environment.target_environment(
        matrix, extended.OWN_TARGET, tuple(lock.arch), lock
    )
    assert {item.name: item.value for item in environment.image} == lock.settings.env
    assert of(environment, "WANDB_MODE").by == "targets.ours.env"
    assert of(environment, "WANDB_MODE").reason == "nodes have no network"
    assert of(environment, "PATH").by == "published small"
    assert "small" in of(environment, "PATH").reason
    assert not [item for item in environment.image if item.differs]


# -- the table, and what sets variables


def test_entry_point_sets_the_variables_of_the_table() -> None:
    scripts = (PROGRAM / f"data/image/{name}.sh" for name in ("environment", "user_packages"))
    text = "".join(script.read_text("utf-8") for script in scripts)
    (moved,) = re.findall(r"for imgbuild_name in ([A-Z_ ]+);", text)
    exported = set(re.findall(r"(?:export|\s)([A-Z]+)=\"\$", text))
    assert result("entry point").keys() == exported | set(moved.split())


def test_sif_sets_the_variables_of_the_table() -> None:
    exported = re.findall(r"export ([A-Z0-9_]+)=", files.LAST_SCRIPT)
    assert result("SIF").keys() == {*files.UNWANTED_VARIABLES, *exported}
    assert files.LIBRARIES in result("SIF")["LD_LIBRARY_PATH"].value


def set_by(script: Path) -> Iterator[tuple[str, str]]:
    """The variables that a job script sets in the image, with unexpanded values."""
    text = re.sub(r"^ *#.*$", "", script.read_text("utf-8"), flags=re.MULTILINE)
    for line in re.findall(r"\bexport (.*)$", text, re.MULTILINE):
        yield from re.findall(r"([A-Za-z_]*[A-Z_][A-Za-z_]*)=(\S*)", line)
    for words in re.findall(r"^ *env ([A-Z_]+=.*)$", text, re.MULTILINE):
        yield from re.findall(r"([A-Z_]+)=(\S+)", words)
    for words in re.findall(r"--env (\S+)", text):
        yield from re.findall(r"([A-Z_]+)=([^,]*)", words)


def test_job_scripts_set_the_variables_of_the_table() -> None:
    variables = {
        name: value
        for script in (*SCRIPTS, SERVER)
        for name, value in set_by(script)
        if not name.startswith(OWN)
    }
    passed = {name for name, row in result("slurm").items() if row.value == "as where sbatch runs"}
    unset_names = {name for name, row in result("slurm").items() if row.value == "unset"}
    assert variables.keys() == result("slurm").keys() - passed - unset_names
    for name, value in variables.items():
        stated = result("slurm")[name].value
        if re.fullmatch(r"[\w/.]+", stated):  # without text: the value itself
            assert stated in re.split(r"[},:-]|=", value), (name, value)


def test_job_scripts_pass_or_unset_the_variables_of_the_table() -> None:
    (single,) = [path for path in SCRIPTS if path.stem == "single"]
    *_, cases = re.findall(r"case \$name in(.*?)\)\n", single.read_text("utf-8"), re.DOTALL)
    patterns = set(re.split(r"[\s|\\]+", cases.strip()))
    assert patterns <= result("slurm").keys()
    names_by_value = {
        row.value: set(row.names)
        for row in image_environment.set_variable_rows()
        if row.by == "slurm"
    }
    assert names_by_value["as where sbatch runs"] == patterns
    (pyxis,) = [path for path in SCRIPTS if path.stem == "ray-pyxis"]
    (unset,) = re.findall(r"for name in ([A-Z_ ]+) \$withheld; do unset", pyxis.read_text("utf-8"))
    assert names_by_value["unset"] == set(unset.split())


def test_only_job_scripts_for_ray_mention_ray() -> None:
    for script in SCRIPTS:
        names = {name for name, _ in set_by(script)}
        rays = {name for name, row in result("slurm").items() if row.packages == ("ray",)}
        assert bool(rays & names) == (script.stem in ("verl", "ray-pyxis"))


def test_smoke_tests_set_the_variables_of_the_table() -> None:
    variables = dictionary(ROOT / "smoke_tests/run.py", "environment")
    variables = {name: value for name, value in variables.items() if not name.startswith("SMOKE_")}
    assert result("smoke").keys() == variables.keys()
    for name, value in variables.items():
        assert value in (None, result("smoke")[name].value)


def test_root_folders_with_gpus_set_the_variables_of_the_table() -> None:
    shown = dictionary(PROGRAM / "container/driver.py", "driver_files")
    assert result("root folder with GPUs").keys() == shown.keys()


# -- the verb


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def test_variables_option_explains_the_variables_of_an_image(
    tmp_path: Path, command: Command
) -> None:
    write_project(tmp_path)
    done = command("show", "--variables", TARGET)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{TARGET} (x86_64): 6 variables in the image\n")
    shown = "\nPATH=/opt/venv/bin:/bin\n    commands come first\n    set by: image.env\n"
    assert shown in done.stdout
    assert f"{TARGET}, at run time: set by the job scripts of imgbuild slurm" in done.stdout
    assert "    source: https://" in done.stdout
    assert "RAY_ADDRESS" not in done.stdout


def test_variables_option_reports_a_stale_lock(tmp_path: Path, command: Command) -> None:
    write_project(tmp_path).edit('VLLM_USE_V1: {value: "1"', 'VLLM_USE_V1: {value: "0"')
    done = command("show", "--variables", TARGET)
    assert done.status == 0
    assert "the lock is stale" in done.stderr
    assert f"imgbuild lock {TARGET}" in done.stderr
    assert "VLLM_USE_V1=1\n    stale: the matrix has '0'\n" in done.stdout


def test_variables_option_reports_a_target_without_a_lock(tmp_path: Path, command: Command) -> None:
    write_project(tmp_path)
    done = command("show", "--variables", UNLOCKED, "--arch", "arm64", "--json")
    assert "is not locked; the values are from the matrix" in done.stderr
    (environment,) = read_json(done)
    assert (environment["target"], environment["arch"], environment["locked"]) == (
        UNLOCKED,
        ["arm64"],
        False,
    )
    assert {item["name"] for item in environment["image"]} >= {
        "PATH",
        "VLLM_USE_FLASHINFER_SAMPLER",
    }
