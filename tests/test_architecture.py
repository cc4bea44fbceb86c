"""Tests that the files and classes named in ARCHITECTURE.md exist."""

import re

from tests.support.rows import each_row
from tests.support.source_code import PACKAGE, ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
TABLE = PAGE.partition("## Where does a change go?")[2].partition("\n## ")[0]
ROWS = [row.strip("| ").split(" | ") for row in TABLE.splitlines() if row.startswith("| ")][2:]
PLACEHOLDERS = re.compile(r"\b(?:VERB|TIER_NAME|NAME)\.py$")


@each_row(("change", "place"), ROWS, ids=[row[0] for row in ROWS])
def test_every_path_in_the_table_of_the_architecture_page_exists(change, place):
    named = re.findall(r"`([\w./]+(?:\.\w+|/))`", place)
    assert named, change
    for path in (PLACEHOLDERS.sub("", name) for name in named):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path


def test_every_identifier_in_the_table_of_the_architecture_page_exists():
    matches = re.findall(r"`([A-Z]\w+)`(?: and `(\w+)`)? in `([\w/]+\.py)`", TABLE)
    assert len(matches) >= 3
    for *names, file in matches:
        text = (PACKAGE / file).read_text()
        for name in filter(None, names):
            assert re.search(rf"^(?:class |def )?{name}\b", text, re.MULTILINE), (name, file)
