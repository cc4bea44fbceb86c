"""Compares each type of job script with a committed file, and tests which requests are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from imgbuild.cli import slurm
from imgbuild.errors import InputError
from imgbuild.sif import container, files
from imgbuild.slurm import jobs
from imgbuild.slurm.jobs import Allocation, Container, ScriptKind
from imgbuild.values import Arch, digest_of
from tests.support import samples
from tests.support.inprocess_project import TARGET, write_project
from tests.support.rows import each_row

GOLDEN = Path(__file__).parents[2] / "data/slurm"
DIGEST = "sha256:" + "1" * 64
SIF = Container(image="/images/small.sif", binds=("/data:/data:ro",))
TRAIN = ("python", "train.py", "--name", "two words")
ALLOCATION = Allocation(
    nodes=2, gpus=8, cpus=64, memory="200G", time="4:00:00", account="lab", partition="gpu",
    more=("--qos=high",),
)  # fmt: skip


def lock(trl: str = "0.18.2"):
    packages = {"grpcio": "1.73.0", "ray": "2.47.1", "trl": trl, "verl": "0.4.1", "vllm": "0.8.5"}
    return samples.lock(*(samples.wheel(name, version) for name, version in packages.items()))


def job_script(
    job: ScriptKind, allocation: Allocation = ALLOCATION, container: Container = SIF, **more: object
) -> str:
    given = {"command": TRAIN, **more}
    return jobs.job_text(
        jobs.create_job_script(lock(), DIGEST, job, allocation, container, **given), None
    )


def with_(**changes: object) -> Allocation:
    return msgspec.structs.replace(ALLOCATION, **changes)


KINDS: dict[str, tuple[ScriptKind, dict[str, Any]]] = {
    "single": (
        ScriptKind.SINGLE,
        {"allocation": with_(nodes=1, gpus=1), "stage": ("/models/my model",)},
    ),
    "torchrun": (ScriptKind.TORCHRUN, {}),
    "verl": (
        ScriptKind.VERL,
        {"environment": (jobs.EnvVariable("WORD", "it's"),), "passed": ("TOKEN",),
         "scratch": "/local"},
    ),
    "trl-server": (ScriptKind.TRL_SERVER, {"model": "Qwen/Qwen3-8B", "allocation": with_(nodes=3)}),
    "check": (ScriptKind.CHECK, {"allocation": with_(time=""), "command": ()}),
    "ray-pyxis": (
        ScriptKind.RAY,
        {"container": Container(image="reg#rl:small", pyxis=True, binds=("/data",)),
         "stage": ("/models",), "environment": (jobs.EnvVariable("WORD", "it's"),),
         "passed": ("TOKEN",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_job_script_matches_golden_file(kind, golden):
    job, changes = KINDS[kind]
    golden(GOLDEN / f"{kind}.sh", job_script(job, **changes))


def test_every_golden_script_is_tested():
    assert {path.stem for path in GOLDEN.iterdir()} == set(KINDS)


@each_row("kind", KINDS)
def test_sbatch_options_precede_first_command(kind):
    lines = (GOLDEN / f"{kind}.sh").read_text("utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
    assert "#SBATCH --qos=high" in lines[:first]


def test_user_options_for_log_and_signal_take_precedence():
    """sbatch uses the last of two equal options."""
    mine = ("--output=mine.log", "--signal=B:TERM@300")
    lines = job_script(ScriptKind.RAY, allocation=with_(more=mine)).splitlines()
    for option in ("--output=", "--signal="):
        directives = [line for line in lines if line.startswith(f"#SBATCH {option}")]
        assert directives[-1].removeprefix("#SBATCH ") in mine


def test_check_script_does_not_depend_on_the_model():
    assert job_script(ScriptKind.CHECK, model="Qwen/Qwen3-8B") == job_script(ScriptKind.CHECK)


def test_arguments_of_a_job_command_are_not_split():
    assert "step -- python train.py --name 'two words' &\n" in job_script(
        ScriptKind.SINGLE, allocation=with_(nodes=1)
    )


def test_check_job_has_a_default_time_limit():
    text = job_script(ScriptKind.CHECK, allocation=with_(time=""))
    # Slurm may signal the end up to a minute early: two minutes remain.
    assert "#SBATCH --time=00:05:00\n" in text
    assert "#SBATCH --signal=B:TERM@10\n" in text
    assert "#SBATCH --time=4:00:00\n" in job_script(ScriptKind.CHECK)


def test_check_script_handles_a_signal_during_steps():
    lines = job_script(ScriptKind.CHECK).splitlines()
    steps = [place for place, line in enumerate(lines) if line.startswith("step ")]
    assert len(steps) == 2
    for place in steps:
        assert lines[place + 1].endswith(" &")
        assert lines[place + 2] == "wait $! || sound=1"


@each_row(
    ("command", "words"),
    [
        ("train.py --a b", "train.py --a b"),
        ("python train.py --a b", "train.py --a b"),
        ("/opt/venv/bin/python3.11 train.py", "train.py"),
        ("python -m my.train --a b", "--module my.train --a b"),
        ("--config_file a.yaml train.py", "--config_file a.yaml train.py"),
    ],
)
def test_accelerate_receives_a_script_or_a_module(command, words):
    text = job_script(ScriptKind.TRL_SERVER, model="x", command=tuple(command.split()))
    assert f'\n  {words} "${{words[@]}}" &\n' in text


def test_single_trainer_process_has_rank_and_gpu():
    """accelerate sets ranks only for several processes."""
    job, more = KINDS["trl-server"]
    alone = job_script(job, **{**more, "allocation": with_(nodes=2, gpus=1)})
    assert "env RANK=0 LOCAL_RANK=0 WORLD_SIZE=1" in alone
    assert "--multi_gpu" not in alone
    several = job_script(job, **more)
    assert "RANK=0" not in several
    assert "--multi_gpu" in several


@pytest.mark.parametrize("command", ["python", "python -u train.py", "python -c pass"])
def test_python_options_with_accelerate_or_torchrun_are_refused(command):
    with pytest.raises(InputError, match="accelerate starts Python; specify only the script"):
        job_script(ScriptKind.TRL_SERVER, model="x", command=tuple(command.split()))
    with pytest.raises(InputError, match="torchrun starts Python; specify only the script"):
        job_script(ScriptKind.TORCHRUN, command=tuple(command.split()))


@each_row(
    ("command", "words"),
    [
        ("python train.py --a b", "train.py --a b"),
        ("python -m my.train --a b", "--module my.train --a b"),
        ("--max-restarts 1 train.py", "--max-restarts 1 train.py"),
        ("axolotl train a.yaml", "--no-python axolotl train a.yaml"),
    ],
)
def test_torchrun_receives_a_script_module_or_program(command, words):
    text = job_script(ScriptKind.TORCHRUN, command=tuple(command.split()))
    assert text.endswith(f'--master-port "$main_port" \\\n  {words} &\nwait $!\n')


def test_ray_client_server_port_is_specific_to_the_job():
    # A Ray without grpcio has no such server, and refuses the option.
    option = '--ray-client-server-port="$client_port"'
    assert option in job_script(ScriptKind.RAY)
    bare = samples.lock(samples.wheel("ray", "2.47.1"))
    script = jobs.create_job_script(bare, DIGEST, ScriptKind.RAY, ALLOCATION, SIF, command=TRAIN)
    assert option not in jobs.job_text(script, None)


def test_path_in_a_variable_that_is_not_mounted_is_reported(tmp_path):
    values = {
        "HF_HUB_CACHE": "/x/hub",
        "WANDB_DIR": str(tmp_path / "runs"),
        "TORCH_HOME": "/data/t",
    }
    environment = tuple(jobs.EnvVariable(*each) for each in values.items())
    script = jobs.create_job_script(
        lock(), DIGEST, ScriptKind.SINGLE, with_(nodes=1), SIF, command=TRAIN,
        environment=environment,
    )  # fmt: skip
    (warning,) = jobs.unmounted_paths(script, tmp_path)
    assert warning.startswith("HF_HUB_CACHE=/x/hub: /x/hub of this machine is not mounted")
    assert warning.endswith(" --bind /x/hub")


def test_command_lines_in_job_scripts_contain_no_secrets():
    text = job_script(ScriptKind.RAY, passed=("TOKEN",))
    assert 'export APPTAINERENV_TOKEN="${TOKEN}"' in text
    assert "--env TOKEN" not in text


def test_pyxis_sets_variables_inside_the_image():
    pyxis = Container(image="reg#rl:small", pyxis=True)
    assert "IMGBUILD_ENV" not in job_script(ScriptKind.RAY, container=pyxis)
    text = job_script(ScriptKind.RAY, container=pyxis, passed=("TOKEN", "OTHER"))
    assert 'export IMGBUILD_ENV_TOKEN="${TOKEN}"' in text
    assert 'for IMGBUILD_ENV in "${!IMGBUILD_ENV_@}"' in text


def test_env_option_overrides_fixed_variables():
    text = job_script(ScriptKind.RAY, environment=(jobs.EnvVariable("LIBRARY_PATH", "/x"),))
    assert "export APPTAINERENV_LIBRARY_PATH=/x\n" in text
    assert " --env PYTHONNOUSERSITE=1,TMPDIR=/tmp --env HF_HOME=" in text
    # Passed variables are unchanged: the script itself may have set them.
    assert "OMP_NUM_THREADS)" not in job_script(ScriptKind.RAY, passed=("OMP_NUM_THREADS",))


def test_driver_is_not_requested_without_gpus():
    text = job_script(ScriptKind.RAY, allocation=with_(gpus=0))
    assert "--nv" not in text
    assert "--gpus-per-node" not in text


@each_row(
    ("job", "changes", "words"),
    [
        (
            ScriptKind.SINGLE,
            {},
            "--job single runs on one node, not 2; for several nodes: --job torchrun or --job ray",
        ),
        (
            ScriptKind.TORCHRUN,
            {"command": ()},
            "--job torchrun requires a command; add it after --",
        ),
        (
            ScriptKind.TORCHRUN,
            {"command": ("torchrun", "train.py")},
            "torchrun starts Python; specify only the script: -- train.py",
        ),
        (ScriptKind.TORCHRUN, {"model": "x"}, "--served-model requires --job trl-server"),
        (ScriptKind.RAY, {"command": ()}, "--job ray requires a command; add it after --"),
        (ScriptKind.VERL, {"allocation": with_(gpus=0)}, "--job verl requires GPUs"),
        (ScriptKind.TRL_SERVER, {}, "--served-model requires --job trl-server"),
        (ScriptKind.RAY, {"model": "x"}, "--served-model requires --job trl-server"),
        (
            ScriptKind.TRL_SERVER,
            {"allocation": with_(nodes=1), "model": "x"},
            "--job trl-server requires --nodes 2 or more",
        ),
        (ScriptKind.RAY, {"allocation": with_(time="soon")}, "--time 'soon': expected minutes"),
        (ScriptKind.RAY, {"allocation": with_(memory="lots")}, "--mem 'lots': expected a number"),
        (
            ScriptKind.RAY,
            {"allocation": with_(partition="a b")},
            "--partition 'a b': expected a name",
        ),
        (ScriptKind.RAY, {"allocation": with_(account="x\n#SBATCH")}, "--account"),
        (
            ScriptKind.RAY,
            {"allocation": with_(more=("--x=1 2",))},
            "--sbatch '--x=1 2': expected an opt",
        ),
        (
            ScriptKind.RAY,
            {"allocation": with_(more=("--job-name=x",))},
            "the job script sets this option",
        ),
        (
            ScriptKind.RAY,
            {"allocation": with_(more=("-N2",))},
            "--sbatch '-N2': the job script sets this option",
        ),
        (
            ScriptKind.CHECK,
            {("allocation"): with_(more=("--output=x",))},
            "the job script sets this option",
        ),
        (ScriptKind.RAY, {"stage": ("models",)}, "--stage 'models': expected an absolute path"),
        (
            ScriptKind.RAY,
            {"environment": (jobs.EnvVariable("RAY_ADDRESS", "x"),)},
            "--env RAY_ADDRESS: the variable is set by --job ray",
        ),
        (
            ScriptKind.RAY,
            {"container": Container(image="x", pyxis=True), "stage": ("/my models",)},
            "--stage '/my models': expected an absolute path without commas, colons and spaces",
        ),
        (ScriptKind.RAY, {"scratch": "/a,b"}, "--scratch '/a,b': expected an absolute path"),
        (
            ScriptKind.RAY,
            {"container": Container(image="x", binds=("here",))},
            "--bind 'here': expected SOURCE or SOURCE:PLACE[:ro]",
        ),
        (
            ScriptKind.RAY,
            {"container": Container(image="x", binds=("/data:ro",))},
            "--bind '/data:ro': expected SOURCE or SOURCE:PLACE[:ro]",
        ),
        (
            ScriptKind.RAY,
            {"container": Container(image="x", pyxis=True, words=("--nvccli",))},
            "--apptainer and --pyxis cannot be combined",
        ),
    ],
)
def test_invalid_job_requests_are_refused(job, changes, words):
    with pytest.raises(InputError) as caught:
        job_script(job, **changes)
    assert words in caught.value.message


def test_all_job_errors_are_reported_together():
    with pytest.raises(InputError) as caught:
        job_script(ScriptKind.VERL, allocation=with_(gpus=0, time="soon"), stage=("x",))
    assert len(caught.value.message.splitlines()) == 3


def test_image_without_ray_runs_torchrun_on_several_nodes():
    torch = samples.lock(samples.wheel("torch", "2.6.0"))
    for job in (ScriptKind.RAY, ScriptKind.SINGLE):
        with pytest.raises(InputError, match=r"; for several nodes: --job torchrun$"):
            jobs.create_job_script(torch, DIGEST, job, ALLOCATION, SIF, command=TRAIN)
    jobs.create_job_script(torch, DIGEST, ScriptKind.TORCHRUN, ALLOCATION, SIF, command=TRAIN)


def test_image_without_required_packages_is_refused():
    ray = samples.lock(samples.wheel("ray", "2.47.1"))
    arch = {
        name: msgspec.structs.replace(
            each, wheels=tuple(wheel for wheel in each.wheels if wheel.package != "torch")
        )
        for name, each in ray.arch.items()
    }
    bare = msgspec.structs.replace(ray, arch=arch)
    kinds = {ScriptKind.VERL: "verl", ScriptKind.TRL_SERVER: "trl", ScriptKind.TORCHRUN: "torch"}
    for job, package in kinds.items():
        with pytest.raises(InputError) as caught:
            jobs.create_job_script(bare, DIGEST, job, ALLOCATION, SIF, command=TRAIN, model="")
        assert f"--job {job}: small has no {package}" in caught.value.message


def test_trl_version_without_a_server_is_refused():
    with pytest.raises(InputError, match=r"trl 0\.15\.2 has no server"):
        jobs.create_job_script(
            lock("0.15.2"), DIGEST, ScriptKind.TRL_SERVER, ALLOCATION, SIF, command=TRAIN, model="x"
        )


def test_env_option_sets_or_passes_variables():
    variables = jobs.parse_variables(["A=b=c", "TOKEN", "EMPTY="])
    assert variables == ((jobs.EnvVariable("A", "b=c"), jobs.EnvVariable("EMPTY", "")), ("TOKEN",))
    with pytest.raises(InputError, match="not a valid variable name"):
        jobs.parse_variables(["1A=b"])
    for word in ("UID=5", "SHELLOPTS", "SLURM_JOB_ID=1", "IMGBUILD_ENV_A=b"):
        with pytest.raises(InputError, match="only be set by the shell, Slurm or the job script"):
            jobs.parse_variables([word])


def test_job_with_missing_files_is_not_submitted(imgbuild, tmp_path, monkeypatch):
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without Slurm
    for words, name in (((), f"build/{TARGET}.sif"), (("--pyxis", "a.sqsh"), "a.sqsh")):
        written = imgbuild("slurm", TARGET, *words, "--", "true", status=0)
        assert f"{tmp_path}/{name} does not exist" in written.stderr
        form = "squashfs" if words else "sif"
        made_with = f"imgbuild build {TARGET} --format {form} --output {tmp_path}/{name}"
        assert made_with in " ".join(written.stderr.split())
        assert ("the script uses the path" in " ".join(written.stderr.split())) == (not words)
        refused = imgbuild("slurm", TARGET, *words, "--submit", "--", "true", status=2)
        assert f"{tmp_path}/{name}: no such file" in refused.stderr


@each_row(
    ("words", "message"),
    [
        ((), "the job requests no GPU; specify the number"),
        (("--gpus", "0"), ""),
        (("--gpus", "2"), ""),
        (
            ("--sbatch=--gres=gpu:h100:2",),
            "--sbatch=--gres=gpu:h100:2 does not make GPUs available in the image",
        ),
        (
            ("--sbatch=--gpus-per-task=1",),
            "--sbatch=--gpus-per-task=1 does not make GPUs available in the image",
        ),
        (("--sbatch=--gres=craynetwork:1",), "the job requests no GPU"),
    ],
)
def test_job_without_gpus_is_reported(imgbuild, tmp_path, monkeypatch, words, message):
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = imgbuild("slurm", TARGET, *words, "--", "true", status=0)
    assert ("GPU" in done.stderr) == bool(message)
    assert message in done.stderr


def test_last_line_of_a_check_script_has_the_text_that_submit_expects():
    script = job_script(ScriptKind.CHECK)
    assert script.rstrip().splitlines()[-1] == (
        f'echo "$SLURM_JOB_NAME:" \'{jobs.PASSED_TEXT}\' "${{nodes[*]}}"'
    )


def test_shared_memory_option_requires_a_check_job(imgbuild, tmp_path):
    done = imgbuild("slurm", TARGET, "--shared", "64", "--", "true", status=2)
    assert "--shared requires --job check" in done.stderr


def test_sif_of_another_image_is_reported(imgbuild, tmp_path, capsys):
    sample = write_project(tmp_path)
    sif = tmp_path / "some.sif"
    sif.write_bytes(b"hsqs")
    done = imgbuild("slurm", TARGET, "--sif-file", str(sif), "--", "true", status=0)
    assert "some.sif is not a SIF file for x86_64 or arm64" in done.stderr

    objects = [container.DataObject(kind=container.JSON, name=files.CONFIG_OBJECT, data=b"{}")]
    sif.write_bytes(bytes(container.file_system_offset(objects) + 4096))
    container.write_container(sif, objects, Arch.X86_64, 0)
    done = imgbuild("slurm", TARGET, "--sif-file", str(sif), "--", "true", status=0)
    assert "some.sif was not created from the current lock" in done.stderr

    locked = msgspec.structs.replace(
        sample.target_digests.arch[Arch.X86_64], config=digest_of(b"{}")
    )
    slurm.warn_if_other_image(
        sif, msgspec.structs.replace(sample.target_digests, arch={Arch.X86_64: locked})
    )
    assert "not the image" not in capsys.readouterr().err


def test_pyxis_receives_absolute_file_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image").touch()
    assert slurm.pyxis_image("image") == tmp_path / "image"
    assert slurm.pyxis_image("reg#rl:small") == "reg#rl:small"
