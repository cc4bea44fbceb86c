"""Tests finding the GPUs of a machine and the libraries of its driver."""

import pytest

from imgbuild.container import driver
from imgbuild.errors import WorkFailed
from imgbuild.smoke import runner
from imgbuild.system import process
from tests.support.rows import each_row

LISTED = """\
3 libs found in cache `/etc/ld.so.cache'
\tlibcuda.so.1 (libc6,x86-64) => {0}/lib64/libcuda.so.1
\tlibcuda.so.1 (libc6) => {0}/lib32/libcuda.so.1
\tlibcudart.so.12 (libc6,x86-64) => /usr/lib/libcudart.so.12
"""


@pytest.fixture(name="folder")
def _folder(tmp_path, monkeypatch):
    """A driver as distributions install it, among other libraries, and a loader cache."""
    folder = tmp_path / "lib64"
    folder.mkdir()
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.580.1", "libz.so.1"):
        (folder / name).write_bytes(b"\x7fELF\x02")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    monkeypatch.setattr(driver, "PLACES", ())

    def _answer(*_words, **_more):
        return process.ProcessResult(0, LISTED.format(tmp_path), "")

    monkeypatch.setattr(process, "run_command", _answer)
    return folder


def test_gpus_are_counted_by_device_files(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(driver, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert driver.count_gpus() == 2


@each_row(
    ("value", "count"),
    [("3", 1), ("0,1", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("GPU-1a2b", 1)],
)
def test_cuda_visible_devices_variable_limits_the_gpus(value, count, tmp_path, monkeypatch):
    """A node has device files for all GPUs, but Slurm lists only those of the job."""
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(driver, "DEVICES", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert driver.count_gpus() == count
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert driver.chosen_gpus() == {"CUDA_VISIBLE_DEVICES": value}
    assert driver.gpu_variables() == {"CUDA_VISIBLE_DEVICES": value, "NCCL_NVLS_ENABLE": "0"}
    monkeypatch.setattr(driver, "DEVICES", tmp_path / "none")
    assert driver.count_gpus() == 0


@each_row(
    ("gpus", "through", "tiers"),
    [
        (0, None, ("static", "cpu")),
        (1, "docker", ("static", "cpu", "gpu")),
        (2, "root", ("static", "cpu", "gpu", "multi-gpu")),
        (0, "here", ("cpu",)),
        (1, "here", ("cpu", "gpu")),
    ],
)
def test_smoke_tiers_depend_on_the_number_of_gpus(gpus, through, tiers):
    assert runner.fitting_tiers(gpus, through) == tiers


def test_only_files_of_the_gpu_driver_are_linked(folder, tmp_path, monkeypatch):
    """nvidia-smi is mounted from PATH, because programs that report a machine start it."""
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shown = driver.driver_files(scratch)
    links = {path.name: str(path.readlink()) for path in (scratch / "driver").iterdir()}
    assert links == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": "/run/imgbuild/host/libcuda.so.1",
        "libcuda.so.580.1": "/run/imgbuild/host/libcuda.so.580.1",
        "libnvidia-ml.so.580.1": "/run/imgbuild/host/libnvidia-ml.so.580.1",
    }
    assert [(bind.source, bind.target, bind.writable) for bind in shown.binds] == [
        (folder, "/run/imgbuild/host", False),
        (scratch / "driver", "/run/imgbuild/driver", False),
        (program, "/usr/bin/nvidia-smi", False),
    ]


def test_missing_gpu_driver_is_an_error(folder, tmp_path):
    (folder / "libcuda.so.1").unlink()
    with pytest.raises(WorkFailed, match=r"libcuda\.so\.1 not found"):
        driver.driver_files(tmp_path)


def test_root_folder_has_only_gpu_devices(tmp_path, monkeypatch):
    for name in (
        "nvidia0",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-caps/cap1",
        "dri/card0",
        "sda",
        "kmsg",
    ):
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setattr(driver, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(driver, "driver_library_folder", lambda: tmp_path)
    bound = {bind.target for bind in driver.driver_files(tmp_path).binds}
    given = {path for path in bound if path.startswith(str(tmp_path))}
    names = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "dri")
    assert given == {f"{tmp_path}/dev/{name}" for name in names}
    assert all(bind.source.exists() for bind in driver.driver_files(tmp_path / "dev").binds)
