"""Builds SIF and squashfs files for `imgbuild build --format` and `imgbuild push --sif`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from imgbuild.attest import published
from imgbuild.cache.store import Store
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._selection import at_most_one_arch
from imgbuild.cli._sessions import refuse_shared_layout, select_targets, single_arch
from imgbuild.cli._targets import TargetOptions
from imgbuild.cli._verb import option
from imgbuild.errors import InputError
from imgbuild.matrix.select import Selected
from imgbuild.oci import layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.build import build_all
from imgbuild.pipeline.session import Session, SessionOptions, find_built_layout, open_session
from imgbuild.plan.current import read_current
from imgbuild.publish import pull
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import ImageReference, Repository, parse_reference
from imgbuild.sif import convert
from imgbuild.sif import push as pushing
from imgbuild.sif.convert import ConvertedImage, Format
from imgbuild.sif.squashfs import Compressor
from imgbuild.system.console import console
from imgbuild.values import Arch, native_arch

CompressOption = Annotated[
    Compressor,
    option(
        "--compress",
        "The compression of a SIF or squashfs file. zstd is much faster, but requires Apptainer"
        " 1.4.",
        setting=True,
    ),
]


class SifInput(msgspec.Struct, frozen=True, kw_only=True):
    """An image to convert to a SIF or squashfs file.

    `stem` is the path of the file without the suffix. `name` is the image as the user specified it.
    `lock` returns the lock.json for an architecture.
    """

    stem: Path
    name: str
    layout: Layout
    lock: Callable[[Arch], bytes] = lambda _: b""


def build_sif_files(
    selection: TargetOptions,
    origin: str | None,
    output: Path | None,
    form: Format,
    compress: Compressor,
    how: SessionOptions,
) -> None:
    """Create a SIF or squashfs file for each selected target, or for the image `origin`."""
    with contextlib.ExitStack() as stack:
        if origin is not None:
            if selection.named_targets or selection.everything:
                message = f"--from {origin} cannot be combined with targets"
                raise InputError(message, hint="omit the targets")
            sources = [_origin(origin, selection, how.plain_http, stack)]
        else:
            session = open_session(selection.matrix, how, selection.named_targets)
            selected = select_targets(selection, session)
            sources = [_target_input(session, item, selection.arches) for item in selected]
        several, suffix = len(sources) > 1, convert.SUFFIXES[form]
        converted = [
            _convert_image(
                each,
                selection.arches,
                file_path(each.stem, output, suffix, several=several),
                form,
                compress,
                how.jobs,
            )
            for each in sources
        ]
    print_result(converted, fold_lines(f"{each.output} {each.digest}" for each in converted))


def push_sifs(
    selection: TargetOptions,
    names: Sequence[str],
    repository: Repository,
    client: RegistryClient,
    layout: Path | None,
    compress: Compressor,
    how: SessionOptions,
) -> None:
    """Create a SIF file of each built image, and push it to `repository`."""
    if (
        layout is not None
        and not names
        and not selection.named_targets
        and not selection.everything
    ):
        sources = [_layout_input(layout, selection)]
    else:
        session = open_session(selection.matrix, how, [*names, *selection.named_targets])
        selected = select_targets(selection, session, names)
        refuse_shared_layout(selected, layout)
        sources = [_built_input(session, item.name, layout) for item in selected]
    pushed_files = []
    for each in sources:
        image = each.layout.image(single_arch(each.layout, selection.arches)).manifest.digest
        pushing.find_subject(client, repository, each.layout.name or each.stem.name, image)
        out = file_path(each.stem, None, ".sif", several=False)
        file = _convert_image(each, selection.arches, out, "sif", compress, how.jobs)
        with console.step(f"pushing {out.name} to {repository}"):
            sent = pushing.push_sif(client, repository, file)
        pushed_files.append((msgspec.structs.replace(file, pushed=sent), sent.reference))
    lines = [f"{file.output} {file.digest} oras://{place}" for file, place in pushed_files]
    print_result([file for file, _ in pushed_files], fold_lines(lines))


def _convert_image(
    source: SifInput,
    arches: Sequence[Arch] | None,
    out: Path,
    form: Format,
    compress: Compressor,
    processes: int,
) -> ConvertedImage:
    only = single_arch(source.layout, arches)
    how = convert.ConvertOptions(format=form, compressor=compress, processors=processes)
    with console.step(f"creating {out.name} from {source.layout.name or source.name}"):
        return convert.convert_image(
            source.layout, only, out, how, lock=source.lock(only), reporter=console
        )


def _target_input(session: Session, item: Selected, arches: Sequence[Arch]) -> SifInput:
    target_digests = read_current(session.project, session.matrix, item.name)[1]
    only = _arch_to_build(item, arches)
    place = session.project.output(item.name)
    manifest = target_digests.arch[only].manifest
    current = [target_digests.digest, manifest]
    if not any(layout.has_complete_image(place, digest) for digest in current):
        build_all(session, [msgspec.structs.replace(item, arches=(only,))], None)
    return _built_input(session, item.name, None)


def _arch_to_build(item: Selected, arches: Sequence[Arch]) -> Arch:
    named = at_most_one_arch(arches, "a SIF or squashfs file can have only one architecture")
    return named or native_arch(item.arches)[0]


def _built_input(session: Session, name: str, layout: Path | None) -> SifInput:
    built = find_built_layout(session, name, layout)
    lock = functools.partial(convert.find_lock_of_target, session.project.images, name, built)
    return SifInput(stem=session.project.output(name), name=name, layout=built, lock=lock)


def _origin(
    origin: str, selection: TargetOptions, plain_http: Sequence[str], stack: contextlib.ExitStack
) -> SifInput:
    folder = Path(origin)
    if not folder.is_dir():
        client = RegistryClient(plain_http=plain_http, reporter=console)
        return _pulled_input(
            client, parse_reference(origin, default_tag="latest"), selection.arches, stack
        )
    if not (folder / "oci-layout").is_file():
        message = f"--from {origin} is not an OCI layout"
        raise InputError(
            message, hint="build the layout first: imgbuild build --from FOLDER --output LAYOUT"
        )
    return _layout_input(folder, selection)


def _layout_input(folder: Path, selection: TargetOptions) -> SifInput:
    built = layout.read_layout(folder)
    source = SifInput(stem=folder.absolute(), name=str(folder), layout=built)
    images = _project_locks(selection)
    if images is None:
        return source
    lock = functools.partial(convert.find_lock_of_image, images, built)
    return msgspec.structs.replace(source, lock=lock)


def _project_locks(selection: TargetOptions) -> Path | None:
    try:
        return selection.project().images
    except InputError:
        if selection.matrix is not None:
            raise
        return None


def _pulled_input(
    client: RegistryClient,
    reference: ImageReference,
    arches: Sequence[Arch] | None,
    stack: contextlib.ExitStack,
) -> SifInput:
    """Return the image in a registry. Its layers are kept in the cache until `stack` is closed."""
    store = Store.open(reporter=console)
    place = stack.enter_context(store.scratch()) / "layout"
    with console.step(f"pulling {reference}"):
        pull.pull_image(client, reference, place, store, arches[0] if arches else None)
    oci_layout = layout.read_layout(place)

    def _read_lock(arch: Arch) -> bytes:
        image = oci_layout.image(arch).manifest.digest
        return published.download_attached_lock(client, reference.repository, image, arch)

    stem = Path.cwd() / pull.layout_name(reference)
    return SifInput(stem=stem, name=str(reference), layout=oci_layout, lock=_read_lock)


def file_path(stem: Path, output: Path | None, suffix: str, *, several: bool) -> Path:
    """Return the path of the new file. Without `output`, the file is next to the image."""
    if output is None:
        return stem.with_name(stem.name + suffix)
    return output / (stem.name + suffix) if several else output
