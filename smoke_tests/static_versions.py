"""Tests that the installed distributions and versions are exactly those of the lock."""

from __future__ import annotations

from smoke_support import expectation, finish, installed


def main() -> None:
    """Compare the distributions that Python finds with the lock."""
    expected: dict[str, str] = expectation()["packages"]
    distributions: dict[str, list[tuple[str, str]]] = {}
    for name, distribution in installed():
        place = str(distribution.locate_file(""))
        distributions.setdefault(name, []).append((distribution.version, place))
    problems = []
    for name in sorted(expected.keys() | distributions.keys()):
        copies = distributions.get(name, [])
        versions = [version for version, _ in copies]
        if name not in expected:
            problems.append(f"{name} {copies[0][0]} in {copies[0][1]} is not in the lock")
        elif not copies:
            problems.append(f"{name} {expected[name]} is locked but not installed")
        elif len(copies) > 1:
            problems.append(f"{name} is installed {len(copies)} times: {copies}")
        elif versions != [expected[name]]:
            problems.append(f"{name} {expected[name]} is locked, but {versions[0]} is installed")
    if not expected:
        problems.append("the lock has no packages")
    finish(problems, f"{len(expected)} distributions, as locked")


if __name__ == "__main__":
    main()
