"""Tests the text and width of an image's README, and that untrusted texts are escaped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Flashinfer
from imgbuild.render.readme import WIDTH, readme_text
from tests.support import hostile_texts, samples
from tests.support.rows import each_row
from tests.support.source_code import ROOT

GOLDEN = ROOT / "tests/data/render/README"
NOTE = (
    "a note that is longer than a line of this text and is folded, as a paragraph is: "
    + samples.REASON
)
FRAMEWORKS = tuple(samples.wheel(name) for name in ("ray", "trl", "verl", "vllm"))


def text(lock: Lock, images: Path, **changes: object) -> str:
    """The README for `lock` with a row that has the given fields."""
    matrix = samples.matrix(user_packages=True, **changes)
    return readme_text(lock, matrix.targets["small"], images)


def test_readme_describes_a_small_lock(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN, text(samples.lock(*FRAMEWORKS), tmp_path, guide=(NOTE, "another")))


def test_only_indented_text_in_the_readme_exceeds_the_line_width(tmp_path: Path) -> None:
    reason = Flashinfer(mode="off", reason="word " * 60)
    readme = text(
        samples.lock(*FRAMEWORKS), tmp_path,
        summary="word " * 60, guide=("word " * 60,), flashinfer=reason,
    )  # fmt: skip
    wide = [line for line in readme.splitlines() if len(line) > WIDTH]
    assert [line for line in wide if not line.startswith("    ")] == []
    assert readme.count("word") == 180


def test_readme_sections_appear_only_with_their_packages(tmp_path: Path) -> None:
    heads = {name: f"\n## {head}\n" for name, head in (("verl", "verl"), ("trl", "TRL"))}
    alone = text(samples.lock(samples.wheel("trl")), tmp_path)
    assert [name for name, head in heads.items() if head in alone] == ["trl"]
    assert "\n\n\n\n" not in alone


@each_row("payload", [*hostile_texts.PAYLOADS, *hostile_texts.BREAKS])
def test_lock_texts_cannot_add_lines_to_the_readme(tmp_path: Path, payload: str) -> None:
    def _lines(value: str) -> int:
        reason = Flashinfer(mode="off", reason=value)
        readme = text(
            samples.lock(), tmp_path, summary=value, guide=(value, value), flashinfer=reason
        )
        return len(readme.splitlines())

    assert _lines(payload) == _lines("x")


def test_readme_template_of_a_project_replaces_the_packaged_template(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/readme.j2").write_text("{{ target }}: {{ summary | line }}\n")
    lock = msgspec.structs.replace(samples.lock(), target="other")
    assert text(lock, tmp_path) == "other: a small image\n"
