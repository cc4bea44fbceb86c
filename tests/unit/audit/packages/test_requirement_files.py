"""Tests reading requirements files as one set of pins, and the reasons why they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.audit.packages.pinned import Pin, PinList
from imgbuild.audit.packages.requirement_files import RequirementText, read_file, read_pins
from imgbuild.errors import InputError
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

MACHINE = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
TEXT = """\
# made by a tool
--index-url https://example.invalid/simple
torch==2.6.0+cu124 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
Flash_Attn === 2.8.3  # why
colorama==0.4.6 ; sys_platform == "win32"
setuptools==78.1.1 ; python_version < "3.12"\t# of Python
my-trl @ file:///home/me/my_trl-0.18.2%2Blocal-py3-none-any.whl#sha256=00
"""


def read(*texts: str) -> PinList:
    """The pins of files with the given texts, named one.txt, two.txt and so on."""
    names = ("one.txt", "two.txt", "three.txt")
    return read_pins(
        [RequirementText(name=name, text=text) for name, text in zip(names, texts, strict=False)],
        MACHINE,
    )


def refused(*texts: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(*texts)
    return caught.value


def files(folder: Path, **texts: str) -> list[RequirementText]:
    """Files NAME.txt in a folder, passed with -r in this order up to `_`."""
    named = True
    result = []
    for name, text in texts.items():
        path = folder / f"{name.strip('_').replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        named = not name.startswith("_")
        result += [read_file(path, path.name)] if named else []
    return result


def test_output_of_pip_and_uv_is_read_as_pins() -> None:
    pins = {"torch": "2.6.0+cu124", "flash-attn": "2.8.3", "setuptools": "78.1.1"}
    pins["my-trl"] = "0.18.2+local"
    listed = read(TEXT)
    assert listed.versions == pins
    assert listed.pins["my-trl"].url.startswith("file:///home/me/my_trl-")
    assert listed.unread == ()


@each_row(
    ("line", "what", "why"),
    [
        ("-e file:///home/me/verl", "file:///home/me/verl", "editable installations"),
        ("--editable=./verl", "./verl", "editable installations"),
        ("-e./verl", "./verl", "editable installations"),
        (
            "verl @ git+https://example.invalid/verl@abc",
            "verl@ git+https://example.invalid/verl@abc",
            "the version is unknown",
        ),
        ("numpy @ file:///croot/numpy_1/work", "numpy@ file:///croot/numpy_1/work", "is unknown"),
        ("./mcore_adapter", "./mcore_adapter", "unknown"),
        ("../mcore_adapter ; python_version > '3'", None, "unknown"),
        ("libs/adapter", "libs/adapter", "unknown"),
        ("git+https://example.invalid/verl@abc", "git+https://example.invalid/verl@abc", "unknown"),
        ("./trl-0.18-py3-none-any.whl", "./trl-0.18-py3-none-any.whl", "unknown"),
        ("trl-0.18-py3-none-any.whl", "trl-0.18-py3-none-any.whl", "unknown"),
    ],
)
def test_line_without_a_known_version_is_reported_as_unread(
    line: str, what: str | None, why: str
) -> None:
    listed = read(f"torch==2.6.0\n{line}\n")
    assert listed.versions == {"torch": "2.6.0"}
    (unread,) = listed.unread
    assert (unread.what.replace(" @", "@"), unread.required) == (what or line, True)
    assert why in unread.why


@pytest.mark.parametrize("line", ["trl @ https://x.invalid/trl-0.18.2.tar.gz",
                                  "trl@https://x.invalid/trl-0.18.2.tar.gz"])  # fmt: skip
def test_version_of_an_sdist_is_read_from_its_file_name(line: str) -> None:
    assert read(line).versions == {"trl": "0.18.2"}


@each_row("line", ["trl>=0.18", "trl==0.18.*", "trl", "trl[vllm]", "trl==1,==2"])
def test_package_without_an_exact_version_is_reported(line: str) -> None:
    error = refused(f"torch==2.6.0\n\n{line}\n")
    assert error.message.startswith("one.txt: 1 of 2 packages have no exact version: trl")
    assert "(one.txt:3)" in error.message


def test_many_unpinned_packages_are_summarized() -> None:
    error = refused("\n".join(["torch==2.6.0", *(f"package{number}>1" for number in range(60))]))
    assert error.message == (
        "one.txt: 60 of 61 packages have no exact version: package0>1 (one.txt:2), package1>1"
        " (one.txt:3), package2>1 (one.txt:4) and 57 more"
    )
    assert not error.problems


def test_hint_for_unpinned_files_is_a_command_with_the_file_names(tmp_path: Path) -> None:
    texts = files(tmp_path / "a b", first="torch>=2", second="trl==1")
    with pytest.raises(InputError) as caught:
        read_pins(texts, MACHINE)
    assert caught.value.hint == (
        f"pin them: uv pip compile '{tmp_path}/a b/first.txt' '{tmp_path}/a b/second.txt'"
        " --python-version 3.11 | imgbuild audit -r - --python 3.11"
    )
    assert "uv pip compile - " in (refused("torch").hint or "")


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "setup.cfg"])
def test_project_file_given_as_requirements_file_is_rejected_with_one_message(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text('[project]\ndependencies = ["torch"]\n', encoding="utf-8")
    with pytest.raises(InputError, match=f"{name} is not a requirements file$") as caught:
        read_file(tmp_path / name)
    assert f"uv pip compile {tmp_path / name} | imgbuild audit -r -" in (caught.value.hint or "")
    assert not caught.value.problems


def test_invalid_requirement_lines_are_reported_with_location() -> None:
    (problem,) = refused("torch==2.6.0\n\n<html> x\n").problems
    assert (problem.file, problem.line) == ("one.txt", 3)
    assert "\n" not in problem.message
    many = refused("\n".join(["{ x"] * 50))
    assert len(many.problems) == 3
    assert "3 of 50" in many.message


def test_requirements_file_without_pins_is_rejected() -> None:
    assert "is not a list of pinned versions" in refused("# nothing\n").message


# -- several files


def test_several_requirements_files_form_one_package_set() -> None:
    assert read("torch==2.6.0\n", "trl==1.0\n").versions == {"torch": "2.6.0", "trl": "1.0"}
    assert read("torch==2.6.0\n", "Torch==2.6\n").versions == {"torch": "2.6.0"}


@each_row(
    ("first", "second"),
    [
        ("numpy==1.26.4", "numpy==2.0.0"),
        ("numpy==1.26.4", "NumPy<1.20"),
        ("numpy<1.20", "numpy==1.26.4"),
        ("numpy==1.26.4", "numpy @ https://x.invalid/numpy-2.0.0.tar.gz"),
        ("numpy @ https://y.invalid/numpy-2.0.0.tar.gz",
         "numpy @ https://x.invalid/numpy-2.0.0.tar.gz"),
    ],
)  # fmt: skip
def test_contradicting_pins_are_reported_with_both_locations(first: str, second: str) -> None:
    for texts in ((first, f"\n{second}"), (f"{first}\n{second}",)):
        (problem,) = refused(*texts).problems
        places = f"{problem.file}:{problem.line} {problem.message}"
        assert "one.txt:1" in places
        assert ("two.txt:2" if len(texts) == 2 else "one.txt:2") in places
        assert "contradicts" in places
        assert "1.26.4" in places or "y.invalid" in places


def test_contradicting_pin_under_another_marker_is_ignored() -> None:
    lines = 'numpy==1.26.4 ; python_version < "3.12"\nnumpy==2.0.0 ; python_version >= "3.12"\n'
    assert read(lines).versions == {"numpy": "1.26.4"}


def test_open_requirement_is_pinned_by_another_file() -> None:
    listed = read("ray[default]>=2.45\n", "ray==2.48.0\n")
    assert listed.pins == {"ray": Pin(version="2.48.0", extras=("default",))}


def test_extras_of_all_lines_of_a_package_are_requested() -> None:
    listed = read("ray[default,Serve]==2.48.0\nray[tune_x]==2.48.0", "ray==2.48.0")
    assert listed.pins["ray"].extras == ("default", "serve", "tune-x")


# -- files in files


def test_included_files_are_relative_to_the_including_file(tmp_path: Path) -> None:
    texts = files(
        tmp_path,
        main="torch==2.6.0\n-r sub/more.txt\n",
        _sub__more="trl==1.0\n--requirement=deep/last.txt\n-rdeep/joined.txt",
        _sub__deep__last="numpy==1.26.4\n",
        _sub__deep__joined="tqdm==4.67.1\n",
    )
    assert set(read_pins(texts, MACHINE).versions) == {"torch", "trl", "numpy", "tqdm"}


def test_files_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    texts = files(tmp_path, a="-r b.txt\n-r a.txt\ntorch==2.6.0", _b="-r ./a.txt\ntrl==1.0")
    assert read_pins(texts, MACHINE).versions == {"trl": "1.0", "torch": "2.6.0"}


@each_row(
    ("line", "words"),
    [
        ("-r gone.txt", "cannot read"),
        ("-r https://x.invalid/r.txt", "download the file"),
        ("-r pyproject.toml", "is not a requirements file"),
        ("-r 'unclosed", "No closing quotation"),
    ],
)
def test_unreadable_include_is_rejected_with_location(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_pins(files(tmp_path, main=f"torch==2.6.0\n{line}\n"), MACHINE)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("main.txt", 2)
    assert words in problem.message


def test_constraints_files_pin_only_required_packages(tmp_path: Path) -> None:
    texts = files(tmp_path, main="torch\n-c limits.txt\n", _limits="torch==2.6.0\nnumpy==1.26.4\n")
    assert read_pins(texts, MACHINE).versions == {"torch": "2.6.0"}


def test_violated_constraint_is_reported(tmp_path: Path) -> None:
    texts = files(tmp_path, main="-c limits.txt\nnumpy==2.1.0\n", _limits="numpy<2\n")
    with pytest.raises(InputError) as caught:
        read_pins(texts, MACHINE)
    (problem,) = caught.value.problems
    assert problem.message == "numpy<2 contradicts numpy==2.1.0 in main.txt:2"
    assert problem.file.endswith("limits.txt")
