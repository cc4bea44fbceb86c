"""`imgbuild sif`: an image as one file for Apptainer, enroot and pyxis."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _options
from imgbuild.cli._options import LayoutFolder
from imgbuild.cli._selection import one_arch, same_image
from imgbuild.errors import InputError
from imgbuild.system.console import console
from imgbuild.values import Arch

if TYPE_CHECKING:
    from imgbuild.oci.layout import Layout
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import Reference, Repository
    from imgbuild.sif.convert import ConvertedImage


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a file is made of.

    `own` is where that goes but for the suffix, `name` what the user calls the image, `lock` what
    gives its lock.json on one architecture.
    """

    own: Path
    name: str
    layout: Layout
    lock: Callable[[Arch], bytes] = lambda _: b""


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
        autocompletion=_options.complete_target,
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
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
FormOption = Annotated[
    Form,
    typer.Option(
        "--format",
        help="sif: for Apptainer. squashfs: for enroot and pyxis.",
        rich_help_panel=_options.WORK,
    ),
]
CompressOption = Annotated[
    Compress,
    typer.Option(
        "--compress",
        help="zstd is much faster to write and read, and needs Apptainer 1.4; gzip is read by all.",
        rich_help_panel=_options.WORK,
    ),
]


Push = Annotated[
    str | None,
    typer.Option(
        "--push",
        metavar="HOST/REPOSITORY",
        help="Also push the SIF, beside the image that lies there and as a referrer of its digest,"
        " under the tag TARGET-ARCH-sif: apptainer pull oras://… takes it.",
        rich_help_panel=_options.REGISTRY,
        show_default=False,
    ),
]


def sif(
    names: Images = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.OneArch = None,
    layout: LayoutFolder = None,
    form: FormOption = Form.SIF,
    compress: CompressOption = Compress.ZSTD,
    output: Output = None,
    push: Push = None,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
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
    from imgbuild.publish import pull
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import parse
    from imgbuild.sif import convert
    from imgbuild.sif import push as pushing

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    repository = _repository(push, form)
    client = Client(plain_http=plain_http or (), origin=repository is not None, reporter=console)
    how = convert.ConvertOptions(
        format=form.value, compressor=compress.value, processors=_options.processes(jobs)
    )
    made = []
    with contextlib.ExitStack() as held:
        wanted = _options.wanted(names, target)
        remote = [parse(name, default_tag="latest") for name in wanted if _is_remote(name)]
        near = [name for name in wanted if not _is_remote(name)]
        chosen = []
        if near or everything or not remote:
            chosen = _images(near, layout, matrix, everything=everything)
        owns = [(str(each), Path.cwd() / pull.name(each)) for each in remote]
        owns += [(each.name, each.own) for each in chosen]
        outs = places(owns, output, convert.SUFFIXES[form.value])
        chosen = [*(_pulled(client, each, arch, held) for each in remote), *chosen]
        for each, out in zip(chosen, outs, strict=True):
            only = one_arch(each.layout, arch)
            name = each.layout.name or each.own.name
            if repository is not None:
                image = each.layout.image(only).manifest.digest
                pushing.subject(client, repository, name, image)
            lock = each.lock(only)
            with console.step(f"making {out.name} of {name}"):
                file = convert.convert(each.layout, only, out, how, lock=lock, reporter=console)
            if repository is not None:
                with console.step(f"pushing {out.name} to {repository}"):
                    sent = pushing.push(client, repository, file, reporter=console)
                file = msgspec.structs.replace(file, pushed=sent)
            made.append(file)
    _options.answer(made, [_line(each) for each in made], json=json)


def _line(made: ConvertedImage) -> str:
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
) -> list[Chosen]:
    """The images of layouts and targets."""
    from imgbuild.oci import layout
    from imgbuild.pipeline import targets as pipeline
    from imgbuild.sif import convert

    folders = [Path(name) for name in wanted if _is_layout(Path(name))]
    images = _locks(matrix)
    found = []
    for each in folders:
        built = layout.read(each)
        one = Chosen(own=each.absolute(), name=str(each), layout=built)
        if images is not None:
            lock = functools.partial(convert.lock_of_any, images, built, reporter=console)
            one = msgspec.structs.replace(one, lock=lock)
        found.append(one)
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
        images = session.project.images
        lock = functools.partial(convert.lock_of, images, item.name, built, reporter=console)
        own = session.project.output(item.name)
        found.append(Chosen(own=own, name=item.name, layout=built, lock=lock))
    return found


def _locks(matrix: Path | None) -> Path | None:
    """Where the locks of this folder's project lie; None outside of one."""
    from imgbuild import project

    try:
        return project.find(matrix).images
    except InputError:
        if matrix is not None:
            raise
        return None


def _pulled(
    client: Client,
    reference: Reference,
    arches: Sequence[Arch] | None,
    held: contextlib.ExitStack,
) -> Chosen:
    """An image of a registry, whose layers are in the cache, as long as `held` is open."""
    from imgbuild.attest import published
    from imgbuild.cache.store import Store
    from imgbuild.oci import layout
    from imgbuild.publish import pull

    store = Store.open()
    place = held.enter_context(store.scratch()) / "layout"
    with console.step(f"pulling {reference}"):
        pull.pull(client, reference, place, store, arches[0] if arches else None)
    found = layout.read(place)

    def _lock(arch: Arch) -> bytes:
        image = found.image(arch).manifest.digest
        return published.lock_of(client, reference.repository, image, arch)

    own = Path.cwd() / pull.name(reference)
    return Chosen(own=own, name=str(reference), layout=found, lock=_lock)


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


def places(owns: Sequence[tuple[str, Path]], output: Path | None, suffix: str) -> list[Path]:
    """Where the files of images go, by what the user calls each and the path that it names.

    InputError if two would be one file.
    """
    found: dict[Path, str] = {}
    for name, own in owns:
        out = placed(own, output, suffix, several=len(owns) > 1)
        if out.absolute() in found:
            message = f"{found[out.absolute()]} and {name} would both be {out}"
            raise InputError(message, hint="make one after the other, each with its --output FILE")
        found[out.absolute()] = name
    return [placed(own, output, suffix, several=len(owns) > 1) for _, own in owns]
