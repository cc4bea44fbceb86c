"""Tests mirror settings, and downloads from mirrors with missing or damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict

from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.mirror import Mirror, MirrorOrigin
from imgbuild.assemble.mirror_items import Input, inputs_by_hash
from imgbuild.assemble.origins import Origins
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock.extension import make_lock as make_extension
from imgbuild.lock.lock_file import make_lock
from imgbuild.lock.resolution import BuiltWheel, Deb, LockedFile, Resolution, Wheel
from imgbuild.plan.plan import create_plan
from imgbuild.registry.client import RegistryClient
from imgbuild.solve import sdists
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from tests.support import extended, memory_registry, samples
from tests.support.memory_registry import Registry
from tests.support.memory_registry_values import Fault

NAME = "team/inputs"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    with memory_registry.serve(Registry()) as registry:
        yield registry


def given(registry: Registry, name: str, data: bytes, *, layer: bool = False) -> Input:
    item = mirror_input(name, data, layer=layer)
    registry.blobs[NAME, item.digest] = data
    return item


def mirror_input(name: str, data: bytes, *, layer: bool = False) -> Input:
    return Input(
        file=name, digest=f"sha256:{sha256(data)}", size=len(data),
        media_type="application/zip", layer=layer,
    )  # fmt: skip


def mirror_of(registry: Registry, *, only: bool = False, attempts: int = 2) -> Mirror:
    client = RegistryClient(first_wait=0.001, attempts=attempts)
    return Mirror(registry.repository(NAME), only=only, client=client)


# -- settings


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_mirror_option_overrides_variable_project_setting_and_user_setting(alone, monkeypatch):
    assert mirror.find_mirror(alone) is None
    write(mirror.user_file(), '{"mirror": "user.example/a", "only": true}')
    selected = mirror.find_mirror(alone)
    assert selected is not None
    assert (selected.origin, selected.setting.mirror, selected.setting.only) == (
        MirrorOrigin.USER, "user.example/a", True
    )  # fmt: skip
    assert selected.place == alone / "config/imgbuild/mirror.json"
    write(alone / "mirror.json", '{"mirror": "project.example/a"}')
    selected = mirror.find_mirror(alone)
    assert selected is not None
    assert (selected.origin, selected.setting.only) == (MirrorOrigin.PROJECT, False)
    monkeypatch.setenv(mirror.VARIABLE, "environment.example/a")
    selected = mirror.find_mirror(alone)
    assert selected is not None
    assert (selected.origin, selected.place) == (MirrorOrigin.ENVIRONMENT, None)
    selected = mirror.find_mirror(alone, "option.example/a", only=True)
    assert selected is not None
    assert (selected.setting.mirror, selected.setting.only) == ("option.example/a", True)


def test_mirror_value_off_overrides_settings_of_lower_precedence(alone, monkeypatch):
    write(alone / "mirror.json", '{"mirror": "project.example/a"}')
    assert mirror.find_mirror(alone, "off") is None
    monkeypatch.setenv(mirror.VARIABLE, "off")
    assert mirror.find_mirror(alone) is None
    selected = mirror.find_mirror(alone, "option.example/a")
    assert selected is not None
    monkeypatch.setenv(mirror.VARIABLE, "")  # treated as unset
    selected = mirror.find_mirror(alone)
    assert selected is not None
    assert selected.origin is MirrorOrigin.PROJECT


def test_error_for_an_unreadable_mirror_setting_names_the_file(alone):
    write(alone / "mirror.json", '{"mirrors": "project.example/a"}')
    with pytest.raises(InputError, match=r"mirror\.json is not a valid mirror setting"):
        mirror.find_mirror(alone)
    write(alone / "mirror.json", '{"mirror": "not a place"}')
    with pytest.raises(InputError, match="not a place"):
        mirror.find_mirror(alone)


def test_mirror_only_setting_requires_a_mirror(alone):
    with pytest.raises(InputError, match="--mirror-only requires a mirror"):
        mirror.find_mirror(alone, only=True)


def test_lock_can_use_other_sources_in_spite_of_the_mirror_only_setting(alone):
    named = mirror.find_mirror(alone, "option.example/a", only=True)
    bound, free = Mirror.of(named), Mirror.of(named, any_source=True)
    assert bound is not None
    assert free is not None
    assert (bound.only, free.only) == (True, False)
    assert Mirror.of(None) is None


def test_plain_http_applies_only_to_the_named_registry(alone):
    write(alone / "mirror.json", '{"mirror": "a.example/x", "plain_http": true}')
    assert Mirror.of(mirror.find_mirror(alone))._plain_http == ("a.example",)  # type: ignore[union-attr]
    named = mirror.find_mirror(alone, "b.example/x")
    assert Mirror.of(named)._plain_http == ()  # type: ignore[union-attr]
    selected = Mirror.of(named, plain_http=["b.example"])
    assert selected is not None
    assert selected._plain_http == ("b.example",)


# -- downloads


def test_files_and_layers_are_added_to_store(registry):
    store = Store.open()
    items = [
        given(registry, "a.whl", b"wheel"),
        given(registry, "layers/x", b"layer", layer=True),
        mirror_input("absent.whl", b"never there"),
    ]
    assert mirror_of(registry).fetch_missing(
        items, Context(store, HttpClient()), title="small"
    ) == {items[0].digest, items[1].digest}
    path, blob = store.file(items[0].sha256), store.blob(items[1].digest)
    assert path is not None
    assert blob is not None
    assert (path.read_bytes(), blob.read_bytes()) == (b"wheel", b"layer")
    assert store.file(items[1].sha256) is None
    assert store.fact("name", items[0].sha256) == b"a.whl"
    blob_requests = [request for request in registry.requests if "/blobs/" in request.path]
    assert len(blob_requests) == 3  # one request for each
    assert {request.method for request in blob_requests} == {"GET"}


def test_files_in_the_cache_are_not_requested_from_the_mirror(registry):
    store = Store.open()
    item = given(registry, "a.whl", b"wheel")
    registry_mirror = mirror_of(registry)
    registry_mirror.fetch_missing([item], Context(store, HttpClient()), title="small")
    before = len(registry.requests)
    assert registry_mirror.fetch_missing([item], Context(store, HttpClient()), title="small") == {
        item.digest
    }
    assert len(registry.requests) == before


def test_interrupted_download_is_resumed(registry):
    data = bytes(range(256)) * 40
    item, store = given(registry, "a.whl", data), Store.open()
    with store.partial(item.sha256, stop=lambda: False) as partial:
        assert partial is not None
        partial.write_bytes(data[:1000])
    assert mirror_of(registry).fetch_missing(
        [item], Context(store, HttpClient()), title="small"
    ) == {item.digest}
    (request,) = registry.received_requests("GET .*/blobs/")
    assert request.headers["Range"] == "bytes=1000-"


def test_dropped_connection_is_retried(registry):
    item = given(registry, "a.whl", bytes(range(256)) * 4096)
    registry.faults.append(Fault(r"GET .*/blobs/", cut_answer=700_000))
    assert mirror_of(registry).fetch_missing(
        [item], Context(Store.open(), HttpClient()), title="small"
    ) == {item.digest}
    assert len(registry.received_requests("GET .*/blobs/")) == 2


def test_file_with_wrong_hash_is_skipped_or_refused(registry, capsys):
    good, bad = given(registry, "good.whl", b"good"), mirror_input("bad.whl", b"right")
    registry.blobs[NAME, bad.digest] = b"wrong"
    store = Store.open()
    context = Context(store, HttpClient(), console)
    assert mirror_of(registry).fetch_missing([good, bad], context, title="small") == {good.digest}
    assert f"skipping bad.whl in {registry.host}/{NAME}" in capsys.readouterr().err
    assert store.file(bad.sha256) is None
    with pytest.raises(IntegrityError):
        mirror_of(registry, only=True).fetch_missing(
            [bad], Context(store, HttpClient()), title="small"
        )
    assert store.file(bad.sha256) is None


def test_failing_mirror_is_skipped_with_one_warning(registry, capsys):
    items = [given(registry, f"{name}.whl", name.encode()) for name in "abc"]
    registry.faults.append(Fault("GET .*/blobs/", times=1000, status=503))
    registry_mirror = mirror_of(registry)
    assert (
        registry_mirror.fetch_missing(
            items, Context(Store.open(), HttpClient(), console), title="small"
        )
        == set()
    )
    assert f"skipping the mirror {registry.host}/{NAME}" in capsys.readouterr().err
    registry.faults.clear()
    before = len(registry.requests)
    assert (
        registry_mirror.fetch_missing(items, Context(Store.open(), HttpClient()), title="small")
        == set()
    )
    assert len(registry.requests) == before
    registry.faults.append(Fault("GET .*/blobs/", times=1000, status=503))
    with pytest.raises(FetchFailed, match="503"):
        mirror_of(registry, only=True).fetch_missing(
            items, Context(Store.open(), HttpClient()), title="small"
        )


def test_files_fetched_before_the_mirror_fails_are_kept(registry):
    large, small = given(registry, "large.whl", b"x" * 5000), given(registry, "small.whl", b"y")
    registry.faults.append(Fault(f"GET .*/blobs/{small.digest}", times=1000, status=500))
    store = Store.open()
    have = mirror_of(registry).fetch_missing([large], Context(store, HttpClient()), title="small")
    digests = mirror_of(registry, attempts=1).fetch_missing(
        [large, small], Context(store, HttpClient()), title="small"
    )
    assert digests == have == {large.digest}


# -- requests of a build


def named(name: str, registry: Registry, *, there: bool = True) -> LockedFile:
    """Return a file of a lock; the mirror contains the file if `there` is true."""
    data = f"bytes of {name}".encode()
    item = given(registry, name, data) if there else mirror_input(name, data)
    return LockedFile(file=name, size=item.size, sha256=item.sha256)


def test_build_requirements_are_requested_only_if_the_built_wheel_is_missing(registry):
    """The wheel is built with debs for the architecture of this machine."""
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
        inputs = Inputs(matrix, Context(store, HttpClient()), mirror=mirror_of(registry))
        (own_files, from_mirror, *_) = Origins(matrix, inputs.context, inputs.mirror).input_origins(
            lock
        )
        del own_files
        from_mirror([inputs_by_hash(lock)[built.wheel.sha256]])
        assert (store.file(built.wheel.sha256) is not None) == there
        parts = (built.sdist, tool, deb)
        assert [store.file(part.sha256) is not None for part in parts] == [not there] * 3


def test_mirror_is_not_queried_in_offline_mode(registry):
    lock = samples.lock()
    inputs = Inputs(
        samples.matrix(), Context(Store.open(), HttpClient(offline=True)),
        mirror=mirror_of(registry),
    )  # fmt: skip
    with pytest.raises(FetchFailed, match="1 inputs of small are not in") as caught:
        inputs.fetch_missing(lock, {lock.arch[Arch.X86_64].wheels[0].sha256})
    assert caught.value.hint == "run once without --offline"
    assert registry.requests == []


def test_published_layers_are_fetched_from_the_mirror_or_built_from_inputs(registry, tmp_path):
    """If the mirror is the only source, missing layers are not requested from another registry."""
    matrix = extended.read_extended(
        extended.create_repository(
            tmp_path / "ours",
            extended.MATRIX.replace("    from: ../project", "    image: registry.example/small"),
        )
    )
    planned = create_plan(extended.published_lock(), Arch.X86_64)
    records = extended.invented_records([planned])
    data = b"the first layer"
    record = records[planned.layers[0].id]
    records[planned.layers[0].id] = msgspec.structs.replace(
        record, digest=f"sha256:{sha256(data)}", size=len(data)
    )
    store = Store.open()
    only = mirror_of(registry, only=True)
    inputs = Inputs(matrix, Context(store, HttpClient()), mirror=only)
    lock = make_extension(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    inputs.link_published_layers(lock, records)
    assert store.blob(f"sha256:{sha256(data)}") is None
    registry.blobs[NAME, f"sha256:{sha256(data)}"] = data
    inputs.link_published_layers(lock, records)
    assert store.blob(f"sha256:{sha256(data)}") is not None
