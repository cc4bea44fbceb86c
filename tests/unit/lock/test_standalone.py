"""Tests the content and staleness of locks with a standalone Python, and refused values."""

from __future__ import annotations

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.lock import locked_matrix
from imgbuild.lock.lock_file import Lock, decode_lock, matrix_differences
from imgbuild.matrix.model import DebianBase, StandalonePython
from imgbuild.plan.plan import PythonRecipe, VenvRecipe, base_plan, create_plan
from imgbuild.values import Arch
from tests.support import samples, standalone_matrix
from tests.support.rows import each_row
from tests.support.standalone_matrix import ARCHIVES, archive

X86 = Arch.X86_64


def source(**changes: object) -> StandalonePython:
    fields = {"version": "3.12", "origin": "standalone", "archives": ARCHIVES, **changes}
    return StandalonePython(**fields)  # type: ignore[arg-type]


def with_python(lock: Lock, **changes: object) -> Lock:
    """`lock` with another archive on x86_64."""
    python = msgspec.structs.replace(archive(), **changes)
    resolution = msgspec.structs.replace(lock.arch[X86], python=python)
    return msgspec.structs.replace(lock, arch={**lock.arch, X86: resolution})


def test_lock_with_the_python_of_debian_has_no_standalone_key():
    text = codec.encode(samples.lock()).decode()
    assert "standalone" not in text
    assert '"python": {' not in text


def test_interpreter_of_a_standalone_python_is_in_its_archive_folder():
    lock = standalone_matrix.lock()
    assert lock.base.interpreter == "/opt/python/bin/python3.12"
    assert lock.base.standalone == ARCHIVES
    assert lock.settings.labels["dev.imgbuild.python"] == "3.12"
    assert decode_lock(codec.encode(lock), "lock.json", hint="", remedy="") == lock


def test_standalone_python_layer_is_between_base_and_environment():
    planned = create_plan(standalone_matrix.lock(), X86)
    assert [layer.name for layer in planned.layers[:3]] == ["debian-12", "python", "venv"]
    python, venv = (layer.recipe for layer in planned.layers[1:3])
    assert isinstance(python, PythonRecipe)
    assert isinstance(venv, VenvRecipe)
    assert python.inputs == (archive(),)
    assert (venv.interpreter, venv.python) == ("/opt/python/bin/python3.12", "3.12")
    assert [layer.name for layer in base_plan(planned).layers] == ["debian-12", "python"]


def test_base_of_an_image_without_a_path_variable_has_system_folders():
    planned = create_plan(standalone_matrix.lock(), X86)
    env = tuple(item for item in planned.config.env if not item.startswith("PATH="))
    config = msgspec.structs.replace(planned.config, env=env)
    base = base_plan(msgspec.structs.replace(planned, config=config))
    assert "PATH=/usr/local/bin:/usr/bin:/bin" in base.config.env


def test_standalone_python_layer_depends_only_on_its_archive():
    lock = standalone_matrix.lock()
    python = create_plan(lock, X86).layers[1].id
    renamed = with_python(lock, file="another-name.tar.gz")
    other = with_python(lock, sha256="0" * 64)
    assert create_plan(renamed, X86).layers[1].id == python
    assert create_plan(other, X86).layers[1].id != python


def test_changed_url_release_or_checksum_of_python_makes_the_lock_stale():
    lock = standalone_matrix.lock()
    assert matrix_differences(lock, standalone_matrix.matrix()) == ()
    right = {X86: archive().sha256}
    assert matrix_differences(lock, standalone_matrix.matrix(source(sha256=right))) == ()
    (line,) = matrix_differences(lock, standalone_matrix.matrix(source(sha256={X86: "0" * 64})))
    assert line.startswith(f"x86_64: {archive().file} is locked with sha256 {archive().sha256}")
    moved = {**ARCHIVES, X86: "https://mirror.example/python.tar.gz"}
    (line,) = matrix_differences(lock, standalone_matrix.matrix(source(archives=moved)))
    assert line.startswith("base.standalone.x86_64: ")
    assert any(
        line.startswith("base.python: ")
        for line in matrix_differences(lock, standalone_matrix.matrix(source(version="3.13")))
    )


def test_change_of_the_python_source_makes_the_lock_stale():
    assert any(
        "standalone" in line
        for line in matrix_differences(standalone_matrix.lock(), samples.matrix())
    )
    lines = matrix_differences(samples.lock(), standalone_matrix.matrix())
    assert "x86_64: the Python archive is not locked" in lines


def test_matrix_made_from_a_lock_has_the_checksums_of_the_archives():
    base = locked_matrix.base_from_lock(standalone_matrix.lock(), ())
    assert isinstance(base, DebianBase)
    assert base.standalone_python == source(sha256={X86: archive().sha256})
    assert base.python == "3.12"


@each_row(
    ("path", "value", "place"),
    [
        (("base", "interpreter"), "/usr/bin/python3.12", "base.interpreter"),
        (("base", "standalone", "x86_64"), "file:///etc/passwd", "base.standalone"),
        (("base", "standalone", "x86_64"), "https://a:b@host/x.tar.gz", "base.standalone"),
        (("arch", "x86_64", "python", "version"), "3.11.2", "arch.x86_64.python.version"),
        (("arch", "x86_64", "python", "version"), "3.12.1; x", "arch.x86_64.python"),
        (("arch", "x86_64", "python", "file"), "../x", "arch.x86_64.python"),
        (("arch", "x86_64", "python"), None, "arch.x86_64.python"),
    ],
)
def test_lock_with_an_inconsistent_standalone_python_is_refused(path, value, place):
    document = msgspec.json.decode(codec.encode(standalone_matrix.lock()))
    part = document
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    with pytest.raises(InputError) as caught:
        decode_lock(msgspec.json.encode(document), "lock.json", hint="", remedy="")
    assert any(str(problem.path).startswith(place) for problem in caught.value.problems)
