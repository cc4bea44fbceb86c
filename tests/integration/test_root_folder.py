"""Tests that layers are unpacked once, and that commands do not change them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imgbuild.cache import prune
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from tests.support import images, needs, ordinary, rewritten_image

REPOSITORY = Path(__file__).parents[2]


ARCH = Arch.X86_64
CHANGES = "echo other >/opt/hello; rm /opt/mine; mkdir /opt/new; cat /opt/hello; ls /opt"
ORDINARY = """
import os, sys
from pathlib import Path
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.oci import layout
from imgbuild.values import Arch, sha256
assert os.geteuid() != 0
folder = Path(sys.argv[1])
store = Store.open(folder / "cache")
for _ in range(2):
    with root_folder(layout.read_layout(folder / "layout-hello"), Arch.X86_64, store) as root:
        assert root.changes is not None
        print(sandbox.run_in_sandbox(root, ["sh", "-c", sys.argv[2]]).stdout)
        assert sandbox.run_in_sandbox(root, ["mkdir", "-m", "0", "/closed"]).status == 0
assert not list((store.root / "scratch").glob("*/*"))
"""


@pytest.fixture(name="tiny")
def _tiny(tmp_path: Path) -> Layout:
    needs.user_namespaces()
    return layout.read_layout(images.write_tiny_image(tmp_path / "tiny"))


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "cache")


def shell(root: sandbox.SandboxRoot, script: str) -> str:
    done = sandbox.run_in_sandbox(root, ["sh", "-c", script])
    assert done.status == 0, done.stderr
    return done.stdout


def test_layer_with_wrong_digest_is_not_unpacked(tiny: Layout, store: Store) -> None:
    """Otherwise, all images with the layer would use the wrong folder."""
    right = tiny.image(ARCH).layers[1]
    path = tiny.blob(right.digest)
    data = path.read_bytes()
    other, blob_path = images.make_layer(
        tiny.path.parent / "other", [images.text_member("opt/hello", "poison\n")]
    )
    path.unlink()
    path.write_bytes(blob_path.read_bytes())
    assert other.digest != right.digest
    with (
        pytest.raises(IntegrityError, match=f"{path.name} is damaged"),
        root_folder(tiny, ARCH, store),
    ):
        pass
    assert store.unpacked(right.digest) is None
    path.write_bytes(data)
    with root_folder(tiny, ARCH, store) as root:
        assert shell(root, "cat /opt/hello") == "hello\n"


def contents(store: Store) -> dict[str, tuple[object, ...]]:
    """The mode, owner, time and content of each path of the image data in the cache.

    The time of a cache entry's folder is its last use and is therefore excluded.
    """
    entries: dict[str, tuple[object, ...]] = {}
    for path in sorted(
        path for kind in ("roots", "unpacked") for path in (store.root / kind).rglob("*")
    ):
        status = path.lstat()
        data = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        time = 0 if len(path.relative_to(store.root).parts) == 3 else status.st_mtime_ns
        entries[str(path)] = (status.st_mode, status.st_uid, time, data)
    return entries


def roots(store: Store) -> list[Path]:
    return sorted((store.root / "roots").glob("*/*"))


def require_disk_overlay(folder: Path) -> None:
    probe = folder / "probe"
    probe.mkdir()
    if sandbox.overlay_place(probe) != "disk":
        pytest.skip("no overlay can be mounted on the disk of the temporary folder")


def test_changes_made_by_a_command_are_discarded(tiny: Layout, store: Store) -> None:
    require_disk_overlay(store.root.parent)
    before: dict[str, tuple[object, ...]] = {}
    for _ in range(2):
        with root_folder(tiny, ARCH, store) as root:
            before = before or contents(store)
            assert shell(root, CHANGES) == "other\nhello\nnew\n"
            assert shell(root, "cat /opt/hello") == "other\n"  # until the folder is removed
            more = (
                "rm -r /opt; mkdir -m 0 /closed; echo >>/bin/sh; busybox chmod 0 /etc/passwd /bin"
            )
            shell(root, more)
        assert contents(store) == before
        assert not list((store.root / "scratch").glob("*/*"))
    with root_folder(tiny, ARCH, store) as root:
        assert shell(root, "cat /opt/hello; ls /opt") == "hello\nhello\nmine\n"


def test_mounts_do_not_change_the_cached_root_folder(tiny: Layout, store: Store) -> None:
    with root_folder(tiny, ARCH, store):
        before = contents(store)
    binds = [
        sandbox.BindMount(source=tiny.path, target="/opt/new/folder", writable=True),
        sandbox.BindMount(source=Path(__file__), target="/opt/hello"),
    ]
    with root_folder(tiny, ARCH, store) as root:
        done = sandbox.run_in_sandbox(root, ["ls", "/opt/new/folder"], binds=binds, network=True)
        assert "index.json" in done.stdout, done.stderr
    assert contents(store) == before


def test_layers_and_roots_are_unpacked_once(tiny: Layout, store: Store) -> None:
    times = []
    for _ in range(2):
        with root_folder(tiny, ARCH, store):
            (folder,) = roots(store)
            times.append((folder / "tree").stat().st_ctime_ns)
    assert times[0] == times[1]
    entries = prune.list_entries(store)
    layers = [entry for entry in entries if entry.kind == "unpacked"]
    assert {f"sha256:{entry.sha256}" for entry in layers} == {
        layer.digest for layer in tiny.image(ARCH).layers
    }
    (root_entry,) = [entry for entry in entries if entry.kind == "root"]
    assert all(entry.in_use and entry.size > 0 for entry in (*layers, root_entry))
    assert root_entry.size < sum(entry.size for entry in layers)  # its files belong to other users


def test_cached_root_folder_depends_on_the_image_layers(tiny: Layout, store: Store) -> None:
    other = layout.read_layout(images.write_tiny_image(tiny.path.parent, word="other"))
    for image, text in ((tiny, "hello\n"), (other, "other\n"), (tiny, "hello\n")):
        with root_folder(image, ARCH, store) as root:
            assert shell(root, "cat /opt/hello") == text
    assert len(roots(store)) == 2


def test_concurrent_runs_share_a_root_folder_but_not_their_changes(
    tiny: Layout, store: Store
) -> None:
    with root_folder(tiny, ARCH, store) as first, root_folder(tiny, ARCH, store) as second:
        assert shell(first, CHANGES) == "other\nhello\nnew\n"
        assert shell(second, "cat /opt/hello; ls /opt") == "hello\nhello\nmine\n"
    assert len(roots(store)) == 1


def test_root_folder_in_use_is_not_pruned(tiny: Layout, store: Store) -> None:
    other = Store.open(store.root)
    with root_folder(tiny, ARCH, store) as root:
        prune.clear_cache(other)
        assert shell(root, "cat /opt/hello") == "hello\n"
        assert {entry.kind for entry in prune.list_entries(other)} >= {"root", "unpacked"}
    store.release()
    prune.clear_cache(other)
    assert prune.list_entries(other) == []


def test_root_folders_are_pruned_before_unpacked_layers(
    tiny: Layout, tmp_path: Path, store: Store
) -> None:
    (tmp_path / "blob").write_bytes(b"older")
    blob = store.add_blob(tmp_path / "blob", f"sha256:{sha256(b'older')}")
    os.utime(blob, (0, 0))
    with root_folder(tiny, ARCH, store):
        pass
    store.release()
    done = prune.prune_cache(store, sum(entry.size for entry in prune.list_entries(store)) - 1)
    assert (done.removed, roots(store)) == (1, [])
    facts = sum(entry.size for entry in prune.list_entries(store) if entry.kind == "fact")
    done = prune.prune_cache(store, 5 + facts)
    assert blob.exists()
    assert not [entry for entry in prune.list_entries(store) if entry.kind == "unpacked"]
    assert (done.removed, done.left) == (2, 5 + facts)
    assert not list((store.root / "scratch").glob("*/*"))
    with root_folder(tiny, ARCH, store) as root:  # and created again
        assert shell(root, "cat /opt/hello") == "hello\n"


def test_root_folder_that_others_can_write_to_is_recreated(tiny: Layout, store: Store) -> None:
    with root_folder(tiny, ARCH, store):
        (folder,) = roots(store)
        (folder / "tree/opt/hello").unlink()
        (folder / "tree/opt/hello").write_text("false\n")
    folder.chmod(0o777)
    with root_folder(tiny, ARCH, store) as root:
        assert shell(root, "cat /opt/hello") == "hello\n"


def test_root_of_another_user_is_refused(tiny: Layout, store: Store) -> None:
    needs.require_root()
    with root_folder(tiny, ARCH, store):
        (folder,) = roots(store)
    os.chown(folder, 65534, 65534)
    with pytest.raises(InputError, match="does not belong to the current user"):
        root_folder(tiny, ARCH, store).__enter__()


KILLED = """
import os, signal, sys
from pathlib import Path
from imgbuild.cache.store import Store
from imgbuild.container import root_folder
from imgbuild.oci import layout, unpack
from imgbuild.values import Arch
stack = unpack.stack_layers
def killed(*words, **options):
    stack(*words, **options)
    os.kill(os.getpid(), signal.SIGKILL)
root_folder.stack_layers = killed
store = Store.open(Path(sys.argv[1]))
root_folder.root_folder(layout.read_layout(Path(sys.argv[2])), Arch.X86_64, store).__enter__()
"""


def test_killed_creation_of_a_root_folder_leaves_no_files(tiny: Layout, store: Store) -> None:
    words = [sys.executable, "-c", KILLED, str(store.root), str(tiny.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((store.root / "scratch").glob("*/*/root/tree"))
    assert roots(store) == []
    store.remove_leftovers()
    assert not list((store.root / "scratch").glob("*/*"))
    with root_folder(tiny, ARCH, store) as root:
        assert shell(root, "cat /opt/hello") == "hello\n"


ON_AN_OVERLAY = """
import sys
from pathlib import Path
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.oci import layout
from imgbuild.system.console import console
from imgbuild.values import Arch
store = Store.open(Path(sys.argv[1]))
image = layout.read_layout(Path(sys.argv[2]))
for _ in range(2):
    with root_folder(image, Arch.X86_64, store, reporter=console) as root:
        print(sandbox.run_in_sandbox(root, ["sh", "-c", sys.argv[3]]).stdout)
"""


def test_changes_stay_in_memory_if_the_disk_does_not_support_overlays(
    tiny: Layout, tmp_path: Path
) -> None:
    """This is the case in a container, whose disk is an overlay."""
    needs.require_root()
    for name in ("lower", "upper", "work", "disk"):
        (tmp_path / name).mkdir()
    options = ",".join(
        f"{name}dir={tmp_path}/{name}" for name in ("lower", "upper", "work")
    )  # fmt: skip
    mounted = f'mount -t overlay overlay -o {options} {tmp_path}/disk && exec "$@"'
    words = [sys.executable, "-c", ON_AN_OVERLAY, f"{tmp_path}/disk", str(tiny.path), CHANGES]
    done = subprocess.run(
        [needs.user_namespaces(), "--mount", "sh", "-c", mounted, "sh", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["other", "hello", "new"] * 2
    assert done.stderr.count("changes are kept in memory") == 2


def test_image_is_unpacked_without_overlay_support(
    tiny: Layout, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "overlay_place", lambda _: None)
    with root_folder(tiny, ARCH, store, reporter=console) as root:
        assert root.changes is None
        assert shell(root, CHANGES) == "other\nhello\nnew\n"
    assert capsys.readouterr().err.count("overlays cannot be mounted") == 1
    assert not list((store.root / "unpacked").glob("*"))
    assert not list((store.root / "scratch").glob("*/*"))


def test_ordinary_user_can_use_an_overlay() -> None:
    with ordinary.nobody_home() as folder:
        images.write_tiny_image(folder)
        done = subprocess.run(
            [
                *ordinary.as_nobody(),
                ordinary.nobody_python(folder),
                "-B",
                "-c",
                ORDINARY,
                folder,
                CHANGES,
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "builder")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["other", "hello", "new"] * 2


def test_unpacked_layer_with_a_wrong_diff_id_is_refused(tmp_path: Path, store: Store) -> None:
    needs.user_namespaces()
    true = layout.read_layout(rewritten_image.write_changed_layout(tmp_path / "true"))

    def _exchange(_: object, config: dict[str, dict[str, list[str]]]) -> None:
        config["rootfs"]["diff_ids"].reverse()

    false = layout.read_layout(rewritten_image.write_changed_layout(tmp_path / "false", _exchange))
    for _ in range(2):
        with pytest.raises(IntegrityError, match="diff ID"), root_folder(false, ARCH, store):
            pass
        with root_folder(true, ARCH, store) as root:
            assert (root.path / "opt/hello").read_text() == "hello\n"
