"""Adds the committed files of a project to an image as a layer (`build --with-project`).

The digest of the layer depends on the tree of the commit, and the digest of the image on the lock
and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.assemble import committed_files
from imgbuild.assemble.committed_files import CommittedFiles, CommittedFolder
from imgbuild.assemble.image_layout import BuiltImage
from imgbuild.cache.store import Store
from imgbuild.container.run_in_image import PROJECT_COMMIT
from imgbuild.errors import InputError
from imgbuild.lock import published
from imgbuild.matrix.select import Selected
from imgbuild.oci import documents, layout
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.image import PlatformImage
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.layout import ImageFiles, Layout
from imgbuild.pipeline.build import build_all, deliver_image, output_path, refuse_one_file
from imgbuild.pipeline.session import Session
from imgbuild.system import files
from imgbuild.system.amounts import format_count, join_first
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest, digest_of

SUFFIX = "-with-project"
REVISION = "org.opencontainers.image.revision"
SHOWN_FILES = 4  # limit of paths in a message


def build_with_project(
    session: Session, selected: Sequence[Selected], output: Path | None, form: str
) -> list[BuiltImage]:
    """Build each target from its lock, and add the committed files of the project to the image.

    Raises InputError for a target that is not a row of a project, and for a project without a
    commit.
    """
    for item in selected:
        if published.project_row(session.matrix, item.name) is None:
            message = f"--with-project: {item.name} is not a row of a project"
            hint = (
                "run the command in the folder of a project; to create a project, run: imgbuild "
                "init"
            )
            raise InputError(message, hint=hint)
    refuse_one_file(selected, output, form)
    if output is not None:
        files.require_writable([output], hint=files.OUTPUT_HINT)
    committed = committed_files.find_committed_folder(session.project.root)
    results = []
    for item, built in zip(selected, build_all(session, selected, None), strict=True):
        name = f"{item.name}{SUFFIX}"
        folder = session.project.output(name)
        place = output_path(folder, name, output, several=len(selected) > 1, form=form)
        target = place if form == "oci" else folder
        with console.step(f"adding commit {committed.commit[:12]} of {committed.folder}"):
            result = _add_project_layer(built, committed, target, name)
        results.append(deliver_image(result, target, place, form, name))
    return results


def _add_project_layer(
    built: BuiltImage, committed: CommittedFolder, target: Path, name: str
) -> BuiltImage:
    below = layout.read_layout(built.output)
    store = Store.open(reporter=console)
    layout.refuse_others(target, name)
    images: dict[Arch, ImageFiles] = {}
    layers: dict[str, tuple[LayerRecord, Path]] = {}
    for arch in built.arch:
        image = below.image(arch)
        workdir = str(image.settings.get("WorkingDir", ""))
        if workdir not in layers:
            layers[workdir] = _layer(committed, workdir, store, report=not layers)
        record, blob = layers[workdir]
        images[arch] = _add_layer(below, image, record, blob, committed.commit)
    manifests = {arch: digest_of(image.manifest) for arch, image in images.items()}
    top = (
        documents.create_index({arch: image.manifest for arch, image in images.items()})
        if len(images) > 1
        else next(iter(images.values())).manifest
    )
    unchanged = layout.has_complete_image(target, digest_of(top), console)
    if not unchanged:
        layout.write_layout(target, images, name, reporter=console)
    return msgspec.structs.replace(
        built,
        target=name,
        digest=digest_of(top),
        arch=manifests,
        output=target,
        size=sum(image.size for image in layout.read_layout(target).images.values()),
        assembled=len(layers),
        unchanged=unchanged,
    )


def _layer(
    committed: CommittedFolder, workdir: str, store: Store, *, report: bool
) -> tuple[LayerRecord, Path]:
    if workdir in ("", "/"):
        message = f"--with-project: the image has no working folder (its WorkingDir is {workdir!r})"
        raise InputError(
            message, hint="extend a target whose `workdir` is, for example, /workspace"
        )
    with store.scratch() as folder:
        committed_content = committed_files.read_committed_files(
            committed, workdir, folder / "contents"
        )
        if report:
            _report_differences(committed, committed_content)
        with (folder / "layer").open("xb") as sink:
            record = write_layer(committed_content.members, sink)
        return record, store.add_blob(folder / "layer", record.digest)


def _add_layer(
    below: Layout, image: PlatformImage, record: LayerRecord, blob: Path, commit: str
) -> ImageFiles:
    config = msgspec.json.decode(image.config_data)
    config["rootfs"]["diff_ids"].append(record.diff_id)
    config.setdefault("history", []).append(
        {"created": config.get("created"), "created_by": f"imgbuild layer project {commit}"}
    )
    labels = {**image.configuration.labels, REVISION: commit, PROJECT_COMMIT: commit}
    config["config"]["Labels"] = dict(sorted(labels.items()))
    data = codec.encode_compact(config)
    manifest = msgspec.json.decode(image.manifest_data)
    manifest["config"] = documents.create_descriptor(documents.CONFIG, data)
    manifest["layers"].append(
        Descriptor(media_type=documents.LAYER_GZIP, digest=record.digest, size=record.size)
    )
    blobs: dict[Digest, Path] = {layer.digest: below.blob(layer.digest) for layer in image.layers}
    return ImageFiles(
        config=data, manifest=codec.encode_compact(manifest), layers={**blobs, record.digest: blob}
    )


def _report_differences(committed: CommittedFolder, content: CommittedFiles) -> None:
    commit, folder = committed.commit[:12], committed.folder
    paths = committed_files.find_differences(committed, content)
    if paths:
        differ = (
            f"{format_count(len(paths), 'file')} of {folder} {'differ' if paths[1:] else 'differs'}"
        )
        console.warn(
            f"{differ} from commit {commit} in the image: {join_first(paths, SHOWN_FILES)}"
        )
    if content.submodules:
        console.warn(
            f"submodules are not in the image: {join_first(content.submodules, SHOWN_FILES)}"
        )
    if content.pointers:
        text = "the image contains only git-lfs pointers for these files"
        console.warn(f"{text}: {join_first(content.pointers, SHOWN_FILES)}")
    if content.left_out:
        names = join_first([repr(path) for path in content.left_out], SHOWN_FILES)
        console.warn(
            f"files with names or targets that are invalid in an image are excluded: {names}"
        )
