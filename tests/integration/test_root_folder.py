"""Root folders of images: layers are unpacked once, and what commands write goes elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imgbuild.cache import prune
from imgbuild.cache.store import Store
from imgbuild.container import sandbox
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import IntegrityError
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
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
    with root_folder(layout.read(folder / "layout-hello"), Arch.X86_64, store) as root:
        assert root.changes is not None
        print(sandbox.run(root, ["sh", "-c", sys.argv[2]]).stdout)
"""


@pytest.fixture(name="tiny")
def _tiny(tmp_path: Path) -> Layout:
    needs.user_namespaces()
    return layout.read(images.tiny(tmp_path / "tiny"))


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "cache")


def shell(root: sandbox.Root, script: str) -> str:
    done = sandbox.run(root, ["sh", "-c", script])
    assert done.status == 0, done.stderr
    return done.stdout


def test_a_layer_with_other_bytes_is_not_unpacked(tiny: Layout, store: Store) -> None:
    """The folder would be taken for that of the right layer, by all images that have it."""
    right = tiny.image(ARCH).layers[1]
    path = tiny.blob(right.digest)
    data = path.read_bytes()
    other, made = images.layer(tiny.path.parent / "other", [images.text("opt/hello", "poison\n")])
    path.unlink()
    path.write_bytes(made.read_bytes())
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


def test_changes_of_a_command_end_with_its_root_folder(tiny: Layout, store: Store) -> None:
    with root_folder(tiny, ARCH, store) as root:
        if root.changes is None:
            pytest.skip("no overlay can be mounted on the disk of the temporary folder")
        assert shell(root, CHANGES) == "other\nhello\nnew\n"
        assert shell(root, "cat /opt/hello") == "other\n"  # until the folder is removed
    with root_folder(tiny, ARCH, store) as root:
        assert shell(root, "cat /opt/hello; ls /opt") == "hello\nhello\nmine\n"
    assert not root.path.exists()


def test_layers_are_unpacked_once(tiny: Layout, store: Store) -> None:
    files = []
    for _ in range(2):
        with root_folder(tiny, ARCH, store) as root:
            files.append((root.path / "bin/busybox").stat().st_ino)
    assert files[0] == files[1]
    kept = [entry for entry in prune.entries(store) if entry.kind == "unpacked"]
    assert {f"sha256:{one.sha256}" for one in kept} == {
        layer.digest for layer in tiny.image(ARCH).layers
    }
    assert all(one.in_use and one.size > 0 for one in kept)


def test_unpacked_layers_are_pruned_first(tiny: Layout, tmp_path: Path, store: Store) -> None:
    (tmp_path / "blob").write_bytes(b"older")
    blob = store.add_blob(tmp_path / "blob", f"sha256:{sha256(b'older')}")
    os.utime(blob, (0, 0))
    with root_folder(tiny, ARCH, store):
        pass
    store.release()
    facts = sum(entry.size for entry in prune.entries(store) if entry.kind == "fact")
    done = prune.prune(store, 5 + facts)
    assert blob.exists()
    assert not [entry for entry in prune.entries(store) if entry.kind == "unpacked"]
    assert (done.removed, done.left) == (2, 5 + facts)
    assert not list((store.root / "scratch").glob("*/*"))
    with root_folder(tiny, ARCH, store) as root:  # and made again
        assert shell(root, "cat /opt/hello") == "hello\n"


def test_without_an_overlay_the_image_is_unpacked(
    tiny: Layout, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "can_overlay", lambda _: False)
    with root_folder(tiny, ARCH, store) as root:
        assert root.changes is None
        assert shell(root, CHANGES) == "other\nhello\nnew\n"
    assert not list((store.root / "unpacked").glob("*"))


def test_an_ordinary_user_has_an_overlay() -> None:
    with ordinary.home() as folder:
        images.tiny(folder)
        done = subprocess.run(
            [*ordinary.become(), ordinary.python(folder), "-B", "-c", ORDINARY, folder, CHANGES],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "builder")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["other", "hello", "new"] * 2


def test_a_false_diff_id_is_refused_even_if_its_layer_is_unpacked_already(
    tmp_path: Path, store: Store
) -> None:
    needs.user_namespaces()
    true = layout.read(rewritten_image.layout(tmp_path / "true"))

    def _exchange(_: object, config: dict[str, dict[str, list[str]]]) -> None:
        config["rootfs"]["diff_ids"].reverse()

    false = layout.read(rewritten_image.layout(tmp_path / "false", _exchange))
    for _ in range(2):
        with pytest.raises(IntegrityError, match="diff id"), root_folder(false, ARCH, store):
            pass
        with root_folder(true, ARCH, store) as root:
            assert (root.path / "opt/hello").read_text() == "hello\n"
