"""Tests that templates of an untrusted checkout are limited, and that its texts are escaped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.inprocess_project import TARGET, Command, SampleProject

EVIL = "{{ cycler.__init__.__globals__.os.system('touch evil') }}\n"


def local_template(name: str, text: str) -> None:
    path = Path("images/templates", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


VERBS = (
    ("apptainer.j2", ("render", TARGET, "--format", "apptainer", "--arch", "x86_64")),
    ("dockerfile.j2", ("render", TARGET, "--output", "there")),
    ("base.j2", ("render", TARGET, "--check")),
    ("slurm/single.j2", ("slurm", TARGET, "--", "true")),
    ("slurm/place.j2", ("slurm", TARGET, "--", "true")),
)


@pytest.mark.parametrize(("name", "words"), VERBS)
def test_templates_of_a_checkout_are_listed_and_cannot_run_code(
    name: str, words: tuple[str, ...], imgbuild: Command, sample: SampleProject
) -> None:
    local_template(name, EVIL)
    done = imgbuild(*words)
    assert done.status != 0
    assert not Path("evil").exists()
    first, *_ = done.stderr.splitlines()
    assert first.startswith("using the project's templates in ")
    assert first.endswith(f": {name}")
    assert f"{name}:1: " in done.stderr or "uv" in done.stderr  # the sample has no uv


def test_checkout_with_unchanged_templates_is_not_reported(
    imgbuild: Command, sample: SampleProject
) -> None:
    from imgbuild.render import templates

    local_template("slurm/single.j2", (templates.DATA / "slurm/single.j2").read_text("utf-8"))
    assert "the project's templates" not in imgbuild("slurm", TARGET, "--", "true").stderr


@pytest.mark.parametrize("words", [("show", TARGET), ("list",), ("list", "--format", "markdown")])
def test_matrix_with_control_characters_is_refused(
    words: tuple[str, ...], imgbuild: Command, sample: SampleProject
) -> None:
    text = sample.matrix.read_text("utf-8")
    old = next(line for line in text.splitlines() if "summary:" in line)
    new = old.partition("summary:")[0] + r'summary: "\e]0;title\a\e[2J\u202eevil\x9b2J"'
    sample.matrix.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = imgbuild(*words, status=2)
    assert "the text has control characters" in done.stderr
    for sign in ("\x1b", "\x07", "\u202e", "\x9b"):
        assert sign not in done.stderr + done.stdout


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_error_about_a_lock_escapes_control_characters(
    words: tuple[str, ...], imgbuild: Command, sample: SampleProject
) -> None:
    path = Path("images", TARGET, "lock.json")
    document = json.loads(path.read_text("utf-8"))
    document["settings"]["cache"] = "/c\x1b[2J\x9b\u202e"
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    done = imgbuild("show", TARGET, "--layers", *words, status=2)
    assert "lock.json: settings.cache: the text does not" in done.stderr
    assert r"/c\x1b[2J\x9b\u202e" in done.stderr
    for sign in ("\x1b", "\u202e", "\x9b"):
        assert sign not in done.stderr + done.stdout
