"""Provides reports of scanners about the project of `advisories`, in the format of each scanner.

Each report has the vulnerabilities of torch and openssl, a vulnerability of openssl without
severity and fix, and a package that is not in the project. The formats are those of osv-scanner 2,
grype 0.9x and trivy 0.6x.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.advisories import OLD_VERSION, OPENSSL, TORCH, read_advisory

FIXED = "3.0.14-1~deb12u2"
UNFIXED: dict[str, Any] = {"id": "DEBIAN-CVE-2025-27587", "upstream": ["CVE-2025-27587"]}


def _osv(
    name: str, version: str, ecosystem: str, *vulnerabilities: dict[str, Any]
) -> dict[str, Any]:
    package = {"name": name, "version": version, "ecosystem": ecosystem}
    groups = [{"ids": [each["id"]], "aliases": [], "max_severity": ""} for each in vulnerabilities]
    return {"package": package, "vulnerabilities": list(vulnerabilities), "groups": groups}


OSV_SCANNER = {
    "results": [
        {
            "source": {"path": "sbom.json", "type": "sbom"},
            "packages": [
                _osv("torch", "2.5.1+cu124", "PyPI", read_advisory(TORCH)),
                _osv("openssl", OLD_VERSION, "Debian:12", read_advisory(OPENSSL), UNFIXED),
                _osv("absent", "1.0", "PyPI", {"id": "PYSEC-1"}),
            ],
        }
    ],
    "experimental_config": {"licenses": {"summary": False, "allowlist": None}},
}


def _grype(name: str, version: str, kind: str, **vulnerability: Any) -> dict[str, Any]:
    related = [{"id": identity} for identity in vulnerability.pop("related", ())]
    return {
        "vulnerability": vulnerability,
        "relatedVulnerabilities": related,
        "artifact": {"name": name, "version": version, "type": kind, "purl": ""},
    }


GRYPE = {
    "matches": [
        _grype(
            "torch", "2.5.1+cu124", "python", id=TORCH, related=["CVE-2025-32434"],
            severity="Critical", fix={"versions": ["2.6.0"], "state": "fixed"},
            cvss=[{"metrics": {"baseScore": 9.3}}],
        ),
        _grype(
            "libssl3", OLD_VERSION, "deb", id="CVE-2024-6119", severity="High",
            fix={"versions": [FIXED], "state": "fixed"}, cvss=[{"metrics": {"baseScore": 7.5}}],
        ),
        _grype(
            "libssl3", OLD_VERSION, "deb", id="CVE-2025-27587", severity="Unknown",
            fix={"versions": [], "state": "wont-fix"}, cvss=[],
        ),
        _grype("absent", "1.0", "python", id="PYSEC-1", severity="Low", fix={"versions": []}),
    ],
    "source": {"type": "image"},
    "descriptor": {"name": "grype", "version": "0.95.0"},
}  # fmt: skip


def _trivy(
    identity: str, name: str, version: str, severity: str, fixed: str = ""
) -> dict[str, Any]:
    vulnerability = {
        "VulnerabilityID": identity,
        "PkgName": name,
        "InstalledVersion": version,
        "Severity": severity,
        "Title": f"{name}: a title",
        "CVSS": {"nvd": {"V3Score": 7.5}},
    }
    return {**vulnerability, "FixedVersion": fixed} if fixed else vulnerability


TRIVY = {
    "SchemaVersion": 2,
    "ArtifactName": "cu124-vllm.tar",
    "Results": [
        {
            "Target": "debian 12.7",
            "Class": "os-pkgs",
            "Type": "debian",
            "Vulnerabilities": [
                _trivy("CVE-2024-6119", "libssl3", OLD_VERSION, "HIGH", FIXED),
                _trivy("CVE-2025-27587", "libssl3", OLD_VERSION, "UNKNOWN"),
            ],
        },
        {
            "Target": "Python",
            "Class": "lang-pkgs",
            "Type": "python-pkg",
            "Vulnerabilities": [
                _trivy("CVE-2025-32434", "torch", "2.5.1+cu124", "CRITICAL", "2.6.0"),
                _trivy("CVE-2000-0001", "absent", "1.0", "LOW"),
            ],
        },
        {"Target": "no findings", "Class": "lang-pkgs", "Type": "python-pkg"},
    ],
}

REPORTS = {
    "osv-scanner": json.dumps(OSV_SCANNER).encode(),
    "grype": json.dumps(GRYPE).encode(),
    "trivy": json.dumps(TRIVY).encode(),
}
