"""Tests that texts of a lock are escaped in every document that imgbuild writes.

A parser of the format reads the output. Hostile texts must be read back, and the structure must be
the same as with harmless texts that have the same white space.
"""

from __future__ import annotations

import html.parser
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests
import yaml
from markdown_it import MarkdownIt

from imgbuild.ci import report as ci_report
from imgbuild.ci.report import JobOverview, TargetOutcome
from imgbuild.http.file_urls import FolderAdapter
from imgbuild.lock import published
from imgbuild.render import templates
from imgbuild.report import CaseResult, Report
from imgbuild.resolve import first_matrix
from imgbuild.resolve.first_matrix import WantedExtension
from imgbuild.resolve.resolve_request import RequestedPackage
from imgbuild.show import table
from imgbuild.show.table import TableImage, TableRow
from imgbuild.smoke import junit_report
from imgbuild.system.control_characters import escape_control
from imgbuild.values import Arch
from tests.support import extended, hostile_texts
from tests.support.rows import each_row
from tests.support.source_code import ROOT, import_script

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MARKS = (
    "<b>x", "<!-- ", "<!-- /images -->", "&lt;", "&#x3c;", "![x](y)", "[x](y)", "[x]: y", "**x**",
    "_x_", "# x", "x\n===", "```\nx", "> x", "- x", "1. x", "| --- |", "\\|", "`x", "``",
    "<https://x.y>", "~~x~~", "x  \ny", "\n\n    x", "\t", "---",
)  # fmt: skip
TEXTS = (*hostile_texts.PAYLOADS, *hostile_texts.BREAKS, *MARKS)
DIGEST = f"sha256:{'0' * 64}"

# Each template that is rendered separately, with its test.
TEMPLATES = {
    "dockerfile.j2": "tests/integration/test_hostile_texts.py",
    "apptainer.j2": "tests/integration/test_hostile_texts.py",
    "readme.j2": "tests/unit/render/test_readme.py",
    "script.j2": "tests/integration/test_hostile_texts.py",
    **{f"slurm/{name}.j2": "tests/integration/test_hostile_jobs.py"
       for name in ("single", "torchrun", "ray-job", "trl-server", "verl", "check", "array")},
}  # fmt: skip
# Shell code of imgbuild's data: ci.sh is a part of `ci script`; others have only plain words.
SHELL = {
    "ci.sh": "tests/integration/test_hostile_jobs.py",
    "image/environment.sh": "",
    "image/user_packages.sh": "",
}


def test_each_template_is_in_a_table_of_hostile_texts() -> None:
    """A new template requires an entry for its renderer in one of these tests."""
    reached, rest = set(), list(TEMPLATES)
    while rest:
        name = rest.pop()
        reached.add(name)
        text = (templates.DATA / name).read_text("utf-8")
        rest += (
            set(re.findall(r'\{%-?\s*(?:include|import|extends|from)\s+"([^"]+)"', text)) - reached
        )
    present = {
        path.relative_to(templates.DATA.resolve()).as_posix()
        for path in templates.DATA.resolve().rglob("*")
        if path.is_file()
    }
    assert present == reached
    data = Path(str(resources.files("imgbuild").joinpath("data")))
    assert {path.relative_to(data).as_posix() for path in data.rglob("*.sh")} == set(SHELL)
    for test in {*TEMPLATES.values(), *SHELL.values()} - {""}:
        assert Path(__file__).parents[2].joinpath(test).is_file()


def structure(text: str) -> list[tuple[str, ...]]:
    """The types of blocks and of the elements in their lines."""
    return [
        (token.type, *(child.type for child in token.children or ()))
        for token in MARKDOWN.parse(text)
    ]


def contents(text: str) -> list[str]:
    """The displayed texts of all lines and code spans."""
    return [
        "".join(child.content for child in token.children or ())
        for token in MARKDOWN.parse(text)
        if token.type == "inline"
    ]


IMAGES_TABLE = import_script(ROOT / "tools/images_table.py")


def harmless(text: str) -> str:
    """A text with the same white space."""
    return re.sub(r"\S+", "x", text)


def row(text: str) -> TableRow:
    image = TableImage(arch=Arch.X86_64, digest=DIGEST, size=1, tested=text)
    return TableRow(
        target=text, summary=text, cuda=text, python=text, base=text, arch=(Arch.X86_64,),
        as_of=text, flashinfer=text, gpu=(text,), pins={"torch": text, text: text},
        indexes={text: text}, exclude={}, tested=text, recommended=text, retired=text, state=text,
        reasons=(text,), images=(image,),
    )  # fmt: skip


def outcome(text: str) -> TargetOutcome:
    return TargetOutcome(
        target=text, digest=text, outcome="failed", job=text, step=text, exit_code=1, error=text,
        hint=text, log=text, repeat=text,
    )  # fmt: skip


@each_row("text", TEXTS)
def test_hostile_text_is_escaped_in_markdown(text: str) -> None:
    pages = {
        "list": lambda text: "\n".join(table.markdown_lines([row(text)])),
        "images": lambda text: "\n".join(IMAGES_TABLE.image_table([row(text)], pages=False)),
        "ci report": lambda text: ci_report.overview_markdown(
            JobOverview(targets=(outcome(text),))
        ),
        "issue": lambda text: ci_report.issue_text(outcome(text)),
    }
    for name, page in pages.items():
        assert structure(page(text)) == structure(page(harmless(text))), (name, page(text))
    shown = escape_control(" ".join(text.split()))
    assert shown in contents(pages["list"](text))
    if shown:
        assert any(shown == content for content in contents(pages["ci report"](text)))


@each_row("text", TEXTS)
def test_hostile_text_is_escaped_in_a_new_matrix(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extended.publish_target(tmp_path / "published/small", extended.published_lock())
    below = published.read_published_target(tmp_path / "published/small", "small")
    name = hostile_texts.path_component(text)
    (tmp_path / f"file{name}").touch()

    def _written(text: str, name: str) -> str:
        wanted = WantedExtension(
            name=text, summary=text, system=(text,),
            packages=(RequestedPackage(package=text, spec=text),),
            files=((Path(f"file{name}"), f"/{text}"),),
        )  # fmt: skip
        return first_matrix.matrix_text(wanted, below, text, text, text)

    read = yaml.safe_load(_written(text, name))
    assert read["targets"][text]["summary"] == text
    assert read["targets"][text]["requires"][text]["spec"] == text
    assert read["targets"][text]["files"][f"/{text}"]["from"] == f"file{name}"
    (tmp_path / "filex").touch()
    plain = yaml.safe_load(_written("x", "x"))
    assert read["targets"][text].keys() == plain["targets"]["x"].keys()
    assert read.keys() == plain.keys()


class Links(html.parser.HTMLParser):
    """The tags and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_hostile_file_name_is_escaped_in_a_page_of_links(tmp_path: Path) -> None:
    names = sorted({hostile_texts.path_component(f"a{text}") for text in TEXTS})
    for name in names:
        (tmp_path / name).touch()
    request = requests.Request("GET", f"file://{tmp_path}/").prepare()
    reader = Links()
    reader.feed(FolderAdapter().send(request).text)
    assert reader.tags == ["html", "body", *["a"] * len(names)]
    assert set(names) <= set(reader.texts)


def test_hostile_text_is_escaped_in_junit_xml() -> None:
    for text in (*TEXTS, "\0\x1b[2J", "\ud800", "]]>", "\ufffe"):
        case = CaseResult(name=text, outcome="failed", message=text, seconds=1.0, log=text)
        found = Report(target=text, arch=Arch.X86_64, tier=text, cases=(case,))
        top = ElementTree.fromstring(junit_report.junit_document([found]))
        assert [element.tag for element in top.iter()] == [
            "testsuites", "testsuite", "testcase", "failure", "system-out",
        ]  # fmt: skip
        if text.isprintable():
            assert top[0][0].get("name") == text
            assert top[0][0][0].get("message") == text
