"""Tests which targets a machine can run, and how `doctor` reports them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from imgbuild.cli import doctor as verb
from imgbuild.doctor import targets
from imgbuild.doctor.host import Host, HostGpu, RuntimeSupport, driver_version, parse_gpus
from imgbuild.doctor.targets import TargetNeeds
from imgbuild.plan.image_digests import digests_path
from imgbuild.report import Floors
from imgbuild.values import Arch
from tests.support import terminal
from tests.support.inprocess_project import TARGET, Command, read_json, write_project

ROOT = Path(__file__).parents[3]
H200 = HostGpu(name="NVIDIA H200", memory=143771 << 20, capability="9.0")
# Written by nvidia-smi and the driver of an H200, 2026-11-21.
SMI = "NVIDIA H200, 580.159.04, 143771 MiB, 9.0\n"
PROC = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)"
    "\nGCC version:  gcc version 15.3.0 (GCC) \n"
)
MACHINE = Host(
    arch=Arch.X86_64,
    kernel="6.18",
    glibc="2.36",
    driver="580.159.04",
    gpus=(H200,),
    engines=(RuntimeSupport(name="docker", version="28.5", gpus=True),),
    shared_memory=16 << 30,
    igzip=True,
)
CU124 = TargetNeeds(
    target="cu124-vllm",
    cuda="12.4",
    as_of="2025-06-20",
    floors={
        Arch.X86_64: Floors(
            cuda="12.4",
            driver="525.60.13",
            driver_full="550.54.14",
            gpu=("8.0", "8.6", "8.9", "9.0"),
        )
    },
)
CU130 = TargetNeeds(
    target="cu130-vllm",
    cuda="13.0",
    as_of="2026-09-27",
    floors={
        arch: Floors(
            cuda="13.0",
            driver="580.65.06",
            driver_full="580.65.06",
            gpu=("8.0", "12.0"),
            gpu_ptx=("9.0",),
        )
        for arch in Arch
    },
)


def host(**changes: object) -> Host:
    return msgspec.structs.replace(MACHINE, **changes)


def verdict(on: Host, of: TargetNeeds) -> tuple[bool, str]:
    judgement = targets.judge_target(on, of)
    return judgement.fits, "; ".join((*judgement.reasons, *judgement.remarks))


def test_machine_with_a_new_driver_runs_all_targets() -> None:
    diagnosis = targets.diagnose_host(MACHINE, [CU124, CU130])
    assert [
        (target_verdict.target, target_verdict.fits) for target_verdict in diagnosis.verdicts
    ] == [
        ("cu130-vllm", True),
        ("cu124-vllm", True),
    ]
    assert (diagnosis.best, diagnosis.remarks) == ("cu130-vllm", ())
    assert verdict(MACHINE, CU124) == (True, "")


def test_targets_that_an_old_driver_cannot_run_are_reported() -> None:
    old = host(driver="550.54.15")
    fits, why = verdict(old, CU130)
    assert not fits
    assert "requires driver 580.65.06 or newer, but this machine has 550.54.15" in why
    assert "runs CUDA 12.9 and older" in why
    assert verdict(old, CU124) == (True, "")
    assert targets.diagnose_host(old, [CU124, CU130]).best == "cu124-vllm"


def test_driver_versions_are_compared_numerically() -> None:
    assert verdict(host(driver="1000.1"), CU130)[0]
    assert not verdict(host(driver="99.99.99"), CU124)[0]


def test_driver_between_the_minimum_and_full_support_runs_with_a_note() -> None:
    fits, why = verdict(host(driver="535.104.05"), CU124)
    assert fits
    assert why == (
        "runs on driver 535.104.05 by minor version compatibility, from 525.60.13 on, with one"
        " restriction: code that relies on the driver to compile PTX, or that calls functions added"
        " in CUDA 12.4, fails; 550.54.14 or newer has no restriction"
    )


def test_ptx_of_a_newer_release_has_a_separate_driver_requirement() -> None:
    floors = msgspec.structs.replace(
        CU124.floors[Arch.X86_64], driver_full="575.51.03", gpu=("8.0",), gpu_ptx=("9.0",)
    )
    offered = msgspec.structs.replace(CU124, floors={Arch.X86_64: floors})
    a100 = HostGpu(name="A100", capability="8.0")
    judged = targets.judge_target(host(driver="560.35.03", gpus=(a100,)), offered)
    assert (judged.fits, judged.complete, judged.limited) == (True, False, False)
    [remark] = judged.remarks
    assert remark.endswith(
        "; 550.54.14 or newer has all functions, and 575.51.03 or newer compiles all PTX"
    )
    judged = targets.judge_target(host(driver="560.35.03"), offered)
    assert (judged.fits, judged.limited) == (True, True)
    assert judged.remarks[1].startswith("some kernels for NVIDIA H200 are PTX only")
    assert not targets.judge_target(host(driver="580.65.06"), offered).limited


def test_target_with_machine_code_precedes_a_target_that_compiles_ptx() -> None:
    floors = msgspec.structs.replace(
        CU124.floors[Arch.X86_64], driver_full="575.51.03", gpu=("8.0",), gpu_ptx=("9.0",)
    )
    newer = TargetNeeds(
        target="cu128-vllm", cuda="12.8", as_of="2026-09-01", floors={Arch.X86_64: floors}
    )
    diagnosis = targets.diagnose_host(host(driver="535"), [CU124, newer])
    assert [each.target for each in diagnosis.verdicts] == ["cu124-vllm", "cu128-vllm"]
    assert diagnosis.best == "cu124-vllm"


def test_retired_target_is_marked_and_suggested_only_if_no_other_target_fits() -> None:
    retired = msgspec.structs.replace(
        CU130, target="cu130-old", as_of="2026-10-30", retired="cu130-vllm takes its place"
    )
    diagnosis = targets.diagnose_host(MACHINE, [CU124, CU130, retired])
    assert [each.target for each in diagnosis.verdicts] == ["cu130-vllm", "cu124-vllm", "cu130-old"]
    lines = list(verb._lines(diagnosis, {}))
    assert lines[lines.index("fits: 1 target (and 1 retired)") :][3:5] == [
        "  cu130-vllm  -      -       -    -", "  retired: cu130-old"
    ]  # fmt: skip
    assert "cu130-old is retired: cu130-vllm takes its place" in lines
    assert targets.diagnose_host(MACHINE, [retired]).best == "cu130-old"
    # One with a complete driver does not replace other compatible ones.
    limited = msgspec.structs.replace(
        CU124,
        floors={
            Arch.X86_64: msgspec.structs.replace(CU124.floors[Arch.X86_64], driver_full="999.1")
        },
    )
    assert targets.diagnose_host(MACHINE, [limited, retired]).best == "cu124-vllm"


def test_recommended_target_precedes_a_newer_target_without_restriction() -> None:
    recommended = msgspec.structs.replace(CU124, recommended=True)
    diagnosis = targets.diagnose_host(MACHINE, [CU130, recommended])
    assert [each.target for each in diagnosis.verdicts] == ["cu124-vllm", "cu130-vllm"]
    lines = list(verb._lines(targets.limit_diagnosis(diagnosis, {"cu130-vllm"}), {}))
    assert not [line for line in lines if line.startswith("use")]
    floors = msgspec.structs.replace(CU124.floors[Arch.X86_64], driver_full="999.1")
    restricted = msgspec.structs.replace(recommended, floors={Arch.X86_64: floors})
    assert targets.diagnose_host(MACHINE, [CU130, restricted]).best == "cu130-vllm"


def test_general_recommended_target_precedes_a_specialized_target() -> None:
    general = msgspec.structs.replace(CU124, recommended=True)
    special = msgspec.structs.replace(
        CU124, target="cu124-new", as_of="2026-11-01", recommended=True, special=True
    )
    for driver in ("535", "580.159.04"):
        diagnosis = targets.diagnose_host(host(driver=driver), [special, general])
        assert [each.target for each in diagnosis.verdicts] == ["cu124-vllm", "cu124-new"]
        assert diagnosis.best == "cu124-vllm"
    assert targets.diagnose_host(MACHINE, [CU124, special]).best == "cu124-new"


def test_targets_with_the_same_restriction_are_grouped_within_80_columns(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("doctor", "--driver", "535", "--gpu", "A100", "--matrix", str(ROOT / "matrix.yaml"))
    with terminal.terminal_stdout(monkeypatch) as screen:
        monkeypatch.setenv("COLUMNS", "80")
        imgbuild(*words)
    text = " ".join(line.strip() for line in screen.lines)
    assert len([line for line in screen.lines if line.startswith("fits: ")]) == 1
    assert text.count("runs on driver 535 by minor version") == 1
    assert max(map(len, screen.lines)) <= 80
    rows = [line for line in screen.lines if line.startswith("  cu12")]
    full = {line.split()[0]: line.split()[-1] for line in rows}
    assert (full["cu124-vllm0.8.5"], full["cu128-verl0.6"]) == ("550.54.14", "570.26")
    assert "use: cu124-vllm0.8.5 " in text
    with terminal.terminal_stdout(monkeypatch) as screen:
        monkeypatch.setenv("COLUMNS", "110")
        imgbuild(*words)
    (head,) = (line for line in screen.lines if line.startswith("  target "))
    (row,) = (line for line in screen.lines if line.startswith("  cu124-vllm0.8.5 "))
    assert row[head.index("Python") :].startswith("3.11 ")


def test_old_glibc_is_reported_only_for_use_without_an_image() -> None:
    floors = msgspec.structs.replace(CU124.floors[Arch.X86_64], glibc="2.34")
    offered = msgspec.structs.replace(CU124, floors={Arch.X86_64: floors})
    assert verdict(MACHINE, offered) == (True, "")
    fits, why = verdict(host(glibc="2.31"), offered)
    assert fits
    assert "requirements-x86_64.txt), the wheels require glibc 2.34 or newer" in why
    assert why.endswith("this machine has 2.31")
    assert verdict(host(glibc=""), offered) == (True, "")


def test_gpu_without_matching_code_is_not_supported() -> None:
    card = HostGpu(name="RTX 5090", capability="12.0")
    fits, why = verdict(host(gpus=(card,)), CU124)
    assert not fits
    assert "no code for RTX 5090 (12.0), only for 8.0, 8.6, 8.9, 9.0" in why
    assert verdict(host(gpus=(card,)), CU130) == (True, "")


def test_gpu_runs_code_of_an_older_gpu_with_the_same_major_version() -> None:
    titan = HostGpu(name="unknown", capability="8.8")
    assert verdict(host(gpus=(titan,)), CU124) == (True, "")
    fits, why = verdict(host(gpus=(HostGpu(name="Thor", capability="11.0"),)), CU124)
    assert (fits, "no code for Thor (11.0) is known" in why) == (False, True)
    # Floors are exact for what the data knows: sm_120a does not run on 12.1.
    assert not verdict(host(gpus=(HostGpu(name="Spark", capability="12.1"),)), CU130)[0]
    assert verdict(host(gpus=(HostGpu(name="old driver"),)), CU130) == (True, "")


def test_tegra_gpu_does_not_run_code_for_server_gpus() -> None:
    fits, why = verdict(host(gpus=(HostGpu(name="Orin", capability="8.7"),)), CU124)
    assert not fits
    assert "no code for Orin (8.7)" in why
    assert "does not run on a Tegra" in why


def test_driver_branch_is_treated_as_the_newest_release_of_the_branch() -> None:
    fits, why = verdict(host(driver="580"), CU130)
    assert fits
    assert "requires release 580.65.06 or newer of driver branch 580" in why
    assert verdict(host(driver="550"), CU124) == (True, "")
    fits, why = verdict(host(driver="575"), CU130)
    assert not fits
    assert "runs CUDA 12.9 and older" in why
    assert not verdict(host(driver="580.65.05"), CU130)[0]


def test_targets_without_driver_restriction_are_first() -> None:
    cu129 = msgspec.structs.replace(
        CU124,
        target="cu129-vllm",
        cuda="12.9",
        floors={
            Arch.X86_64: msgspec.structs.replace(
                CU124.floors[Arch.X86_64], cuda="12.9", driver_full="575.51.03"
            )
        },
    )
    diagnosis = targets.diagnose_host(host(driver="560.35.03"), [CU124, CU130, cu129])
    assert [(fit.target, fit.fits, fit.complete) for fit in diagnosis.verdicts] == [
        ("cu124-vllm", True, True),
        ("cu129-vllm", True, False),
        ("cu130-vllm", False, False),
    ]
    assert diagnosis.best == "cu124-vllm"


def test_doctor_options_describe_another_machine() -> None:
    other = Host(arch=Arch.ARM64, gpus=(HostGpu(name="GH200", capability="9.0"),), described=True)
    diagnosis = targets.diagnose_host(other, [CU124, CU130])
    assert diagnosis.best == "cu130-vllm"
    assert diagnosis.remarks == ("no driver is specified, so targets are not compared with it",)
    assert diagnosis.verdicts[-1].reasons == ("the image is for x86_64, but the machine is arm64",)
    with_driver = Host(arch=Arch.X86_64, driver="535", described=True)
    assert targets.diagnose_host(with_driver, [CU124]).remarks == (
        "no GPU is specified, so targets are not compared with it",
    )


def test_doctor_for_another_machine_does_not_read_this_machine(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    monkeypatch.setattr("imgbuild.cli.doctor.read_host", None)
    answer = read_json(
        imgbuild("doctor", "--driver", "535", "--gpu", "NVIDIA H100 80GB HBM3", "--json")
    )
    assert answer["host"]["arch"] == "x86_64"
    assert answer["host"]["gpus"][0]["capability"] == "9.0"
    assert answer["best"] == TARGET
    text = imgbuild("doctor", TARGET, "--driver", "450.80.02", status=1)
    assert "not compatible with the machine" in text.stderr
    assert read_json(imgbuild("doctor", "--gpu", "gh200", "--json"))["host"]["arch"] == "arm64"
    assert imgbuild("doctor", "--gpu", "gh200").status == 0
    for words, message in (
        (["--gpu", "GH200", "--arch", "x86_64"], "GH200 is built with arm64, --arch x86_64"),
        (["--gpu", "H1000"], "did you mean H100?"),
        (["--driver", "5.3.5"], "expected a version such as 535"),
        (["--driver", "535", "--through", "root"], "cannot be combined with --through"),
    ):
        assert message in imgbuild("doctor", *words, status=2).stderr.replace("\n  ", " ")


def test_each_of_two_gpus_must_be_supported() -> None:
    assert not verdict(host(gpus=(H200, HostGpu(name="P100", capability="6.0"))), CU124)[0]


def test_gpu_that_needs_ptx_compilation_is_reported() -> None:
    fits, why = verdict(MACHINE, CU130)
    assert fits
    assert "the driver compiles some kernels" in why


def test_architecture_without_an_image_is_reported() -> None:
    arm = host(arch=Arch.ARM64)
    assert verdict(arm, CU124) == (False, "the image is for x86_64, but this machine is arm64")
    assert verdict(arm, CU130)[0]
    assert not verdict(host(arch=None), CU130)[0]


def test_machine_without_a_gpu_is_checked_only_for_its_architecture() -> None:
    bare = host(driver="", gpus=(), engines=(), shared_memory=64 << 20)
    diagnosis = targets.diagnose_host(bare, [CU124, CU130])
    assert all(target_verdict.fits for target_verdict in diagnosis.verdicts)
    assert diagnosis.best == ""
    lines = list(verb._lines(diagnosis, {}))
    groups = [line.split("  ")[:2] for line in lines if line.startswith(("unknown", "  "))]
    assert [each for each in groups if each != ["", "target"]] == [
        ["unknown: 1 target"], ["", "requires driver 580.65.06 or newer"], ["", "cu130-vllm"],
        ["unknown: 1 target"], ["", "requires driver 525.60.13 or newer"], ["", "cu124-vllm"],
    ]  # fmt: skip
    assert "checked" in "".join(lines)
    one = "\n".join(verb._lines(targets.limit_diagnosis(diagnosis, ["cu124-vllm"]), {}))
    assert "cu124-vllm" in one
    assert "cu130-vllm" not in one
    assert lines[-1] == "no target is recommended, because no GPU with a driver was found"
    text = "; ".join(diagnosis.remarks)
    assert "no GPU was found; only the architecture is checked" in text
    (loaded,) = targets.diagnose_host(host(gpus=()), [CU124]).remarks
    assert loaded.endswith(
        "though driver 580.159.04 is loaded; only architecture and driver are checked"
    )
    assert "no docker, podman or apptainer is running" in text
    assert "64 MB of shared memory" in text


def test_container_engine_that_cannot_pass_gpus_is_reported_with_a_remedy() -> None:
    podman = RuntimeSupport(name="podman", version="4.3.1", gpus=False)
    (remark,) = targets.diagnose_host(host(engines=(podman,)), [CU124]).remarks
    assert "podman 4.3.1 cannot provide GPUs to containers" in remark
    assert remark.endswith("nvidia-ctk cdi generate")


def test_docker_without_igzip_is_reported_as_a_note() -> None:
    (remark,) = targets.diagnose_host(host(igzip=False), [CU124]).remarks
    assert remark.startswith("igzip is not installed")
    podman = (RuntimeSupport(name="podman", version="4.3.1", gpus=True),)
    assert targets.diagnose_host(host(igzip=False, engines=podman), [CU124]).remarks == ()


def test_too_old_driver_runs_no_target() -> None:
    assert targets.diagnose_host(host(driver="390.48"), [CU124, CU130]).best == ""


def test_driver_and_gpus_are_read_from_nvidia_smi_output() -> None:
    assert parse_gpus(SMI * 2) == ("580.159.04", (H200, H200))
    old = "Tesla V100-SXM2-16GB, 470.57.02, 16160 MiB\n"
    name = "Tesla V100-SXM2-16GB"
    assert parse_gpus(old) == ("470.57.02", (HostGpu(name=name, memory=16160 << 20),))
    hidden = "NVIDIA GB10, 580.95.05, [N/A], 12.1\n"
    assert parse_gpus(hidden) == ("580.95.05", (HostGpu(name="NVIDIA GB10", capability="12.1"),))
    assert parse_gpus("") == ("", ())
    assert parse_gpus("No devices were found\n") == ("", ())


def test_version_file_of_the_driver_is_read() -> None:
    assert driver_version(PROC) == "580.159.04"
    assert (
        driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu")
        == "550.54.14"
    )
    assert driver_version("") == ""


# -- from locks and digests


def test_digests_without_driver_limits_use_the_driver_of_the_cuda_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = write_project(tmp_path)
    needs = targets.target_needs(tmp_path / "images", sample.lock)
    assert needs.floors[Arch.X86_64].driver == "525.60.13"
    assert needs.floors[Arch.X86_64].driver_full == "550.54.14"
    assert needs.floors[Arch.X86_64].gpu == tuple(sample.lock.gpu)


def test_driver_limits_recorded_in_the_digests_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = write_project(tmp_path)
    path = digests_path(tmp_path / "images", TARGET)
    document = json.loads(path.read_text())
    document["arch"]["x86_64"]["floors"] = {"cuda": "12.4", "driver": "999.1"}
    path.write_text(json.dumps(document))
    assert (
        targets.target_needs(tmp_path / "images", sample.lock).floors[Arch.X86_64].driver == "999.1"
    )


def test_exit_status_of_doctor_shows_the_result(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    # Only the machine cannot be provided by a test: old and new ones replace it.
    monkeypatch.setattr("imgbuild.cli.doctor.read_host", lambda: MACHINE)
    answer = read_json(imgbuild("doctor", "--json"))
    assert [
        (target_verdict["target"], target_verdict["fits"]) for target_verdict in answer["verdicts"]
    ] == [(TARGET, True)]
    assert answer["best"] == TARGET
    text = imgbuild("doctor", TARGET)
    reason = (
        "(in order of preference: fewest restrictions, recommended, general, newest CUDA "
        "release, latest date)"
    )
    assert (text.status, text.stdout.splitlines()[-1]) == (0, f"use: {TARGET} {reason}")
    assert f"imgbuild build {TARGET} --format sif" in text.stderr
    several = imgbuild("doctor", "--gpu", "RTX 5090", "--gpu", "GH200").stderr
    assert "imgbuild list --gpu 'RTX 5090' --gpu GH200" in several
    [row] = [line for line in text.stdout.splitlines() if line.startswith(f"  {TARGET}")]
    assert row.split("  ")[1:3] == [TARGET, "2025-06-20"]
    assert "vllm 0.8.5.post1, trl 0.18.2" in row

    monkeypatch.setattr("imgbuild.cli.doctor.read_host", lambda: host(driver="470.57.02"))
    everything = imgbuild("doctor", status=0)
    assert everything.stdout.splitlines()[-1] == "no target is compatible with this machine"
    named = imgbuild("doctor", TARGET, status=1)
    assert f"not compatible with this machine: {TARGET}" in named.stderr
    assert "requires driver 525.60.13 or newer" in named.stdout
    machine = imgbuild("doctor", TARGET, "--json", status=1)
    assert [
        target_verdict["fits"] for target_verdict in json.loads(machine.stdout)["verdicts"]
    ] == [False]


@pytest.mark.parametrize("word", ["--gpus", "--shared"])
def test_doctor_checks_in_an_image_require_an_image(
    imgbuild: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    assert "requires --through" in imgbuild("doctor", TARGET, word, "1", status=2).stderr
