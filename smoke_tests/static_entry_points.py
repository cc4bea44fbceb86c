"""Tests that main names of packages can be imported, because lazy imports hide broken modules."""

from __future__ import annotations

import concurrent.futures
import json

from smoke_import import judge
from smoke_support import HERE, allowed, expectation, finish, skip


def main() -> None:
    """Test the packages of the lock, each in a new process."""
    waivers = allowed("entry points")
    packages: dict[str, str] = expectation()["packages"]
    names_by_package: dict[str, list[str]] = {}
    for entry in json.loads((HERE / "entry_points.json").read_text("utf-8"))["names"]:
        package = entry["package"]
        if package in packages and packages[package] in entry.get("versions", [packages[package]]):
            names_by_package.setdefault(package, []).append(entry["name"])
    if not names_by_package:
        skip("the lock has none of the packages in entry_points.json")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = {
            package: pool.submit(judge, f"entry points of {package}", package, names, waivers)
            for package, names in names_by_package.items()
        }
    problems = [f"{package} is broken" for package, job in jobs.items() if not job.result()]
    finish(
        problems,
        f"{sum(map(len, names_by_package.values()))} names of {len(names_by_package)} packages",
    )


if __name__ == "__main__":
    main()
