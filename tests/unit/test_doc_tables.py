"""Tests that tables in the docs match data and locks. --renew-golden writes the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from imgbuild.container import path_variables
from tests.support import dashboards

ROOT = Path(__file__).parents[2]


def page(path: str, mark: str, lines: Iterable[str]) -> str:
    """The text of a page with `lines` between the comments of `mark`."""
    text = (ROOT / path).read_text("utf-8")
    table = "\n".join(lines)
    page_text, count = re.subn(
        rf"(<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)",
        lambda match: f"{match[1]}{table}\n",
        text,
        flags=re.DOTALL,
    )
    assert count == 1
    return page_text


def test_page_about_path_variables_has_the_current_table(
    golden: Callable[[Path, str], None],
) -> None:
    lines = ["| variables | what happens | what is there |", "| --- | --- | --- |"]
    for row in path_variables.path_variable_table():
        names = ", ".join(f"`{name}`" for name in row.names)
        lines.append(f"| {names} | {row.use} | {row.holds}: {row.reason} |")
    golden(ROOT / "docs/environment.md", page("docs/environment.md", "paths", lines))


def test_page_about_the_ray_dashboard_lists_all_targets_with_ray(
    golden: Callable[[Path, str], None],
) -> None:
    missing = dashboards.targets_without_dashboard()
    lines = ["| target | Ray | dashboard |", "| --- | --- | --- |"]
    for target, (version, lacking) in missing.items():
        packages = ", ".join(f"`{name}`" for name in lacking)
        lines.append(
            f"| {target} | {version} | {f'no: it lacks {packages}' if lacking else 'yes'} |"
        )
    golden(
        ROOT / "docs/howto/ray-dashboard.md",
        page("docs/howto/ray-dashboard.md", "dashboards", lines),
    )


def test_command_on_the_ray_dashboard_page_adds_every_missing_package() -> None:
    text = (ROOT / "docs/howto/ray-dashboard.md").read_text("utf-8")
    (target, added) = re.findall(r"--extends (\S+)((?: --add \S+)+)", text)[0]
    assert re.findall(r"--add (\S+)", added) == dashboards.targets_without_dashboard()[target][1]
