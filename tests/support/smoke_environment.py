"""Creates environments and images with small wheels that have dependencies, for smoke tests."""

from __future__ import annotations

import ensurepip
import sys
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild.assemble import skeleton
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import Resolution, Wheel
from imgbuild.matrix.model import Matrix
from imgbuild.oci import documents as oci_documents
from imgbuild.oci import layout
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan import image_documents
from imgbuild.plan.plan import FilesRecipe, Layer, Plan, RuntimeConfig, VenvRecipe
from imgbuild.values import Arch, sha256
from imgbuild.wheel import install
from tests.support import images, needs, samples, wheels

PREFIX = "/opt/venv"
CACHE = "/var/cache/imgbuild"
USER = samples.USER
DEBIAN = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
PYTHON = "3.11"
TOOLS = ("id", "mkdir", "env", "printf", "cat", "ls")
CREATED = "2025-06-20T00:00:00Z"

ALPHA = {"alpha/__init__.py": b"import beta\nVALUE = beta.VALUE\n", "alpha/data.txt": b"data"}
BETA = {"beta.py": b"VALUE = 2\n", "spaces/inner/__init__.py": b"", "spaces/inner/more.py": b""}


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: Iterable[str] = ()
) -> Path:
    """Create a pure wheel with sizes in RECORD and requirements in METADATA."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {text}\n" for text in requires)
    everything = {
        **files,
        f"{info}/METADATA": wheels.minimal_metadata(name, version) + needed.encode(),
        f"{info}/WHEEL": wheels.WHEEL,
    }
    rows = "".join(f"{path},,{len(data)}\n" for path, data in everything.items())
    record = f"{rows}{info}/RECORD,,\n"
    return wheels.write_wheel(folder, everything, name=name, version=version, record=record)


def pip_wheel() -> Path:
    """The wheel of pip that is part of this Python."""
    places = (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels"))
    wheels = [path for place in places for path in sorted(place.glob("pip-*.whl"))]
    if not wheels:
        needs.skip_or_fail("this Python has no wheel of pip", "apt-get install python3-pip-whl")
    return wheels[0]


def good_wheels(folder: Path) -> list[Path]:
    """Create compatible wheels: alpha, its dependency beta, and pip."""
    return [
        make_wheel(folder, "alpha", "1.0", ALPHA, ["beta>=2"]),
        make_wheel(folder, "beta", "2.0", BETA),
        pip_wheel(),
    ]


def wheel_versions(files: Iterable[Path]) -> dict[str, str]:
    """The version of each package, according to the names of the wheels."""
    return {name: version for name, version, *_ in [path.name.split("-") for path in files]}


def make_venv(folder: Path, files: Iterable[Path]) -> Path:
    """Create a virtual environment of this Python with `files` unpacked into it."""
    venv.create(folder, symlinks=True)
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for path in files:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
    return site


def make_lock_of(files: Iterable[Path]) -> Lock:
    """A lock of `files` on the sample matrix."""
    locked = [
        Wheel(
            file=path.name,
            size=path.stat().st_size,
            sha256=sha256(path.read_bytes()),
            package=package,
            version=version,
            index="pypi",
        )
        for path in files
        for package, version in wheel_versions([path]).items()
    ]
    matrix: Matrix = samples.matrix()
    pinned = msgspec.structs.replace(matrix.targets["small"], pins={"alpha": "1.0"})
    matrix = msgspec.structs.replace(matrix, targets={"small": pinned})
    debs = (samples.deb("bash"), samples.deb("python3"))
    resolved = Resolution(wheels=tuple(sorted(locked, key=lambda item: item.package)), debs=debs)
    return make_lock(matrix, "small", {Arch.X86_64: resolved})


def make_layout(folder: Path, files: Iterable[Path]) -> layout.Layout:
    """Create the layout of an image with Debian's Python, a shell and a venv with `files`."""
    venv_recipe = VenvRecipe(prefix=PREFIX, python=PYTHON, interpreter=f"/usr/bin/python{PYTHON}")
    passwd = "root:x:0:0::/root:/bin/sh\n"
    files_recipe = FilesRecipe(
        user=USER, workdir="/workspace", cache=CACHE, passwd=passwd, group="root:x:0:\n"
    )
    installed = [
        (sha256(path.read_bytes()), install.installed_members(path, prefix=PREFIX, python=PYTHON))
        for path in files
    ]
    blobs = folder / "blobs"
    layers = [
        images.make_layer(blobs, _base()),
        images.make_layer(blobs, skeleton.venv_members(venv_recipe)),
        images.make_layer(blobs, install.join_wheels(installed)),
        images.make_layer(blobs, skeleton.files_members(files_recipe)),
    ]
    records = [record for record, _ in layers]
    config = image_documents.image_configuration(
        _plan(len(layers)), [record.diff_id for record in records]
    )
    summary = layout.ImageFiles(
        config=config,
        manifest=oci_documents.docker_manifest(config, records),
        layers={record.digest: path for record, path in layers},
    )
    layout.write_layout(folder / "layout", {Arch.X86_64: summary}, "small")
    return layout.read_layout(folder / "layout")


def _plan(count: int) -> Plan:
    recipe = VenvRecipe(prefix=PREFIX, python=PYTHON, interpreter=f"/usr/bin/python{PYTHON}")
    config = RuntimeConfig(
        created=CREATED,
        user=f"{USER.uid}:{USER.gid}",
        env=("PATH=/opt/venv/bin:/usr/bin:/bin", f"PYTHONPYCACHEPREFIX={CACHE}/pycache"),
        entrypoint=("/opt/imgbuild/entrypoint",),
        cmd=("sh",),
        workdir="/workspace",
        labels={},
    )
    layers = tuple(
        Layer(name=f"layer-{number}", id=f"sha256:{'0' * 64}", recipe=recipe)
        for number in range(count)
    )
    return Plan(target="small", arch=Arch.X86_64, layers=layers, config=config)


def _base() -> list[LayerMember]:
    """The files of Debian's Python, its libraries, a shell and busybox."""
    dpkg, ldd = needs.require_tool("dpkg"), needs.require_tool("ldd", "libc-bin")
    listed = _lines(dpkg, "--listfiles", *DEBIAN)
    if not listed:
        needs.skip_or_fail(
            f"Debian's Python {PYTHON} is not installed", "apt-get install python3.11"
        )
    paths = {Path(line) for line in listed if Path(line).is_file() and "/doc/" not in line}
    binaries = [path for path in paths if path.suffix == ".so" or path.name == f"python{PYTHON}"]
    words = [word for line in _lines(ldd, *map(str, binaries)) for word in line.split()]
    paths |= {Path(word) for word in words if word.startswith("/lib") and not word.endswith(":")}
    paths |= {Path(needs.require_tool("ldconfig", "libc-bin")).resolve()}
    members = {str(path).replace("/lib", "/usr/lib", 1) if str(path).startswith("/lib")
               else str(path): path for path in paths}  # fmt: skip
    shell = Path(needs.require_tool("busybox", "busybox-static"))
    members["/usr/bin/busybox"] = shell
    members["/usr/bin/sh"] = Path(needs.require_tool("dash", "dash"))  # its libraries are Python's
    links = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
    links |= {f"usr/bin/{name}": "busybox" for name in TOOLS}
    links["usr/lib64/ld-linux-x86-64.so.2"] = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    members.pop("/usr/lib64/ld-linux-x86-64.so.2", None)
    loader = Path("/lib64/ld-linux-x86-64.so.2").resolve()
    members["/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"] = loader
    return [
        *(_file(path, source) for path, source in members.items()),
        *(
            LayerMember(path=path, kind=MemberKind.LINK, mode=0o777, target=to)
            for path, to in links.items()
        ),
        _file("etc/ld.so.cache", Path("/etc/ld.so.cache")),
        LayerMember(path="tmp", kind=MemberKind.FOLDER, mode=0o1777),
    ]


def _file(path: str, source: Path) -> LayerMember:
    data = source.read_bytes()
    mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
    return LayerMember(path=path.lstrip("/"), mode=mode, size=len(data), content=data, pack=True)


def _lines(*command: str) -> list[str]:
    import subprocess

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()
