"""Tests that another user who modifies the cache during a build cannot change the image.

The attacker is a real process with user ID 65534. It repeatedly swaps a file with a file of the
same size, or writes to its own file. Each build must yield the correct image, or an error message.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError
from imgbuild.oci import layout
from imgbuild.values import Arch, digest_of
from tests.support import images

OTHER = 65534
ROUNDS = 150

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user"),
]


@contextlib.contextmanager
def attacker(step: Callable[[], None]) -> Iterator[None]:
    """A process of another user that repeats `step`, which has run once at the start.

    Errors from the operating system, such as a denied write, do not stop it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            step()
            os.write(writer, b"x")
            while True:
                with contextlib.suppress(OSError):
                    step()
        os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "the attacking process did not start"
        yield
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def swapping(path: Path, size: int) -> Callable[[], None]:
    """Swap the file with another file of `size` bytes, and back again."""

    def step() -> None:
        right, wrong = path.with_name("right"), path.with_name("wrong")
        if not right.exists():
            right.write_bytes(path.read_bytes())
        wrong.write_bytes(b"E" * size)
        wrong.replace(path)
        again = path.with_name("again")
        again.write_bytes(right.read_bytes())
        again.replace(path)

    return step


@pytest.fixture(name="folder")
def _folder() -> Iterator[Path]:
    """A folder accessible to every user."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def image(folder: Path) -> tuple[layout.ImageFiles, str, int]:
    """The documents of an image with one layer, and the layer's digest and size."""
    record, path = images.make_layer(
        folder / "made", [images.text_member("word", os.urandom(300_000).hex())]
    )
    return images.image_files([(record, path)]), record.digest, record.size


def build(files: layout.ImageFiles, digest: str, source: Path, out: Path) -> bool:
    """Write the layout of the image; returns whether it succeeded with a correct layer."""
    image_files = layout.ImageFiles(
        config=files.config, manifest=files.manifest, layers={digest: source}
    )
    try:
        layout.write_layout(out, {Arch.X86_64: image_files}, "tiny")
    except (ImgbuildError, OSError):
        return False
    blob = layout.blob_path(out, digest)
    assert f"sha256:{hashlib.sha256(blob.read_bytes()).hexdigest()}" == digest, (
        "the layout has a changed layer"
    )
    assert blob.stat().st_uid == 0
    return True


def opened(root: Path) -> None:
    """Make the cache writable by every user, like a umask of 000."""
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o777)


def test_cached_layer_that_is_replaced_during_the_build_is_not_used(folder):
    files, digest, size = image(folder)
    store = Store.open(folder / "cache")
    path = store.add_blob(files.layers[digest], digest)
    opened(store.root)
    with attacker(swapping(path, size)):
        for number in range(ROUNDS):
            source = Store.open(store.root).blob(digest)
            if source is not None:
                build(files, digest, source, folder / f"out{number % 3}")
    # Otherwise it could not write after the cache was opened.
    source = Store.open(store.root).blob(digest)
    if source is not None:
        assert build(files, digest, source, folder / "last")
        assert source.stat().st_uid == 0


def test_source_layer_that_is_replaced_during_the_copy_is_not_used(folder):
    """The source is outside of the cache and stays writable for others, as an older layout may."""
    files, digest, size = image(folder)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    source = folder / "open/layer"
    source.write_bytes(files.layers[digest].read_bytes())
    source.chmod(0o444)
    right = 0
    with attacker(swapping(source, size)):
        for number in range(ROUNDS):
            right += build(files, digest, source, folder / f"out{number % 3}")
    assert right, "every build failed"


def test_later_writes_to_a_cached_layer_do_not_change_the_image(folder):
    files, digest, size = image(folder)
    store = Store.open(folder / "cache")
    path = store.add_blob(files.layers[digest], digest)
    data = path.read_bytes()
    os.chown(path, OTHER, OTHER)
    path.chmod(0o644)
    source = Store.open(store.root).blob(digest)
    assert source is not None
    assert build(files, digest, source, folder / "out")
    theirs = folder / "theirs"
    theirs.write_bytes(data)
    os.chown(theirs, OTHER, OTHER)
    assert build(files, digest, theirs, folder / "out")

    def step() -> None:
        theirs.write_bytes(b"E" * size)

    with attacker(step):
        assert digest_of(layout.blob_path(folder / "out", digest).read_bytes()) == digest
    images.verify_layout(folder / "out")
