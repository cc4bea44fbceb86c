"""Tests that the committed Dockerfiles and bake file of this repository are current."""

import json
import re
from pathlib import Path

from imgbuild.lock import lock_file
from imgbuild.matrix import project_paths
from imgbuild.matrix.load import load_matrix
from imgbuild.render import bake, write
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
LOCAL = {"oci-layout://", "container-image://"}  # contexts of this machine
COMMITTED = sorted((ROOT / "images").glob("*/Dockerfile"))


def test_committed_dockerfiles_are_current():
    project = project_paths.find_project(ROOT)
    matrix = load_matrix(project.matrix)
    chosen = [lock_file.read_lock(project.images, name) for name in project.locked_targets()]
    assert chosen
    write.check_committed(project, matrix, chosen)


@each_row("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_dockerfiles_require_neither_registry_nor_new_engine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"^# *(syntax|escape|check) *=", text, re.MULTILINE)
    assert "<<" not in text
    assert set(re.findall(r"\S*://", text.replace("base=", " "))) <= LOCAL
    assert not re.search(r"^RUN .*--(network|security)", text, re.MULTILINE)
    assert not re.search(r"^(COPY|ADD) .*--(chmod|link|parents|checksum)", text, re.MULTILINE)
    assert re.search(r"^USER 1000:1000$", text, re.MULTILINE)


def test_exceptions_of_the_dockerfile_linter_have_reasons():
    for path in COMMITTED:
        text = path.read_text(encoding="utf-8")
        ignored = re.findall(r"^# hadolint ignore=(.+)$", text, re.MULTILINE)
        assert ignored
        assert all(re.fullmatch(r"DL\d+  # .{8,}", exception) for exception in ignored)


def test_docker_bake_file_lists_every_dockerfile():
    document = json.loads((ROOT / bake.FILE).read_bytes())
    contexts = {target["context"] for target in document["target"].values()}
    assert contexts == {f"images/{path.parent.name}" for path in COMMITTED}
    assert sorted(document["target"]) == document["group"]["default"]["targets"]
