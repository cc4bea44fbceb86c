"""Tests that findings are read from the cache until a file on which they depend changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from imgbuild.audit.checks import calls
from imgbuild.audit.code import check
from imgbuild.audit.code.code_files import find_files
from imgbuild.audit.code.finding_cache import reachable_digests
from imgbuild.cache.store import Store
from tests.support import audited
from tests.support.audited_code import BASE

FILES = {
    "helpers.py": "strategy = 'no'\n",
    "train.py": "from helpers import strategy\nfrom base import TrainingArguments\n\n"
    "TrainingArguments('out', evaluation_strategy=strategy)\n",
    "alone.py": "from base import missing\n",
}


class _Code:
    """A folder of user code, and an audit that records which modules it checks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "code"
        self.folder.mkdir()
        self.store = Store.open(folder / "cache")
        self.packages = audited.package_set(folder, {"base==4.0": {"base.py": BASE}})
        self.checked: list[str] = []
        original = calls.check_calls

        def _recording(package_set: object, path: object, rules: object) -> object:
            self.checked += path.modules()  # type: ignore[attr-defined]
            return original(package_set, path, rules)  # type: ignore[arg-type]

        monkeypatch.setattr(calls, "check_calls", _recording)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def audit(self, key: str = "set") -> tuple[Sequence[str], Sequence[str]]:
        """The modules that were checked, and the findings."""
        self.checked.clear()
        checked = check.check_code(
            self.packages, find_files([self.folder]), self.store, key=key
        ).findings
        return sorted(self.checked), [f"{Path(each.file).name} {each.code}" for each in checked]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Code:
    return _Code(tmp_path, monkeypatch)


def test_audit_of_code_does_not_check_unchanged_files_again(code: _Code) -> None:
    first = code.audit()
    assert first == (["alone", "helpers", "train"], ["alone.py IMG101", "train.py IMG102"])
    assert code.audit() == ([], first[1])


def test_file_is_checked_again_if_a_module_it_uses_changes(code: _Code) -> None:
    code.audit()
    code.write("helpers.py", "from base import missing\n\nstrategy = 'no'\n")
    checked, findings = code.audit()
    assert checked == ["helpers", "train"]
    assert findings == ["alone.py IMG101", "helpers.py IMG101", "train.py IMG102"]


def test_change_of_a_function_body_rechecks_only_its_file(code: _Code) -> None:
    code.write("helpers.py", "def start(path):\n    return path\n")
    code.write("train.py", "from helpers import start\n\nstart('x')\n")
    code.audit()
    code.write("helpers.py", "# New\ndef start(path):\n    return len(path)\n")
    assert code.audit()[0] == ["helpers"]
    code.write("helpers.py", "def start(path, mode=None):\n    return len(path)\n")
    assert code.audit()[0] == ["helpers", "train"]


def test_change_of_a_function_rechecks_files_that_call_it_in_conditions(code: _Code) -> None:
    code.write("helpers.py", "def is_base_available():\n    return False\n")
    condition = "    if is_base_available():\n        from base import missing\n"
    code.write("train.py", f"from helpers import is_base_available\n\ndef run():\n{condition}")
    assert code.audit()[1] == ["alone.py IMG101"]
    code.write("helpers.py", "def is_base_available():\n    return True\n")
    assert code.audit() == (["helpers", "train"], ["alone.py IMG101", "train.py IMG101"])


def test_unrelated_changes_keep_cached_findings(code: _Code) -> None:
    code.audit()
    code.write("alone.py", "")
    assert code.audit() == (["alone"], ["train.py IMG102"])


def test_new_file_resolves_a_failed_import_of_another_file(code: _Code) -> None:
    code.write("train.py", "import later\n")
    assert code.audit()[1] == ["alone.py IMG101", "train.py IMG101"]
    code.write("later.py", "")
    assert code.audit()[1] == ["alone.py IMG101"]


def test_cached_findings_are_separate_for_each_package_set(code: _Code) -> None:
    code.audit()
    assert code.audit("other")[0] == ["alone", "helpers", "train"]


def test_modules_of_an_import_cycle_have_the_same_digest() -> None:
    uses = {"a": ["b"], "b": ["a", "c"], "c": [], "d": ["a"], "e": []}
    content = {name: name.upper() for name in uses}
    first = reachable_digests(content, uses)
    assert first["a"] == first["b"] != first["d"]
    changed = reachable_digests(content | {"c": "other"}, uses)
    assert {name for name in uses if first[name] != changed[name]} == {"a", "b", "c", "d"}
    alone = reachable_digests(content | {"d": "other"}, uses)
    assert {name for name in uses if first[name] != alone[name]} == {"d"}


def test_circular_links_are_not_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import base\n", encoding="utf-8")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "broken.py").symlink_to("absent.py")
    assert [Path(text.file).name for text in find_files([tmp_path])] == ["train.py"]
