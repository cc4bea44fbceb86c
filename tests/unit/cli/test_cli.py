"""Tests that commands write data to stdout and messages to stderr, and their exit statuses."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imgbuild.cache.store import Store
from imgbuild.cli import main
from imgbuild.errors import ImgbuildError
from imgbuild.pipeline import targets
from imgbuild.values import Arch
from tests.layers import HEAVY
from tests.support import images, inprocess_project
from tests.support.inprocess_project import TARGET, UNLOCKED, Command, SampleProject

BUILD = ("build", "--offline", "--jobs", "1")
OTHER = "sha256:" + "0" * 64


def error(imgbuild: Command, arguments: Sequence[str], status: int, *result: str) -> dict[str, Any]:
    """Run a failing command; all of `told` must be on stderr and in the output of --json."""
    plain = imgbuild(*arguments)
    assert (plain.status, plain.stdout) == (status, ""), plain.stderr
    for text in ("error: ", "hint: ", *result):
        assert text in plain.stderr, plain.stderr
    assert "\x1b" not in plain.stderr
    quiet = imgbuild(*arguments, "-q", status=status)
    assert all(text in quiet.stderr for text in result)
    as_data = imgbuild(*arguments, "--json", status=status)
    document: dict[str, Any] = json.loads(as_data.stdout)
    assert document["exit_code"] == status
    assert document["hint"]
    everything = json.dumps(document, ensure_ascii=False)
    assert document["message"].splitlines()[0] in as_data.stderr
    assert document["error"] in {kind.__name__ for kind in _kinds(ImgbuildError)}
    document["everything"] = everything
    return document


def _kinds(kind: type[ImgbuildError]) -> list[type[ImgbuildError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


def test_digest_prints_only_the_locked_digest(imgbuild: Command, sample: SampleProject) -> None:
    done = imgbuild("digest", TARGET)
    assert (done.status, done.stdout, done.stderr) == (0, sample.target_digests.digest + "\n", "")
    (answer,) = json.loads(imgbuild("digest", "--all", "--json").stdout)
    manifest = sample.target_digests.arch[Arch.X86_64].manifest
    expected = {
        "target": TARGET,
        "digest": sample.target_digests.digest,
        "arch": {"x86_64": manifest},
    }
    assert answer == expected


def test_show_prints_layers_as_a_table_on_stdout(imgbuild: Command, sample: SampleProject) -> None:
    done = imgbuild("show", "--layers", TARGET, status=0)
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == ["#", "layer", "MB", "unpacked", "contents", "digest"]
    target_digests = sample.target_digests.arch[Arch.X86_64].layers
    assert [(row[1], row[-1]) for row in rows] == [
        (layer.name, layer.digest.removeprefix("sha256:")[:12]) for layer in target_digests
    ]
    assert done.stdout.isascii()
    assert f"{len(target_digests)} layers" in done.stderr
    assert "2 packages" in done.stdout
    assert imgbuild("show", "--layers", TARGET, "-q").stderr == ""
    (planned,) = json.loads(imgbuild("show", "--layers", TARGET, "--json").stdout)
    assert [layer["id"] for layer in planned["layers"]] == [layer.id for layer in target_digests]


def test_lock_check_accepts_a_current_lock(imgbuild: Command, sample: SampleProject) -> None:
    done = imgbuild("lock", "--check", TARGET)
    assert (done.status, done.stdout) == (0, f"{TARGET} {sample.target_digests.digest}\n")


def test_build_writes_the_locked_image(imgbuild: Command, sample: SampleProject) -> None:
    done = imgbuild(*BUILD, TARGET, status=0)
    out = sample.folder / "build" / TARGET
    assert done.stdout == f"{TARGET} {sample.target_digests.digest} {out}\n"
    assert " kB in " in done.stderr
    assert images.verify_layout(out).digest == sample.target_digests.digest
    again = imgbuild(*BUILD, TARGET, "--json", "-q")
    (answer,) = json.loads(again.stdout)
    assert (answer["unchanged"], answer["made"], again.stderr) == (True, 0, "")


def test_build_with_an_archive_format_writes_one_file(
    imgbuild: Command, sample: SampleProject
) -> None:
    form = ("--format", "docker-archive", "--output", "one.tar")
    done = imgbuild(*BUILD, *form, TARGET, "-q")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.endswith(" one.tar\n")
    assert (sample.folder / "one.tar").stat().st_size > 10_000


def test_invalid_matrix_is_reported_with_all_locations(
    imgbuild: Command, sample: SampleProject
) -> None:
    sample.edit('    cuda: "12.4"\n', '    cuda: "twelve"\n')
    sample.edit("  groups: 4\n", "  groups: four\n")
    lines = sample.matrix.read_text().splitlines()
    places = [
        f"{sample.matrix}:{number}:{line.index(value) + 1}: "
        for value in ('"twelve"', "four")
        for number, line in enumerate(lines, 1)
        if line.endswith(f": {value}")
    ]
    assert len(places) == 2
    for verb in (["list"], ["lock", "--check", TARGET], [*BUILD, TARGET]):
        result = imgbuild(*verb, status=2)
        assert all(place in result.stderr for place in places), result.stderr
    answer = json.loads(imgbuild("list", "--json").stdout)
    assert {problem["path"] for problem in answer["problems"]} == {
        f"targets.{TARGET}.cuda",
        "layers.groups",
    }


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("verb", ["list", "show", "digest", "build", "lock", "load", "smoke"])
def test_error_for_an_unknown_target_suggests_the_nearest_target(
    imgbuild: Command, verb: str
) -> None:
    result = error(
        imgbuild, [verb, "cu124"], 3, "no target matches cu124", f"did you mean {TARGET}"
    )
    assert result["error"] == "NothingSelected"
    error(imgbuild, [verb, "zzz"], 3, "no target matches zzz", "`imgbuild list` shows all targets")
    error(imgbuild, [verb, TARGET, "zzz"], 3, "no target matches zzz")


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    "verb", ["show", "digest", "build", "lock", "load", "smoke", "run", "audit"]
)
def test_missing_target_is_an_error(imgbuild: Command, verb: str) -> None:
    error(imgbuild, [verb], 3, "no target was selected", "imgbuild list", "--all")


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("verb", ["show", "digest", "build", "list"])
def test_excluded_architecture_is_refused_with_its_reason(imgbuild: Command, verb: str) -> None:
    result = error(
        imgbuild, [verb, TARGET, "--arch", "aarch64"], 8, "no wheel for aarch64", UNLOCKED
    )
    assert result["reasons"] == [f"{TARGET} on arm64: no wheel for aarch64"]


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    "words", [["show", "--layers"], ["digest"], ["lock", "--check"], list(BUILD), ["smoke"]]
)
def test_target_without_lock_is_an_error(imgbuild: Command, words: list[str]) -> None:
    if words == ["smoke"]:
        error(imgbuild, [*words, UNLOCKED], 2, f"{UNLOCKED} is not built", "imgbuild build")
        return
    error(imgbuild, [*words, UNLOCKED], 5, "imgbuild lock", UNLOCKED)


def test_a_stale_lock_is_reported_with_every_reason(
    imgbuild: Command, sample: SampleProject
) -> None:
    sample.edit("as_of: 2025-06-20", "as_of: 2025-06-21")
    sample.edit('trl: "0.18.2"', 'trl: "0.19.0"')
    (sample.folder / "images" / TARGET / "requirements-x86_64.txt").write_text("nothing\n")
    for words in (["lock", "--check", TARGET], [*BUILD, TARGET]):
        result = error(
            imgbuild,
            words,
            5,
            "out of date",
            'the matrix has "2025-06-21", but the lock has "2025-06-20"',
            "trl 0.18.2 is locked, but trl==0.19.0 is required",
            "requirements-x86_64.txt does not match the lock",
            f"imgbuild lock {TARGET}",
        )
        assert result["error"] == "LockStale"
    assert not (sample.folder / "build").exists()


def test_digest_command_refuses_digests_of_another_lock(
    imgbuild: Command, sample: SampleProject
) -> None:
    path = sample.folder / "images" / TARGET / "digests.json"
    path.write_text(path.read_text().replace(sample.target_digests.digest, OTHER))
    error(imgbuild, ["digest", TARGET], 5, str(path), f"imgbuild lock {TARGET}")


def test_build_reports_missing_inputs_in_offline_mode(
    imgbuild: Command, sample: SampleProject
) -> None:
    store = Store.open()
    store.drop_file(sample.wheels["trl"].sha256)
    store.drop_file(sample.wheels["vllm"].sha256)
    result = error(
        imgbuild, [*BUILD, TARGET], 7, f"2 inputs of {TARGET}", str(store.root), "--offline"
    )
    assert result["error"] == "FetchFailed"
    assert not (sample.folder / "build").exists()


def test_build_refuses_a_layer_that_differs_from_its_record(
    imgbuild: Command, sample: SampleProject
) -> None:
    inprocess_project.write_other_digests(sample, OTHER)
    result = error(imgbuild, [*BUILD, TARGET], 9, "layer trl", OTHER)
    assert result["error"] == "IntegrityError"
    assert not (sample.folder / "build").exists()


def test_interrupt_of_a_command_is_reported(
    imgbuild: Command, sample: SampleProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "check_all", interrupted)
    done = imgbuild("lock", "--check", TARGET, "--json", status=130)
    assert "interrupted" in done.stderr
    assert json.loads(done.stdout)["error"] == "Interrupted"
    assert sample.target_digests.digest not in done.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_error_for_a_full_disk_names_the_path(
    imgbuild: Command, sample: SampleProject, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(targets, "check_all", full)
    document = error(imgbuild, ["lock", "--check", TARGET], 1, "no space left for /")
    assert os.strerror(number) in document["message"]
    assert (" free)" in document["message"]) == (number == errno.ENOSPC)
    assert sample.target_digests.digest not in document["everything"]


@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (["bild"], "Did you mean 'build'?"),
        (["build", "--jobs", "-1", TARGET], "'-1' is not a valid number of processes"),
        (["build", "--jobs", "some", TARGET], "'some' is not a valid number of processes"),
        (["build", "--jobs", "٣", TARGET], "'٣' is not a valid number of processes"),
        (["slurm", TARGET, "--nodes", "٣"], "'٣' is not a whole number of at least 1"),
        (["slurm", TARGET, "--nodes", "0"], "'0' is not a whole number of at least 1"),
        (["slurm", TARGET, "--gpus", "٣"], "'٣' is not a valid number of GPUs"),
        (["tree", TARGET, "--depth", "9" * 5000], "is too large"),
        (["run", TARGET, "-p", "٨٠"], "--publish ٨٠: expected PORT"),
        (["run", TARGET, "--shm-size", "٣g"], "--shm-size ٣g: expected a size"),
        (["smoke", "--timeout-factor", "٣", TARGET], "'٣' is not a valid factor"),
        (["cache", "prune", "--max-size", "٣G"], "--max-size: invalid size '٣G'"),
        (["build", "--format", "zip", TARGET], "'zip' is not one of 'oci'"),
        (["build", "--arch", "mips", TARGET], "'mips' is not a supported architecture"),
        (["build", "--only", "torch", TARGET], "'torch' is not one of 'base', 'wheels'"),
        (["build", "--frobnicate", TARGET], "--frobnicate"),
        (["smoke", "--timeout-factor", "nan", TARGET], "'nan' is not a valid factor"),
        (
            ["load", "--through", "root", TARGET],
            "'root' is not one of 'docker', 'podman'",
        ),
        (["push", TARGET, "localhost"], "localhost: the repository name is missing"),
        (["push", TARGET, "registry.example:5000"], "use registry.example:5000/NAME"),
        (["pull", "localhost"], "use localhost/NAME"),
        (["verify", "registry.example/"], "registry.example/: the repository name"),
        (["registry", "tag", "127.0.0.1:5000", "x"], "use 127.0.0.1:5000/NAME"),
        (["registry", "mirror", "push", TARGET, "localhost"], "use localhost/NAME"),
        (["load", "--all", "--layout", "x"], "--layout x contains one image"),
        (["run", "cu1*"], "several targets match"),
        (["run", TARGET, "--volume", "here"], "--volume here: expected SRC:DST"),
        (["run", TARGET, "-v", "absent:/x"], "absent does not exist"),
        (["run", TARGET, "-e", "=x"], "--env =x: expected NAME=VALUE"),
        (["run", TARGET, "--env-file", "absent"], "--env-file absent: No such file"),
        (["run", TARGET, "-p", "web"], "--publish web: expected PORT"),
        (["run", TARGET, "-p", "80", "--no-network"], "--publish and --no-network"),
        (["run", TARGET, "--shm-size", "much"], "--shm-size much: expected a size"),
        (["run", TARGET, "--user", "a b"], "--user a b: expected UID[:GID]"),
        (["run", TARGET, "--layout", "elsewhere"], "elsewhere"),
        (["cache", "prune", "--max-size", "big"], "--max-size: invalid size 'big'"),
        (["cache", "nope"], "'nope'"),
        (["lock", TARGET, "--check", "--again"], "--again and --check cannot be combined"),
        (["audit", TARGET, "--python", "3.11"], "--python 3.11 does not apply to locked targets"),
        (["slurm", TARGET, "--job", "check", "train.py"], "--job check accepts no command"),
        (["digest", TARGET, "--all"], "cannot be combined"),
    ],
)
def test_invalid_command_line_is_refused(
    imgbuild: Command, arguments: list[str], result: str
) -> None:
    assert error(imgbuild, arguments, 2, result)["error"] == "InputError"


@pytest.mark.usefixtures("sample")
def test_load_reports_a_missing_container_engine(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    error(imgbuild, ["load", TARGET], 6, "no container engine is running", "start Docker or podman")
    error(imgbuild, ["load", TARGET, "--through", "podman"], 6, "cannot connect to podman")


def test_show_refuses_an_output_path_below_a_file(imgbuild: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "sbom.json"
    command = ["show", TARGET, "--sbom", "spdx", "--output", str(place)]
    error(imgbuild, command, 2, f"{place.parent} is not a folder")


@pytest.mark.usefixtures("sample")
def test_colour_output_follows_environment_variables(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (
        ["list"],
        ["show", "--layers", TARGET],
        ["show", "--layers", "zzz"],
        ["--help"],
        ["build", "--help"],
    )
    for arguments in commands:
        done = imgbuild(*arguments)
        assert "\x1b" not in done.stdout + done.stderr
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" in imgbuild("show", "--layers", "zzz").stderr
    assert "\x1b" not in imgbuild("show", "--layers", TARGET).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in imgbuild("show", "--layers", "zzz").stderr


@pytest.mark.usefixtures("sample")
def test_closed_output_pipe_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `imgbuild list | head -1`, no error is reported and the exit status is 0."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "argv", ["imgbuild", "list"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        pipe.write("more")  # nor does the flush at the end of the process print anything
        pipe.flush()


@pytest.mark.parametrize("words", [["--help"], ["lock", "-h"], []])
def test_closed_pipe_during_help_output_is_not_an_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "argv", ["imgbuild", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        monkeypatch.undo()
    assert ended.value.code == (0 if words else 2)  # 2: a command is missing
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("verb", ["lock", "cache"])
def test_help_options_of_a_verb_do_not_depend_on_the_parent_command(verb: str) -> None:
    command = importlib.import_module(f"imgbuild.cli.{verb}").COMMAND
    context = command.make_context(verb, [], resilient_parsing=True)
    assert set(command.get_help_option_names(context)) == {"--help", "-h"}


@pytest.mark.usefixtures("sample")
def test_check_and_diff_options_of_lock_cannot_be_combined(imgbuild: Command) -> None:
    error(imgbuild, ["lock", "--check", "--diff", "main", TARGET], 2, "--check and --diff")
    for words in (["--diff", "--all"], ["--diff", ""], ["--diff", "-t", TARGET]):
        error(
            imgbuild, ["lock", *words], 2, "--diff requires a git revision", "imgbuild lock --diff"
        )


def test_files_that_are_not_text_are_refused(imgbuild: Command, sample: SampleProject) -> None:
    folder = sample.folder / "images" / TARGET
    (folder / "requirements-x86_64.txt").write_bytes(b"\xff\xfe")
    check = ["lock", "--check", TARGET]
    error(imgbuild, check, 5, "requirements-x86_64.txt does not match the lock")
    for name, what in (("digests.json", "list of digests"), ("lock.json", "lock")):
        path = folder / name
        text = path.read_bytes()
        path.write_bytes(text.replace(b'"target": "', b'"target": "\xff\xfe', 1))
        result = error(imgbuild, ["digest", TARGET], 2, f"{name} is not a valid {what}", "from git")
        assert "not UTF-8" in result["everything"]
        path.write_bytes(text)


@pytest.mark.usefixtures("sample")
def test_digest_command_imports_few_modules(
    imgbuild: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = ("requests", "rich", "yaml", "elftools", "typer.rich_utils", "packaging", *HEAVY)
    for name in list(sys.modules):
        if name in heavy or name.startswith(tuple(f"{each}." for each in heavy)):
            monkeypatch.delitem(sys.modules, name)
    assert imgbuild("digest", TARGET, "--json").status == 0
    assert [name for name in heavy if name in sys.modules] == []


@pytest.mark.usefixtures("sample")
def test_shell_completes_target_names(imgbuild: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_IMGBUILD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "imgbuild show cu")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = imgbuild()
    assert (done.status, done.stdout.split()) == (0, [TARGET])
