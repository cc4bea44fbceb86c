"""Tests that the digest of code covers exactly its imports and the data that it reads."""

import ast
import shutil
from importlib import resources
from pathlib import Path

import pytest

import imgbuild
from imgbuild.pipeline.audit_lock import JUDGING_MODULES
from imgbuild.system.code_digest import code_digest, digest_of_copy, source_closure
from tests.support.source_code import internal_imports, module_imports, package_modules

PACKAGE = Path(imgbuild.__file__).parent
AUDIT = "imgbuild.pipeline.audit_lock"
TABLE = "imgbuild.deb.table"  # reads a folder of data with `files.data`
HERE = (3, 11)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("code") / "imgbuild"
    ignored = shutil.ignore_patterns("__pycache__", "smoke_tests", "templates", "catalogue")
    shutil.copytree(PACKAGE, root, ignore=ignored)
    return root


def key(root, python=HERE):
    """The code-dependent part of an audit's key, for the code at `root`."""
    return digest_of_copy(root, JUDGING_MODULES, python, alone=AUDIT)


@pytest.mark.parametrize(
    "starts", [(AUDIT,), JUDGING_MODULES], ids=["one module", "several modules"]
)
def test_imported_modules_in_a_code_digest_match_the_syntax_trees(starts):
    syntax_trees = package_modules()
    expected, waiting = set(), [start.partition(".")[2] for start in starts]
    while waiting:
        name = waiting.pop()
        if name not in expected:
            expected.add(name)
            waiting += internal_imports(name, syntax_trees)
    closure_files = {
        name
        for name in source_closure(PACKAGE, starts)
        if name.endswith(".py") and not name.startswith("data/")  # programs of images
    }
    named = {name.removesuffix(".py").removesuffix("__init__").strip("/") for name in closure_files}
    # Each package's `__init__` is imported, too: a docstring only.
    assert {name.replace("/", ".") for name in named} >= expected
    packages = {name.replace("/", ".") for name in named} - expected - {""}
    assert all(len(syntax_trees[name].body) == 1 for name in packages)  # a docstring


@pytest.mark.parametrize(
    "name",
    [
        "pipeline/audit_lock.py",
        "report.py",
        "audit/checks/imports.py",
        "audit/packages/base.py",
        "audit/source/facts.py",
        "learn/removed_attributes.py",
        "data/audit/rules.yaml",
    ],
)
def test_cache_key_of_the_audit_depends_on_code_and_data(copy, name):
    before = key(copy)
    text = (copy / name).read_bytes()
    (copy / name).write_bytes(text + b"\n")
    assert key(copy) != before
    (copy / name).write_bytes(text)
    assert key(copy) == before


def test_cache_key_of_the_audit_does_not_depend_on_download_code():
    folders = {name.partition("/")[0] for name in source_closure(PACKAGE, JUDGING_MODULES)}
    assert not folders & {"registry", "http", "container", "assemble", "solve", "plan"}


def test_cache_key_of_the_audit_includes_the_code_of_all_checks():
    used = internal_imports(AUDIT.partition(".")[2], package_modules())
    judging = {name for name in used if name.partition(".")[0] in ("audit", "learn")}
    judging -= {"audit.packages.pinned"}  # only for audits of pins, which are not kept
    closure_names = {
        name.removesuffix(".py").replace("/", ".")
        for name in source_closure(PACKAGE, JUDGING_MODULES)
    }
    assert judging <= closure_names


def test_changed_data_file_changes_the_code_digest(copy):
    file = copy / "data/debian/bookworm.yaml"
    before = digest_of_copy(copy, (TABLE,), HERE)
    text = file.read_bytes()
    file.write_bytes(text + b"\n")
    assert digest_of_copy(copy, (TABLE,), HERE) != before
    file.write_bytes(text)
    assert digest_of_copy(copy, (TABLE,), HERE) == before
    (file.parent / "trixie.yaml").write_text("")
    assert digest_of_copy(copy, (TABLE,), HERE) != before


def test_data_folders_of_modules_are_part_of_the_code_digest():
    """`code_digest` searches the text for calls of `files.data`; this test reads syntax trees."""
    seen = 0
    for name, tree in package_modules().items():
        assert not any(
            place == "imgbuild.system.files.data" for place, _ in module_imports(tree)
        ), name
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for node in (node for node in nodes if ast.unparse(node.func) == "files.data"):
            (argument,) = node.args
            assert isinstance(argument, ast.Constant), name
            folder = f"data/{ast.literal_eval(argument)}"
            assert any(
                path.startswith(folder) for path in source_closure(PACKAGE, [f"imgbuild.{name}"])
            )
            seen += 1
    assert seen >= 3


def test_unrelated_code_does_not_change_the_code_digest(copy):
    before = key(copy)
    for name in ("cli/build.py", "registry/client.py", "assemble/inputs.py"):
        (copy / name).write_text("")
    assert key(copy) == before


def test_python_version_changes_the_code_digest():
    root = resources.files("imgbuild")
    assert key(root, (3, 99)) != key(root, HERE)


def test_code_digest_depends_on_the_set_of_modules():
    digests = {code_digest(AUDIT), code_digest("imgbuild.audit.packages.reading")}
    digests |= {code_digest(*JUDGING_MODULES), code_digest(*JUDGING_MODULES, alone=AUDIT)}
    assert len(digests) == 4
    assert code_digest(AUDIT) in digests
    assert {len(digest) for digest in digests} == {64}
