"""Tests deriving constraints from findings."""

import pytest

from imgbuild.learn.learn import learn_constraint
from imgbuild.learn.loop import learn_all, nothing_learned_error
from imgbuild.matrix import constraints
from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from imgbuild.values import Arch
from tests.support import release_index
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.rows import each_row

OLD = {"lib/__init__.py": "VERSION = 1\n", "lib/params.py": "class Old: pass\n"}
NEW = {"lib/__init__.py": "VERSION = 2\n", "lib/params.py": "class New: pass\n"}
PLAIN = {"app/__init__.py": "VERSION = 0\n", "app/use.py": "import lib\n"}
USES_OLD = {**PLAIN, "app/use.py": "from lib.params import Old\n"}
USES_NEW = {**PLAIN, "app/use.py": "from lib.params import New\n"}


def package_set(folder, *, pins=None):
    """Ten releases of lib, which changes in 1.6, and of app, which changes in 1.4 and 1.8."""
    index = LocalIndex()
    release_index.publish_releases(
        index, "lib", {f"1.{n}": OLD if n < 6 else NEW for n in range(10)}
    )
    apps = [PLAIN] * 4 + [USES_OLD] * 4 + [USES_NEW] * 4
    release_index.publish_releases(index, "app", {f"1.{n}": files for n, files in enumerate(apps)})
    return release_index.release_catalogue(folder, index, pins=pins)


def finding(
    relation, subject, *, version, other="lib", other_version="", spec="", file="app/use.py", line=1
):
    evidence = Evidence(
        relation=relation,
        package="app",
        version=version,
        file=file,
        line=line,
        other=other,
        other_version=other_version,
        subject=subject,
        spec=spec,
    )
    return Finding(check="imports", severity=Severity.ERROR, message="", evidence=evidence)


def learned_constraint(found, release_catalogue):
    learned = learn_constraint(found, release_catalogue, ())
    assert learned is not None
    return learned


def test_name_removed_in_a_release_sets_an_upper_bound(tmp_path):
    with package_set(tmp_path) as (release_catalogue, site):
        gone = finding(ConflictRelation.NAME, "lib.params:Old", version="1.7", other_version="1.9")
        learned = learned_constraint(gone, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.4,<=1.7", "lib<1.6")
        assert (learned.came, learned.went) == ("", "1.6")
        assert (learned.file, learned.line, learned.name) == ("app/use.py", 1, "lib.params:Old")
        assert (learned.read_in, learned.against) == ("1.7", "1.9")
        assert not learned.missing
        whole = [
            path for _, path, headers in site.requests if ".whl" in path and "Range" not in headers
        ]
        assert whole == []


def test_name_added_in_a_release_sets_a_lower_bound(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        new = finding(ConflictRelation.NAME, "lib.params:New", version="1.8", other_version="1.2")
        learned = learned_constraint(new, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.8,<=1.11", "lib>=1.6")
        assert (learned.came, learned.went) == ("1.6", "")


def test_range_of_a_constraint_ends_at_a_release_without_the_requirement(tmp_path):
    index = LocalIndex()
    release_index.publish_releases(index, "lib", {"1.0": OLD, "1.1": NEW})
    apps = [USES_OLD, USES_OLD, USES_OLD, PLAIN, USES_OLD, USES_OLD, USES_OLD, PLAIN, USES_OLD]
    release_index.publish_releases(index, "app", {f"1.{n}": files for n, files in enumerate(apps)})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        for version, versions in [("1.5", ">=1.4,<=1.6"), ("1.2", ">=1.0,<=1.2"), ("1.8", "==1.8")]:
            gone = finding(
                ConflictRelation.NAME, "lib.params:Old", version=version, other_version="1.1"
            )
            learned = learned_constraint(gone, release_catalogue)
            assert (learned.versions, learned.needs) == (versions, "lib<1.1")


def test_pinned_package_is_constrained_at_its_version_only(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        gone = finding(ConflictRelation.NAME, "lib.params:Old", version="1.7", other_version="1.9")
        learned = learn_constraint(gone, release_catalogue, {"app"})
        assert learned is not None
        assert (learned.versions, learned.needs) == ("==1.7", "lib<1.6")


def test_packages_exclude_each_other_if_no_version_is_compatible(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        never = finding(
            ConflictRelation.NAME, "lib.params:Never", version="1.7", other_version="1.9"
        )
        learned = learned_constraint(never, release_catalogue)
        assert (learned.versions, learned.needs) == ("==1.7", "lib<0")
        assert learned.is_violated({"app": "1.7", "lib": "1.0"})


NEVER_IN_FUNCTION = {**PLAIN, "app/use.py": "import lib.params\ndef run(): lib.params.Never()\n"}
NEVER_ON_IMPORT = {**PLAIN, "app/use.py": "import lib.params\nlib.params.Never()\n"}


@pytest.mark.parametrize(
    ("app", "needs", "unused"),
    [(NEVER_IN_FUNCTION, "lib", True), (NEVER_ON_IMPORT, "lib<0", False)],
)
def test_name_that_all_versions_lack_excludes_only_releases_that_import_it(
    tmp_path, app, needs, unused
):
    index = LocalIndex()
    release_index.publish_releases(index, "lib", {"1.0": OLD, "1.1": NEW})
    release_index.publish_releases(index, "app", {"1.0": app, "1.1": app})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        never = finding(
            ConflictRelation.NAME, "lib.params:Never", version="1.1", other_version="1.1", line=2
        )
        learned = learned_constraint(never, release_catalogue)
        assert (learned.versions, learned.needs, learned.unused) == ("==1.1", needs, unused)


def test_name_in_a_release_for_an_older_python_is_treated_as_existing(tmp_path):
    index = LocalIndex()
    has_name = {path: text.encode() for path, text in OLD.items()} | {
        "lib/params.py": b"class Never: pass\n"
    }
    index.wheel("lib", "0.9", files=has_name, tag="cp39-cp39-manylinux1_x86_64")
    release_index.publish_releases(index, "lib", {"1.0": OLD, "1.1": NEW})
    release_index.publish_releases(index, "app", {"1.0": NEVER_IN_FUNCTION})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        gone = finding(
            ConflictRelation.NAME, "lib.params:Never", version="1.0", other_version="1.1", line=2
        )
        learned = learned_constraint(gone, release_catalogue)
        assert (learned.versions, learned.needs, learned.unused) == ("==1.0", "lib<0", False)


@pytest.mark.parametrize(
    "relation", [ConflictRelation.WINDOW, ConflictRelation.RULE, ConflictRelation.REQUIREMENT]
)
def test_constraint_uses_the_versions_stated_in_the_evidence(tmp_path, relation):
    with package_set(tmp_path) as (release_catalogue, _):
        clash = finding(relation, "lib", version="1.7", other_version="1.9", spec=">=1.2,<1.5")
        learned = learned_constraint(clash, release_catalogue)
        assert learned.spec == ">=1.2,<1.5"


@each_row(
    "relation",
    [
        ConflictRelation.SYMBOL,
        ConflictRelation.ABI,
        ConflictRelation.LIBRARY,
        ConflictRelation.WINDOW,
    ],
)
def test_evidence_without_a_readable_name_excludes_only_this_version(tmp_path, relation):
    with package_set(tmp_path) as (release_catalogue, _):
        clash = finding(relation, "_Z1fv", version="1.7", other_version="1.9+cu124")
        learned = learned_constraint(clash, release_catalogue)
        assert (learned.versions, learned.needs) == ("==1.7", "lib!=1.9")


def calls_package_set(folder, tag="calls"):
    """Releases of lib with a new signature in 1.4, and of app, which uses it since 1.6."""
    index = LocalIndex()
    old = {"lib/__init__.py": "def make(a, b): pass\nclass Maker:\n    def make(self, a): pass\n"}
    new = {"lib/__init__.py": "def make(a, *, size): pass\n"}
    release_index.publish_releases(
        index, "lib", {f"1.{n}": old if n < 4 else new for n in range(8)}
    )
    plain = {"app/__init__.py": "", "app/use.py": "import lib\n\nlib.make(1, 2)\n"}
    apart = {"app/__init__.py": "", "app/use.py": "import lib\nlib.make(1, size=2)\n"}
    release_index.publish_releases(
        index, "app", {f"1.{n}": plain if n < 6 else apart for n in range(8)}
    )
    return release_index.release_catalogue(folder, index)


@pytest.mark.parametrize("subject", ["lib.make(size)", "lib.make(1)"])
def test_changed_argument_bounds_both_packages(tmp_path, subject):
    with calls_package_set(tmp_path) as (release_catalogue, site):
        clash = finding(
            ConflictRelation.ARGUMENT, subject, version="1.5", other_version="1.7", line=3
        )
        learned = learned_constraint(clash, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.0,<=1.5", "lib<1.4")
        assert (learned.came, learned.went) == ("", "1.4")
        assert not [p for _, p, h in site.requests if ".whl" in p and "Range" not in h]


@pytest.mark.parametrize(
    ("subject", "versions"),
    [("lib.Maker.make(1)", ">=1.0,<=1.5"), ("lib.made(size)", "==1.5")],
)
def test_unknown_signature_excludes_only_one_version(tmp_path, subject, versions):
    with calls_package_set(tmp_path) as (release_catalogue, _):
        clash = finding(
            ConflictRelation.ARGUMENT, subject, version="1.5", other_version="1.2", line=3
        )
        learned = learned_constraint(clash, release_catalogue)
        assert (learned.versions, learned.needs) == (versions, "lib!=1.2")


def rounds(release_catalogue, *others, learned=()):
    """The constraints learned in one round for each version of lib incompatible with app 1.7."""
    for other in others:
        clash = finding(ConflictRelation.SYMBOL, "_Z1fv", version="1.7", other_version=other)
        learned = constraints.merge_constraints(
            learned, learn_all([clash], release_catalogue, (), learned)
        )
    return [
        (constraint.versions, constraint.needs, constraint.came, constraint.went)
        for constraint in learned
    ]


def test_excluded_newest_versions_become_an_upper_bound(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        assert rounds(release_catalogue, "1.9") == [("==1.7", "lib!=1.9", "", "")]
        assert rounds(release_catalogue, "1.9", "1.8") == [("==1.7", "lib<1.8", "", "1.8")]
        assert rounds(release_catalogue, "1.9", "1.8", "1.7") == [("==1.7", "lib<1.7", "", "1.7")]
        assert rounds(release_catalogue, "1.9", "1.7") == [
            ("==1.7", "lib!=1.7", "", ""),
            ("==1.7", "lib!=1.9", "", ""),
        ]


def test_excluded_oldest_versions_become_a_lower_bound(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        assert rounds(release_catalogue, "1.0", "1.1") == [("==1.7", "lib>=1.2", "1.2", "")]


def test_excluded_versions_in_the_middle_are_not_merged(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        bounds = rounds(release_catalogue, "1.5", "1.6", "1.9")
        assert sorted(needs for _, needs, _, _ in bounds) == ["lib!=1.5", "lib!=1.6", "lib!=1.9"]


def test_incompatibility_that_depends_on_a_third_package_gives_no_constraint(tmp_path):
    index = LocalIndex()
    text = "import importlib.util\nif importlib.util.find_spec('third'):\n    class Dummy: pass\n"
    sources = {"lib/__init__.py": "VERSION = 1\n", "lib/utils.py": text}
    release_index.publish_releases(index, "lib", {"1.0": sources, "1.1": sources})
    release_index.publish_releases(
        index, "app", {"1.0": {**PLAIN, "app/use.py": "from lib.utils import Dummy\n"}}
    )
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        clash = finding(
            ConflictRelation.NAME, "lib.utils:Dummy", version="1.0", other_version="1.1"
        )
        assert learn_constraint(clash, release_catalogue, ()) is None


def test_no_constraint_is_learned_without_another_package_or_evidence(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        alone = finding(ConflictRelation.SYMBOL, "_Z1fv", version="1.7", other="")
        bare = Finding(check="elf", severity=Severity.ERROR, message="")
        assert learn_constraint(alone, release_catalogue, ()) is None
        assert learn_constraint(bare, release_catalogue, ()) is None


def test_missing_package_is_added_only_if_its_distribution_is_known(tmp_path):
    with package_set(tmp_path) as (release_catalogue, _):
        by_module = {
            module: learn_constraint(
                finding(ConflictRelation.PACKAGE, module, version="1.7", other=""),
                release_catalogue,
                {"app"},
            )
            for module in ("setuptools", "pkg_resources", "rich.console", "scipy", "unheard_of")
        }
    assert by_module["unheard_of"] is None  # names are not guessed: anyone may register them
    packages = {"setuptools": "setuptools", "pkg_resources": "setuptools", "rich.console": "rich"}
    packages["scipy"] = "scipy"
    for module, package in packages.items():
        learned = by_module[module]
        assert learned is not None
        assert (learned.needs, learned.missing, learned.versions) == (package, True, "==1.7")
    unknown = finding(ConflictRelation.PACKAGE, "unheard_of.core", version="1.7", other="")
    hint = nothing_learned_error("row", Arch.X86_64, [unknown]).hint or ""
    assert hint.startswith("add the package that provides unheard_of (in a project: imgbuild add)")


def test_package_that_removed_a_module_gets_an_upper_bound(tmp_path):
    index = LocalIndex()
    old_files = {"setuptools/__init__.py": "", "pkg_resources/__init__.py": "def require(): pass\n"}
    bare = {"setuptools/__init__.py": ""}
    release_index.publish_releases(
        index, "setuptools", {str(n): old_files if n < 82 else bare for n in range(75, 90)}
    )
    release_index.publish_releases(index, "app", {"1.0": PLAIN})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, site):
        by_module = {
            module: learn_constraint(
                finding(ConflictRelation.PACKAGE, module, version="1.0", other=""),
                release_catalogue,
                (),
            )
            for module in ("pkg_resources", "pkg_resources.extern", "setuptools")
        }
        needs = {
            module: constraint and (constraint.needs, constraint.went)
            for module, constraint in by_module.items()
        }
        assert needs["pkg_resources"] == ("setuptools<82", "82")
        assert needs["setuptools"] == ("setuptools", "")
        assert len({p for _, p, _ in site.requests if "packages/setuptools" in p}) < 10


CHECK = """\
import lib
from packaging import version
def start():
    if version.parse(lib.__version__) < version.parse("1.6"):
        raise ImportError("lib is too old")
"""


def test_version_check_bounds_all_releases_that_contain_the_check(tmp_path):
    index = LocalIndex()
    release_index.publish_releases(index, "lib", {f"1.{n}": OLD for n in range(8)})
    checking = {**PLAIN, "app/use.py": CHECK}
    moved = {**PLAIN, "app/use.py": "\n" + CHECK}
    other = {**PLAIN, "app/use.py": CHECK.replace("1.6", "1.3")}
    apps = [PLAIN, other, checking, moved, checking]
    release_index.publish_releases(index, "app", {f"1.{n}": files for n, files in enumerate(apps)})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        clash = finding(
            ConflictRelation.WINDOW,
            "lib 1.5",
            version="1.4",
            other_version="1.5",
            spec=">=1.6",
            line=5,
        )
        learned = learned_constraint(clash, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.2,<=1.4", "lib>=1.6")


def test_releases_with_only_sdists_are_compared_by_their_code(tmp_path):
    index = LocalIndex()
    release_index.publish_releases(index, "lib", {"1.0": OLD, "1.1": NEW})
    for n, sources in enumerate([PLAIN, USES_OLD, USES_OLD, USES_NEW]):
        files = {path: text.encode() for path, text in sources.items()}
        info = f"Metadata-Version: 2.1\nName: app\nVersion: 1.{n}\n".encode()
        data = sdist_bytes("app", f"1.{n}", {**files, "PKG-INFO": info})
        index.add("app", f"app-1.{n}.tar.gz", data)
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        gone = finding(ConflictRelation.NAME, "lib.params:Old", version="1.2", other_version="1.1")
        learned = learned_constraint(gone, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.1,<=1.2", "lib<1.1")


def test_names_are_looked_up_in_sdists_of_a_package_without_wheels(tmp_path):
    index = LocalIndex()
    for version, sources in (("1.0", OLD), ("1.1", OLD), ("1.2", NEW), ("1.3", NEW)):
        files = {path: text.encode() for path, text in sources.items()}
        info = f"Metadata-Version: 2.1\nName: lib\nVersion: {version}\n".encode()
        data = sdist_bytes("lib", version, {**files, "PKG-INFO": info})
        index.add("lib", f"lib-{version}.tar.gz", data)
    release_index.publish_releases(index, "app", {"1.0": USES_NEW})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        new = finding(ConflictRelation.NAME, "lib.params:New", version="1.0", other_version="1.0")
        learned = learned_constraint(new, release_catalogue)
        assert (learned.versions, learned.needs) == ("==1.0", "lib>=1.2")


@pytest.mark.parametrize(
    "use",
    [
        "import lib\nif lib.VERSION < 2:\n    from lib.params import Old\n",
        "import lib\ndef run():\n    from lib.params import Old\n    return Old()\n",
    ],
    ids=["checks the version first", "imports in a function"],
)
def test_release_with_a_different_use_is_outside_the_range(tmp_path, use):
    index = LocalIndex()
    release_index.publish_releases(index, "lib", {"1.0": OLD, "1.1": NEW})
    apps = [USES_OLD, USES_OLD, {**PLAIN, "app/use.py": use}]
    release_index.publish_releases(index, "app", {f"1.{n}": files for n, files in enumerate(apps)})
    with release_index.release_catalogue(tmp_path, index) as (release_catalogue, _):
        gone = finding(ConflictRelation.NAME, "lib.params:Old", version="1.0", other_version="1.1")
        learned = learned_constraint(gone, release_catalogue)
        assert (learned.versions, learned.needs) == (">=1.0,<=1.1", "lib<1.1")
