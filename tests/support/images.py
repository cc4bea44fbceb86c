"""Creates small real images for tests, with imgbuild's layer writer and image module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from imgbuild.oci import documents as oci_documents
from imgbuild.oci import layout
from imgbuild.oci.layer import LayerRecord, write_layer
from imgbuild.oci.layout import Layout
from imgbuild.oci.tar import LayerMember, MemberKind
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
WrittenLayer = tuple[LayerRecord, Path]


def text_member(path: str, content: str, mode: int = 0o644) -> LayerMember:
    """A file with `content`."""
    data = content.encode()
    return LayerMember(path=path, mode=mode, size=len(data), content=data)


def make_layer(folder: Path, members: Iterable[LayerMember]) -> WrittenLayer:
    """Write a layer to a file in `folder`, named by its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "new"
    with temporary.open("wb") as sink:
        record = write_layer(members, sink)
    return record, temporary.rename(folder / record.digest.replace(":", "-"))


def shell_layer(folder: Path) -> WrittenLayer:
    """A layer with a static shell, for a runnable image of a few hundred kilobytes."""
    program = Path(needs.require_tool("busybox", "busybox-static")).read_bytes()
    links = [
        LayerMember(path=f"bin/{name}", kind=MemberKind.LINK, target="busybox") for name in COMMANDS
    ]
    busybox = LayerMember(
        path="bin/busybox", mode=0o755, size=len(program), content=program, pack=True
    )
    return make_layer(
        folder, [busybox, *links, text_member("etc/passwd", "root:x:0:0::/:/bin/sh\n")]
    )


def create_plan(arch: Arch = Arch.X86_64, names: Sequence[str] = ("os", "hello")) -> Plan:
    """A plan of layers with these names. No test uses their recipes."""
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


def image_files(layers: Sequence[WrittenLayer], arch: Arch = Arch.X86_64) -> layout.ImageFiles:
    """The image of `layers`, bottom layer first."""
    records = [record for record, _ in layers]
    names = [f"layer-{number}" for number in range(len(layers))]
    config = image_documents.image_configuration(
        create_plan(arch, names), [record.diff_id for record in records]
    )
    return layout.ImageFiles(
        config=config,
        manifest=oci_documents.docker_manifest(config, records),
        layers={record.digest: path for record, path in layers},
    )


def python_base(folder: Path, arches: Sequence[Arch] = (Arch.X86_64,)) -> Path:
    """The layout of a base named "base", with accounts and a stub of python3.11."""
    members = [
        text_member("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
        text_member("etc/group", "root:x:0:\n"),
        text_member("usr/bin/python3.11", "", mode=0o755),
    ]
    base_layer = make_layer(folder / "blobs", members)
    layout.write_layout(
        folder / "base", {arch: image_files([base_layer], arch) for arch in arches}, "base"
    )
    return folder / "base"


def write_tiny_image(
    folder: Path, arches: Sequence[Arch] = (Arch.X86_64,), word: str = "hello"
) -> Path:
    """Write the layout of an image with a shell that prints `word`, and its layers."""
    blobs = folder / "blobs"
    layers = [
        shell_layer(blobs),
        make_layer(
            blobs,
            [text_member("opt/hello", f"{word}\n"), text_member("opt/mine", "x", mode=0o4755)],
        ),
    ]
    out = folder / f"layout-{word}"
    layout.write_layout(out, {arch: image_files(layers, arch) for arch in arches}, "tiny")
    return out


def verify_layout(out: Path) -> Layout:
    """The layout `out`, after checking the digest of every layer."""
    image_layout, folder = layout.read_layout(out), layout.layout_source(out)
    for stored in image_layout.images.values():
        for layer in stored.layers:
            folder.read(layer, lambda _: None)
    return image_layout
