"""Tests that types are analyzed in one thread at a time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import imgbuild

CLASSES = 40
# Each class refers to others, so that msgspec analyzes all of them at the first use of one.
MODULE = "from __future__ import annotations\nimport msgspec\n" + "".join(
    f"class S{n}(msgspec.Struct):\n"
    + "".join(f"    f{field}: int | str | None = None\n" for field in range(10))
    + f"    next: S{(n + 1) % CLASSES} | None = None\n"
    f"    other: dict[str, S{n * 7 % CLASSES}] | None = None\n"
    for n in range(CLASSES)
)
PROGRAM = """
import sys
import threading
import msgspec
import structs
from imgbuild.system import decoding

sys.setswitchinterval(1e-7)
barrier = threading.Barrier(8)
data = msgspec.msgpack.encode(
    {"f1": 1, "next": {"f2": "x", "next": {"f3": 3, "next": {}}}, "other": {"a": {"f4": 1}}}
)

def decode_all(first):
    barrier.wait()
    for number in range(COUNT):
        kind = getattr(structs, f"S{(number + first) % COUNT}")
        assert type(decoding.decode_msgpack(data, kind).next) is not dict

threads = [threading.Thread(target=decode_all, args=(number * 5,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("decoded")
"""


def test_types_can_be_used_first_in_several_threads(tmp_path: Path) -> None:
    (tmp_path / "structs.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(PROGRAM.replace("COUNT", str(CLASSES)))
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("decoded\n", 0), done.stderr


def test_modules_do_not_pass_types_to_msgspec_directly() -> None:
    root = Path(imgbuild.__file__).parent
    calls = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        if path.name != "decoding.py" and "msgspec" in (source := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
        and node.keywords
    ]
    assert calls == []
