"""Garbage: what is kept and why, in which order the rest goes, and how much it holds."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from imgbuild.assemble.mirror_items import ARTIFACT, TARGET
from imgbuild.errors import FetchFailed
from imgbuild.oci.documents import INDEX, MANIFEST
from imgbuild.publish import gc
from imgbuild.publish import scan as holdings
from imgbuild.publish.gc import KeepPolicy, Named, Reason, Sweep
from imgbuild.publish.scan import ManifestKind, StoredManifest
from imgbuild.registry.client import Client, bytes_source
from imgbuild.registry.reference import Reference, Repository
from imgbuild.system.console import console
from imgbuild.values import sha256
from tests.support import memory_registry
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import Fault

HERE = Repository("registry.example", "team/rl")
BILL = "application/vnd.cyclonedx+json"
OLD = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp())
UNTIL = int(datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC).timestamp())


def name(word: str) -> str:
    """A digest for a word."""
    return f"sha256:{sha256(word.encode())}"


def image(
    word: str, *layers: str, tags: tuple[str, ...] = (), target: str = "small"
) -> StoredManifest:
    config = f"{word} config"
    blobs = {name(config): 1, **{name(layer): 100 for layer in layers}}
    return StoredManifest(
        digest=name(word), size=10, kind=ManifestKind.IMAGE, target=target, tags=tags,
        config=name(config), blobs=blobs,
    )  # fmt: skip


def index(word: str, *children: str, tags: tuple[str, ...] = ()) -> StoredManifest:
    below = tuple(name(child) for child in children)
    return StoredManifest(
        digest=name(word), size=10, kind=ManifestKind.INDEX, tags=tags, children=below
    )


def attached(
    word: str, *subjects: str, tags: tuple[str, ...] = (), blob: str = ""
) -> StoredManifest:
    return StoredManifest(
        digest=name(word), size=10, kind=ManifestKind.ATTACHED, tags=tags,
        subjects=tuple(name(subject) for subject in subjects),
        blobs={name(blob or f"{word} blob"): 50},
    )  # fmt: skip


def known(
    *words: str, named_since: dict[str, int] | None = None, unread: frozenset[str] = frozenset()
) -> Named:
    """What names `words`; `ever` are words with their seconds."""
    return Named(
        digests=frozenset(map(name, words)),
        named_since={name(word): moment for word, moment in (named_since or {}).items()},
        targets=frozenset({"small"}),
        tags=frozenset({"small"}),
        until=UNTIL,
        unread=unread,
    )


def judged(*held: StoredManifest, by: Named, policy: KeepPolicy | None = None) -> Sweep:
    return gc.judge(HERE, {item.digest: item for item in held}, by, policy or KeepPolicy())


def gone(sweep: Sweep) -> list[list[str]]:
    """The groups of garbage, each in its order."""
    return [list(entry.manifests) for entry in sweep.garbage]


def test_what_a_seal_names_stays_with_all_that_it_lists_and_that_belongs_to_it():
    held = [
        index("new", "new-a", "new-b", tags=("small",)),
        image("new-a", "shared", "one"),
        image("new-b", "shared"),
        attached("bill", "new-a"),
        attached("signature-of-the-bill", "bill", tags=("sha256-abc.sig",)),
    ]
    sweep = judged(*held, by=known("new"))
    assert sweep.garbage == ()
    assert sweep.kept == {Reason.NAMED: 1, Reason.BESIDE: 4}


def test_an_old_image_goes_whole_and_only_its_own_bytes_count():
    held = [
        index("new", "new-a", tags=("small",)),
        image("new-a", "shared"),
        index("old", "old-a", "new-a", tags=("small-20260101",)),
        image("old-a", "shared", "own"),
        attached("list", "old-a", tags=(f"sha256-{sha256(b'old-a')}",)),
        attached("bill", "old-a"),
    ]
    sweep = judged(*held, by=known("new", named_since={"old": OLD, "old-a": OLD, "new-a": 0}))
    (entry,) = sweep.garbage
    assert entry.manifests[:2] == (name("old"), name("old-a"))
    assert set(entry.manifests) == {name(word) for word in ("old", "old-a", "list", "bill")}
    # Four manifests, a configuration, a layer and two small blobs.
    assert entry.size == sweep.size == 4 * 10 + 1 + 100 + 2 * 50
    assert (entry.kind, entry.target, entry.tags) == (
        ManifestKind.INDEX,
        "small",
        ("small-20260101",),
    )
    assert entry.unnamed_since == "2026-01-01"


def test_a_list_of_referrers_goes_before_what_it_lists():
    """Else deleting one of them would write the list anew."""
    listing = StoredManifest(
        digest=name("list"), size=10, kind=ManifestKind.ATTACHED, subjects=(name("old"),),
        tags=(f"sha256-{sha256(b'old')}",), children=(name("bill"), name("lock")),
    )  # fmt: skip
    held = [image("old", "x"), attached("bill", "old"), attached("lock", "old"), listing]
    (group,) = gone(judged(*held, by=known(named_since={"old": OLD})))
    assert group[:2] == [name("old"), name("list")]
    assert set(group[2:]) == {name("bill"), name("lock")}


def test_two_old_images_share_bytes_that_are_counted_once():
    held = [image("a", "both", tags=("small-20260101",)), image("b", "both")]
    sweep = judged(*held, by=known(named_since={"a": OLD, "b": OLD}))
    assert [entry.size for entry in sweep.garbage] == [111, 111]
    assert sweep.size == 10 + 1 + 10 + 1 + 100


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (image("x", "l", target="", tags=("latest",)), Reason.FOREIGN),
        (image("x", "l", target="another-projects"), Reason.FOREIGN),
        (
            StoredManifest(digest=name("x"), size=1, kind=ManifestKind.OTHER, tags=("chart",)),
            Reason.FOREIGN,
        ),
        (attached("x", "an-image-of-others"), Reason.FOREIGN),
        (image("x", "l", tags=("small",)), Reason.TAG),
        (image("x", "l", tags=("release-1",)), Reason.TAG),
        (attached("x", "named"), Reason.NAMED),
        (image("x", "named"), Reason.PART),
    ],
)
def test_what_stays_for_its_own_sake(item, reason):
    sweep = judged(item, by=known("named"), policy=KeepPolicy(keep_tags=("release-*",)))
    assert sweep.kept == {reason: 1}
    assert sweep.garbage == ()


def test_an_index_of_others_stays_with_its_images():
    theirs = [index("i", "a", tags=("v1",)), image("a", "l", target="")]
    sweep = judged(*theirs, by=known())
    assert sweep.garbage == ()
    mixed = [index("i", "a", "b", tags=("v1",)), image("a", "l", target=""), image("b", "l")]
    assert judged(*mixed, by=known()).garbage == ()


def test_an_image_that_a_seal_named_once_is_no_part_of_what_is_named():
    """All its layers are in use, and still no seal names it."""
    old = image("old", "named")
    assert gone(judged(old, by=known("named", named_since={"old": OLD}))) == [[name("old")]]
    base = [index("base", "base-a", tags=("small-base-20260101",)), image("base-a", "named")]
    assert judged(*base, by=known("named")).kept == {Reason.PART: 2}


def test_what_belonged_to_an_image_that_is_gone_goes_too():
    sweep = judged(attached("bill", "old"), by=known(named_since={"old": OLD}))
    assert gone(sweep) == [[name("bill")]]


@pytest.mark.parametrize(
    ("tags", "moment", "stays"),
    [
        (("small-20260601",), OLD, True),  # tagged after that day
        (("small-20260101",), OLD, False),
        (("small-20260101", "small-20260601"), 0, True),
        ((), OLD + 200 * 86400, True),  # named after that day
        ((), OLD, False),
        (("trial",), 0, True),  # no date at all
        (("small-20269999",), 0, True),  # no date either
    ],
)
def test_age_is_of_the_newest_dated_tag_or_of_the_last_seal(tags, moment, stays):
    since = OLD + 100 * 86400
    by = known(named_since={"x": moment} if moment else {})
    sweep = judged(image("x", "l", tags=tags), by=by, policy=KeepPolicy(since=since))
    assert bool(sweep.kept) is stays
    assert gone(judged(image("x", "l", tags=tags), by=by)) == [[name("x")]]


def test_inputs_of_a_lock_that_cannot_be_read_stay():
    held = StoredManifest(
        digest=name("x"), size=1, kind=ManifestKind.INPUTS, target="small",
        tags=("small-x86_64-0a",),
    )  # fmt: skip
    assert gone(judged(held, by=known())) == [[name("x")]]
    assert judged(held, by=known(unread=frozenset({"small"}))).garbage == ()


# -- against a registry


@pytest.fixture(params=[True, False], ids=["referrers", "no-referrers"])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Registry]:
    memory_registry.alone(monkeypatch, tmp_path)
    with memory_registry.serve(Registry(referrers_api=request.param, page=2)) as found:
        yield found


class Place:
    """A repository of `registry` that a test fills."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.client = Client(first_wait=0.001, attempts=2, reporter=console)
        self.repository = registry.repository("team/rl")

    def blob(self, data: bytes, kind: str) -> dict[str, object]:
        self.client.upload(self.repository, bytes_source(data))
        return {"mediaType": kind, "digest": f"sha256:{sha256(data)}", "size": len(data)}

    def put(self, document: Mapping[str, object], kind: str, *tags: str) -> str:
        data = json.dumps({"schemaVersion": 2, "mediaType": kind, **document}).encode()
        for tag in tags or (None,):
            self.client.put_manifest(self.repository, data, kind, tag=tag)
        return f"sha256:{sha256(data)}"

    def image(self, word: str, *tags: str, target: str | None = "small") -> str:
        labels = {} if target is None else {TARGET: target}
        config = json.dumps(
            {"architecture": "amd64", "word": word, "config": {"Labels": labels}}
        ).encode()
        layers = [self.blob(word.encode(), "application/vnd.oci.image.layer.v1.tar+gzip")]
        described = self.blob(config, "application/vnd.oci.image.config.v1+json")
        return self.put({"config": described, "layers": layers}, MANIFEST, *tags)

    def index(self, *children: str, tag: str) -> str:
        entries = [
            {"mediaType": MANIFEST, "digest": child,
             "size": len(self.registry.manifests["team/rl", child][0])}
            for child in children
        ]  # fmt: skip
        return self.put({"manifests": entries}, INDEX, tag)

    def attach(self, subject: str) -> str:
        size = len(self.registry.manifests["team/rl", subject][0])
        config = self.blob(b"{}", "application/vnd.oci.empty.v1+json")
        said = {"mediaType": MANIFEST, "digest": subject, "size": size}
        document = {"artifactType": BILL, "config": config, "layers": [], "subject": said}
        return self.put(document, MANIFEST)

    def scan(self, *untagged: str) -> dict[str, StoredManifest]:
        return holdings.scan(self.repository, self.client, set(untagged))


def test_a_scan_finds_what_tags_indexes_subjects_and_seals_lead_to(registry):
    place = Place(registry)
    first, second = place.image("first"), place.image("second")
    top = place.index(first, second, tag="small")
    bill = place.attach(first)
    theirs = place.image("theirs", "latest", "v1", "v2", target=None)
    lone = place.image("lone")
    assert lone not in place.scan()
    held = place.scan(lone, name("nowhere"))
    kinds = {digest: item.kind for digest, item in held.items() if item.tags != ()}
    assert held[top].children == (first, second)
    assert held[theirs].tags == ("latest", "v1", "v2")
    assert {held[digest].target for digest in (first, second, lone)} == {"small"}
    assert held[theirs].target == ""
    assert (held[bill].kind, held[bill].subjects) == (ManifestKind.ATTACHED, (first,))
    lists = held.keys() - {first, second, top, bill, theirs, lone}
    if registry.referrers_api:
        assert not lists
    else:
        (listing,) = lists
        assert held[listing].subjects == (first,)
        assert kinds[listing] is ManifestKind.ATTACHED
    assert held[first].blobs[f"sha256:{sha256(b'first')}"] == len(b"first")


def test_what_a_newer_checkout_has_pushed_is_kept():
    """No seal here names it, for the commits of who pushed it were not fetched."""
    held = [
        index("newer", "newer-a", tags=("small-20260701",)),
        image("newer-a", "layer"),
        attached("bill", "newer-a"),
        image("older", tags=("small-20260630",)),
        image("named-once", tags=("small-20260702",)),
        image("without-a-day", tags=("small-test",)),
    ]
    sweep = judged(*held, by=known(named_since={"named-once": OLD}))
    assert sweep.kept == {Reason.NEWER: 1, Reason.BESIDE: 2}
    assert {entry.digest for entry in sweep.garbage} == {
        name("older"), name("named-once"), name("without-a-day")
    }  # fmt: skip


def test_deletion_leaves_what_is_kept_and_nothing_of_the_rest(registry):
    place = Place(registry)
    new, old = place.image("new", "small"), place.image("old", "small-20260101")
    bills = place.attach(new), place.attach(old)
    named = Named(
        digests=frozenset({new}), named_since={old: OLD}, targets=frozenset({"small"}),
        tags=frozenset({"small"}), until=UNTIL,
    )  # fmt: skip
    held = place.scan()
    sweep = gc.judge(place.repository, held, named, KeepPolicy())
    done = gc.delete(sweep, held, place.repository, place.client)
    assert done.deleted
    assert (done.garbage, done.size) == (sweep.garbage, sweep.size)
    left = {digest for _, digest in registry.manifests}
    assert {new, bills[0]} <= left
    assert not left & {old, bills[1]}
    tags = ("small", "small-20260101")
    found = [
        place.client.resolve(Reference(registry.host, "team/rl", tag=tag)) is not None
        for tag in tags
    ]
    assert found == [True, False]
    again = gc.judge(place.repository, place.scan(), named, KeepPolicy())
    assert again.garbage == ()
    assert {item.digest for item in place.client.referrers(place.repository, new)} == {bills[0]}


def test_a_registry_that_deletes_nothing_says_what_to_change(registry):
    registry.deletes = False
    place = Place(registry)
    old = place.image("old", "small-20260101")
    named = Named(
        digests=frozenset(), named_since={old: OLD}, targets=frozenset({"small"}), tags=frozenset(),
        until=UNTIL,
    )  # fmt: skip
    held = place.scan()
    sweep = gc.judge(place.repository, held, named, KeepPolicy())
    with pytest.raises(FetchFailed) as caught:
        gc.delete(sweep, held, place.repository, place.client)
    assert "storage.delete.enabled" in (caught.value.hint or "")


def test_what_is_tagged_while_it_is_looked_at_is_left_alone(registry, capsys):
    """Somebody has pushed an older lock again: the registry had all of it already."""
    place = Place(registry)
    old, older = place.image("old", "small-20260101"), place.image("older", "small-20250101")
    named = Named(
        digests=frozenset(), named_since={old: OLD, older: OLD}, targets=frozenset({"small"}),
        tags=frozenset({"small"}), until=UNTIL,
    )  # fmt: skip
    held = place.scan()
    sweep = gc.judge(place.repository, held, named, KeepPolicy())
    place.image("old", "small")
    done = gc.delete(sweep, held, place.repository, place.client)
    assert [entry.digest for entry in done.garbage] == [older]
    assert done.size == done.garbage[0].size < sweep.size
    assert {digest for _, digest in registry.manifests} == {old}
    assert f"{old} is kept: it is tagged small now" in capsys.readouterr().err


def test_a_tag_whose_manifest_is_not_given_stops_the_scan(registry):
    """What it lists is not known, and must not be taken for garbage."""
    place = Place(registry)
    top = place.index(place.image("a"), tag="kept")
    registry.faults.append(Fault(f"GET .*/manifests/{top}", times=1000, status=404))
    with pytest.raises(FetchFailed):
        place.scan()


def test_an_index_may_name_what_is_not_there(registry, capsys):
    place = Place(registry)
    child = place.image("a")
    top = place.index(child, tag="small")
    del registry.manifests["team/rl", child]
    assert place.scan().keys() == {top}
    assert "is not there" in capsys.readouterr().err


def test_the_inputs_of_a_mirror_are_known_by_their_type(registry):
    place = Place(registry)
    config = place.blob(b"{}", "application/vnd.oci.empty.v1+json")
    said = {"artifactType": ARTIFACT, "annotations": {"dev.imgbuild.target": "small"}}
    digest = place.put({**said, "config": config, "layers": []}, MANIFEST, "small-x86_64")
    found = place.scan()[digest]
    assert (found.kind, found.target) == (ManifestKind.INPUTS, "small")
