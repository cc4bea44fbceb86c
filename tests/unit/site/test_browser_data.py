"""The data for browsers: what imgbuild's own rules say, and nothing that breaks out of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from imgbuild.doctor.targets import TargetNeeds, driver_text
from imgbuild.report import Floors
from imgbuild.site import browser_data
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue
from imgbuild.values import Arch


@pytest.fixture(scope="module")
def data(sources: SiteSources, made: SiteCatalogue) -> dict[str, Any]:
    text = browser_data.script(sources, made).decode("ascii")
    head, _, rest = text.partition(" = ")
    assert head == "var imgbuildData"
    loaded: dict[str, Any] = json.loads(rest.removesuffix(";\n"))
    return loaded


def test_versions_are_those_of_the_locks(data: dict[str, Any], made: SiteCatalogue) -> None:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for package, versions in data["versions"].items():
        for version, numbers in versions.items():
            for number in numbers:
                image = data["images"][number]
                key = (data["targets"][image["target"]]["name"], image["arch"])
                found.setdefault(key, {})[package] = version
    expected = {
        (target.name, arch): resolution.versions
        for target in made.targets
        if target.lock
        for arch, resolution in target.lock.arch.items()
    }
    assert found == expected


def test_requirements_are_those_of_the_metadata(data: dict[str, Any]) -> None:
    assert "torch==2.6.0" in data["requires"]["vllm"]["0.8.5.post1"]
    lines = [line for versions in data["requires"].values() for each in versions.values()
             for line in each]  # fmt: skip
    assert lines
    assert not [line for line in lines if ";" in line or "@" in line]


def test_the_newest_image_is_first_as_for_doctor(data: dict[str, Any]) -> None:
    cuda = [tuple(map(int, image["cuda"].split("."))) for image in data["images"]]
    assert cuda == sorted(cuda, reverse=True)


def test_an_image_without_known_gpus_is_unknown() -> None:
    floors = Floors(cuda="99.0")
    needs = TargetNeeds(target="x", cuda="99.0", as_of="2026-01-01", floors={Arch.X86_64: floors})
    assert browser_data.image_data(needs, Arch.X86_64, 0, 5) == {
        "target": 0, "arch": "x86_64", "cuda": "99.0", "driver": "", "driverFull": "",
        "olderDriver": driver_text("{}", floors), "gpus": None, "later": [], "size": 5,
    }  # fmt: skip


def test_an_older_driver_has_the_remark_of_doctor(data: dict[str, Any]) -> None:
    image = next(image for image in data["images"] if image["driver"] != image["driverFull"])
    assert image["olderDriver"].startswith("driver {} runs it by minor version compatibility")
    assert image["driverFull"] in image["olderDriver"]


def test_no_text_ends_the_script(sources: SiteSources, made: SiteCatalogue) -> None:
    evil = "</script><!--\u2028\U0001f600"
    first, *rest = (target for target in made.targets if target.lock)
    row = msgspec.structs.replace(first.row, summary=evil)
    changed = msgspec.structs.replace(
        made, targets=(msgspec.structs.replace(first, row=row), *rest)
    )
    text = browser_data.script(sources, changed).decode("ascii")
    assert json.loads(text.partition(" = ")[2].removesuffix(";\n"))["targets"][0]["summary"] == evil
