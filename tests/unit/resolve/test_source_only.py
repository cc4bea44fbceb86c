"""Tests the advice for packages without a compatible wheel, such as flash-attn."""

from __future__ import annotations

from pathlib import Path

from imgbuild.resolve import source_only
from imgbuild.resolve.imports import ImportSite, import_sites
from imgbuild.resolve.source_only import WheelNeeds
from tests.support.rows import each_row


# The pattern of the files at these projects' own releases.
@each_row(
    ("package", "version", "needs", "name"),
    [
        ("flash-attn", "2.7.4.post1", ("3.11", "12.4", "2.6.0", "x86_64"),
         "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        ("flash-attn", "2.8.3", ("3.12", "12.8", "2.8.0", "x86_64"),
         "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"),
        ("causal-conv1d", "1.5.0.post8", ("3.13", "12.4", "2.7.1", "x86_64"),
         "causal_conv1d-1.5.0.post8+cu12torch2.7cxx11abiTRUE-cp313-cp313-linux_x86_64.whl"),
        ("mamba-ssm", "2.2.4", ("3.11", "12.4", "2.5.1", "x86_64"),
         "mamba_ssm-2.2.4+cu12torch2.5cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        ("flash-attn", "2.5.5", ("3.10", "12.1", "2.1.2", "x86_64"),
         "flash_attn-2.5.5+cu122torch2.1cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
        ("flash-attn", "2.6.3", ("3.11", "12.1", "2.4.0", "x86_64"),
         "flash_attn-2.6.3+cu123torch2.4cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        ("flash-attn", "2.5.9.post1", ("3.10", "11.8", "2.0.1", "x86_64"),
         "flash_attn-2.5.9.post1+cu118torch2.0cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
        ("apex", "0.1", ("3.11", "12.4", "2.5.1", "x86_64"), None),
        ("flash-attn", "", ("3.11", "12.4", "2.5.1", "x86_64"), None),
    ],
)  # fmt: skip
def test_file_name_of_a_missing_wheel_is_predicted(
    package: str, version: str, needs: tuple[str, str, str, str], name: str | None
) -> None:
    python, cuda, torch, machine = needs
    wheel = WheelNeeds(python=python, cuda=cuda, torch=torch, machine=machine)
    assert wheel.file_name(package, version) == name


@each_row(
    ("torch", "cuda", "machine", "abi"),
    [
        ("2.6.0", "12.4", "x86_64", "FALSE"),
        ("2.6.0", "12.6", "x86_64", "TRUE"),
        ("2.5.1", "12.4", "aarch64", "TRUE"),
        ("2.7.0", "12.6", "x86_64", "TRUE"),
    ],
)
def test_cxx_abi_in_a_wheel_name_depends_on_the_torch_version(
    torch: str, cuda: str, machine: str, abi: str
) -> None:
    assert WheelNeeds(python="3.11", cuda=cuda, torch=torch, machine=machine).abi_name == abi


def test_remedies_for_a_missing_wheel_are_in_order() -> None:
    needs = WheelNeeds(python="3.11", cuda="12.4", torch="2.6.0", machine="x86_64")
    advice = source_only.build_advice(
        "flash-attn",
        "2.7.4.post1",
        needs,
        targets=["cu1"],
        imports=[ImportSite(file="a.py", line=3)],
    )
    assert advice.reason == (
        "the index has no wheel for Python 3.11, torch 2.6.0 and CUDA 12.4, only source with"
        " CUDA code"
    )
    starts = [line.partition(":")[0] for line in advice.remedy_lines]
    assert starts[:3] == ["the URL of a wheel", "a target with this package", "needed by a.py"]
    assert set(starts[3:]) == {"without it"}
    assert any("sdpa" in line for line in advice.remedy_lines)
    nobody = source_only.build_advice("apex", "0.1", needs, unfit="the wheel is for Python cp310")
    assert nobody.reason == f"the wheel is for Python cp310, and {advice.reason}"
    assert "no Python file of the project imports it" in nobody.remedy_lines


def test_location_of_an_import_of_a_missing_package_is_found(tmp_path: Path) -> None:
    files = {
        "train.py": "import torch\nimport flash_attn.bert_padding as b\n",
        "src/model.py": (
            "def load():\n    from flash_attn import f\n"
            "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"
        ),
        "src/other.py": "from . import flash_attn\nx = 'flash_attn'\n",
        "src/broken.py": "import flash_attn(\n",
        ".venv/lib/x.py": "import flash_attn\n",
        "build/lib/x.py": "import flash_attn\n",
        "notes.txt": "import flash_attn\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert import_sites(tmp_path, frozenset({"flash_attn", "apex"})) == {
        "flash_attn": (
            ImportSite(file="src/model.py", line=2, guarded=True),
            ImportSite(file="src/model.py", line=4, guarded=True),
            ImportSite(file="train.py", line=2),
        ),
        "apex": (),
    }
