"""Tests the choice and order of newer releases that `update` tries."""

from __future__ import annotations

import datetime
import json

import pytest

from imgbuild.errors import InputError
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.update import axes
from imgbuild.update.axes import CoolDown, Release
from tests.support import samples
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site

TODAY = datetime.date(2026, 11, 28)
WEEK = CoolDown(days=7, today=TODAY)
ANY_AGE = CoolDown(days=None, today=TODAY)


def nothing_fixed(package, present, newer):
    del package, present, newer
    return ()


@pytest.fixture
def indexes():
    """Indexes on this machine with upload times (PEP 700) in JSON pages (PEP 691)."""
    index = LocalIndex()
    index.wheel("trl", "1.9.2", uploaded="2026-07-28T00:00:00Z")
    index.wheel("trl", "1.15.0", uploaded="2026-10-08T00:00:00Z")
    index.wheel("trl", "1.16.0rc1", uploaded="2026-10-10T00:00:00Z")
    index.wheel("trl", "1.16.0", uploaded="2026-11-20T23:00:00Z")
    index.wheel("trl", "1.16.1", uploaded="2026-11-21T01:00:00Z", yanked=True)
    index.wheel("trl", "1.17.0", uploaded="2026-11-21T00:00:00Z")
    index.wheel("trl", "1.17.0", uploaded="2026-11-27T00:00:00Z", tag="cp311-cp311-linux_x86_64")
    with serve_site(FileSite(files=index.json_files())) as site:
        place = IndexAddress(name="main", address=site.url("simple"))
        yield IndexLookup({"main": place}, {}, "main", HttpClient(attempts=1))


def versions(releases):
    return [release.version for release in releases]


def test_newer_final_releases_are_listed_newest_first(indexes):
    axis = axes.package_axis(indexes, "trl", "1.9.2", ANY_AGE, nothing_fixed)
    assert versions(axis.releases) == ["1.17.0", "1.16.0", "1.15.0"]
    assert not axis.waiting


def test_release_of_the_last_week_is_delayed_by_the_cool_down(indexes):
    axis = axes.package_axis(indexes, "trl", "1.9.2", WEEK, nothing_fixed)
    assert versions(axis.releases) == ["1.16.0", "1.15.0"]
    assert versions(axis.waiting) == ["1.17.0"]


def test_release_that_fixes_an_advisory_is_not_delayed(indexes):
    asked = []

    def fixed(package, present, newer):
        asked.append((package, present, newer))
        return ("GHSA-1",)

    axis = axes.package_axis(indexes, "trl", "1.9.2", WEEK, fixed)
    assert versions(axis.releases) == ["1.17.0", "1.16.0", "1.15.0"]
    assert axis.fixing == {"1.17.0": ("GHSA-1",)}
    assert asked == [("trl", "1.9.2", "1.17.0")]


def test_cutoff_date_is_after_the_last_file_of_the_release(indexes):
    target = samples.matrix().targets["small"]
    (newest, *_) = axes.package_axis(indexes, "trl", "1.9.2", ANY_AGE, nothing_fixed).releases
    assert axes.row_cut_off(target, newest, WEEK) == datetime.date(2026, 11, 28)
    old = Release(version="1", first=None, last=None, files="")
    assert axes.row_cut_off(target, old, WEEK) == datetime.date(2026, 11, 21)
    assert axes.row_cut_off(target, old, ANY_AGE) == TODAY


def test_additional_file_changes_the_hash_of_a_release(indexes):
    (newest, other, _) = axes.package_axis(indexes, "trl", "1.9.2", ANY_AGE, nothing_fixed).releases
    assert newest.files != other.files


def test_number_of_tried_releases_is_limited():
    index = LocalIndex()
    for minor in range(40):
        index.wheel("trl", f"1.{minor}")
    with serve_site(FileSite(files=index.json_files())) as site:
        place = IndexAddress(name="main", address=site.url("simple"))
        indexes = IndexLookup({"main": place}, {}, "main", HttpClient(attempts=1))
        axis = axes.package_axis(indexes, "trl", "1.0", ANY_AGE, nothing_fixed)
    assert versions(axis.releases) == [f"1.{minor}" for minor in range(39, 39 - axes.LIMIT, -1)]


def test_update_tries_rollout_and_training_packages_first():
    pins = {"tensordict": "1", "torch": "1", "deepspeed": "1", "trl": "1", "vllm": "1", "a": "1"}
    target = samples.matrix(pins=pins).targets["small"]
    assert axes.axis_names(target) == ("vllm", "trl", "torch", "deepspeed", "a", "tensordict")


def test_index_without_upload_times_is_an_error_that_names_the_packages():
    index = LocalIndex()
    for version in ("1.0", "2.0"):
        index.wheel("trl", version)
        index.wheel("torch", version)
    site = FileSite(files=index.site_files(api=False))
    target = samples.matrix(pins={"trl": "1.0", "torch": "2.0"}).targets["small"]
    with serve_site(site):
        place = IndexAddress(name="main", address=site.url("simple"))
        indexes = IndexLookup({"main": place}, {}, "main", HttpClient(attempts=1))
        with pytest.raises(InputError, match="the index main: trl") as caught:
            axes.require_times({"small": indexes}, {"small": target})
    assert "torch" not in caught.value.message  # no newer version exists
    assert "--no-cool-down" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_test_index_serves_pages_in_json(indexes):
    page = json.loads(HttpClient(attempts=1).text(f"{indexes.place('trl').address}/trl/").text)
    assert page["meta"]["api-version"] == "1.1"
    assert {file["upload-time"] for file in page["files"]}
