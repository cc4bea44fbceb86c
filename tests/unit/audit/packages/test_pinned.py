"""Tests selecting the wheels of pins on an index."""

from __future__ import annotations

from urllib.parse import unquote

from imgbuild.audit.packages.pinned import pick_wheels
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

MACHINE = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)


def test_best_compatible_wheel_of_a_pin_is_selected() -> None:
    index = LocalIndex()
    index.wheel("thewheel", "1.0", tag="py3-none-any")
    index.wheel("thewheel", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    index.wheel("thewheel", "1.0", tag="cp311-cp311-manylinux_2_28_aarch64")
    index.wheel("newer", "2.0+cu124", tag="py3-none-manylinux_2_39_x86_64")
    index.wheel("other", "1.0", tag="py3-none-win_amd64")
    with serve_site(FileSite(files=index.site_files())) as site:
        indexes = IndexLookup(
            {"i": IndexAddress(name="i", address=site.url("simple"))}, {}, "i", HttpClient()
        )
        pins = {"thewheel": "1.0", "newer": "2.0", "other": "1.0"}
        picked = pick_wheels(pins, MACHINE, indexes, HttpClient())
    files = {wheel.package: (wheel.version, wheel.file) for wheel in picked.wheels}
    assert files == {
        "thewheel": ("1.0", "thewheel-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        "newer": ("2.0+cu124", "newer-2.0+cu124-py3-none-manylinux_2_39_x86_64.whl"),
    }
    assert picked.lacking == ("other==1.0",)
    assert all(unquote(picked.urls[wheel.sha256]).endswith(wheel.file) for wheel in picked.wheels)
