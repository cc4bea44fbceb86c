"""Which mirror is used, and what it gives: settings, missing and damaged files, broken lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict

from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.mirror import Mirror, MirrorOrigin
from imgbuild.assemble.mirror_items import Input, inputs_of_all
from imgbuild.assemble.origins import Origins
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import Http
from imgbuild.lock.extension import make_lock as make_extension
from imgbuild.lock.lock_file import make_lock
from imgbuild.lock.resolution import BuiltWheel, Deb, LockedFile, Resolution, Wheel
from imgbuild.plan.plan import plan
from imgbuild.registry.client import Client
from imgbuild.solve import sdists
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from tests.support import extended, memory_registry, samples
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import Fault

NAME = "team/inputs"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    memory_registry.alone(monkeypatch, tmp_path)
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    with memory_registry.serve(Registry()) as registry:
        yield registry


def given(registry: Registry, name: str, data: bytes, *, layer: bool = False) -> Input:
    """An input that the registry has."""
    item = mirror_input(name, data, layer=layer)
    registry.blobs[NAME, item.digest] = data
    return item


def mirror_input(name: str, data: bytes, *, layer: bool = False) -> Input:
    return Input(
        file=name, digest=f"sha256:{sha256(data)}", size=len(data),
        media_type="application/zip", layer=layer,
    )  # fmt: skip


def mirror_of(registry: Registry, *, only: bool = False, attempts: int = 2) -> Mirror:
    client = Client(first_wait=0.001, attempts=attempts)
    return Mirror(registry.repository(NAME), only=only, client=client)


# -- which


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, with no setting anywhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_option_goes_before_the_environment_the_project_and_the_user(alone, monkeypatch):
    assert mirror.find(alone) is None
    write(mirror.user_file(), '{"mirror": "user.example/a", "only": true}')
    selected = mirror.find(alone)
    assert selected is not None
    assert (selected.origin, selected.setting.mirror, selected.setting.only) == (
        MirrorOrigin.USER, "user.example/a", True
    )  # fmt: skip
    assert selected.place == alone / "config/imgbuild/mirror.json"
    write(alone / "mirror.json", '{"mirror": "project.example/a"}')
    selected = mirror.find(alone)
    assert selected is not None
    assert (selected.origin, selected.setting.only) == (MirrorOrigin.PROJECT, False)
    monkeypatch.setenv(mirror.VARIABLE, "environment.example/a")
    selected = mirror.find(alone)
    assert selected is not None
    assert (selected.origin, selected.place) == (MirrorOrigin.ENVIRONMENT, None)
    selected = mirror.find(alone, "option.example/a", only=True)
    assert selected is not None
    assert (selected.setting.mirror, selected.setting.only) == ("option.example/a", True)


def test_off_goes_before_what_is_behind_it(alone, monkeypatch):
    write(alone / "mirror.json", '{"mirror": "project.example/a"}')
    assert mirror.find(alone, "off") is None
    monkeypatch.setenv(mirror.VARIABLE, "off")
    assert mirror.find(alone) is None
    selected = mirror.find(alone, "option.example/a")
    assert selected is not None
    monkeypatch.setenv(mirror.VARIABLE, "")  # as if it were not set
    selected = mirror.find(alone)
    assert selected is not None
    assert selected.origin is MirrorOrigin.PROJECT


def test_a_setting_that_cannot_be_read_is_refused_with_its_place(alone):
    write(alone / "mirror.json", '{"mirrors": "project.example/a"}')
    with pytest.raises(InputError, match=r"mirror\.json is not a valid setting of a mirror"):
        mirror.find(alone)
    write(alone / "mirror.json", '{"mirror": "not a place"}')
    with pytest.raises(InputError, match="not a place"):
        mirror.find(alone)


def test_a_mirror_alone_needs_a_mirror(alone):
    with pytest.raises(InputError, match="--mirror-only needs a mirror"):
        mirror.find(alone, only=True)


def test_for_a_lock_no_mirror_is_the_only_source(alone):
    named = mirror.find(alone, "option.example/a", only=True)
    bound, free = Mirror.of(named), Mirror.of(named, any_source=True)
    assert bound is not None
    assert free is not None
    assert (bound.only, free.only) == (True, False)
    assert Mirror.of(None) is None


def test_plain_http_applies_to_the_named_registry_only(alone):
    write(alone / "mirror.json", '{"mirror": "a.example/x", "plain_http": true}')
    assert Mirror.of(mirror.find(alone))._plain_http == ("a.example",)  # type: ignore[union-attr]
    named = mirror.find(alone, "b.example/x")
    assert Mirror.of(named)._plain_http == ()  # type: ignore[union-attr]
    selected = Mirror.of(named, plain_http=["b.example"])
    assert selected is not None
    assert selected._plain_http == ("b.example",)


# -- what it gives


def test_files_and_layers_come_into_the_store(registry):
    store = Store.open()
    items = [
        given(registry, "a.whl", b"wheel"),
        given(registry, "layers/x", b"layer", layer=True),
        mirror_input("absent.whl", b"never there"),
    ]
    assert mirror_of(registry).fetch_missing(items, Context(store, Http()), title="small") == {
        items[0].digest, items[1].digest
    }  # fmt: skip
    path, blob = store.file(items[0].sha256), store.blob(items[1].digest)
    assert path is not None
    assert blob is not None
    assert (path.read_bytes(), blob.read_bytes()) == (b"wheel", b"layer")
    assert store.file(items[1].sha256) is None
    assert store.fact("name", items[0].sha256) == b"a.whl"
    blob_requests = [request for request in registry.requests if "/blobs/" in request.path]
    assert len(blob_requests) == 3  # one for each, and no others
    assert {request.method for request in blob_requests} == {"GET"}


def test_what_is_in_the_store_is_not_requested(registry):
    store = Store.open()
    item = given(registry, "a.whl", b"wheel")
    registry_mirror = mirror_of(registry)
    registry_mirror.fetch_missing([item], Context(store, Http()), title="small")
    before = len(registry.requests)
    assert registry_mirror.fetch_missing([item], Context(store, Http()), title="small") == {
        item.digest
    }
    assert len(registry.requests) == before


def test_an_earlier_run_is_continued(registry):
    data = bytes(range(256)) * 40
    item, store = given(registry, "a.whl", data), Store.open()
    with store.partial(item.sha256, stop=lambda: False) as partial:
        assert partial is not None
        partial.write_bytes(data[:1000])
    assert mirror_of(registry).fetch_missing([item], Context(store, Http()), title="small") == {
        item.digest
    }
    (request,) = registry.received_requests("GET .*/blobs/")
    assert request.headers["Range"] == "bytes=1000-"


def test_a_broken_line_is_tried_again(registry):
    item = given(registry, "a.whl", bytes(range(256)) * 4096)
    registry.faults.append(Fault(r"GET .*/blobs/", cut_answer=700_000))
    assert mirror_of(registry).fetch_missing(
        [item], Context(Store.open(), Http()), title="small"
    ) == {item.digest}
    assert len(registry.received_requests("GET .*/blobs/")) == 2


def test_other_bytes_are_skipped_or_refused(registry, capsys):
    good, bad = given(registry, "good.whl", b"good"), mirror_input("bad.whl", b"right")
    registry.blobs[NAME, bad.digest] = b"wrong"
    store = Store.open()
    context = Context(store, Http(), console)
    assert mirror_of(registry).fetch_missing([good, bad], context, title="small") == {good.digest}
    assert f"bad.whl of {registry.host}/{NAME} is skipped" in capsys.readouterr().err
    assert store.file(bad.sha256) is None
    with pytest.raises(IntegrityError):
        mirror_of(registry, only=True).fetch_missing([bad], Context(store, Http()), title="small")
    assert store.file(bad.sha256) is None


def test_a_mirror_that_fails_is_given_up_once(registry, capsys):
    items = [given(registry, f"{name}.whl", name.encode()) for name in "abc"]
    registry.faults.append(Fault("GET .*/blobs/", times=1000, status=503))
    registry_mirror = mirror_of(registry)
    assert (
        registry_mirror.fetch_missing(items, Context(Store.open(), Http(), console), title="small")
        == set()
    )
    assert f"the mirror {registry.host}/{NAME} is skipped" in capsys.readouterr().err
    registry.faults.clear()
    before = len(registry.requests)
    assert (
        registry_mirror.fetch_missing(items, Context(Store.open(), Http()), title="small") == set()
    )
    assert len(registry.requests) == before
    registry.faults.append(Fault("GET .*/blobs/", times=1000, status=503))
    with pytest.raises(FetchFailed, match="503"):
        mirror_of(registry, only=True).fetch_missing(
            items, Context(Store.open(), Http()), title="small"
        )


def test_a_mirror_that_fails_after_some_files_has_given_these(registry):
    large, small = given(registry, "large.whl", b"x" * 5000), given(registry, "small.whl", b"y")
    registry.faults.append(Fault(f"GET .*/blobs/{small.digest}", times=1000, status=500))
    store = Store.open()
    have = mirror_of(registry).fetch_missing([large], Context(store, Http()), title="small")
    digests = mirror_of(registry, attempts=1).fetch_missing(
        [large, small], Context(store, Http()), title="small"
    )
    assert digests == have == {large.digest}


# -- what a build asks it for


def named(name: str, registry: Registry, *, there: bool = True) -> LockedFile:
    """A file as a lock has it; `there` says whether the mirror has it."""
    data = f"bytes of {name}".encode()
    item = given(registry, name, data) if there else mirror_input(name, data)
    return LockedFile(file=name, size=item.size, sha256=item.sha256)


def test_what_builds_a_wheel_is_requested_only_if_the_wheel_is_not_there(registry):
    """The debs are those of this machine's architecture: the wheel is built under them."""
    host, matrix = sdists.host_arch(), samples.matrix()
    for there in (True, False):
        word = f"{there}".lower()
        deb = named(f"pool/main/p/python3/python3-{word}.deb", registry)
        tool = named(f"setuptools-{word}-py3-none-any.whl", registry)
        built = BuiltWheel(
            package="antlr", version="4.9", index="pypi", env={},
            sdist=named(f"antlr-{word}.tar.gz", registry),
            requires=(
                Wheel(**asdict(tool), package="setuptools", version="80", index="pypi"),
            ),
            wheel=named(f"antlr-{word}-py3-none-any.whl", registry, there=there),
        )  # fmt: skip
        debs = (Deb(**asdict(deb), package="python3", version="3", arch="amd64"),)
        resolution = Resolution(wheels=(), built=(built,), debs=debs)
        lock = make_lock(matrix, "small", {host: resolution})
        store = Store.open()
        inputs = Inputs(matrix, Context(store, Http()), mirror=mirror_of(registry))
        (own_files, from_mirror, *_) = Origins(matrix, inputs.context, inputs.mirror).of_inputs(
            lock
        )
        del own_files
        from_mirror([inputs_of_all(lock)[built.wheel.sha256]])
        assert (store.file(built.wheel.sha256) is not None) == there
        parts = (built.sdist, tool, deb)
        assert [store.file(part.sha256) is not None for part in parts] == [not there] * 3


def test_offline_no_mirror_is_queried(registry):
    lock = samples.lock()
    inputs = Inputs(
        samples.matrix(), Context(Store.open(), Http(offline=True)),
        mirror=mirror_of(registry),
    )  # fmt: skip
    with pytest.raises(FetchFailed, match="1 inputs of small are not in") as caught:
        inputs.fetch_missing(lock, {lock.arch[Arch.X86_64].wheels[0].sha256})
    assert caught.value.hint == "run once without --offline"
    assert registry.requests == []


def test_published_layers_are_requested_from_the_mirror_and_else_made_of_inputs(registry, tmp_path):
    """Where it is the only source, what it lacks is not requested from another registry."""
    matrix = extended.read(
        extended.repository(
            tmp_path / "ours",
            extended.MATRIX.replace("    from: ../project", "    image: registry.example/small"),
        )
    )
    planned = plan(extended.published(), Arch.X86_64)
    records = extended.records([planned])
    data = b"the first layer"
    record = records[planned.layers[0].id]
    records[planned.layers[0].id] = msgspec.structs.replace(
        record, digest=f"sha256:{sha256(data)}", size=len(data)
    )
    store = Store.open()
    only = mirror_of(registry, only=True)
    inputs = Inputs(matrix, Context(store, Http()), mirror=only)
    lock = make_extension(matrix, extended.OWN, extended.resolved(matrix))
    inputs.take_published(lock, records)
    assert store.blob(f"sha256:{sha256(data)}") is None
    registry.blobs[NAME, f"sha256:{sha256(data)}"] = data
    inputs.take_published(lock, records)
    assert store.blob(f"sha256:{sha256(data)}") is not None
