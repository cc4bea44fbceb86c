"""Tests that smoke_tests/doctor.py reports each problem of a cluster with a remedy."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.rows import each_row
from tests.support.source_code import import_script

SCRIPT = Path(__file__).parents[3] / "smoke_tests/doctor.py"
EVERY = ("HOME", "TMPDIR", "RAY_TMPDIR", "HF_HUB_OFFLINE", "SLURM_CPUS_PER_TASK", "HTTPS_PROXY",
         "https_proxy", "TRITON_CACHE_DIR")  # fmt: skip


@pytest.fixture(name="doctor")
def _doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, in a valid environment."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    module = import_script(SCRIPT)
    for name in (*EVERY, *module.WRITTEN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return module


def result(findings: object) -> list[tuple[str, str]]:
    return [(finding.severity, f"{finding.message}: {finding.remedy}") for finding in findings]  # type: ignore[attr-defined]


def worst(findings: object) -> tuple[str, str]:
    order = ("note", "warning", "error")
    return max(result(findings), key=lambda pair: order.index(pair[0]))


def test_package_imported_from_outside_the_image_is_an_error(doctor, tmp_path, monkeypatch):
    (tmp_path / "verl.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    severity, text = worst(doctor.packages())
    assert severity == "error"
    assert f"verl is imported from {tmp_path}/verl.py" in text
    assert "unset PYTHONPATH" in text


def test_folder_that_precedes_the_image_packages_is_a_warning(doctor, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sys, "path", ["", str(tmp_path), *sys.path])
    severity, text = worst(doctor.packages())
    assert severity == "warning"
    assert text.startswith(f"Python searches {tmp_path}, ")
    assert "before the image's packages: unset PYTHONPATH" in text


def test_packages_in_the_user_folder_are_a_note(doctor, tmp_path, monkeypatch):
    """User packages follow the image's packages. Links to the image's metadata do not count."""
    image, user = tmp_path / "image", tmp_path / "user"
    for place in (image / "a-1.dist-info", user / "a-1.dist-info", user / "emoji-2.1.dist-info"):
        place.mkdir(parents=True)
    (user / "verl.py").touch()
    debian = "/usr/lib/python3/dist-packages"
    monkeypatch.setattr(doctor.sys, "path", ["", str(image), *sys.path, str(user), debian])
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda _: str(image))
    monkeypatch.setattr(doctor.site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(doctor.site, "getusersitepackages", lambda: str(user))
    monkeypatch.setattr(doctor.site, "getuserbase", lambda: "/workspace/.imgbuild-packages/x")
    (first, second) = result(doctor.packages())
    assert first == ("note", f"the packages of the image come from {sys.prefix}: ")
    assert second == (
        "note",
        "added by the user in /workspace/.imgbuild-packages/x: emoji 2.1: ",
    )


def test_user_without_name_is_reported(doctor, monkeypatch):
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr(doctor.getpass, "getuser", nobody)
    severity, text = worst(doctor.user())
    assert severity == "error"
    assert "set USER and LOGNAME" in text


def test_unwritable_home_is_reported(doctor, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file/home"))
    severity, text = worst(doctor.folders())
    assert severity == "error"
    assert f"HOME: cannot write to {tmp_path}/file/home: Not a directory" in text


def test_bytecode_folder_inside_the_image_can_be_read_only(doctor, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "file/bytecode"))
    assert worst(doctor.folders())[0] == "note"
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path / "other"))
    severity, text = worst(doctor.folders())
    assert severity == "error"
    assert "PYTHONPYCACHEPREFIX: cannot write" in text


def test_kernel_cache_folder_on_a_noexec_disk_is_reported(doctor, tmp_path, monkeypatch):
    real = os.statvfs

    class NoExec:
        f_flag = os.ST_NOEXEC

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        doctor.os, "statvfs", lambda place: NoExec() if place == str(tmp_path) else real(place)
    )
    errors = [text for severity, text in result(doctor.folders()) if severity == "error"]
    assert f"TRITON_CACHE_DIR: {tmp_path} is mounted noexec" in errors[0]


def test_temporary_folder_path_that_is_too_long_for_ray_is_reported(doctor, tmp_path, monkeypatch):
    place = tmp_path / ("x" * 80)
    place.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    severity, text = result(doctor.temporary())[0]
    assert severity == "warning"
    assert "of 107 bytes" in text


def test_small_temporary_folder_is_reported(doctor, monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_TEMPORARY", 1 << 60)
    severity, text = worst(doctor.temporary())
    assert severity == "warning"
    assert "apptainer --bind SCRATCH:/tmp" in text


def test_small_shared_memory_is_a_warning_or_an_error(doctor, monkeypatch):
    assert worst(doctor.shared_memory(1 << 60))[0] == "error"
    monkeypatch.setattr(doctor, "LEAST_SHARED", 1 << 60)
    severity, text = worst(doctor.shared_memory(0))
    assert severity == "warning"
    assert "--shm-size" in text
    assert worst(doctor.shared_memory(1))[0] == "note"


def test_low_file_limit_is_reported(doctor):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        severity, text = result(doctor.limits())[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert severity == "warning"
    assert "512 open files are allowed" in text
    assert "ulimit -n $(ulimit -Hn)" in text


def test_low_thread_limit_is_reported(doctor, monkeypatch):
    monkeypatch.setattr(doctor, "_start_threads", lambda _: 40)
    severity, text = worst(doctor.limits())
    assert severity == "error"
    assert "only 40 threads can be started" in text
    assert "ulimit -u $(ulimit -Hu)" in text


def test_thread_check_starts_and_ends_threads(doctor, monkeypatch):
    start = doctor.threading.Thread.start
    left = [3]

    def refusing(thread: object) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    before = doctor.threading.active_count()
    assert doctor._start_threads(8) == 8
    monkeypatch.setattr(doctor.threading.Thread, "start", refusing)
    assert doctor._start_threads(8) == 3
    assert doctor.threading.active_count() == before


def test_process_with_fewer_cores_than_the_machine_is_reported(doctor, monkeypatch):
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 128)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    severity, text = worst(doctor.cores())
    assert severity == "warning"
    assert "register with the raylet: ray start --num-cpus=1" in text


def test_missing_gpu_driver_is_reported(doctor, monkeypatch):
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert worst(doctor.driver(0))[0] == "note"
    severity, text = worst(doctor.driver(1))
    assert severity == "error"
    assert "apptainer: --nv" in text


def test_model_cache_on_a_network_disk_is_reported(doctor, monkeypatch):
    monkeypatch.setattr(doctor, "_file_system_type", lambda _: "nfs4")
    severity, text = worst(doctor.model_disk())
    assert severity == "warning"
    assert "imgbuild slurm --stage" in text


def test_disk_type_is_read_from_the_innermost_mount(doctor):
    assert doctor._file_system_type("/proc/self") == "proc"
    assert doctor._file_system_type("/") != ""


def test_missing_network_is_reported(doctor, monkeypatch):
    def nothing(*_: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(doctor.socket, "getaddrinfo", nothing)
    severity, text = worst(doctor.network())
    assert severity == "warning"
    assert "HF_HUB_OFFLINE=1" in text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert worst(doctor.network())[0] == "note"


def test_failing_check_does_not_stop_other_checks(doctor, monkeypatch, capsys):
    def broken(*_: object) -> None:
        raise OSError("no mounts here")

    monkeypatch.setattr(doctor, "_file_system_type", broken)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status = doctor.main(["--json"])
    document = json.loads(capsys.readouterr().out)
    by_check = {finding["check"]: finding for finding in document["findings"]}
    assert by_check["model disk"]["severity"] == "warning"
    assert "no mounts here" in by_check["model disk"]["message"]
    assert by_check["network"]["severity"] == "note"
    errors = [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert status == int(bool(errors))


def test_driver_that_cannot_be_queried_is_an_error(doctor, monkeypatch, capsys):
    def broken(_: object) -> None:
        raise AttributeError("undefined symbol: cuInit")

    monkeypatch.setattr(doctor, "driver", broken)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for gpus, severity in ((1, "error"), (0, "warning")):
        status = doctor.main(["--json", f"--gpus={gpus}"])
        document = json.loads(capsys.readouterr().out)
        [driver_finding] = [
            finding for finding in document["findings"] if finding["check"] == "driver"
        ]
        assert driver_finding["severity"] == severity
        assert "undefined symbol: cuInit" in driver_finding["message"]
        assert status == 1 or not gpus


def test_unwritable_temporary_folder_is_reported(doctor, tmp_path, monkeypatch):
    unwritable = doctor._unwritable
    monkeypatch.setattr(
        doctor, "_unwritable", lambda place: "Read-only" if place == "/tmp" else unwritable(place)
    )
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path))
    severity, text = worst(doctor.folders())
    assert severity == "error"
    assert "/tmp: cannot write to /tmp: Read-only" in text
    assert result(doctor.temporary())[0][1].startswith("/tmp has ")


def test_hanging_check_does_not_stop_other_checks(doctor, monkeypatch):
    never = doctor.threading.Event()

    def hanging(_: object) -> object:
        yield doctor.Finding("driver", "note", "seen before")
        never.wait()

    monkeypatch.setattr(doctor, "driver", hanging)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(doctor, "TIME_LIMIT", 0.5)
    findings = [
        finding for finding in doctor.examine(0, 0) if finding.check in ("driver", "network")
    ]
    never.set()
    assert [(finding.check, finding.severity) for finding in findings[:2]] == [
        ("driver", "note"),
        ("driver", "warning"),
    ]
    assert "timed out after" in findings[1].message
    assert findings[2].check == "network"


def test_checks_run_concurrently(doctor, monkeypatch):
    """Each check ends only after all checks have started."""
    met = doctor.threading.Barrier(3)

    def meeting(*_: object) -> object:
        met.wait()
        yield doctor.Finding("meeting", "note", "met")

    for name in ("driver", "model_disk", "network"):
        monkeypatch.setattr(doctor, name, meeting)
    findings = doctor.examine(0, 0)
    assert [finding.message for finding in findings].count("met") == 3
    assert not [finding for finding in findings if "timed out after" in finding.message]


@each_row("world", [1, 8, 64, 181, 192, 256, 4096])
def test_all_reduce_check_adds_exactly_in_every_order(world):
    module = import_script(SCRIPT.with_name("check_reduce.py"))
    share = world * (world + 1) // 2
    assert 2 <= module.modulus(share) <= 1024
    assert (module.modulus(share) - 1) * share <= 2**24
