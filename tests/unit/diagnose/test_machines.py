"""Tests of causes and cures that depend on the GPU, driver and glibc in the log."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose import existence, machines
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import LogFinding
from imgbuild.diagnose.lines import read_lines
from imgbuild.diagnose.log import parse_log

SMI = "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version:"
KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def first(text: str) -> LogFinding:
    """Return the first finding in a log."""
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


@pytest.mark.parametrize(
    ("shown", "cause", "cure"),
    [
        ("Tesla V100-SXM2-16GB, torch 2.11.0+cu130", "no code for V100 (sm_70)", "vllm<=0.19.1"),
        ("NVIDIA GeForce RTX 5090, torch 2.6.0+cu124", "no code for RTX 5090", "torch>=2.8.0"),
        ("B200 with CUDA capability sm_100", "no code for B200 (sm_100)", "cu128"),
        ("NVIDIA GB10, torch 2.9.1+cu128", "no code for GB10 (sm_121)", "torch>=2.11.0"),
        ("Tesla P100-PCIE-16GB, torch 2.8.0", "CUDA 12.8, which has no code", "torch<=2.7.1"),
        ("T4", "no code for T4 (sm_75)", "dtype=half"),
        ("NVIDIA H20, torch 2.9.1+cu128", "an installed package", "TORCH_CUDA_ARCH_LIST=9.0a"),
    ],
)
def test_the_cure_for_an_absent_kernel_is_for_the_gpu(shown: str, cause: str, cure: str) -> None:
    finding = first(f"{KERNEL}# {shown}\n")
    assert finding.code == "IMG504"
    assert cause in finding.cause
    assert cure in finding.cure


def test_the_file_of_an_absent_kernel_names_its_package() -> None:
    place = "/__w/xformers/third_party/flash-attention/hopper/launch.h:167"
    text = f"CUDA error ({place}): no kernel image is available for execution on the device\n"
    finding = first(f"{text}# NVIDIA GeForce RTX 5090\n")
    assert "FlashAttention 3 of xformers has no code for RTX 5090 (sm_120)" in finding.cause
    assert finding.cure.startswith("uninstall xformers")


@pytest.mark.parametrize(
    ("text", "code", "cause", "cure"),
    [
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9\n",
            *("IMG502", "older than", "575.51.03"),
        ),
        (
            f"CUDA driver version is insufficient for CUDA runtime version\n{SMI} 11.4 |\n",
            *("IMG502", "older than", "cu118"),
        ),
        (
            f"the provided PTX was compiled with an unsupported toolchain.\n{SMI} 12.2 |\n",
            *("IMG503", "newer CUDA", "CUDA 12.2 and older"),
        ),
        (
            "nvidia-smi 显示 CUDA 12.0, torch 2.11, torch.cuda.is_available() 为 False\n",
            *("IMG792", "build for CUDA 13.0", "torch<=2.10.0"),
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED (CUDA_R_16BF)\n# Tesla T4\n",
            *("IMG516", "no bfloat16", "dtype=half"),
        ),
        (
            "RuntimeError: Failed to infer device type\n# torch==2.8.0+cpu\n",
            *("IMG761", "CPU build", "whose version has no +cpu"),
        ),
        (
            (
                "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built"
                " for:\n    PyTorch 2.1.2+cu121 with CUDA 1201 (you have 2.1.2+cpu)\n"
            ),
            *("IMG1431", "2.1.2+cpu is a CPU build", "whl/cu121"),
        ),
        (
            "ValueError: GPUs with compute capability below 7.0 are not supported.\n# Tesla P100\n",
            *("IMG1444", "P100 is older", "torch<=2.7.1"),
        ),
        (
            "Installed CUDA version 13.0 does not match the version torch was compiled with 12.8\n",
            *("IMG625", "13.0", "nvidia/cuda:12.8"),
        ),
    ],
)
def test_the_cure_is_for_the_driver(text: str, code: str, cause: str, cure: str) -> None:
    finding = first(text)
    assert finding.code == code
    assert cause in finding.cause
    assert cure in finding.cure


@pytest.mark.parametrize(
    ("wheel", "shown", "cause"),
    [
        ("vllm-0.13.0-cp38-abi3-manylinux_2_31_x86_64", "glibc 2.28", "this system has 2.28"),
        ("acme-1.0-cp38-abi3-manylinux_2_28_x86_64", "", "needs glibc 2.28"),
        ("acme-1.0-cp38-abi3-manylinux1_x86_64", "aarch64", "this machine is arm64"),
        ("acme_ops-1.0-cp310-cp310-linux_x86_64", "", "acme-ops 1.0 is for Python 3.10"),
        ("acme-1.0-cp310-cp310-win_amd64", "", "is for win_amd64"),
    ],
)
def test_the_name_of_a_wheel_shows_why_it_does_not_fit(wheel: str, shown: str, cause: str) -> None:
    finding = first(f"ERROR: {wheel}.whl is not a supported wheel on this platform.\n{shown}\n")
    assert finding.code == "IMG606"
    assert cause in finding.cause


@pytest.mark.parametrize(
    ("line", "glibc"),
    [
        ("ldd (Ubuntu GLIBC 2.31-0ubuntu9.9) 2.31", "2.31"),
        ("ldd (GNU libc) 2.17", "2.17"),
        ("Libc version: glibc-2.35", "2.35"),
        ("Python platform: Linux-3.10.0-x86_64-with-glibc2.17", "2.17"),
        ("CentOS Linux release 7.9.2009 (Core)", "2.17"),
        ("Rocky Linux release 8.9 (Green Obsidian)", "2.28"),
        ("version `GLIBC_2.34' not found", ""),
    ],
)
def test_glibc_of_the_system(line: str, glibc: str) -> None:
    lines = read_lines(io.BytesIO(f"{line}\n".encode()), "log")
    assert parse_log(lines).facts.glibc == glibc


def test_a_listed_version_may_lack_a_wheel_for_arm64() -> None:
    listed = "requirement acme==2.1 (from versions: 0.0.1, 1.9)"
    text = f"Linux node3 6.8.0 {{}}\nERROR: Could not find a version that satisfies the {listed}\n"
    assert "acme==2.1 has no wheel for Linux on arm64" in first(text.format("aarch64")).cause
    assert "arm64" not in first(text.format("x86_64")).cause


def test_pip_lists_the_versions_for_arm64() -> None:
    finding = first(
        "ERROR: Could not find a version that satisfies the requirement bitsandbytes==0.43.0"
        " (from versions: 0.42.0, 0.46.0, 0.47.0)\naarch64\n"
    )
    assert finding.code == "IMG602"
    assert "bitsandbytes>=0.46.0" in finding.cure


@pytest.mark.parametrize(
    ("version", "listed", "cause"),
    [
        ("5.24.0", "5.22.0, 5.23.0", "the index or mirror is behind"),
        ("5.24.0", "4.57.5, 4.57.6", "so this is Python 3.9"),
    ],
)
def test_a_mirror_that_is_behind(version: str, listed: str, cause: str) -> None:
    finding = first(
        f"ERROR: Could not find a version that satisfies the requirement transformers=={version}"
        f" (from versions: {listed})\n"
    )
    assert cause in finding.cause


@pytest.mark.parametrize(
    ("expected", "shown", "cause"),
    [
        ("Expected 88 from C header, got 96", "", "was compiled for numpy 2"),
        ("", "pyarrow 26.0.1 numpy 1.26.4", "pyarrow 26.0.1 needs numpy 2"),
    ],
)
def test_the_direction_of_a_numpy_mismatch(expected: str, shown: str, cause: str) -> None:
    message = (
        f"ValueError: numpy.dtype size changed, may indicate binary incompatibility. {expected}"
    )
    assert cause in first(f"{message}\n{shown}\n").cause


@pytest.mark.parametrize(
    "text",
    [
        "No module named 'peft'\nLocation: /home/user/envs/rl/lib/python3.12/site-packages\n",
        "#!/usr/bin/python3.8\nModuleNotFoundError: No module named 'vllm'\n",
        "sudo accelerate launch: No module named 'torch'\n",
    ],
)
def test_a_module_is_installed_in_another_python(text: str) -> None:
    assert first(text).code == "IMG634"


def test_pip_show_of_another_package_is_not_a_module_of_another_python() -> None:
    text = "ModuleNotFoundError: No module named 'flash_attn'\nName: torch\nLocation: /v/lib/"
    assert first(f"{text}python3.12/site-packages\n").code != "IMG634"


@pytest.mark.parametrize("code", machines.ADAPTED)
def test_a_long_line_is_adapted_in_few_steps(code: str) -> None:
    """Lines are read up to this length."""
    for text in ("a" * 16_000, "requirement a" * 1200, "a-1-cp-" * 2300):
        assert not any(machines.machine_reason(code, text, LogFacts()))


def test_a_long_note_is_searched_in_few_steps() -> None:
    note = "FooConfig has no a" + "_" * 16_000 + "("
    assert existence.noted_argument_reason(note, LogFacts()) is None


def test_the_cure_for_an_unknown_cuda_names_no_driver() -> None:
    text = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=99.9, please"
    assert "install a newer driver on the host" in first(f"{text} update your driver\n").cure


def test_several_processes_on_a_gpu() -> None:
    finding = first(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a"
        " total capacity of 139.81 GiB of which 301.94 MiB is free. Process 51021 has 98.21 GiB"
        " memory in use. Process 50110 has 41.20 GiB memory in use.\n"
    )
    assert "process 51021 has 98.21 GiB" in finding.cause
    assert "mem_fraction_static" in finding.cure


@pytest.mark.parametrize(
    ("program", "cure"),
    [
        ("scontrol", "/etc/slurm"),
        ("ffmpeg", "apt-get install -y ffmpeg"),
        ("conda", "profile.d/conda.sh"),
    ],
)
def test_the_cure_is_for_the_absent_program(program: str, cure: str) -> None:
    finding = first(
        'Traceback (most recent call last):\n  File "/job/a.py", line 2, in <module>\n    run()\n'
        f"FileNotFoundError: [Errno 2] No such file or directory: '{program}'\n"
    )
    assert (finding.code, cure in finding.cure) == ("IMG804", True)


def test_a_folder_of_the_project_hides_a_package() -> None:
    text = "ImportError: cannot import name 'load_dataset' from 'datasets'"
    assert (
        "the folder /workspace/datasets" in first(f"{text} (/workspace/datasets/__init__.py)").cause
    )
    assert "sources" in first(f"{text} (/srv/datasets-main/src/datasets/x.py)").cause
