"""Tests which packages the commands of shell scripts, Dockerfiles and notebooks install."""

import json

from tests.support.rows import each_row
from tests.support.user_projects import read_declarations, requirement_texts, unread_reasons


def _script(tmp_path, text, **files):
    return read_declarations(tmp_path, {"install.sh": text, **files}, "install.sh")


@each_row(
    ("command", "installed"),
    [
        ("pip install torch", ["torch"]),
        ("pip3.11 -q install --upgrade 'torch>=2.6'", ["torch>=2.6"]),
        ("sudo -E /opt/venv/bin/pip install torch", ["torch"]),
        ("MAX_JOBS=4 python3 -u -m pip install torch", ["torch"]),
        ("uv pip install --system torch --python 3.11", ["torch"]),
        ("uv --quiet add torch", ["torch"]),
        ("bash -lc 'pip install torch && pip install trl'", ["torch", "trl"]),
        ("export V=2.6.0; pip install torch==$V", ["torch==2.6.0"]),
        ('pip install "torch==${V:-2.5.1}"', ["torch==2.5.1"]),
        ("pip install torch -t /opt --retries 3 trl", ["torch", "trl"]),
        ("pip install --unknown 3 torch pip", ["torch"]),
        ("pip install torch 2>&1 | tee log.txt", ["torch"]),
        (
            "pip install 'git+https://git.example/a.git#egg=a'",
            ["a @ git+https://git.example/a.git"],
        ),
        ("conda install -y -c pytorch pytorch=2.6.0 numpy", ["torch==2.6.0", "numpy"]),
        ("echo pip install nothing", []),
        ("pip list; pip download torch", []),
        ("# pip install torch", []),
    ],
)
def test_packages_are_read_from_an_install_command(tmp_path, command, installed):
    assert requirement_texts(_script(tmp_path, command)) == installed


@each_row(
    ("script", "text", "reason"),
    [
        ("if test -f x; then\npip install torch\nfi", "pip install torch", "a condition"),
        ("[ -f x ] && pip install torch", "pip install torch", "the preceding test succeeds"),
        ("pip check || pip install torch", "pip install torch", "the preceding command fails"),
        ("pip install $PACKAGES", "$PACKAGES", "contains a variable"),
        ("pip install 'torch", "pip install 'torch", "has an unterminated quotation"),
        ("git clone https://git.example/a && cd a && pip install -e .", "install .",
         "run: imgbuild add git+https://git.example/a"),
        ("git clone -b v1 https://${TOKEN}@git.example/a && cd a && pip install .", "install .",
         "run: imgbuild add git+https://git.example/a@v1"),
        ("git clone https://git.example/a.git\npip install -e './a[x]'", "install ./a[x]",
         "run: imgbuild add git+https://git.example/a.git"),
        ("git clone https://git.example/a b && pip install ./b", "install ./b",
         "run: imgbuild add git+https://git.example/a"),
        ("pip uninstall -y torch", "uninstall -y torch", "uninstall commands are ignored"),
        ("pip install -r gone.txt", "-r gone.txt", "no such file in the project"),
        ("uv sync --extra vllm", "--extra vllm", "--extra"),
        ("apt-get install -y ./cuda.deb", "./cuda.deb", "a file"),
    ],
)  # fmt: skip
def test_unsupported_install_command_is_reported_with_a_reason(tmp_path, script, text, reason):
    result = _script(tmp_path, script)
    assert reason in unread_reasons(result)[text]
    assert result.requirements == ()


def test_later_install_command_takes_precedence(tmp_path):
    result = _script(tmp_path, "pip install trl==0.23.0 torch\npip install --no-deps trl==0.22.2\n")
    assert [(each.text, each.no_deps) for each in result.requirements] == [
        ("torch", False),
        ("trl==0.22.2", True),
    ]
    assert "a later command installs trl==0.22.2 (line 2)" in unread_reasons(result)["trl==0.23.0"]


def test_wheel_downloaded_before_its_install_is_required_by_its_url(tmp_path):
    file = "flash_attn-2.7.4+cu12-cp311-cp311-linux_x86_64.whl"
    script = f"wget https://files.example/{file}\npip install ./{file} --no-build-isolation\n"
    result = _script(tmp_path, script)
    assert requirement_texts(result) == [f"flash-attn @ https://files.example/{file}"]


def test_constraints_indexes_and_cuda_releases_are_read_from_install_options(tmp_path):
    script = (
        "export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu121\n"
        "export PIP_INDEX_URL=https://mirror.example/simple\n"
        "pip install -c bounds.txt torch --index-url https://download.pytorch.org/whl/cu124\n"
        "uv pip install trl --torch-backend=cu126 --index own=https://own.example/simple\n"
        "uv pip install --overrides over.txt -f https://files.example/wheels peft\n"
    )
    files = {"bounds.txt": "numpy<2\n", "over.txt": "protobuf>=5\n"}
    result = _script(tmp_path, script, **files)
    assert [(each.url, each.name, each.flat) for each in result.indexes] == [
        ("https://mirror.example/simple", "", False),
        ("https://own.example/simple", "own", False),
        ("https://files.example/wheels", "", True),
    ]
    assert [each.name for each in result.cuda] == ["12.1", "12.4", "12.6"]
    assert requirement_texts(result, "constraint") == ["numpy<2"]
    assert requirement_texts(result, "override") == ["protobuf>=5"]


@each_row(
    ("image", "requirements", "cuda", "python"),
    [
        ("nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04", [], ["12.4"], []),
        ("docker.io/pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", ["torch==2.6.0"], ["12.4"], []),
        ("vllm/vllm-openai:v0.8.5", ["vllm==0.8.5"], [], []),
        ("python:3.11-slim", [], [], ["==3.11.*"]),
        ("anyscale/ray:2.57.0-py312-cu130", ["ray==2.57.0"], ["13.0"], ["==3.12.*"]),
        ("verlai/verl:base-th2.6.0-cu124-vllm0.8.5", ["torch==2.6.0", "vllm==0.8.5"], ["12.4"], []),
        (f"host.example/x:cu124-vllm0.8.5@sha256:{'0' * 64}", ["vllm==0.8.5.*"], ["12.4"], []),
        ("host.example/x:cu124-vllm0.8.5.post1", ["vllm==0.8.5.post1"], ["12.4"], []),
        ("host.example/x:cu128-verl0.6", ["verl==0.6.*"], ["12.8"], []),
        ("nvcr.io/nvidia/pytorch:25.11-py3", [], [], []),
        ("ubuntu:22.04", [], [], []),
    ],
)
def test_versions_are_read_from_the_tag_of_a_known_image(
    tmp_path, image, requirements, cuda, python
):
    result = read_declarations(tmp_path, {"Dockerfile": f"FROM {image}\n"})
    assert requirement_texts(result) == requirements
    assert [each.name for each in result.cuda] == cuda
    assert [each.spec for each in result.python] == python
    unknown = image.startswith("nvcr")
    assert [note.text for note in result.not_read] == ([f"FROM {image}"] if unknown else [])


def test_build_stages_and_arguments_determine_the_base_image(tmp_path):
    text = (
        "ARG CUDA=12\nFROM nvidia/cuda:12.8.1-devel AS cuda12\n"
        "FROM nvidia/cuda:13.0.3-devel AS cuda13\n"
        "FROM cuda${CUDA} AS last\nRUN apt-get install -y git\n"
    )
    result = read_declarations(tmp_path, {"Dockerfile": text})
    assert [each.name for each in result.images] == ["nvidia/cuda:12.8.1-devel"]
    assert [each.name for each in result.cuda] == ["12.8"]


@each_row(
    ("cell", "installed"),
    [
        ("!pip install trl", ["trl"]),
        ("%pip install -U trl", ["trl"]),
        ("out = !pip install trl", ["trl"]),
        ("if True:\n    !pip install trl\nelse:\n    !pip install peft", ["trl"]),
        ("if 'google.colab' in sys.modules:\n    !pip install peft\nelse:\n    !pip install trl",
         ["trl"]),
        ("try:\n    import trl\nexcept ImportError:\n    !pip install trl", ["trl"]),
        ("if 'COLAB_' in x: !pip install peft\n!pip install trl", ["trl"]),
        ("%%bash\npip install trl", ["trl"]),
        ("print('pip install trl')\n#!pip install trl", []),
        ("!pip install trl {extra}", ["trl"]),
    ],
)  # fmt: skip
def test_install_commands_in_notebook_cells_are_read(tmp_path, cell, installed):
    notebook = {"cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True)}]}
    result = read_declarations(tmp_path, {"train.ipynb": json.dumps(notebook)})
    assert requirement_texts(result) == installed
