"""From a finding to a constraint: bounds of the other package, versions of the one that fails."""

import pytest

from imgbuild.learn import learn
from imgbuild.report import Evidence, Finding, Relation, Severity
from tests import shelves
from tests.localindex import LocalIndex

OLD = {"lib/__init__.py": "VERSION = 1\n", "lib/params.py": "class Old: pass\n"}
NEW = {"lib/__init__.py": "VERSION = 2\n", "lib/params.py": "class New: pass\n"}
PLAIN = {"app/__init__.py": "VERSION = 0\n", "app/use.py": "import lib\n"}
USES_OLD = {**PLAIN, "app/use.py": "from lib.params import Old\n"}
USES_NEW = {**PLAIN, "app/use.py": "from lib.params import New\n"}


def world(folder, *, pins=None):
    """Ten releases of lib, which changes in 1.6; of app, which follows it in 1.4 and 1.8."""
    index = LocalIndex()
    shelves.publish(index, "lib", {f"1.{n}": OLD if n < 6 else NEW for n in range(10)})
    apps = [PLAIN] * 4 + [USES_OLD] * 4 + [USES_NEW] * 4
    shelves.publish(index, "app", {f"1.{n}": files for n, files in enumerate(apps)})
    return shelves.shelf(folder, index, pins=pins)


def finding(
    relation, subject, *, version, other="lib", other_version="", spec="", file="app/use.py"
):
    evidence = Evidence(
        relation=relation,
        package="app",
        version=version,
        file=file,
        line=1,
        other=other,
        other_version=other_version,
        subject=subject,
        spec=spec,
    )
    return Finding(check="imports", severity=Severity.ERROR, message="", evidence=evidence)


def test_a_name_that_went_bounds_the_other_from_above(tmp_path):
    with world(tmp_path) as (shelf, site):
        gone = finding(Relation.NAME, "lib.params:Old", version="1.7", other_version="1.9")
        learned = learn(gone, shelf, ())
        assert learned is not None
        assert (learned.versions, learned.needs) == (">=1.4,<=1.7", "lib<1.6")
        assert (learned.came, learned.went) == ("", "1.6")
        assert (learned.file, learned.line, learned.name) == ("app/use.py", 1, "lib.params:Old")
        assert (learned.read_in, learned.against) == ("1.7", "1.9")
        assert not learned.missing
        whole = [
            path for _, path, headers in site.requests if ".whl" in path and "Range" not in headers
        ]
        assert whole == []


def test_a_name_that_came_bounds_it_from_below(tmp_path):
    with world(tmp_path) as (shelf, _):
        new = finding(Relation.NAME, "lib.params:New", version="1.8", other_version="1.2")
        learned = learn(new, shelf, ())
        assert learned is not None
        assert (learned.versions, learned.needs) == (">=1.8,<=1.11", "lib>=1.6")
        assert (learned.came, learned.went) == ("1.6", "")


def test_a_pinned_package_speaks_for_its_own_version_only(tmp_path):
    with world(tmp_path) as (shelf, _):
        gone = finding(Relation.NAME, "lib.params:Old", version="1.7", other_version="1.9")
        learned = learn(gone, shelf, {"app"})
        assert learned is not None
        assert (learned.versions, learned.needs) == ("==1.7", "lib<1.6")


def test_where_no_version_will_do_the_package_cannot_live_with_the_other(tmp_path):
    with world(tmp_path) as (shelf, _):
        never = finding(Relation.NAME, "lib.params:Never", version="1.7", other_version="1.9")
        learned = learn(never, shelf, ())
        assert learned is not None
        assert (learned.versions, learned.needs) == ("==1.7", "lib<0")
        assert learned.violated({"app": "1.7", "lib": "1.0"})


@pytest.mark.parametrize("relation", [Relation.WINDOW, Relation.RULE, Relation.REQUIREMENT])
def test_what_the_evidence_says_itself_is_taken(tmp_path, relation):
    with world(tmp_path) as (shelf, _):
        said = finding(relation, "lib", version="1.7", other_version="1.9", spec=">=1.2,<1.5")
        learned = learn(said, shelf, ())
        assert learned is not None
        assert learned.spec == ">=1.2,<1.5"


@pytest.mark.parametrize("relation", [Relation.SYMBOL, Relation.ABI, Relation.LIBRARY])
def test_of_binaries_it_is_known_that_these_two_do_not_fit(tmp_path, relation):
    with world(tmp_path) as (shelf, _):
        clash = finding(relation, "_Z1fv", version="1.7", other_version="1.9+cu124")
        learned = learn(clash, shelf, ())
        assert learned is not None
        assert (learned.versions, learned.needs) == ("==1.7", "lib!=1.9")


def test_a_clash_in_which_a_third_package_has_a_hand_is_not_laid_at_the_others_door(tmp_path):
    index = LocalIndex()
    text = "import importlib.util\nif importlib.util.find_spec('third'):\n    class Dummy: pass\n"
    sources = {"lib/__init__.py": "VERSION = 1\n", "lib/utils.py": text}
    shelves.publish(index, "lib", {"1.0": sources, "1.1": sources})
    shelves.publish(index, "app", {"1.0": {**PLAIN, "app/use.py": "from lib.utils import Dummy\n"}})
    with shelves.shelf(tmp_path, index) as (shelf, _):
        clash = finding(Relation.NAME, "lib.utils:Dummy", version="1.0", other_version="1.1")
        assert learn(clash, shelf, ()) is None


def test_nothing_is_learned_without_another_package_or_evidence(tmp_path):
    with world(tmp_path) as (shelf, _):
        alone = finding(Relation.SYMBOL, "_Z1fv", version="1.7", other="")
        bare = Finding(check="elf", severity=Severity.ERROR, message="")
        assert learn(alone, shelf, ()) is None
        assert learn(bare, shelf, ()) is None


def test_a_missing_package_is_added_only_if_it_is_known_who_brings_it(tmp_path):
    with world(tmp_path) as (shelf, _):
        found = {
            module: learn(
                finding(Relation.PACKAGE, module, version="1.7", other=""), shelf, {"app"}
            )
            for module in ("setuptools", "pkg_resources", "unheard_of")
        }
    assert found["unheard_of"] is None  # no name is guessed: anybody may register it
    for module in ("setuptools", "pkg_resources"):
        learned = found[module]
        assert learned is not None
        assert (learned.needs, learned.missing, learned.versions) == ("setuptools", True, "==1.7")
