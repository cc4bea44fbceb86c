"""Compares the facts of small wheels with a golden file: changes invalidate published facts.

If a reader gives a different result for the same bytes, raise `FORMAT` in `cache/facts_file.py`,
generate the facts again with `make facts`, and update the golden file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.published import decode_elf_facts, elf_lists, metadata_headers
from imgbuild.audit.source.facts import FACTS_FORMAT
from imgbuild.cache.facts_file import FORMAT
from imgbuild.cache.store import Store
from tests.support import audited

DATA = Path(__file__).parents[3] / "data/facts"
METADATA = """\
Requires-Dist: other>=2; extra == "more"
Requires-Dist: third
Requires-Python: >=3.10
Provides-Extra: more
"""
FILES: audited.Files = {
    "demo/__init__.py": """\
import importlib
from typing import TYPE_CHECKING
from demo.classes import Base as Base
try:
    import fast
except ImportError:
    fast = None
if TYPE_CHECKING:
    from other import Thing
__all__ = ["Base", "one"] + ["lazy"]
_import_structure = {"demo.lazy": ["lazy"]}
def __getattr__(name):
    if name in _import_structure["demo.lazy"]:
        return getattr(importlib.import_module("demo.lazy"), name)
    raise AttributeError(name)
""",
    "demo/classes.py": """\
import dataclasses
import sys
import other
from packaging.version import Version
if Version(other.__version__) < Version("2.0"):
    raise ImportError("other>=2.0 is required")
if sys.version_info >= (3, 12):
    import new_module
@dataclasses.dataclass
class Settings:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
class Base(other.Thing, metaclass=other.Meta):
    def __init__(self, model: other.Model, *args, size=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.model = model
        self.engine = other.Engine(size=size, **{"a": 1})
    def run(self, prompt, /, *, times: int) -> str:
        return self.model.generate(prompt, times=times, last=self.engine.last)
def is_ready():
    return other.is_available() and hasattr(other, "ready")
""",
    "demo/lazy.py": "import demo\nsys_modules = {}\ndef lazy(): return demo.classes.Base('a')\n",
    "demo/_lib.so": (DATA / "libdemo.so.1").read_bytes(),  # gcc's, of three functions
    "demo/_c.cpython-311-x86_64-linux-gnu.so": b"no shared object" * 10,
    "demo-1.0.data/purelib/demo_more.py": "x = 1\ndel x\n",
}
REMEDY = "raise FORMAT in cache/facts_file.py, then make facts"


def test_facts_read_from_a_sample_wheel_match_the_golden_facts(
    tmp_path: Path, golden: Callable[[Path, str], None]
) -> None:
    wheel, path = audited.wheel(tmp_path, "demo", "1.0", FILES, metadata=METADATA)
    with Library(Store.open(tmp_path / "cache"), processes=1) as library:
        library_wheel = library.wheel(wheel, path)
        facts = {
            "format": [FORMAT, FACTS_FORMAT],
            "remedy": REMEDY,
            "index": library_wheel.index,
            "modules": {module: library_wheel.module(module) for module in library_wheel.sources},
            "elves": decode_elf_facts(elf_lists([library_wheel.elf_facts()])),
            "imports": library_wheel.imports,
            "mentions": library_wheel.mentioning("demo", "other"),
            "headers": metadata_headers(b"Name: demo\nVersion: 1.0\n\nLong text.\n").decode(),
        }
    text = codec.encode(msgspec.to_builtins(facts)).decode()
    golden(DATA / "demo.json", text)
