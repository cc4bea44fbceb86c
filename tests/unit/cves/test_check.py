"""Tests expiry dates of accepted vulnerabilities."""

from __future__ import annotations

import datetime

from imgbuild.cves.check import accepting_entry
from imgbuild.matrix.accepted import AcceptedCve

LAST = datetime.date(2027, 6, 30)
ONE = AcceptedCve(id="CVE-1", reason="nobody can reach it", expires=LAST)


def test_accepted_vulnerability_applies_until_the_end_of_its_expiry_date() -> None:
    assert accepting_entry([ONE], ["GHSA-1", "CVE-1"], LAST) is ONE
    assert accepting_entry([ONE], ["CVE-1"], LAST + datetime.timedelta(days=1)) is None
    assert accepting_entry([ONE], ["CVE-2"], LAST) is None
