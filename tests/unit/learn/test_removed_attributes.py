"""Tests findings about removed attributes of classes with __getattr__."""

from imgbuild.audit.main_path.closure import main_path
from imgbuild.learn.removed_attributes import check_removed_attributes, defines_name, union_parts
from imgbuild.report import ConflictRelation, Severity
from tests.support import release_index
from tests.support.local_index import LocalIndex
from tests.support.rows import each_row

HEAD = {"transformers/__init__.py": "from transformers.base import Base, Fast\n"}
BASE = "class Base:\n{body}\n    def __getattr__(self, key):\n        return self.table[key]\n"
FAST = "class Fast(Base):\n    pass\n"
OLD = BASE.format(body="    @property\n    def extended(self):\n        return []\n") + FAST
GONE = BASE.format(body="    kept = 1\n") + FAST
TABLED = BASE.format(body="    NAMES = ['extended']\n") + FAST
READER = (
    "from typing import Union\n"
    "from transformers import Base, Fast\n"
    "Tokenizer = Union[Base, Fast]\n"
    "class LLM:\n"
    "    def __init__(self, tokenizer: Tokenizer):\n"
    "        self.words = {expression}\n"
)


def findings(folder, new, expression="tokenizer.extended", first="4.0.0"):
    index = LocalIndex()
    release_index.publish_releases(
        index,
        "transformers",
        {
            first: {**HEAD, "transformers/base.py": OLD},
            "5.0.0": {**HEAD, "transformers/base.py": new},
        },
        year=2024 if first == "4.0.0" else 2026,
    )
    vllm = {"vllm/__init__.py": READER.format(expression=expression)}
    index.wheel(
        "vllm",
        "0.8.5",
        files={path: text.encode() for path, text in vllm.items()},
        uploaded="2024-01-20T00:00:00Z",
    )
    with release_index.release_catalogue(folder, index) as (release_catalogue, _):
        releases = {
            name: release_catalogue.package_releases(name)[-1] for name in ("vllm", "transformers")
        }
        package_set = release_catalogue.create_package_set(releases)
        return check_removed_attributes(
            package_set, main_path(package_set), lambda: release_catalogue
        )


def test_attribute_removed_after_the_release_of_its_reader_is_an_error(tmp_path):
    (finding,) = findings(tmp_path, GONE)
    assert finding.severity is Severity.ERROR
    assert finding.evidence is not None
    assert finding.evidence.relation is ConflictRelation.ATTRIBUTE
    assert (finding.evidence.file, finding.evidence.line) == ("vllm/__init__.py", 6)
    assert finding.evidence.subject == "transformers.Base.extended"
    assert (finding.evidence.other, finding.evidence.other_version) == ("transformers", "5.0.0")


@each_row(
    ("new", "expression"),
    [
        (TABLED, "tokenizer.extended"),  # the word occurs: `__getattr__` may provide it
        (OLD, "tokenizer.extended"),
        (GONE, "tokenizer.never"),  # it never existed: set by other code
        (GONE, "getattr(tokenizer, 'extended', None)"),
    ],
)
def test_attribute_that_may_be_dynamic_is_not_an_error(tmp_path, new, expression):
    assert findings(tmp_path, new, expression) == []


def test_reader_that_is_older_than_all_releases_has_no_finding(tmp_path):
    assert findings(tmp_path, GONE, first="4.9.0") == []


@each_row(
    ("text", "expected"),
    [
        ("Union[A, b.B[C, D]]", ["A", "b.B[C, D]"]),
        ("typing.Optional['A']", ["A"]),
        ("A | B | None", ["A", "B"]),
        ('"A | B"', ["A", "B"]),
        ("list[A]", ["list[A]"]),
        ("", []),
    ],
)
def test_members_of_a_union_annotation_are_read(text, expected):
    assert union_parts(text) == expected


@each_row(
    ("source", "expected"),
    [
        (b"class A:\n    def name(self): pass\n", True),
        (b"name = 1\n", True),
        (b"rename = 1\nself.name: int\n", True),
        (b"setattr(a, 'name', 1)\n", True),
        (b"def name2(): pass\nrename = 1\nnames = 2\na.name()\n", False),
        (b"", False),
    ],
)
def test_definitions_of_an_attribute_are_found(source, expected):
    assert defines_name(source, "name") is expected
