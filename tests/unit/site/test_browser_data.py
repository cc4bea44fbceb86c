"""Tests that the data for browsers matches imgbuild's rules, and that its texts are escaped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from imgbuild.doctor.targets import TargetNeeds, restriction_text
from imgbuild.plan.image_digests import LayerDigests
from imgbuild.report import Floors
from imgbuild.site import browser_data
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue
from imgbuild.values import Arch
from tests.support.site_scripts import read_packed

NAME = re.compile(r"[a-z0-9-]+")


@pytest.fixture(scope="module")
def data(sources: SiteSources, example_site: SiteCatalogue) -> dict[str, Any]:
    script = browser_data.data_scripts(sources, example_site)["data.js"]
    assert script.startswith(b'var imgbuildData="')
    return dict(read_packed(script))


def members(ranges: Sequence[int]) -> list[int]:
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return [number for first, last in pairs for number in range(first, last + 1)]


def test_site_data_has_the_versions_of_the_locks(
    data: dict[str, Any], example_site: SiteCatalogue
) -> None:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for package, versions in data["versions"].items():
        for version, number_of_set in versions.items():
            for number in members(data["sets"][number_of_set]):
                image = data["images"][number]
                key = (data["targets"][image["target"]]["name"], image["arch"])
                found.setdefault(key, {})[package] = version
    expected = {
        (target.name, arch): resolution.versions
        for target in example_site.targets
        if target.lock
        for arch, resolution in target.lock.arch.items()
    }
    assert found == expected


def test_site_data_has_the_requirements_of_the_metadata(data: dict[str, Any]) -> None:
    def _lines(package: str, version: str) -> list[str]:
        return [data["lines"][number] for number in data["requires"][package][version]]

    assert "torch==2.6.0" in _lines("vllm", "0.8.5.post1")
    assert "vllm<=0.31.0,>=0.22.0; extra vllm" in _lines("trl", "1.16.0")
    assert not [
        line
        for line in data["lines"]
        if "@" in line or line.partition("; ")[2] not in ("", f"extra {NAME.findall(line)[0]}")
    ]


def test_site_data_lists_the_newest_image_first_like_the_doctor_command(
    data: dict[str, Any],
) -> None:
    cuda = [tuple(map(int, image["cuda"].split("."))) for image in data["images"]]
    assert cuda == sorted(cuda, reverse=True)


def test_compatibility_of_an_image_without_known_gpus_is_unknown() -> None:
    floors = Floors(cuda="99.0")
    needs = TargetNeeds(target="x", cuda="99.0", as_of="2026-01-01", floors={Arch.X86_64: floors})
    assert browser_data.image_data(needs, Arch.X86_64, 0, 5) == {
        "target": 0, "arch": "x86_64", "cuda": "99.0", "driver": "", "driverFull": "",
        "gpus": None, "later": [], "size": 5,
    }  # fmt: skip


def test_site_data_has_the_gpus_on_the_page_of_the_image(
    data: dict[str, Any], example_site: SiteCatalogue
) -> None:
    pages = {target.name: target.page.images for target in example_site.targets}
    for image in data["images"]:
        shown = next(
            each
            for each in pages[data["targets"][image["target"]]["name"]]
            if each.arch == image["arch"]
        )
        assert {*image["later"]} == {*shown.gpu_ptx} & {*data["capabilities"]}
        assert {*shown.gpu} <= {*image["gpus"]} - {*image["later"]}


def test_site_data_has_the_note_of_the_doctor_command_for_older_drivers(
    data: dict[str, Any],
) -> None:
    assert data["restriction"] == restriction_text("{}", '"full driver"')


def test_text_in_site_data_cannot_close_the_script_element(
    sources: SiteSources, example_site: SiteCatalogue
) -> None:
    evil = '</script><!--"\\ \u2028\u202e\x1b\udc80\U0001f600'
    first, *rest = (target for target in example_site.targets if target.lock)
    row = msgspec.structs.replace(first.row, recommended=evil)
    changed = msgspec.structs.replace(
        example_site, targets=(msgspec.structs.replace(first, row=row), *rest)
    )
    script = browser_data.data_scripts(sources, changed)["data.js"]
    assert re.fullmatch(rb'var \w+="[^"\\/\s]+";\n', script)
    shown = evil.replace("\u2028", "\\u2028").replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert read_packed(script)["targets"][0]["recommended"] == shown


def test_site_data_has_the_debian_packages_and_layers_of_the_locks(
    sources: SiteSources, example_site: SiteCatalogue, data: dict[str, Any]
) -> None:
    compared = browser_data.compared_data(example_site, data["images"])
    layers = [(name, size) for name, *sizes in compared["layers"] for size in sizes]
    targets = {target.name: target for target in example_site.targets}
    same: dict[tuple[int, ...], Sequence[LayerDigests]] = {}
    for number, image in enumerate(data["images"]):
        target, arch = targets[data["targets"][image["target"]]["name"]], image["arch"]
        assert target.lock is not None
        assert target.digests is not None
        found = {
            (name, version)
            for name, versions in compared["debian"].items()
            for version, number_of_set in versions.items()
            if compared["lists"][number] in members(compared["sets"][number_of_set])
        }
        assert found == {(deb.package, deb.version) for deb in target.lock.arch[arch].debs}
        stack = [layers[layer] for layer in compared["stacks"][number]]
        assert stack == [(each.name, each.size) for each in target.digests.arch[arch].layers]
        same[tuple(compared["stacks"][number])] = target.digests.arch[arch].layers
    assert compared["same"]  # one of debian-12-security has the digest of debian-12-tools
    content = (compared["same"].get(layer, layer) for layer in itertools.chain(*same))
    assert len({*content}) == len(
        {layer.digest for layers_of_image in same.values() for layer in layers_of_image}
    )
