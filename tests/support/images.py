"""Creates small real images for tests with imgbuild's own layer writer and image module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from imgbuild.oci import documents as oci_documents
from imgbuild.oci import layout
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.layout import Layout
from imgbuild.oci.tar import Member, MemberKind
from imgbuild.plan import image_documents
from imgbuild.plan.plan import Layer, Plan, RuntimeConfig, VenvRecipe
from imgbuild.values import Arch
from tests.support import needs

COMMANDS = (
    "sh",
    "cat",
    "env",
    "id",
    "ls",
    "pwd",
    "ps",
    "sleep",
    "touch",
    "ping",
    "ip",
    "mount",
    "hostname",
    "stat",
    "true",
    "df",
    "nc",
    "kill",
    "echo",
    "mkdir",
    "rm",
    "trap",
)
CREATED = "2025-06-20T00:00:00Z"
MADE = tuple[LayerRecord, Path]


def text(path: str, content: str, mode: int = 0o644) -> Member:
    """A file with `content`."""
    data = content.encode()
    return Member(path=path, mode=mode, size=len(data), content=data)


def layer(folder: Path, members: Iterable[Member]) -> MADE:
    """Write a layer to a file in `folder`, named by its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "new"
    with temporary.open("wb") as sink:
        record = write_layer(members, sink)
    return record, temporary.rename(folder / record.digest.replace(":", "-"))


def shell_layer(folder: Path) -> MADE:
    """A layer with a static shell, for a runnable image of a few hundred kilobytes."""
    program = Path(needs.tool("busybox", "busybox-static")).read_bytes()
    links = [
        Member(path=f"bin/{name}", kind=MemberKind.LINK, target="busybox") for name in COMMANDS
    ]
    busybox = Member(path="bin/busybox", mode=0o755, size=len(program), content=program, pack=True)
    return layer(folder, [busybox, *links, text("etc/passwd", "root:x:0:0::/:/bin/sh\n")])


def plan(arch: Arch = Arch.X86_64, names: Sequence[str] = ("os", "hello")) -> Plan:
    """A plan of layers with these names; no test uses their recipes."""
    recipe = VenvRecipe(prefix="/opt", python="3.11", interpreter="/usr/bin/python3.11")
    layers = tuple(Layer(name=name, id=f"sha256:{'0' * 64}", recipe=recipe) for name in names)
    config = RuntimeConfig(
        created=CREATED,
        user="1000:1000",
        env=("PATH=/bin", "WORD=two words"),
        entrypoint=(),
        cmd=("cat", "/opt/hello"),
        workdir="/opt",
        labels={"org.opencontainers.image.title": "tiny"},
    )
    return Plan(target="tiny", arch=arch, layers=layers, config=config)


def summary(layers: Sequence[MADE], arch: Arch = Arch.X86_64) -> layout.ImageFiles:
    """The image of `layers`, bottom first."""
    records = [record for record, _ in layers]
    names = [f"layer-{number}" for number in range(len(layers))]
    config = image_documents.config(plan(arch, names), [record.diff_id for record in records])
    return layout.ImageFiles(
        config=config,
        manifest=oci_documents.manifest(config, records),
        layers={record.digest: path for record, path in layers},
    )


def python_base(folder: Path, arches: Sequence[Arch] = (Arch.X86_64,)) -> Path:
    """The layout of a base named "base", with accounts and a stub of python3.11."""
    members = [
        text("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
        text("etc/group", "root:x:0:\n"),
        text("usr/bin/python3.11", "", mode=0o755),
    ]
    base_layer = layer(folder / "blobs", members)
    layout.write(folder / "base", {arch: summary([base_layer], arch) for arch in arches}, "base")
    return folder / "base"


def tiny(folder: Path, arches: Sequence[Arch] = (Arch.X86_64,), word: str = "hello") -> Path:
    """The layout of an image with a shell that prints `word`; its layers are next to it."""
    blobs = folder / "blobs"
    layers = [
        shell_layer(blobs),
        layer(blobs, [text("opt/hello", f"{word}\n"), text("opt/mine", "x", mode=0o4755)]),
    ]
    out = folder / f"layout-{word}"
    layout.write(out, {arch: summary(layers, arch) for arch in arches}, "tiny")
    return out


def verified(out: Path) -> Layout:
    """The layout `out`, after checking the digest of every layer."""
    image_layout, folder = layout.read(out), layout.source(out)
    for stored in image_layout.images.values():
        for layer in stored.layers:
            folder.read(layer, lambda _: None)
    return image_layout
