"""Python's bytecode, compiled in a built image.

The wheel has data files, installed below the environment's prefix where `PYTHONPYCACHEPREFIX` looks
for them. Bytecode does not follow from the lock alone, so the wheel is an input of a variant: the
image's own interpreter compiles twice, under two hash seeds, and differences are named.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.container import run_in_image
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import InputError
from imgbuild.lock.lock import Lock, require_arch
from imgbuild.matrix.model import Variable
from imgbuild.oci.layout import Layout
from imgbuild.precompile import pack
from imgbuild.precompile.inside import UnpackedImage
from imgbuild.precompile.pack import Name, Packed, Variant
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Bytes

PACKAGE = "imgbuild-bytecode"
FOLDER = "bytecode"  # below the environment's prefix
VARIABLE = "PYTHONPYCACHEPREFIX"
DOCUMENTED = "https://docs.python.org/3/using/cmdline.html#envvar-PYTHONPYCACHEPREFIX"
PLACE = "/bytecode"  # where the image sees the folder of a run
SEEDS = ("0", "1")

# What runs inside, under the image's Python; all of it reads and writes files of PLACE. A folder of
# sys.path that lies in another one has its turn: what is only below the standard library, and no
# folder of sys.path, belongs to another environment.
SELECT = """\
import importlib, json, os, sys
os.chdir("/")
sys.path[:] = [path for path in sys.path if os.path.isabs(path)]
task, found = json.load(open("/bytecode/task.json")), set()
for name in task:
    importlib.import_module(name)
for module in list(sys.modules.values()) if task else ():
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        origin, cached = spec.origin, spec.cached
    except Exception:  # frozen, built in, or no module at all
        continue
    if isinstance(origin, str) and isinstance(cached, str):
        found.add(origin)
for top in () if task else sys.path:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages")]
        found.update(os.path.join(folder, name) for name in names)
good = [path for path in found if path.endswith(".py") and os.path.isabs(path)
        and path.isprintable() and os.path.normpath(path) == path]
json.dump(sorted(good), open("/bytecode/sources.json", "w"))
"""
COMPILE = """\
import importlib.util, json, os, py_compile, sys, warnings
warnings.simplefilter("ignore")
sys.pycache_prefix, left = "/bytecode/tree", []
checked = py_compile.PycInvalidationMode.CHECKED_HASH
for source in json.load(open("/bytecode/sources.json")):
    if not (os.path.isfile(source) and os.access(source, os.R_OK)):
        left.append({"path": source, "reason": "cannot be read"})
        continue
    place = importlib.util.cache_from_source(source, optimization="")
    try:
        py_compile.compile(source, place, doraise=True, invalidation_mode=checked, optimize=0)
    except py_compile.PyCompileError as error:
        reason = f"{error.exc_type_name}: {error.exc_value}"
        left.append({"path": source, "reason": " ".join(reason.split())})
json.dump(left, open("/bytecode/left.json", "w"))
"""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file that looks like a module and does not compile, and what Python says of it."""

    path: str
    reason: str


class UnstableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose two compilations differ, and in how many bytes."""

    path: str
    bytes: Bytes


class Bytecode(Packed, frozen=True, kw_only=True):
    """The wheel that was made, and what is in it.

    `imports` are the modules that were asked for, none for all; `unpacked` is what it adds.
    """

    python: str
    imports: tuple[str, ...]
    modules: int
    unpacked: Bytes
    left_out: tuple[LeftOut, ...]
    differs: tuple[UnstableFile, ...]


def compile_twice(
    lock: Lock,
    layout: Layout,
    arch: Arch,
    imports: Sequence[str],
    *,
    store: Store,
    out: Path,
    reporter: Reporter = SILENT,
) -> Bytecode:
    """Compile in the image what importing `imports` loads, or all if none; pack it to `out`.

    InputError if the lock has no `arch`, WorkFailed with Python's words if a module of `imports`
    cannot be imported or the image's Python does not run.
    """
    require_arch(lock, arch)
    unpacked = root_folder(layout, arch, store, reporter=reporter)
    with unpacked as root, store.scratch() as scratch:
        inside = UnpackedImage(lock=lock, root=root, settings=run_in_image.running(layout, arch))
        hint = _hint(lock, arch)
        with reporter.step(f"{lock.target}: looking for modules"):
            sources = _select(inside, scratch / "select", imports, hint)
        trees, left = [], []
        for seed, number in zip(SEEDS, ("first", "second"), strict=True):
            title = f"{lock.target}: compiling {len(sources)} modules, the {number} time"
            with reporter.step(title):
                left.append(_compile(inside, scratch / number, sources, seed, hint))
            trees.append(compiled(scratch / number / "tree"))
        return packed(lock, arch, trees[0], differing(*trees), left[0], imports, out)


def compiled(folder: Path) -> dict[str, Path]:
    """The bytecode below `folder`, by its path there: that of its source, without leading slash."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*.pyc"))
        if path.is_file()
    }


def differing(one: Mapping[str, Path], other: Mapping[str, Path]) -> tuple[UnstableFile, ...]:
    """The files that two compilations wrote differently; what one lacks differs in all bytes."""
    found = []
    for path in sorted(one.keys() | other.keys()):
        left, right = (tree[path].read_bytes() if path in tree else b"" for tree in (one, other))
        if path not in one or path not in other or left != right:
            count = sum(a != b for a, b in zip(left, right, strict=False))
            found.append(UnstableFile(path=path, bytes=count + abs(len(left) - len(right))))
    return tuple(found)


def packed(
    lock: Lock,
    arch: Arch,
    tree: Mapping[str, Path],
    differs: tuple[UnstableFile, ...],
    left: tuple[LeftOut, ...],
    imports: Sequence[str],
    out: Path,
) -> Bytecode:
    """The wheel of the bytecode `tree`; its version and bytes follow from what it holds.

    InputError if there is none.
    """
    if not tree:
        message = f"{lock.target}: no module was compiled"
        raise InputError(message, hint="name modules that have a source with --import")
    contents = {path: place.read_bytes() for path, place in sorted(tree.items())}
    variable = Variable(
        value=f"{lock.settings.prefix}/{FOLDER}",
        reason=f"the bytecode of {PACKAGE}; modules that it lacks are compiled at each start",
        source=(DOCUMENTED,),
    )
    version = f"0+b{pack.digits(pack.listed(contents))}"
    made = pack.pack(
        lock, arch, Name(package=PACKAGE, version=version, tag=tag(lock.base.python)), out,
        files={f"{FOLDER}/{path}": place for path, place in tree.items()},
        variant=Variant(suffix="fast", variables={VARIABLE: variable}),
    )  # fmt: skip
    return Bytecode(
        **msgspec.structs.asdict(made),
        python=lock.base.python,
        imports=tuple(imports),
        modules=len(tree),
        unpacked=sum(map(len, contents.values())),
        left_out=left,
        differs=differs,
    )


def tag(python: str) -> str:
    """The tag of bytecode for `python` ("3.11"): that minor version, any architecture."""
    return f"cp{python.replace('.', '')}-none-any"


def _select(
    inside: UnpackedImage, folder: Path, imports: Sequence[str], hint: str
) -> tuple[str, ...]:
    """The sources that are wanted, sorted."""
    folder.mkdir()
    (folder / "task.json").write_text(json.dumps(list(imports)), encoding="utf-8")
    what = f"cannot import {', '.join(imports)}" if imports else "its modules were not found"
    answer = _run(inside, folder, SELECT, SEEDS[0], answer="sources.json", failed=what, hint=hint)
    return msgspec.json.decode(answer, type=tuple[str, ...])


def _compile(
    inside: UnpackedImage, folder: Path, sources: Sequence[str], seed: str, hint: str
) -> tuple[LeftOut, ...]:
    """Compile `sources` to the folder `tree` of `folder`; what does not compile."""
    folder.mkdir()
    (folder / "sources.json").write_text(json.dumps(sources), encoding="utf-8")
    failed = "modules were not compiled"
    answer = _run(inside, folder, COMPILE, seed, answer="left.json", failed=failed, hint=hint)
    return msgspec.json.decode(answer, type=tuple[LeftOut, ...])


def _run(
    inside: UnpackedImage,
    folder: Path,
    script: str,
    seed: str,
    *,
    answer: str,
    failed: str,
    hint: str,
) -> bytes:
    """Run `script` as the image's user, who sees `folder` at PLACE; returns the file it writes."""
    folder.chmod(0o1777)
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": seed}
    inside.python(
        script, (), folder=folder, place=PLACE, env=env, failed=failed, hint=hint, readonly=True,
        answer=answer,
    )  # fmt: skip
    return (folder / answer).read_bytes()


def _hint(lock: Lock, arch: Arch) -> str:
    """What to do if Python does not run in an image for `arch`."""
    try:
        native = Arch.parse(platform.machine()) is arch
    except ValueError:
        native = False
    if native:
        return f"look into the image: imgbuild run {lock.target} -- sh"
    return (
        f"an image for {arch} runs here by an emulator alone (qemu-user-static); bytecode is"
        " the same on both architectures: leave --arch out where the image has this machine's"
    )
