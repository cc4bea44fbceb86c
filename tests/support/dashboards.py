"""Finds locked targets with Ray that lack packages of the Ray dashboard."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from imgbuild.lock.lock_file import read_lock

ROOT = Path(__file__).parents[2]
# Requirements of ray[default] in each locked version (tests/integration/test_env_sources.py reads
# them in the wheels), and those added after 2.43.0.
DASHBOARD = {
    "aiohttp", "aiohttp-cors", "colorful", "grpcio", "opencensus", "prometheus-client", "py-spy",
    "pydantic", "requests", "smart-open", "virtualenv",
}  # fmt: skip
LATER = {"opentelemetry-exporter-prometheus", "opentelemetry-proto", "opentelemetry-sdk"}


def required_packages(version: str) -> set[str]:
    """The packages that ray[default] requires in a version of Ray."""
    return DASHBOARD | (LATER if Version(version) > Version("2.43.0") else set())


def targets_without_dashboard() -> dict[str, tuple[str, list[str]]]:
    """The version of Ray in each locked target, and the missing packages of its dashboard."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for path in sorted(ROOT.glob("images/*/lock.json")):
        lock = read_lock(ROOT / "images", path.parent.name)
        for resolution in lock.arch.values():
            version = resolution.versions.get("ray")
            if version is not None:
                packages = sorted(required_packages(version) - resolution.versions.keys())
                assert rows.setdefault(lock.target, (version, packages)) == (version, packages)
    return rows
