"""Tests finding the boundaries of an incompatibility with few reads of remote wheels."""

import datetime

import msgspec
import pytest

from imgbuild.audit.packages.library import Library
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed
from imgbuild.http.client import HttpClient
from imgbuild.index.candidates import FileRules
from imgbuild.index.catalogue import FileCatalogue
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.learn import boundaries
from imgbuild.learn.boundaries import (
    ReleaseCatalogue,
    find_boundary,
    has_module,
    lacks_item,
    newest_at_time,
)
from imgbuild.learn.uses import same_use
from imgbuild.report import ConflictRelation, Evidence
from imgbuild.values import Arch, sha256
from imgbuild.wheel.tags import WheelTags
from tests.support import audited, release_index
from tests.support.local_index import LocalIndex, wheel_bytes
from tests.support.rows import each_row

NUMBERS = list(range(40))


@each_row("edge", [1, 2, 3, 7, 8, 20, 38, 39])
def test_boundary_of_an_incompatibility_is_exact_on_both_sides(edge):
    probed = []

    def persists(number):
        probed.append(number)
        return number < edge

    assert find_boundary(NUMBERS, 0, persists, 1) == (edge - 1, edge)
    assert len(probed) == len(set(probed)) <= 11
    assert find_boundary(NUMBERS, 39, lambda number: number >= edge, -1) == (edge, edge - 1)


def test_incompatibility_in_all_later_releases_has_no_boundary():
    assert find_boundary(NUMBERS, 20, lambda _: True, 1) == (39, None)
    assert find_boundary(NUMBERS, 20, lambda _: True, -1) == (0, None)
    assert find_boundary([7], 0, lambda _: True, 1) == (7, None)


def test_a_compatible_range_of_a_few_releases_is_found():
    compatible = range(60, 70)
    bad, good = find_boundary(range(200), 199, lambda number: number not in compatible, -1)
    assert (bad, good) == (70, 69)


def test_boundary_of_a_recurring_incompatibility_is_exact():
    bad, good = find_boundary(NUMBERS, 0, lambda number: number % 10 < 5, 1)
    assert good == bad + 1
    assert bad % 10 < 5 <= good % 10


def index():
    local_index = LocalIndex()
    old = {"lib/__init__.py": "VERSION = 1\n", "lib/params.py": "class Old:\n    x: int = 0\n"}
    new = {
        "lib/__init__.py": "VERSION = 1\n",
        "lib/params.py": "def make(*, size):\n    pass\nclass New: pass\n",
    }
    more = {**new, "lib/net/__init__.py": "", "lib/net/ports.py": "def port(): pass\n"}
    release_index.publish_releases(
        local_index, "lib", {"1.0": old, "1.1": old, "2.0rc1": old, "2.0": new, "3.0": more}
    )
    local_index.wheel("lib", "2.5", yanked=True)
    local_index.wheel("lib", "2.6", tag="cp311-cp311-win_amd64")
    user = {"app/__init__.py": "", "app/use.py": "from lib.params import Old\nOld(x=1)\n"}
    moved = {
        "app/__init__.py": "",
        "app/deep/__init__.py": "",
        "app/deep/use.py": user["app/use.py"],
    }
    other = {"app/__init__.py": "", "app/use.py": "from lib.params import New\n"}
    release_index.publish_releases(
        local_index, "app", {"1.0": user, "1.1": moved, "2.0": other}, year=2023
    )
    return local_index


def test_candidate_releases_are_final_compatible_and_not_yanked(tmp_path):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        assert [str(item.version) for item in release_catalogue.package_releases("lib")] == [
            "1.0",
            "1.1",
            "2.0",
            "3.0",
        ]
    with release_index.release_catalogue(tmp_path, index(), pins={"lib": "2.0rc1"}) as (
        release_catalogue,
        _,
    ):
        assert [str(item.version) for item in release_catalogue.package_releases("lib")][
            2
        ] == "2.0rc1"
        assert release_catalogue.release("lib", "2.0rc1") is not None
        assert release_catalogue.release("lib", "9") is None


def test_release_without_a_hash_is_refused_in_offline_mode(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "lib-1.0-py3-none-any.whl").write_bytes(wheel_bytes("lib", "1.0"))
    store = Store.open(tmp_path / "cache")
    http = HttpClient(attempts=1, offline=True)
    place = IndexAddress(name="own", address=f"{folder.as_uri()}/", flat=True, timed=False)
    tags = WheelTags(python="3.11", glibc="2.36", arch=Arch.X86_64)
    rules = FileRules(as_of=datetime.date(2025, 1, 1), tags=tags, pins={})
    catalogue = FileCatalogue(IndexLookup({"own": place}, {}, "own", http), rules, http, store)
    release = ReleaseCatalogue(catalogue, Library(store), store).release("lib", "1.0")
    assert release is not None
    with pytest.raises(FetchFailed, match="the index own has no hash of this file") as caught:
        ReleaseCatalogue(catalogue, Library(store), store).wheel("lib", release)
    assert caught.value.hint == "run once without --offline"
    # A folder needs no network: its files are also hashed offline.
    wheel = ReleaseCatalogue(catalogue, Library(store, http), store).wheel("lib", release)
    assert wheel.sha256 == sha256(wheel_bytes("lib", "1.0"))


def test_release_at_a_given_time_is_the_newest_release_before_that_time(tmp_path):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        releases = release_catalogue.package_releases("lib")
        day = datetime.datetime(2024, 2, 15, tzinfo=datetime.UTC)
        release = newest_at_time(releases, day)
        assert release is not None
        assert str(release.version) == "1.1"
        assert newest_at_time(releases, None) is None
        assert newest_at_time(releases, day.replace(year=2000)) is None


def evidence(relation, subject, *, file="app/use.py"):
    return Evidence(
        relation=relation, package="app", version="1.0", other="lib", subject=subject, file=file
    )


@each_row(
    ("relation", "subject", "expected"),
    [
        (ConflictRelation.NAME, "lib.params:Old", [False, True, True]),
        (ConflictRelation.NAME, "lib.params:New", [True, False, False]),
        (ConflictRelation.MODULE, "lib.net.ports", [True, True, False]),
        (ConflictRelation.MODULE, "lib.net", [True, True, False]),
        (ConflictRelation.MODULE, "lib", [False, False, False]),
        (ConflictRelation.ATTRIBUTE, "lib.params.Old.x", [False, True, True]),
        (ConflictRelation.KEYWORD, "lib.params.make(size)", [None, False, False]),
        (ConflictRelation.KEYWORD, "lib.params.make(width)", [None, True, True]),
        (ConflictRelation.SYMBOL, "_Z1fv", [None, None, None]),
    ],
)
def test_names_that_a_version_lacks_are_found(tmp_path, relation, subject, expected):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        releases = [release_catalogue.release("lib", version) for version in ("1.0", "2.0", "3.0")]
        sample_evidence = evidence(relation, subject)
        assert [
            lacks_item(release_catalogue, sample_evidence, item) for item in releases if item
        ] == expected


def test_version_with_the_preferred_import_lacks_no_names(tmp_path):
    fallback = evidence(ConflictRelation.NAME, "lib.params:Old")
    both = msgspec.structs.replace(fallback, preferred=(("lib.net.ports", "lib.params:New"),))
    absent = msgspec.structs.replace(fallback, preferred=(("lib.net.ports", "lib.params:None"),))
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        releases = [release_catalogue.release("lib", version) for version in ("1.0", "2.0", "3.0")]
        for case, expected in ((both, [False, True, False]), (absent, [False, True, True])):
            assert [
                lacks_item(release_catalogue, case, item) for item in releases if item
            ] == expected


def test_lookup_result_is_cached_for_each_wheel(tmp_path):
    sample_evidence = evidence(ConflictRelation.NAME, "lib.params:New")
    for first in (True, False):
        with release_index.release_catalogue(tmp_path, index()) as (
            release_catalogue,
            site,
        ):
            release = release_catalogue.release("lib", "1.0")
            assert release is not None
            assert lacks_item(release_catalogue, sample_evidence, release) is True
            assert bool(site.received_requests("packages/lib-1.0-py3-none-any.whl")) is first


def test_cached_lookup_result_depends_on_the_code_digest(tmp_path, monkeypatch):
    sample_evidence = evidence(ConflictRelation.NAME, "lib.params:New")
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        release = release_catalogue.release("lib", "1.0")
        assert release is not None
        assert lacks_item(release_catalogue, sample_evidence, release) is True
        monkeypatch.setitem(
            boundaries.NAMED_TESTS, ConflictRelation.NAME, lambda package_set, subject: False
        )
        assert (
            lacks_item(release_catalogue, sample_evidence, release) is True
        )  # same as the earlier result
        monkeypatch.setattr(boundaries, "code_digest", lambda module: f"another {module}")
        assert lacks_item(release_catalogue, sample_evidence, release) is False


def test_cached_lookup_result_depends_on_the_python_version(tmp_path, monkeypatch):
    local_index = LocalIndex()
    release_index.publish_releases(
        local_index, "lib", {"1.0": {"lib/_C.cpython-312-x86_64-linux-gnu.so": ""}}
    )
    with release_index.release_catalogue(tmp_path, local_index) as (release_catalogue, _):
        release = release_catalogue.release("lib", "1.0")
        assert release is not None
        assert not has_module(release_catalogue, "lib", release, "lib._C")
        newer = WheelTags(python="3.12", glibc="2.36", arch=Arch.X86_64)
        rules = audited.with_changes(release_catalogue.catalogue.rules, tags=newer)
        monkeypatch.setattr(release_catalogue.catalogue, "rules", rules)
        assert has_module(release_catalogue, "lib", release, "lib._C")


@each_row(
    ("relation", "subject", "expected"),
    [
        (ConflictRelation.NAME, "lib.params:Old", [True, True, False]),
        (ConflictRelation.KEYWORD, "lib.params.Old(x)", [True, True, False]),
        (ConflictRelation.KEYWORD, "lib.params.Old(y)", [False, False, False]),
        (ConflictRelation.MODULE, "lib.params", [True, True, True]),
        (ConflictRelation.PACKAGE, "lib", [True, True, True]),
        (ConflictRelation.SYMBOL, "_Z1fv", [False, False, False]),
    ],
)
def test_releases_that_use_a_name_are_found(tmp_path, relation, subject, expected):
    with release_index.release_catalogue(tmp_path, index()) as (release_catalogue, _):
        uses_item = same_use(release_catalogue, evidence(relation, subject))
        assert [*map(uses_item, release_catalogue.package_releases("app"))] == expected


def test_registered_name_is_looked_up_in_the_registry_of_the_other_package(tmp_path):
    local_index = LocalIndex()
    place = "transformers/models/auto/configuration_auto.py"
    base = {"transformers/__init__.py": "", "transformers/models/__init__.py": ""}
    base["transformers/models/auto/__init__.py"] = ""
    free = {**base, place: 'CONFIG_MAPPING_NAMES = OrderedDict([("bert", "BertConfig")])\n'}
    taken = {**base, place: 'CONFIG_MAPPING_NAMES = OrderedDict([("aimv2", "Aimv2Config")])\n'}
    release_index.publish_releases(local_index, "transformers", {"4.53.3": free, "4.54.0": taken})
    sample_evidence = Evidence(
        relation=ConflictRelation.REGISTERED,
        package="vllm",
        version="0.9.2",
        other="transformers",
        subject="transformers.AutoConfig.register(aimv2)",
    )
    with release_index.release_catalogue(tmp_path, local_index) as (release_catalogue, _):
        answers = [
            lacks_item(release_catalogue, sample_evidence, item)
            for item in release_catalogue.package_releases("transformers")
        ]
    assert answers == [False, True]
