"""Tests reporting outdated packages without a requirement or date as the reason."""

import datetime
from contextlib import ExitStack

import pytest
from packaging.version import Version

from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.solve.freshness import cutoff_rows, version_lags
from imgbuild.solve.uv import ChosenPackage
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex
from tests.support.servers import FileSite, serve_site


@pytest.fixture
def ask(tmp_path):
    index = LocalIndex()
    index.wheel("hydra", "0.11", uploaded="2019-12-01")
    index.wheel("hydra", "1.3", uploaded="2023-02-01")
    index.wheel("hydra", "9.0", uploaded="2026-02-01")
    index.wheel("open", "1.0", ["hydra"])
    index.wheel("caps", "1.0", ["hydra<1"])
    with ExitStack() as stack:
        site = stack.enter_context(serve_site(FileSite(files=index.site_files())))
        http = HttpClient(attempts=1)
        indexes = IndexLookup(
            {"pypi": IndexAddress(name="pypi", address=site.url("simple"))}, {}, "pypi", http
        )

        def catalogue(pins):
            tags = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
            rules = FileRules(as_of=datetime.date(2025, 6, 20), tags=tags, pins=pins)
            return FileCatalogue(indexes, rules, http, Store.open(tmp_path / "cache"))

        yield catalogue


def lag_lines(catalogue, via):
    chosen = [
        ChosenPackage(package="hydra", version="0.11", via=(via,)),
        ChosenPackage(package=via, version="1.0"),
    ]
    offers = {
        item.package: offer
        for item in chosen
        if (offer := catalogue.chosen(item.package, Version(item.version)))
    }
    return [str(lag) for lag in version_lags(catalogue, chosen, offers)]


def test_outdated_packages_without_an_upper_bound_are_reported(ask):
    assert lag_lines(ask({}), "open") == [
        "hydra 0.11 (required by open) was uploaded in 2019-12; 1.3 of 2023-02 is available"
    ]


def test_package_limited_by_a_requirement_is_not_reported_as_outdated(ask):
    assert lag_lines(ask({}), "caps") == []


def test_pinned_package_is_not_reported_as_outdated(ask):
    assert lag_lines(ask({"hydra": "0.11"}), "open") == []


def test_package_that_the_cutoff_date_keeps_outdated_is_reported(ask):
    chosen = [
        ChosenPackage(package="hydra", version="1.3"),
        ChosenPackage(package="open", version="1.0"),
    ]
    assert cutoff_rows(ask({}), chosen) == (("hydra", "1.3", "9.0"),)
