"""Tests that a killed writer leaves either the old or the new image complete."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from imgbuild.oci import archive, layout
from imgbuild.values import Arch
from tests.support import images

WRITER = """
import sys
from pathlib import Path
from imgbuild.oci import archive, layout
from imgbuild.values import Arch
out, *sources = map(Path, sys.argv[1:])
read = [layout.read_layout(source) for source in sources]
print("ready", flush=True)
while True:
    for found in read:
        stored = found.image(Arch.X86_64)
        image = layout.ImageFiles(
            config=found.blob(stored.config.digest).read_bytes(),
            manifest=found.blob(stored.manifest.digest).read_bytes(),
            layers={layer.digest: found.blob(layer.digest) for layer in stored.layers},
        )
        layout.write_layout(out, {Arch.X86_64: image}, "tiny")
"""


def source(folder: Path, word: str) -> Path:
    blobs = folder / "blobs"
    texts = ["shared", *(f"{word} {number}" for number in range(8))]
    layers = [images.make_layer(blobs, [images.text_member("word", text)]) for text in texts]
    layout.write_layout(folder / word, {Arch.X86_64: images.image_files(layers)}, "tiny")
    return folder / word


def test_killed_layout_writer_leaves_a_complete_image(tmp_path):
    sources = [source(tmp_path, word) for word in ("one", "two")]
    digests = {layout.read_layout(path).digest for path in sources}
    out = tmp_path / "out"
    seen = set()
    spread = random.Random(20250620)
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(out), *map(str, sources)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            while not (out / "index.json").exists():
                time.sleep(0.001)
            time.sleep(spread.uniform(0, 0.03))
            process.kill()
        image_layout = images.verify_layout(out)
        assert layout.has_complete_image(out, image_layout.digest)
        seen.add(image_layout.digest)
    assert seen <= digests


def test_concurrent_layout_writers_do_not_mix_images(tmp_path):
    sources = [source(tmp_path, word) for word in ("one", "two")]
    out = tmp_path / "out"
    commands = [[sys.executable, "-c", WRITER, str(out), str(path)] for path in sources]
    writers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    try:
        while not (out / "index.json").exists():
            time.sleep(0.001)
        time.sleep(0.3)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert images.verify_layout(out).digest in {layout.read_layout(path).digest for path in sources}


ARCHIVER = """
import sys
from pathlib import Path
from imgbuild.oci import archive
out, *sources = map(Path, sys.argv[1:])
print("ready", flush=True)
while True:
    for source in sources:
        archive.write_archive(source, out, "oci-archive", "tiny")
"""


def test_killed_archive_writer_leaves_a_complete_archive(tmp_path):
    """Two writers run concurrently, and the next writer removes their temporary files."""
    sources = [source(tmp_path, word) for word in ("one", "two")]
    out = tmp_path / "out/image.tar"
    whole = []
    for path in sources:
        archive.write_archive(path, out, "oci-archive", "tiny")
        whole.append(out.read_bytes())
    spread = random.Random(20261125)
    for _ in range(4):
        command = [sys.executable, "-c", ARCHIVER, str(out), *map(str, sources)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        time.sleep(spread.uniform(0, 0.05))
        for writer in writers:
            writer.kill()
            writer.communicate()
            assert out.read_bytes() in whole
    archive.write_archive(sources[0], out, "oci-archive", "tiny")
    assert list(out.parent.iterdir()) == [out]
    assert out.read_bytes() == whole[0]
