"""Tests that smoke tests of real images are recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.container import driver
from tests.support import ci_repository, needs
from tests.support.ci_repository import BROKEN, CAUSE, OTHER
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network]
SMOKE = ("--tier", "static", "--through", "root", "--timeout-factor", "4", "--json")


@pytest.fixture(scope="module", name="project")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    needs.user_namespaces()
    folder = tmp_path_factory.mktemp("records")
    with serve_site(FileSite(files=ci_repository.index().site_files())) as site:
        project = ci_repository.create_project(folder / "project", site.url("simple"))
        project.run("build", "--all")
        yield project


def shown_tests(project: Project, target: str) -> str:
    (row,) = json.loads(project.run("list", target, "--json").stdout)
    text: str = row["images"][0]["tested"]
    return text


def test_smoke_run_is_recorded_and_shown_in_list(project: Project) -> None:
    assert shown_tests(project, TARGET) == "no test record for this digest"
    done = project.run("smoke", TARGET, *SMOKE, "--record")
    (report,) = json.loads(done.stdout)
    target_digests = project.read(f"{TARGET}/digests.json")["arch"]["x86_64"]
    (run,) = project.read(f"{TARGET}/smoke.json")["runs"]
    assert (run["result"], run["tier"], run["through"]) == ("pass", "static", "root")
    assert (run["digest"], run["config"]) == (target_digests["manifest"], target_digests["config"])
    assert (run["date"], run["seconds"]) == (report["started"], report["seconds"])
    assert run["seconds"] > 0
    assert run["passed"] == sum(case["outcome"] == "passed" for case in report["cases"]) > 5
    assert shown_tests(project, TARGET) == f"static, {run['date'][:10]}"

    answer = project.folder / "answer.json"
    answer.write_text(done.stdout)
    import_run = project.run("smoke", "--import", str(answer))
    assert import_run.stdout == f"{TARGET} x86_64 static pass\n"
    assert len(project.read(f"{TARGET}/smoke.json")["runs"]) == 1


@pytest.mark.long
def test_failed_run_is_recorded(project: Project) -> None:
    project.run("smoke", BROKEN, *SMOKE, "--record", status=1)
    (run,) = project.read(f"{BROKEN}/smoke.json")["runs"]
    assert (run["result"], run["failed"] > 0) == ("fail", True)
    assert CAUSE in run["first"]["message"]
    assert shown_tests(project, BROKEN).startswith("static failed, ")


def test_image_of_another_target_is_not_tested(project: Project) -> None:
    layout = str(project.folder / "build" / TARGET)
    done = project.run("smoke", OTHER, "--layout", layout, *SMOKE, "--record", status=2)
    assert "is not a test record" in done.stderr
    assert "smoke tests, tier" not in done.stderr
    assert not (project.folder / "images" / OTHER / "smoke.json").exists()


def test_reports_of_other_tiers_are_kept_if_a_tier_is_unavailable(
    project: Project, tmp_path: Path
) -> None:
    if driver.driver_library_folder() is not None:
        pytest.skip("this machine has a GPU driver: run the test on a machine without one")
    junit = tmp_path / "report.xml"
    words = ("--tier", "static", "--tier", "gpu", "--junit", str(junit), "--case", "versions")
    done = project.run("smoke", TARGET, *SMOKE[2:], *words, status=1)
    tested, stopped = json.loads(done.stdout)
    assert [(case["name"], case["outcome"]) for case in tested["cases"]] == [("versions", "passed")]
    assert (stopped["target"], stopped["tier"]) == (TARGET, "gpu")
    assert "libcuda.so.1 not found" in stopped["cases"][0]["message"]
    assert "hint: install the driver" in done.stderr
    assert junit.read_text().count("<testsuite ") == 2


def test_report_is_written_if_the_only_tier_is_unavailable(
    project: Project, tmp_path: Path
) -> None:
    if driver.driver_library_folder() is not None:
        pytest.skip("this machine has a GPU driver: run the test on a machine without one")
    junit = tmp_path / "report.xml"
    words = ("--through", "root", "--tier", "gpu")
    done = project.run("smoke", TARGET, *words, "--json", "--junit", str(junit), status=1)
    (stopped,) = json.loads(done.stdout)
    assert [case["outcome"] for case in stopped["cases"]] == ["failed"]
    assert "libcuda.so.1 not found" in stopped["cases"][0]["message"]
    assert junit.read_text().count("<testsuite ") == 1
    alone = project.run("smoke", TARGET, *words, status=1)
    assert (alone.stdout, alone.stderr.splitlines()[-2:]) == ("", done.stderr.splitlines()[-2:])


def test_reports_of_other_targets_are_kept_if_a_target_is_not_built(project: Project) -> None:
    layout = project.folder / "build" / OTHER
    layout.rename(layout.with_name("aside"))
    try:
        words = ("--case", "versions", "--jobs", "2")
        done = project.run("smoke", OTHER, TARGET, *SMOKE, *words, status=2)
    finally:
        layout.with_name("aside").rename(layout)
    tested, stopped = json.loads(done.stdout)
    assert (tested["target"], tested["jobs"], tested["only"]) == (TARGET, 2, "versions")
    assert (stopped["target"], stopped["tier"]) == (OTHER, "static")
    assert "is not built" in stopped["cases"][0]["message"]
    answer = project.folder / "part.json"
    answer.write_text(json.dumps([tested]))
    refused = project.run("smoke", "--import", str(answer), status=2)
    assert "only 'versions' of the tier was run" in refused.stderr
