"""Tests reading errors of programs other than Python, and values that programs reject."""

from __future__ import annotations

import io

import pytest

from imgbuild.diagnose import program_reasons, value_reasons
from imgbuild.diagnose.diagnosis import diagnose_log
from imgbuild.diagnose.finding import LogFinding
from imgbuild.diagnose.value_reasons import allowed_values, nearest_value, rejected_value
from tests.support.rows import each_row


def first(text: str) -> LogFinding:
    return diagnose_log(io.BytesIO(text.encode()), "log").findings[0]


@each_row(
    ("line", "cause", "cure"),
    [
        ("csrc/slots.cu:3:10: fatal error: cudnn.h: No such file or directory", "cudnn.h", "cudnn"),
        ("csrc/slots.cc:1:10: fatal error: Python.h: No such file", "Python.h", "python3-dev"),
        ("csrc/slots.cu(12): error: no member 'fan' in pump", "csrc/slots.cu(12)", "compiler"),
        ("nvcc fatal   : Value 'c++17' is not defined for option 'std'", "nvcc", "CUDA_HOME"),
        ("/usr/bin/ld: cannot find -lslots", "libslots.so", "libslots-dev"),
        ("/usr/bin/ld: cannot find build/slots.o: No such file", "build/slots.o", "MAX_JOBS=1"),
        (
            "make: *** No rule to make target 'slots.o', needed by 'all'.  Stop.",
            "make",
            "submodule",
        ),
        ("bash: ./run.sh: No such file or directory", "does not find ./run.sh", "mounted"),
        ("/bin/sh: 1: ./run.sh: not found", "does not find ./run.sh", "mounted"),
        ("./job.sh: line 3: ./run.sh: Permission denied", "not run or open ./run.sh", "chmod +x"),
        ("bash: ./pip: /old/python: bad interpreter: No such file", "run by /old/python", "-m"),
        ("bash: 第 3 行: ./run.sh: 没有那个文件或目录", "does not find ./run.sh", "mounted"),
        ("E: Unable to locate package libslots9", "libslots9", "apt-get update"),
        ("fatal: not a git repository (or any of the parent directories): .git", "git", "archives"),
        ("fatal: unable to access 'https://git.example/a/': Could not resolve host", "git", "DNS"),
        ("docker: Error response from daemon: dial tcp: i/o timeout", "docker", "mirror"),
        ("srun: error: Invalid partition name specified", "Slurm's srun", "sinfo"),
        (" 7 gpu pump mia PD 0:00 1 (DependencyNeverSatisfied)", "Slurm's queue", "scancel"),
        ("srun: error: Task launch failed on node n1: Job prolog failed", "prolog", "--exclude"),
        (
            'Error from server (Forbidden): pods "p" is forbidden: exceeded quota: q',
            "quota",
            "quota",
        ),
        ('error: unable to recognize: no matches for kind "Pump"', "rejects", "operator"),
        ("Error: INSTALLATION FAILED: values: pump is required", "helm", "values.yaml"),
        ("=>> PBS: job killed: walltime 9 exceeded limit 8", "PBS", "qsub"),
        ("docker: invalid reference format.", "docker", "lower case"),
        ("FATAL:   While performing build: invalid reference: a b", "Apptainer", "address"),
        ("bash: line 4: acmectl: command not found", "acmectl", "activate the environment"),
        ("bash: line 4: scontrol: command not found", "scontrol", "/etc/slurm"),
        ("bash: line 4: ffmpeg: command not found", "ffmpeg", "install -y ffmpeg"),
        ("/.singularity.d/actions/exec: 9: exec: --nv: not found", "behind the image", "exec --nv"),
        ("curl: (7) Failed to connect to mirror.example port 443", "curl", "proxy"),
    ],
)
def test_error_message_of_a_program_is_the_cause(line: str, cause: str, cure: str) -> None:
    finding = first(f"Building\n{line}\n")
    assert finding.code == "IMG911"
    assert cause in finding.cause
    assert cure in finding.cure


def test_lines_of_a_cmake_message_are_joined() -> None:
    finding = first(
        "-- Detecting CXX compiler ABI info - done\n"
        "CMake Error at CMakeLists.txt:14 (find_package):\n  Could not find MPI (missing:\n"
        "  MPI_CXX_FOUND)\nCall Stack (most recent call first):\n  CMakeLists.txt:3 (x)\n"
    )
    assert "Could not find MPI (missing: MPI_CXX_FOUND)" in finding.cause
    assert "libopenmpi-dev" in finding.cure


def test_fatal_message_takes_precedence_over_other_errors_of_a_program() -> None:
    finding = first("srun: error: fetch_config: lookup\nsrun: fatal: no configuration source\n")
    assert "no configuration source" in finding.cause


def test_compiler_error_takes_precedence_over_the_exception_that_repeats_it() -> None:
    finding = first(
        "ext.cu:3:10: fatal error: slots/fan.h: No such file or directory\n"
        "Traceback (most recent call last):\n"
        '  File "/work/job/train.py", line 3, in <module>\n    load()\n'
        "RuntimeError: Error building extension 'slots'\n"
    )
    assert "slots/fan.h" in finding.cause


def test_exception_takes_precedence_over_a_missing_program() -> None:
    finding = first(
        "bash: line 1: acme-smi: command not found\nTraceback (most recent call last):\n"
        '  File "/work/job/train.py", line 3, in <module>\n    load()\n'
        "ValueError: slots must be a power of two\n"
    )
    assert "power of two" in finding.cause


def test_every_row_of_the_program_table_has_a_cure() -> None:
    names = set(program_reasons.load_cures())
    for row, pattern in program_reasons.load_programs()[0]:
        assert "message" in pattern.groupindex or row.cure
        if row.cure.startswith("{"):
            assert row.cure.strip("{}") in names
    for rows in program_reasons.load_cures().values():
        assert rows[-1][0].pattern == ""


@each_row(
    ("text", "cause", "cure"),
    [
        (
            "acme: error: argument command: invalid choice: 'pump' (choose from 'serve', 'tune')",
            "no command 'pump'",
            "update the package",
        ),
        (
            "a.py: error: argument --dtype: invalid choice: 'bfloat' (choose from auto, bfloat16)",
            "'bfloat' is not allowed for --dtype",
            "use bfloat16 for --dtype",
        ),
        ("train.py: error: argument --lr: invalid float value: '1e-5,'", "--lr", "comma"),
        ("train.py: error: the following arguments are required: --model", "lacks --model", "pass"),
        ("Error: Missing option '--model'.", "lacks '--model'", "pass"),
        (
            "Error: Invalid value for '--mode': 'evl' is not one of 'eval', 'train'.",
            "'--mode'",
            "use eval",
        ),
    ],
)
def test_value_that_a_command_line_rejects_is_explained(text: str, cause: str, cure: str) -> None:
    finding = first(f"usage: train.py [-h]\n{text}\n")
    assert finding.code == value_reasons.CODE
    assert cause in finding.cause
    assert cure in finding.cure


def test_first_field_that_a_model_rejects_is_explained() -> None:
    finding = first(
        'Traceback (most recent call last):\n  File "/work/job/a.py", line 6, in <module>\n'
        "    AcmeConfig()\npydantic_core._pydantic_core.ValidationError: 2 validation errors for"
        " AcmeConfig\nfan\n  Input should be 'auto', 'half' or 'full' [type=literal_error,"
        " input_value='fulll', input_type=str]\nslots\n  Input should be a valid integer"
        " [type=int_parsing, input_value='8k', input_type=str]\n"
    )
    assert "AcmeConfig.fan is not allowed" in finding.cause
    assert finding.cure.startswith("use full for fan (allowed: auto, half, full)")


def test_values_that_a_validator_lists_are_suggested() -> None:
    text = "fan_mode must be one of ['off', 'slow', 'fast'], got 'fasst'"
    assert allowed_values(text) == ("off", "slow", "fast")
    assert rejected_value(text, allowed_values(text)) == "fasst"
    assert nearest_value("fasst", allowed_values(text)) == "fast"
    assert allowed_values("fan must be positive") == ()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("python3: can't open file '/work/job/a.py': [Errno 2] No such file", "/work/job/a.py"),
        ("error: can't copy 'build/slots.so': doesn't exist", "the program stopped: can't copy"),
    ],
)
def test_program_that_fails_to_start_is_reported(line: str, cause: str) -> None:
    assert cause in first(f"Starting\n{line}\n").cause


def test_nccl_message_in_a_wrapping_exception_is_read() -> None:
    finding = first(
        "torch.distributed.DistBackendError: NCCL error in: ../Backend.cpp:13, internal error -"
        " please report it, NCCL version 2.18.1\n"
    )
    assert "NCCL stopped: internal error" in finding.cause
    assert "NCCL_DEBUG=INFO" in finding.cure


def test_last_error_of_nccl_is_read_and_precedes_the_report_of_a_launcher() -> None:
    finding = first(
        'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n'
        "    train()\n"
        "RuntimeError: NCCL error in: ../Backend.cpp:13, internal error, NCCL version 2.14.3\n"
        "ncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Call to recv from 10.0.0.5<56843> failed : Connection refused\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    assert "Call to recv from 10.0.0.5<56843> failed" in finding.cause
    assert "the process at the other end ended" in finding.cure


def test_compiler_error_takes_precedence_over_a_git_error_of_the_build() -> None:
    finding = first(
        "fatal: not a git repository (or any of the parent directories): .git\n"
        "error: command '/opt/cuda/bin/nvcc' failed with exit code 255\n"
    )
    assert "nvcc failed in a build" in finding.cause
