"""Tests finding newer versions that fix an advisory, with and without a server."""

from __future__ import annotations

import datetime

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.system.reporter import SilentReporter
from imgbuild.update.advisories import UpdateAdvisories
from tests.support import advisories
from tests.support.advisories import HEADERS, REGEX, TORCH

NOW = datetime.datetime(2026, 11, 25, 12, tzinfo=datetime.UTC)


class Warnings(SilentReporter):
    """A reporter that records warnings."""

    def __init__(self):
        self.texts = []

    def warn(self, text):
        """Record `text`."""
        self.texts.append(text)


def asked(site, folder, reporter=None):
    context = Context(Store.open(folder), HttpClient(attempts=1), reporter or SilentReporter())
    return UpdateAdvisories(site.url, context, NOW)


def test_version_without_an_advisory_fixes_the_vulnerability(tmp_path):
    with advisories.serve(advisories.advisory_site()) as site:
        found = asked(site, tmp_path)
        assert found.fixed("torch", "2.5.1", "2.6.0") == (TORCH,)
        assert found.fixed("torch", "2.5.1+cu124", "2.6.0") == (TORCH,)
        assert found.fixed("torch", "2.6.0", "2.7.0") == ()
        assert set(found.fixed("vllm", "0.8.5.post1", "0.9.0")) == {HEADERS, REGEX}


def test_version_with_the_same_advisory_fixes_nothing(tmp_path):
    site = advisories.advisory_site()
    site.about["PyPI", "torch", "2.5.2"] = [TORCH]
    with advisories.serve(site):
        assert asked(site, tmp_path).fixed("torch", "2.5.1", "2.5.2") == ()


def test_unresponsive_advisory_server_causes_one_warning(tmp_path):
    site, reporter = advisories.advisory_site(), Warnings()
    site.refusals = [500] * 9
    with advisories.serve(site):
        found = asked(site, tmp_path, reporter)
        assert found.fixed("torch", "2.5.1", "2.6.0") == ()
        assert found.fixed("vllm", "0.8.5.post1", "0.9.0") == ()
    (text,) = reporter.texts
    assert "so the cool-down applies to all releases" in text


def test_no_fix_is_reported_if_the_newer_version_cannot_be_queried(tmp_path):
    site = advisories.advisory_site()
    with advisories.serve(site):
        found = asked(site, tmp_path)
        assert found.fixed("torch", "2.5.1", "2.6.0")
        site.refusals = [500] * 9
        assert found.fixed("torch", "2.5.1", "2.7.0") == ()
