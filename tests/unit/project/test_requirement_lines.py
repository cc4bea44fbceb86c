"""Tests reading, skipping and refusing lines of requirements files."""

from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from imgbuild.errors import InputError
from imgbuild.project.model import FilePlace
from imgbuild.project.project_files import ProjectFiles
from imgbuild.project.reading import ProjectReading
from imgbuild.project.requirement_lines import LineScope, read_line, requirement_word
from tests.support.rows import each_row
from tests.support.source_code import ROOT
from tests.support.user_projects import (
    golden_text,
    read_declarations,
    reported_problems,
    requirement_texts,
    unread_reasons,
)

HASH = "a" * 64


def test_every_form_of_a_requirement_line_is_read(tmp_path, golden):
    files = {
        "requirements.txt": f"""\
# the trainer
--index-url https://mirror.example/simple
--extra-index-url https://download.pytorch.org/whl/cu124
-f https://files.example/wheels
torch==2.6.0+cu124
ray[default] >= 2.40 , <3   # a comment
numpy<2 ; python_version < "3.12"
datasets==3.6.0 \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"b" * 64}
flash-attn==2.7.4.post1+cu12torch2.6cxx11abiFALSE
-r more/base.txt
-c limits.txt
triton @ https://files.example/triton-3.2.0-cp311-cp311-linux_x86_64.whl
git+https://git.example/a/trainer.git@v1#egg=trainer[gpu]&subdirectory=python
tools @ git+ssh://git@git.example/a/tools.git@0123abc
https://files.example/xformers-0.0.29-cp311-cp311-linux_x86_64.whl
""",
        "more/base.txt": "peft>=0.15\n-r ../deeper.txt\n",
        "deeper.txt": "accelerate\n",
        "limits.txt": "transformers<5\n",
    }
    result = read_declarations(tmp_path, files, "requirements.txt")
    golden(ROOT / "tests/data/project/requirements.json", golden_text(result))


@each_row(
    ("line", "reason"),
    [
        ("--trusted-hosts example", "an option that pip does not read"),
        ("private @ https://${TOKEN}@host.example/a.whl", "environment variable"),
        ("https://files.example/archive.zip", "has no name"),
        ("-e file:///home/someone/verl", "outside the project"),
        ("numpy @ file:///croot/numpy/work", "outside the project"),
        ("../sibling", "outside the project"),
        ("-e ./missing", "no such folder"),
        ("hg+https://hg.example/a#egg=a", "only git repositories"),
        ("-r https://files.example/requirements.txt", "a file on another host"),
    ],
)
def test_unknown_requirement_line_is_reported_with_location(tmp_path, line, reason):
    result = read_declarations(tmp_path, {"requirements.txt": f"torch\n{line}\n"})
    (note,) = result.not_read
    assert reason in note.reason
    assert note.place == FilePlace(file="requirements.txt", line=2)
    assert requirement_texts(result) == ["torch"]


def test_all_invalid_requirement_lines_are_reported_together(tmp_path):
    result = reported_problems(
        tmp_path,
        {"requirements.txt": "torch=2.6\n-r missing.txt\nnumpy\ntransformers>>4\n"},
    )
    assert [(each.line, each.value) for each in result] == [
        (1, "torch=2.6"),
        (2, "missing.txt"),
        (4, "transformers>>4"),
    ]


def test_requirements_files_that_include_each_other_are_refused(tmp_path):
    files = {"requirements.txt": "-r a.txt\n", "a.txt": "-r requirements.txt\n"}
    (problem,) = reported_problems(tmp_path, files)
    assert "requirements.txt -> a.txt -> requirements.txt" in problem.message


def test_local_folder_adds_its_requirements_with_their_locations(tmp_path):
    files = {
        "requirements.txt": "-e ./lib[gpu]\n",
        "lib/pyproject.toml": """\
[build-system]
requires = ["setuptools"]
[project]
name = "Lib"
version = "1"
dependencies = [
  "numpy",
]
[project.optional-dependencies]
gpu = ["triton"]
[project.scripts]
lib = "lib:main"
""",
        "lib/src/lib/__init__.py": "",
    }
    result = read_declarations(tmp_path, files)
    (package,) = result.packages
    assert (package.name, package.folder, package.roots) == ("Lib", "lib", ("lib/src",))
    assert package.scripts == {"lib": "lib:main"}
    assert [(each.text, str(each.place), each.path) for each in result.requirements] == [
        ("Lib[gpu]", "requirements.txt:1", "lib"),
        ("numpy", "lib/pyproject.toml:7", ""),
        ("triton", "lib/pyproject.toml:10", ""),
    ]


def test_a_windows_file_in_utf16_and_crlf_is_read(tmp_path):
    files = {"requirements.txt": "torch\r\nnumpy\r\n".encode("utf-16")}
    assert requirement_texts(read_declarations(tmp_path, files)) == ["torch", "numpy"]
    files = {"requirements.txt": b"\xef\xbb\xbftorch\r\n"}
    assert requirement_texts(read_declarations(tmp_path / "b", files)) == ["torch"]


def test_no_deps_option_applies_to_the_following_lines(tmp_path):
    result = read_declarations(tmp_path, {"requirements.txt": "torch\n--no-deps\ntrl\n"})
    assert [each.no_deps for each in result.requirements] == [False, True]


def test_requirements_file_exported_by_conda_is_recognized(tmp_path):
    files = {"requirements.txt": "# platform: linux-64\nnumpy=1.26.4=py310\nopenssl=3.0=h1\n"}
    result = read_declarations(tmp_path, files)
    assert requirement_texts(result) == ["numpy==1.26.4"]
    assert "a Conda library" in unread_reasons(result)["openssl=3.0"]


def test_local_versions_for_other_hardware_are_dropped_with_a_note(tmp_path):
    result = read_declarations(tmp_path, {"requirements.txt": "torch==2.6.0+cpu\n"})
    assert requirement_texts(result) == ["torch==2.6.0"]
    assert "CUDA builds" in unread_reasons(result)["torch==2.6.0+cpu"]
    assert result.cuda == ()


def test_pytorch_indexes_of_other_hardware_and_nightly_builds_are_noted(tmp_path):
    urls = [f"https://download.pytorch.org/whl/{part}" for part in ("cpu", "rocm6.3")]
    nightly = "https://download.pytorch.org/whl/nightly/cu128"
    lines = [f"--extra-index-url {url}\n" for url in (*urls, nightly)]
    result = read_declarations(tmp_path, {"requirements.txt": "".join((*lines, "torch\n"))})
    notes = unread_reasons(result)
    assert notes[urls[0]] == "images use CUDA builds, not cpu builds"
    assert notes[urls[1]] == "images use CUDA builds, not rocm6.3 builds"
    assert "CUDA 12.8 is used" in notes[nightly]
    assert [each.name for each in result.cuda] == ["12.8"]
    assert result.indexes == ()


def test_wheel_url_on_a_pytorch_index_sets_version_and_cuda_release(tmp_path):
    file = "torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl"
    line = f"https://download.pytorch.org/whl/cu124/{file}#sha256={HASH}\n"
    result = read_declarations(tmp_path, {"requirements.txt": line})
    assert [(each.text, each.hashes) for each in result.requirements] == [("torch==2.6.0", ())]
    assert [each.name for each in result.cuda] == ["12.4"]


NAMES = st.from_regex(r"[A-Za-z](?:[A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,3}(?:\.[0-9]{1,3}){0,2}", fullmatch=True)
CLAUSES = st.builds(
    lambda operator, version: f"{operator}{version}",
    st.sampled_from(["==", ">=", "<=", "<", ">", "!="]),
    VERSIONS,
)
MARKERS = st.sampled_from(
    ["", "python_version < '3.12'", "sys_platform == 'linux' and platform_machine != 'aarch64'"]
)
LINES = st.builds(
    lambda name, extras, clauses, marker: (
        name
        + (f"[{','.join(extras)}]" if extras else "")
        + ",".join(clauses)
        + (f" ; {marker}" if marker else "")
    ),
    NAMES,
    st.lists(NAMES, max_size=2),
    st.lists(CLAUSES, max_size=3),
    MARKERS,
)


@given(LINES)
def test_requirement_lines_are_parsed_as_by_packaging(tmp_path_factory, line):
    reading = ProjectReading(ProjectFiles(tmp_path_factory.getbasetemp()))
    read_line(reading, line, FilePlace(file="requirements.txt", line=1), LineScope())
    assert [each.parsed_requirement for each in reading.requirements] == [Requirement(line)]
    assert not reading.problems
    assert not reading.left_out


@given(st.text(max_size=60))
def test_arbitrary_requirements_text_is_read_ignored_or_reported(tmp_path_factory, text):
    reading = ProjectReading(ProjectFiles(tmp_path_factory.getbasetemp()))
    requirement_word(reading, text, ".", FilePlace(file="a", line=1))
    assert reading.requirements or reading.problems or reading.left_out or reading.local_requests


@each_row(
    ("index", "cuda"),
    [
        ("https://download.pytorch.org/whl/cu124", ["12.4"]),
        ("https://mirror.example/whl/cu124/", ["12.4"]),
        ("https://team.github.io/vllm/whl/cu124", ["12.4"]),
        ("https://huggingface.github.io/autogptq-index/whl/cu118/", []),
        ("https://abetlen.github.io/llama-cpp-python/whl/cu121", []),
        ("https://download.pytorch.org/whl/nightly/cu128", ["12.8"]),
    ],
)
def test_only_a_pytorch_index_url_determines_the_cuda_release(tmp_path, index, cuda):
    result = read_declarations(
        tmp_path, {"requirements.txt": f"--extra-index-url {index}\ntorch\n"}
    )
    assert [each.name for each in result.cuda] == cuda


@each_row(
    "line",
    [
        "git+https://user:S3CRET@git.example/a/b.git",
        "git+https://user:S3CRET@git.example/a/b.git#subdirectory=../..",
        "git+ssh://user:S3CRET@git.example/a/b.git@-x",
        "svn+https://S3CRET@svn.example/a",
        "https://user:S3CRET@files.example/",
        "https://files.example/?token=S3CRET",
        "https://user:S3CRET@[files.example/a-1-py3-none-any.whl",
        "--extra-index-url ftp://user:S3CRET@files.example/simple",
        "--find-links ftp://user:S3CRET@files.example/simple",
        "--upload-pack https://user:S3CRET@files.example/",
        "a b https://user:S3CRET@files.example/",
    ],
)
def test_credentials_in_an_ignored_line_are_not_shown(tmp_path, line):
    try:
        answer = read_declarations(tmp_path, {"requirements.txt": f"einops\n{line}\n"})
    except InputError as error:
        notes = [error.message, error.hint or ""]
    else:
        notes = [f"{text} {reason}" for text, reason in unread_reasons(answer).items()]
    assert notes
    assert "S3CRET" not in "".join(notes)


def test_ssh_user_and_revision_of_a_repository_are_shown(tmp_path):
    line = "git+ssh://git@git.example/a/b.git@v1#subdirectory=../.."
    answer = read_declarations(tmp_path, {"requirements.txt": f"einops\n{line}\n"})
    assert list(unread_reasons(answer)) == [line]
