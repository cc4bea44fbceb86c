"""Tests that job, array, CI and SIF scripts pass any text as one argument.

The scripts run with programs that record their arguments (tests/support/recording_programs.py).
The arguments must equal the given texts, and no part of a text may be executed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from imgbuild.errors import InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.render import templates
from imgbuild.sif import enroot, files, image
from imgbuild.slurm import jobs
from imgbuild.slurm.array import ArrayTarget, JobArray
from imgbuild.slurm.jobs import Allocation, Container, EnvVariable, JobScript, ScriptKind
from imgbuild.values import Arch
from tests.support import ci_jobs_sample, hostile_texts, recording_programs, samples
from tests.support.ci_jobs_sample import RUNNERS, _sample, _shared_sample, make_jobs
from tests.support.hostile_texts import WORDS
from tests.support.inprocess_project import SampleProject
from tests.support.recording_programs import Programs

__all__ = ["_sample", "_shared_sample"]  # fixtures
DIGEST = f"sha256:{'0' * 64}"
PLACES = [hostile_texts.path_component(text) for text in WORDS if not re.search(r"[,:\n]", text)]
SPACELESS = [re.sub(r"\s", "${IFS}", place) for place in PLACES]
FOLDER = "".join(PLACES[:6])
OPTIONS = tuple(f"--comment={text}" for text in SPACELESS)
NODES = {ScriptKind.SINGLE: 1}


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def locked() -> Lock:
    names = {"ray": "2.49.1", "verl": "0.6.0", "trl": "0.23.1", "vllm": "0.11.0"}
    lock = samples.lock(*(samples.wheel(name, version) for name, version in names.items()))
    # Folders of the image, which must not be hidden.
    folders = {f"FOLDER{number}": f"/x{text}" for number, text in enumerate(WORDS)}
    more = msgspec.structs.replace(lock.settings, env={**lock.settings.env, **folders})
    return msgspec.structs.replace(lock, settings=more)


def job(kind: ScriptKind, folder: Path, *, pyxis: bool, hostile: bool = True) -> JobScript:
    """A job with hostile or harmless text in every value."""
    texts = WORDS if hostile else ("plain",) * len(WORDS)
    places = (SPACELESS if pyxis else PLACES) if hostile else ["plain"] * len(PLACES)
    middle = FOLDER if hostile else "plain"
    middle = re.sub(r"\s", "${IFS}", middle) if pyxis else middle
    (folder / f"{middle}.sif").touch()
    stage = [folder / f"stage{number}{text}" for number, text in enumerate(places[:8])]
    for place in stage:
        place.mkdir(exist_ok=True)
        (place / "data").touch()
    variables = [EnvVariable(f"WORD{number}", text) for number, text in enumerate(texts)]
    return jobs.create_job_script(
        locked(),
        DIGEST,
        kind,
        Allocation(
            nodes=NODES.get(kind, 2), gpus=1, cpus=2, time="00:10:00", account="a-b",
            more=OPTIONS if hostile else ("--comment=plain",) * len(OPTIONS),
        ),
        Container(
            image=str(folder / f"{middle}.sif"),
            pyxis=pyxis,
            binds=tuple(f"/a{text}:/b{text}:ro" for text in places),
            words=() if pyxis else tuple(f"--x={text}" for text in texts),
        ),
        command=() if kind is ScriptKind.CHECK else ("train", *texts),
        model=texts[5] if kind is ScriptKind.TRL_SERVER else "",
        stage=tuple(map(str, stage)),
        environment=(*variables, EnvVariable("HF_HOME", str(folder / f"models {middle}"
                                                            if not pyxis else folder / middle))),
        passed=("PASSED",),
        scratch=str(folder / f"scratch{middle}"),
        log=f"{middle}/%j.log" if kind is not ScriptKind.CHECK else jobs.LOG,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "pyxis"),
    [
        pytest.param(
            kind,
            pyxis,
            marks=pytest.mark.long if number % 2 == pyxis else [],
            id=f"{kind}-{'pyxis' if pyxis else 'apptainer'}",
        )
        for number, kind in enumerate(ScriptKind)
        for pyxis in (False, True)
    ],
)
def test_job_receives_exact_arguments(
    kind: ScriptKind, pyxis: bool, programs: Programs, tmp_path: Path
) -> None:
    made = job(kind, tmp_path, pyxis=pyxis)
    text = jobs.job_text(made, None)
    work = tmp_path / "work"
    work.mkdir()
    env = {**recording_programs.slurm_variables(made.allocation.nodes), "PASSED": WORDS[0]}
    done = programs.run(text, env, cwd=work)
    assert done.returncode == 0, done.stderr

    steps = programs.calls("entrypoint" if pyxis else "apptainer")
    assert steps, done.stderr
    runs = [part(call.words, made.launched) for call in steps]
    assert any(runs) or kind is ScriptKind.CHECK
    for call in steps:
        prefix = "" if pyxis else "APPTAINERENV_"
        for item in made.environment:
            if item.name != "HF_HOME":
                assert call.env[prefix + item.name] == item.value
        assert call.env[f"{prefix}PASSED"] == WORDS[0]
        if not pyxis:
            binds = [bind for word, bind in zip(call.words, call.words[1:], strict=False)
                     if word == "--bind"]  # fmt: skip
            assert set(made.container.binds) < set(binds)
            assert part(call.words, made.container.words)
            assert part(call.words, (made.container.image, recording_programs.ENTRYPOINT))
    if pyxis:
        image_option = f"--container-image={made.container.image}"
        entered = [call.words for call in programs.calls("srun") if image_option in call.words]
        assert entered
        for words in entered:
            (mounts,) = [word for word in words if word.startswith("--container-mounts=")]
            assert mounts.endswith("".join(f",{bind}" for bind in made.container.binds))
    if made.model:
        assert any(part(call.words, ("--model", made.model)) for call in steps)

    read = recording_programs.sbatch_options(text)
    assert [word for word in read if word.startswith("--comment=")] == list(OPTIONS)
    plain = jobs.job_text(job(kind, tmp_path, pyxis=pyxis, hostile=False), None)
    assert len(read) == len(recording_programs.sbatch_options(plain))
    assert f"--output={made.log}" in read


def part(words: list[str], expected: tuple[str, ...]) -> bool:
    """Whether `expected` is a contiguous part of `words`."""
    starts = range(len(words) - len(expected) + 1)
    return any(tuple(words[start : start + len(expected)]) == expected for start in starts)


def test_array_task_receives_exact_arguments(programs: Programs, tmp_path: Path) -> None:
    folder, root = tmp_path / f"order{FOLDER}", tmp_path / f"root{FOLDER}"
    folder.mkdir()
    root.mkdir()
    target = hostile_texts.path_component(WORDS[1])
    order = JobArray(
        verb="build",
        name="build-x",
        folder=str(folder),
        root=str(root),
        command=("imgbuild", "build", *WORDS),
        options=OPTIONS,
        tasks=(
            ArrayTarget(target="other", digest=DIGEST),
            ArrayTarget(target=target, digest=DIGEST),
        ),
    )
    text = templates.render_template("slurm/array.j2", order, images=None)
    done = programs.run(text, {**recording_programs.slurm_variables(1), "SLURM_ARRAY_TASK_ID": "1"})
    assert done.returncode == 0, done.stderr
    (call,) = programs.calls("imgbuild")
    assert call.words == ["build", *WORDS, target, "--jobs=4", "--json"]
    assert call.env["PWD"] == str(root)
    assert json.loads((folder / f"{target}.state.json").read_text())["status"] == 0
    options = recording_programs.sbatch_options(text)
    assert options == ["--job-name=build-x", "--array=0-1", *OPTIONS]


def test_ci_script_steps_receive_exact_arguments(
    sample: SampleProject, programs: Programs, tmp_path: Path
) -> None:
    folder = tmp_path / f"project{FOLDER}"
    sample.folder.rename(folder)
    sample = dataclasses.replace(sample, folder=folder)
    target = make_jobs(sample, RUNNERS + "sif: true\ncves: {}\n")

    def _calls(texts: tuple[str, ...], place: str) -> list[list[str]]:
        text = ci_jobs_sample.job_script(
            sample, target, results=folder / f"results{place}", key=tmp_path / f"key{place}",
            registry=f"registry.example/{texts[0]}", plain_http=texts, selection=texts,
            slurm=tuple(f"--sbatch={each}" for each in texts), through=texts[0],
        )  # fmt: skip
        text = re.sub(r"^imgbuild=.*$", "imgbuild=(imgbuild)", text, flags=re.MULTILINE)
        done = programs.run(text, {"DIGEST": sample.target_digests.digest})
        assert done.returncode == 0, done.stderr
        assert (folder / f"results{place}").is_dir()
        return [call.words for call in programs.calls("imgbuild")]

    plain = tuple(f"plain{number}" for number in range(len(WORDS)))
    calls = _calls(WORDS, FOLDER)
    exchanged = {
        **dict(zip(plain, WORDS, strict=True)),
        str(tmp_path / "key"): f"{tmp_path}/key{FOLDER}",
    }
    expected = [[hostile(word, exchanged) for word in words] for words in _calls(plain, "")]
    assert calls == expected
    assert {words[0] for words in calls} >= {"ci", "lock", "audit", "cves", "build", "smoke",
                                             "push", "pull", "sign", "registry"}  # fmt: skip


def hostile(word: str, exchanged: dict[str, str]) -> str:
    """The argument of the hostile script that corresponds to one of the harmless script."""
    for start in ("", "--sbatch=", "registry.example/"):
        name, sign, rest = word.removeprefix(start).partition("@")
        if word.startswith(start) and name in exchanged:
            return f"{start}{exchanged[name]}{sign}{rest}"
        name, sign, rest = word.removeprefix(start).partition(":")
        if word.startswith(start) and name in exchanged:
            return f"{start}{exchanged[name]}{sign}{rest}"
    return word


# -- the scripts of a SIF and of a squashfs


def source() -> image.SifSource:
    settings = image.RuntimeSettings(
        env=tuple(f"WORD{number}={text}" for number, text in enumerate(WORDS)),
        entrypoint=("entrypoint", *WORDS),
        cmd=("run", *WORDS),
        labels={f"a{text}": "x" for text in WORDS} | {f"b{text}": text for text in WORDS},
        working_dir="/",
    )
    return image.SifSource(
        name="x", arch=Arch.X86_64, digest=DIGEST, settings=settings, time=0, config=b"{}"
    )


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_sif_environment_matches_image(shell: str, programs: Programs):
    place = programs.folder / "environment"
    place.write_text(files.environment_script(source()))
    done = subprocess.run(
        [shell, "-c", f". {place}; exec env -0"], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "CANARY": str(programs.canary)},
    )  # fmt: skip
    assert not programs.canary.exists()
    shown = dict(item.partition("=")[::2] for item in done.stdout.split("\0") if item)
    assert {**source().environment, **shown} == shown


@pytest.mark.parametrize("script", [files.runscript_text, enroot.start_script])
def test_start_script_runs_image_command(script, programs: Programs):
    text = script(source()).replace(" /etc/rc.local", f" {programs.folder}/rc.local")
    done = programs.run(text)
    assert done.returncode == 0, done.stderr
    (call,) = programs.calls("entrypoint")
    assert call.words == [*WORDS, "run", *WORDS]


@pytest.mark.parametrize("text", [*WORDS, "/etc /etc none rw", "\t", "\n/home /home none bind,rw"])
def test_volume_becomes_one_fstab_line_or_is_refused(text: str):
    settings = msgspec.structs.replace(source().settings, volumes={f"/data/{text}": {}})
    made = msgspec.structs.replace(source(), settings=settings)
    if not re.fullmatch(r"[A-Za-z0-9@+=:,./!-]*", text):
        with pytest.raises(InputError, match=re.escape(repr(f"/data/{text}"))):
            enroot.fstab_text(made)
        return
    written = enroot.fstab_text(made)
    # Arguments that the host's environment could change, or getmntent(3) would parse otherwise.
    assert not re.search(r"[$`\\]", written.replace("${ENROOT_ROOTFS}", ""))
    (line,) = written.splitlines()
    place = f"/data/{text}"
    assert line.split()[:3] == [f"${{ENROOT_ROOTFS}}{place}", place, "none"]
