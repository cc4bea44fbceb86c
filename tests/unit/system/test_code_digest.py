"""The digest of code covers all that it imports, and nothing else."""

import shutil
from importlib import resources
from pathlib import Path

import pytest

import imgbuild
from imgbuild.system.code_digest import closure, code_digest, digest_in
from tests.support.source_code import modules, own_imports

PACKAGE = Path(imgbuild.__file__).parent
AUDIT = "imgbuild.pipeline.audit_lock"
HERE = (3, 11)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("code") / "imgbuild"
    ignored = shutil.ignore_patterns("__pycache__", "smoke_tests", "templates")
    shutil.copytree(PACKAGE, root, ignore=ignored)
    return root


def test_the_closure_is_what_the_syntax_trees_import():
    known = modules()
    expected, waiting = set(), [AUDIT.partition(".")[2]]
    while waiting:
        name = waiting.pop()
        if name not in expected:
            expected.add(name)
            waiting += own_imports(name, known)
    found = {name for name in closure(PACKAGE, AUDIT) if name.endswith(".py")}
    named = {name.removesuffix(".py").removesuffix("__init__").strip("/") for name in found}
    # The `__init__` of each package on the way is read, too: a docstring.
    assert {name.replace("/", ".") for name in named} >= expected
    packages = {name.replace("/", ".") for name in named} - expected
    assert all(len(known[name].body) == 1 for name in packages)  # a docstring


@pytest.mark.parametrize(
    "name",
    [
        "pipeline/audit_lock.py",
        "report.py",
        "audit/checks/imports.py",
        "audit/source/facts.py",
        "data/audit/rules.yaml",
    ],
)
def test_each_file_of_the_closure_changes_the_digest(copy, name):
    before = digest_in(copy, AUDIT, HERE)
    text = (copy / name).read_bytes()
    (copy / name).write_bytes(text + b"\n")
    assert digest_in(copy, AUDIT, HERE) != before
    (copy / name).write_bytes(text)
    assert digest_in(copy, AUDIT, HERE) == before


def test_other_code_does_not_change_it(copy):
    before = digest_in(copy, AUDIT, HERE)
    (copy / "cli" / "build.py").write_text("")
    assert digest_in(copy, AUDIT, HERE) == before


def test_the_version_of_python_changes_it():
    root = resources.files("imgbuild")
    assert digest_in(root, AUDIT, (3, 99)) != digest_in(root, AUDIT, HERE)


def test_a_module_has_one_digest():
    assert (
        code_digest(AUDIT) == code_digest(AUDIT) != code_digest("imgbuild.audit.packages.reading")
    )
    assert len(code_digest(AUDIT)) == 64
