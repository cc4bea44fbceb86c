"""`imgbuild sif`: an image as one file for Apptainer, enroot and pyxis."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import options
from imgbuild.cli.image import LayoutFolder, one_arch, same_image
from imgbuild.console import console
from imgbuild.errors import InputError
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.oci.layout import Layout
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import Repository
    from imgbuild.sif.convert import Made


class Form(enum.StrEnum):
    """What is made."""

    SIF = "sif"
    SQUASHFS = "squashfs"


class Compress(enum.StrEnum):
    """How it is compressed."""

    ZSTD = "zstd"
    GZIP = "gzip"


Images = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET|LAYOUT|HOST/NAME:TAG]...",
        help="Targets that are built; folders that are OCI layouts, also of other images; images in"
        " registries, which are pulled into the cache.",
        autocompletion=options.complete_target,
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The file, or the folder if there are several; by default build/TARGET.sif or .sqsh"
        " beside the matrix.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
FormOption = Annotated[
    Form,
    typer.Option(
        "--format",
        help="sif: for Apptainer. squashfs: for enroot and pyxis.",
        rich_help_panel=options.WORK,
    ),
]
CompressOption = Annotated[
    Compress,
    typer.Option(
        "--compress",
        help="zstd is much faster to write and read, and needs Apptainer 1.4; gzip is read by all.",
        rich_help_panel=options.WORK,
    ),
]


Push = Annotated[
    str | None,
    typer.Option(
        "--push",
        metavar="HOST/REPOSITORY",
        help="Also push the SIF, beside the image that lies there and as a referrer of its digest,"
        " under the tag TARGET-ARCH-sif: apptainer pull oras://… takes it.",
        rich_help_panel=options.REGISTRY,
        show_default=False,
    ),
]


def sif(
    names: Images = None,
    target: options.Targets = None,
    everything: options.Everything = False,
    arch: options.OneArch = None,
    layout: LayoutFolder = None,
    form: FormOption = Form.SIF,
    compress: CompressOption = Compress.ZSTD,
    output: Output = None,
    push: Push = None,
    plain_http: options.PlainHttp = None,
    jobs: options.Jobs = 0,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Make one file of an image that is built, for machines that run it without root.

    Straight from the layers: nothing is unpacked, and neither root nor Apptainer is needed, only
    mksquashfs 4.5 or newer. The same image and the same mksquashfs give the same bytes. Inside are
    the image's environment, labels and entry point, its digest and its lock.

    Examples:

        imgbuild sif cu124-vllm

        imgbuild sif cu124-vllm --format squashfs --output image.sqsh

        imgbuild sif cu124-vllm --push registry.example/rl

        imgbuild sif registry.example/rl:cu124-vllm --output rl.sif
    """
    from imgbuild.registry.client import Client
    from imgbuild.sif import convert
    from imgbuild.sif import push as pushing

    options.configure(json=json, quiet=quiet, verbose=verbose)
    repository = _repository(push, form)
    client = Client(plain_http=plain_http or (), origin=repository is not None)
    how = convert.Options(
        format=form.value, compressor=compress.value, processors=options.processes(jobs)
    )
    made = []
    with contextlib.ExitStack() as held:
        wanted = options.wanted(names, target)
        remote = [name for name in wanted if _is_remote(name)]
        near = [name for name in wanted if name not in remote]
        chosen = [_pulled(client, name, arch, held) for name in remote]
        if near or everything or not remote:
            chosen += _images(near, layout, matrix, everything=everything)
        for own, found, images in chosen:
            out = placed(own, output, convert.SUFFIXES[form.value], several=len(chosen) > 1)
            only = one_arch(found, arch)
            name = found.name or own.name
            if repository is not None:
                pushing.subject(client, repository, name, found.image(only).manifest.digest)
            lock = convert.lock_of(images, own.name, found, only) if images else b""
            with console.step(f"making {out.name} of {name}"):
                file = convert.convert(found, only, out, how, lock=lock)
            if repository is not None:
                with console.step(f"pushing {out.name} to {repository}"):
                    sent = pushing.push(client, repository, file)
                file = msgspec.structs.replace(file, pushed=sent)
            made.append(file)
    options.answer(made, [_line(each) for each in made], json=json)


def _line(made: Made) -> str:
    sent = f" oras://{made.pushed.reference}" if made.pushed else ""
    return f"{made.output} {made.digest}{sent}"


def _repository(place: str | None, form: Form) -> Repository | None:
    """Where SIFs are pushed to, if they are; InputError for what is not pushed."""
    from imgbuild.registry.reference import parse_repository

    if place is None:
        return None
    if form is not Form.SIF:
        message = f"--push {place}: only a SIF is pushed, and --format is {form}"
        raise InputError(message, hint="leave --format out; enroot imports the image itself")
    return parse_repository(place)


def _images(
    wanted: list[str], folder: Path | None, matrix: Path | None, *, everything: bool
) -> list[tuple[Path, Layout, Path | None]]:
    """What is meant: where its file goes but for the suffix, its layout, the folder of its lock."""
    from imgbuild import pipeline
    from imgbuild.oci import layout

    folders = [Path(name) for name in wanted if _is_layout(Path(name))]
    found: list[tuple[Path, Layout, Path | None]] = [
        (each.absolute(), layout.read(each), None) for each in folders
    ]
    targets = [name for name in wanted if not _is_layout(Path(name))]
    if not targets and found and not everything:
        if folder is not None:
            message = f"--layout {folder} and {folders[0]} are both layouts"
            raise InputError(message, hint="leave one of them out")
        return found
    session = pipeline.open_session(matrix, pipeline.Options())
    selected = session.select(targets, everything=everything, arches=[])
    same_image(selected, folder)
    for item in selected:
        built = pipeline.built_layout(session, item.name, folder)
        found.append((session.project.output(item.name), built, session.project.images))
    return found


def _pulled(
    client: Client, name: str, arches: Sequence[Arch] | None, held: contextlib.ExitStack
) -> tuple[Path, Layout, Path | None]:
    """The image `name` of a registry, whose layers are in the cache, as long as `held` is open."""
    from imgbuild import pull
    from imgbuild.oci import layout
    from imgbuild.registry.reference import parse
    from imgbuild.store import Store

    found = parse(name, default_tag="latest")
    store = Store.open()
    place = held.enter_context(store.scratch()) / "layout"
    with console.step(f"pulling {found}"):
        pull.pull(client, found, place, store, arches[0] if arches else None)
    return Path.cwd() / pull.name(found), layout.read(place), None


def _is_remote(name: str) -> bool:
    """Whether a name begins with a registry's: no target has a slash in it."""
    host, slash, _ = name.partition("/")
    host_like = "." in host.strip(".") or ":" in host or host == "localhost"
    return bool(slash) and host_like and not _is_layout(Path(name))


def _is_layout(path: Path) -> bool:
    return (path / "oci-layout").is_file()


def placed(own: Path, output: Path | None, suffix: str, *, several: bool) -> Path:
    """Where the file of the image that `own` names goes."""
    if output is None:
        return own.with_name(own.name + suffix)
    return output / (own.name + suffix) if several else output
