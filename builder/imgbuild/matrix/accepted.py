"""Defines accepted findings of the audit and accepted vulnerabilities."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from imgbuild.matrix.fields import Check, Line, Package, Reason


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rejects unknown keys."""


class Waiver(_Strict, frozen=True):
    """An audit finding that is accepted for a target, with the reason."""

    check: Annotated[Check, Meta(description="the check that reports the finding")]
    package: Annotated[Package, Meta(description="the package that the finding is about")]
    subject: Annotated[
        Line,
        Meta(
            min_length=1,
            description="shell pattern of the missing or rejected name in the finding",
        ),
    ]
    reason: Reason


class AcceptedCve(_Strict, frozen=True):
    """A known vulnerability that is accepted until a date, with the reason."""

    id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]+\Z",
            description="the ID of the CVE or of an advisory: CVE-2025-32434, GHSA-…, PYSEC-…",
        ),
    ]
    reason: Reason
    expires: Annotated[
        datetime.date,
        Meta(description="the last day on which the vulnerability is accepted: 2027-06-30"),
    ]
    justification: Annotated[
        Literal[
            "component_not_present",
            "vulnerable_code_not_present",
            "vulnerable_code_not_in_execute_path",
            "vulnerable_code_cannot_be_controlled_by_adversary",
            "inline_mitigations_already_exist",
        ]
        | None,
        Meta(description="the status justification of OpenVEX if the image is not affected"),
    ] = None


Waivers = Annotated[tuple[Waiver, ...], Meta(description="findings of the audit that are accepted")]
AcceptedCves = Annotated[
    tuple[AcceptedCve, ...], Meta(description="known vulnerabilities that `imgbuild cves` accepts")
]
