"""Tests that the names recorded for a published target suffice for audits of its extensions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import looked_up_names
from imgbuild.assemble.inputs import Inputs
from imgbuild.audit.judge import AuditTerms, audit_package_set
from imgbuild.audit.main_path.additions import main_path_of_additions
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.audit.packages import queried
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.published import NAMES, PublishedFacts
from imgbuild.audit.packages.queried import is_independent, package_set_key
from imgbuild.cache.context import Context
from imgbuild.cache.facts_file import FactsFile, installed_facts, replace_entry, write_facts
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import read_lock
from imgbuild.lock.resolution import installed_wheels
from imgbuild.report import Severity
from imgbuild.system import files
from imgbuild.values import Arch
from tests.support import audited
from tests.support.rows import each_row
from tests.unit.pipeline.test_audit_lock import audited_folder

TRL = """\
from importlib.util import find_spec
from importlib.metadata import version
import importlib
from transformers import Model
try:
    import speedy
except ImportError:
    speedy = None
if find_spec("tracker") is not None:
    from tracker import Client
class GRPOTrainer:
    def __init__(self): self.model = Model(); self.train()
    def train(self):
        import old_name
        if find_spec("plotter"):
            import plotter
            plotter.draw(wide=True)
"""
PUBLISHED: dict[str, audited.Files] = {
    "trl==1.0": {"trl/__init__.py": TRL},
    "transformers==5.0": {
        "transformers/__init__.py": "class Model:\n    def __init__(self, size=1): ...\n",
        "transformers/late.py": "import not_installed\n",
        "transformers/rare.py": "from transformers import Removed\n",
    },
    "old-name==1.0": {"old_name.py": "", "old/part.py": ""},
}
READABLE = ("imports", "calls", "support", "metadata")


def names(folder: Path) -> PublishedFacts:
    """The facts file of the published packages: the names that their audit looks up."""
    package_set = audited.package_set(folder, PUBLISHED, kind=looked_up_names.RecordingPackageSet)
    looked_up = looked_up_names.names_looked_up_by_audit(
        package_set, AuditTerms(target="published")
    )
    wheels = [library_wheel.wheel for library_wheel in package_set.wheels.values()]
    key = package_set_key(wheels, "3.11", Arch.X86_64, "2.36")
    path = folder / "facts.zip"
    write_facts(path, {NAMES: msgspec.msgpack.encode({key: looked_up})})
    return PublishedFacts(FactsFile.open(path))


def errors(package_set: PackageSet, named: tuple[str, ...], known: PublishedFacts) -> list[str]:
    """The errors of the audit, after a comparison with an audit of all entry points."""
    published = [name.partition("==")[0] for name in PUBLISHED]
    found = []
    for path in (
        main_path_of_additions(package_set, named, (), published, known),
        main_path(package_set, add_named_packages(package_set, named)),
    ):
        terms = AuditTerms(named=named)
        report = audit_package_set(
            package_set, terms, path=path, checks=READABLE, published=published
        )
        found.append([each.message for each in report.findings if each.severity is Severity.ERROR])
    assert found[0] == found[1]
    return found[0]


@each_row(
    ("name", "files", "independent", "error"),
    [
        ("tabular", {"tabular.py": "VALUE = 1\n"}, True, ""),
        ("broken", {"broken.py": "from transformers import Gone\n"}, True, "imports Gone"),
        ("caller", {"caller.py": "from transformers import Model\nMODEL = Model(width=2)\n"},
         True, "passes width= to"),
        ("indirect", {"indirect.py": "import transformers.late\n"}, True, "imports not_installed"),
        ("inner", {"inner.py": "import transformers.rare\n"}, True, ""),
        ("tracker", {"tracker.py": "class Other: ...\n"}, False, "imports Client from tracker"),
        ("plotter", {"plotter.py": "def draw(high): ...\n"}, False, ""),
        ("speedy", {"speedy.py": ""}, False, ""),
        # Its name is not looked up, but its module is.
        ("other-tracker", {"tracker.py": "class Other: ...\n"}, False, "imports Client"),
        ("shadow", {"transformers/__init__.py": "", "shadow.py": ""}, False,
         "imports Model from transformers, but shadow 1.0 does not define it"),
        ("a-shadow", {"old_name/part.py": ""}, False, ""),
    ],
)  # fmt: skip
def test_audit_of_an_extension_finds_the_errors_of_a_complete_audit(
    tmp_path: Path, name: str, files: dict[str, str], independent: bool, error: str
) -> None:
    known = names(tmp_path / "published")
    package_set = audited.package_set(tmp_path / "ours", {**PUBLISHED, f"{name}==1.0": files})
    published = [each.partition("==")[0] for each in PUBLISHED]
    assert is_independent(package_set, published, known) is independent
    found = errors(package_set, (name,), known)
    assert [error in message for message in found] == [True] * bool(error), found


def test_audit_of_additions_reads_no_modules_of_published_packages(tmp_path: Path) -> None:
    known = names(tmp_path / "published")
    package_set = audited.package_set(tmp_path / "ours", {**PUBLISHED, "tabular==1.0": {
        "tabular.py": "import json\n"}})  # fmt: skip
    published = [each.partition("==")[0] for each in PUBLISHED]
    path = main_path_of_additions(package_set, ("tabular",), (), published, known)
    assert path.modules() == ["tabular"]
    whole = main_path(package_set, add_named_packages(package_set, ("tabular",)))
    assert {"trl", "transformers"} < set(whole.modules())


def test_changed_published_packages_are_audited_completely(tmp_path: Path) -> None:
    known = names(tmp_path / "published")
    published = [each.partition("==")[0] for each in PUBLISHED]
    changed: dict[str, audited.Files] = {**PUBLISHED, "trl==1.0": {"trl/__init__.py": TRL + "\n"}}
    for packages in (changed, {"trl==1.0": PUBLISHED["trl==1.0"]}):
        package_set = audited.package_set(tmp_path / str(len(packages)), packages)
        assert not is_independent(package_set, published, known)
    assert is_independent(audited.package_set(tmp_path / "same", PUBLISHED), published, known)
    arm64 = audited.package_set(tmp_path / "arm64", PUBLISHED, arch=Arch.ARM64)
    assert not is_independent(arm64, published, known)


def test_names_looked_up_in_an_audit_with_errors_are_not_recorded(tmp_path: Path) -> None:
    packages: dict[str, audited.Files] = {
        **PUBLISHED, "transformers==5.0": {"transformers/__init__.py": "import not_installed\n"}
    }  # fmt: skip
    package_set = audited.package_set(tmp_path, packages, kind=looked_up_names.RecordingPackageSet)
    with pytest.raises(ValueError, match="imports not_installed, which no package"):
        looked_up_names.names_looked_up_by_audit(package_set, AuditTerms(target="published"))


def test_names_looked_up_for_a_lock_are_added_to_the_facts_file(tmp_path: Path) -> None:
    matrix, lock, resolution = audited_folder(tmp_path)
    inputs = Inputs(matrix, Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1)))
    key, looked_up = looked_up_names.names_looked_up(lock, Arch.X86_64, inputs)
    assert key == package_set_key(resolution.wheels, lock.base.python, "x86_64", lock.base.glibc)
    assert {"trl", "vllm", "deepspeed"} <= set(looked_up)
    path = tmp_path / "facts.zip"
    write_facts(path, {"other": b"1", NAMES: msgspec.msgpack.encode({"0": ("a",)})})
    replace_entry(path, NAMES, msgspec.msgpack.encode({key: looked_up}))
    file = FactsFile.open(path)
    assert file.entry("other") == b"1"
    known = PublishedFacts(file)
    assert known.names(key) == frozenset(looked_up)
    assert known.names("0") is None


def test_bundled_facts_have_the_names_looked_up_for_a_locked_target() -> None:
    """If this test fails after a change of entry points, run `tools/facts.py --names`."""
    lock = read_lock(Path(__file__).parents[3] / "images", "cu124-vllm")
    known = PublishedFacts(installed_facts())
    key = package_set_key(
        installed_wheels(lock.arch[Arch.X86_64]), "3.11.2", Arch.X86_64, lock.base.glibc
    )
    assert known.names(key)


def test_reasons_of_entry_points_do_not_change_keys_of_looked_up_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audit").mkdir()
    file = tmp_path / "audit/entry_points.yaml"
    monkeypatch.setattr(files, "data", lambda name: tmp_path / name)
    found = []
    for text in ("{name: trl.A, why: a}", "{name: trl.A, why: b}", "{name: trl.B, why: a}"):
        file.write_text(f"walk: [trl]\nentries:\n  - {text}\n")
        queried.entry_points.cache_clear()
        found.append(queried.entry_points())
    queried.entry_points.cache_clear()
    assert found[0] == found[1] != found[2]
