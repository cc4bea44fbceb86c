"""Bytecode that was compiled ahead: the wheel, what differs between two, and the row that uses it.

What two compilations wrote is made here by the compiler itself, in this process.
"""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path

import msgspec
import pytest
import yaml

from imgbuild.cli.precompile import _imports, _report
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock
from imgbuild.matrix.model import Target, Variable
from imgbuild.precompile import bytecode, pack
from imgbuild.precompile.bytecode import Bytecode, LeftOut, UnstableFile
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from imgbuild.wheel import archive as wheels
from imgbuild.wheel import install
from tests.support import samples

SITE = "opt/venv/lib/python3.11/site-packages"
TEXT = "WORDS = {'one', 'two'}\n" + "def f(): return 'a text'\n" * 20


def lock() -> Lock:
    return samples.lock()


def target() -> Target:
    return samples.matrix().targets["small"]


def tree(folder: Path, **sources: str) -> dict[str, Path]:
    """What compiling `sources`, modules by name, leaves in `folder`."""
    place = folder / SITE
    place.mkdir(parents=True)
    for name, text in sources.items():
        code = marshal.dumps(compile(text, f"/{SITE}/{name}.py", "exec"))
        head = importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + bytes(8)
        (place / f"{name}.cpython-311.pyc").write_bytes(head + code)
    return bytecode.compiled(folder)


def made(tmp_path: Path, files: dict[str, Path], out: str = "out") -> Bytecode:
    return bytecode.packed(lock(), Arch.X86_64, files, (), (), ["one"], tmp_path / out)


def test_the_wheel_is_the_tree_that_python_looks_into(tmp_path):
    files = tree(tmp_path / "tree", one=TEXT, other="VALUE = 1\n")
    said = made(tmp_path, files)
    assert said.file == f"imgbuild_bytecode-{said.version}-cp311-none-any.whl"
    assert (said.modules, said.imports, said.python) == (2, ("one",), "3.11")
    wheel = tmp_path / "out" / said.file
    assert (sha256(wheel.read_bytes()), wheel.stat().st_size) == (said.sha256, said.size)
    assert said.size < said.unpacked  # compressed
    wheels.verify(wheels.read(wheel))  # as when it is locked
    members = install.installed(wheel, prefix="/opt/venv", python="3.11")
    paths = {member.path for member in members if member.path.endswith(".pyc")}
    assert paths == {
        f"opt/venv/bytecode/{SITE}/one.cpython-311.pyc",
        f"opt/venv/bytecode/{SITE}/other.cpython-311.pyc",
    }
    assert {member.mode for member in members} == {0o644}
    assert [path.name for path in (tmp_path / "out").iterdir()] == [said.file]


def test_where_python_looks_is_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.pycache_prefix", f"/opt/venv/{bytecode.FOLDER}")
    asked = importlib.util.cache_from_source(f"/{SITE}/one.py", optimization="")
    (found,) = tree(tmp_path, one=TEXT)
    assert Path(asked).parent == Path(f"/opt/venv/bytecode/{found}").parent
    assert Path(asked).name.partition(".")[0] == "one"


def test_the_same_bytecode_is_the_same_wheel(tmp_path):
    one = made(tmp_path, tree(tmp_path / "one", a=TEXT, b="B = 1\n"))
    files = tree(tmp_path / "again", b="B = 1\n", a=TEXT)
    again = made(tmp_path, dict(reversed(files.items())), "again")
    assert again == one
    other = made(tmp_path, tree(tmp_path / "other", a=TEXT, b="B = 2\n"), "other")
    assert other.version != one.version
    renamed = made(tmp_path, tree(tmp_path / "renamed", a=TEXT, c="B = 1\n"), "renamed")
    assert renamed.version not in (one.version, other.version)


def test_no_bytecode_is_no_wheel(tmp_path):
    with pytest.raises(InputError, match="no module was compiled"):
        made(tmp_path, {})
    assert not (tmp_path / "out").exists()


def test_files_that_two_compilations_wrote_differently_are_named(tmp_path):
    one = tree(tmp_path / "one", same=TEXT, number="VALUE = 1000\n", gone="")
    other = tree(tmp_path / "other", same=TEXT, number="VALUE = 1001\n", come="")
    sizes = {path: place.stat().st_size for path, place in (one | other).items()}
    gone, come = f"{SITE}/gone.cpython-311.pyc", f"{SITE}/come.cpython-311.pyc"
    assert bytecode.differing(one, other) == (
        UnstableFile(path=come, bytes=sizes[come]),
        UnstableFile(path=gone, bytes=sizes[gone]),
        UnstableFile(path=f"{SITE}/number.cpython-311.pyc", bytes=1),
    )
    assert bytecode.differing(one, one) == ()


def test_the_row_adds_to_what_its_target_has(tmp_path):
    said = made(tmp_path, tree(tmp_path / "tree", one=TEXT))
    own = Variable(value="a: 'b'", reason='it has "quotes"')
    row = msgspec.structs.replace(target(), env={"OWN": own}, indexes={"torch": "pytorch"})
    found = yaml.safe_load(pack.row(said, row))
    assert list(found) == ["small-fast"]
    entry = msgspec.convert(
        {**msgspec.to_builtins(row), **found["small-fast"]}, Target, strict=False
    )
    assert entry.pins == {**row.pins, "imgbuild-bytecode": said.version}
    assert entry.indexes == {"torch": "pytorch", "imgbuild-bytecode": "wheels"}
    assert entry.env["OWN"] == own
    assert entry.env["PYTHONPYCACHEPREFIX"].value == "/opt/venv/bytecode"


def test_what_was_left_out_and_what_differs_is_told(tmp_path, capsys):
    differs = tuple(UnstableFile(path=f"m{number}.pyc", bytes=number) for number in range(1, 8))
    left = (LeftOut(path="/a.py", reason="SyntaxError: x"), LeftOut(path="/b.py", reason="y"))
    files = tree(tmp_path / "tree", one=TEXT)
    said = bytecode.packed(lock(), Arch.X86_64, files, differs, left, [], tmp_path / "out")
    console.configure(verbosity=0, json=False)
    _report(said)
    result = " ".join(capsys.readouterr().err.split())
    assert "2 files left out, because of syntax errors, such as /a.py (SyntaxError: x)" in result
    assert "m1.pyc: two compilations differ in 1 bytes" in result
    assert "m6.pyc" not in result
    assert "2 more files differ" in result


def test_modules_have_a_form():
    assert _imports(["vllm", "torch.distributed"]) == ("vllm", "torch.distributed")
    for bad in ("", "a-b", "a..b", "os;x", "a."):
        with pytest.raises(InputError, match="not a module name"):
            _imports([bad])


@pytest.mark.parametrize(("machine", "word"), [("x86_64", "imgbuild run"), ("aarch64", "emulator")])
def test_another_architecture_has_a_remedy_of_its_own(machine, word, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert word in bytecode._hint(lock(), Arch.X86_64)
