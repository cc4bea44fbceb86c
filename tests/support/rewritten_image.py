"""Creates images with documents that a test changes, and matching digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imgbuild.oci.documents import INDEX, MANIFEST
from imgbuild.registry.image_reference import ImageReference
from imgbuild.values import digest_of
from tests.support import images
from tests.support.memory_registry import Registry, image_reference

Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of manifest and configuration
NAME = "rl"


def write_changed_layout(folder: Path, change: Change = lambda *_: None) -> Path:
    """The layout of an image of two layers, after `change`."""
    blobs = folder / "made"
    layers = [
        images.make_layer(blobs, [images.text_member("etc/passwd", "root:x:0:0::/:/bin/sh\n")]),
        images.make_layer(blobs, [images.text_member("opt/hello", "hello\n")]),
    ]
    summary = images.image_files(layers)
    manifest, config = json.loads(summary.manifest), json.loads(summary.config)
    change(manifest, config)
    texts = [json.dumps(config).encode()]
    manifest["config"] |= {"digest": digest_of(texts[0]), "size": len(texts[0])}
    texts.append(json.dumps(manifest).encode())
    out = folder / "layout"
    (out / "blobs/sha256").mkdir(parents=True)
    for data in (*texts, *(path.read_bytes() for _, path in layers)):
        blob_path(out, digest_of(data)).write_bytes(data)
    (out / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    entry = {"mediaType": MANIFEST, "digest": digest_of(texts[1]), "size": len(texts[1])}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    (out / "index.json").write_text(json.dumps(index))
    return out


def blob_path(layout: Path, digest: str) -> Path:
    """The path of a blob in a layout."""
    return layout / "blobs/sha256" / digest.removeprefix("sha256:")


def store_in_registry(layout: Path, registry: Registry) -> ImageReference:
    """The image of `layout`, stored unchanged in a registry."""
    entry = json.loads((layout / "index.json").read_bytes())["manifests"][0]
    for path in (layout / "blobs/sha256").iterdir():
        registry.blobs[NAME, f"sha256:{path.name}"] = path.read_bytes()
    data = blob_path(layout, entry["digest"]).read_bytes()
    registry.manifests[NAME, entry["digest"]] = (data, entry["mediaType"])
    return image_reference(registry, NAME, entry["digest"])
