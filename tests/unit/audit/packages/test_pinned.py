"""Pins of a requirements file, and the wheels that an index has of them."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from imgbuild.audit.packages.pinned import pick, read_pins
from imgbuild.cache.download import Http
from imgbuild.errors import InputError
from imgbuild.index.pages import IndexAddress, Indexes
from imgbuild.values import Arch
from imgbuild.wheel.tags import Tags
from tests.support.local_index import LocalIndex
from tests.support.servers import Site, serve

MACHINE = Tags(python="3.11", glibc="2.36", arch=Arch.X86_64)
TEXT = """\
# made by a tool
--index-url https://example.invalid/simple
torch==2.6.0+cu124 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
Flash_Attn === 2.8.3  # why
colorama==0.4.6 ; sys_platform == "win32"
setuptools==78.1.1 ; python_version < "3.12"
my-trl @ file:///home/me/my_trl-0.18.2%2Blocal-py3-none-any.whl#sha256=00
"""


def test_what_pip_and_uv_write_is_read() -> None:
    pins = {"torch": "2.6.0+cu124", "flash-attn": "2.8.3", "setuptools": "78.1.1"}
    pins["my-trl"] = "0.18.2+local"
    listed = read_pins(TEXT, "pins.txt", MACHINE)
    assert listed.versions == pins
    assert listed.pins["my-trl"].url.startswith("file:///home/me/my_trl-")
    assert listed.unread == ()


@pytest.mark.parametrize(
    ("line", "what", "why"),
    [
        ("-e file:///home/me/verl", "file:///home/me/verl", "an editable installation"),
        ("--editable=./verl", "./verl", "an editable installation"),
        ("-r more.txt", "more.txt", "a file in a file"),
        (
            "verl @ git+https://example.invalid/verl@abc",
            "verl@ git+https://example.invalid/verl@abc",
            "its version is unknown",
        ),
        ("numpy @ file:///croot/numpy_1/work", "numpy@ file:///croot/numpy_1/work", "is unknown"),
    ],
)
def test_a_line_of_an_unknown_version_is_required_and_unread(
    line: str, what: str, why: str
) -> None:
    listed = read_pins(f"torch==2.6.0\n{line}\n", "pins.txt", MACHINE)
    assert listed.versions == {"torch": "2.6.0"}
    (unread,) = listed.unread
    assert (unread.what.replace(" @", "@"), unread.required) == (what, True)
    assert why in unread.why


def test_the_name_of_an_sdist_has_a_version() -> None:
    line = "trl @ https://example.invalid/trl-0.18.2.tar.gz"
    assert read_pins(line, "pins.txt", MACHINE).versions == {"trl": "0.18.2"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trl>=0.18", "trl>=0.18 is not an exact version"),
        ("trl==0.18.*", "is not an exact version"),
        ("trl", "is not an exact version"),
        ("./trl.whl", "Expected"),
    ],
)
def test_a_line_that_pins_nothing_is_named(line: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_pins(f"torch==2.6.0\n\n{line}\n", "pins.txt", MACHINE)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("pins.txt", 3)
    assert words in problem.message


def test_a_file_without_pins_is_refused() -> None:
    with pytest.raises(InputError, match="is not a list of pinned versions"):
        read_pins("# nothing\n", "pins.txt", MACHINE)


def test_the_best_wheel_is_picked() -> None:
    index = LocalIndex()
    index.wheel("thewheel", "1.0", tag="py3-none-any")
    index.wheel("thewheel", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    index.wheel("thewheel", "1.0", tag="cp311-cp311-manylinux_2_28_aarch64")
    index.wheel("newer", "2.0+cu124", tag="py3-none-manylinux_2_39_x86_64")
    index.wheel("other", "1.0", tag="py3-none-win_amd64")
    with serve(Site(files=index.site_files())) as site:
        indexes = Indexes(
            {"i": IndexAddress(name="i", address=site.url("simple"))}, {}, "i", Http()
        )
        pins = {"thewheel": "1.0", "newer": "2.0", "other": "1.0"}
        picked = pick(pins, MACHINE, indexes, Http())
    files = {wheel.package: (wheel.version, wheel.file) for wheel in picked.wheels}
    assert files == {
        "thewheel": ("1.0", "thewheel-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        "newer": ("2.0+cu124", "newer-2.0+cu124-py3-none-manylinux_2_39_x86_64.whl"),
    }
    assert picked.lacking == ("other==1.0",)
    assert all(unquote(picked.urls[wheel.sha256]).endswith(wheel.file) for wheel in picked.wheels)
