#!/usr/bin/env python3
"""Makes the SIF of carried layers on a bare machine that has a GPU, and runs its smoke tests there.

    tools/gpu_sif.py make carry/images/cu130-vllm.json parts/ /tmp/rl.sif --sha256 …
    tools/gpu_sif.py prove carry/images/cu130-vllm.json /tmp/rl.sif smoke_tests/ out/

A SIF is too large to be sent beside its layers, and needs not be: the same image and the same
mksquashfs give the same bytes, so the sha256 of one made here says whether the one made there is
that one. What both need besides this repository and the parts of gpu_pack is put together by
tools/gpu_sif_pack.py. Needs Python 3.11.

`prove` works as root on a machine that is thrown away: it unpacks Apptainer into the root, and
makes the driver known to the loader, where --nv looks for it. Where Apptainer cannot start a
container, it is told to unpack the SIF; where that fails too, unsquashfs does, and gpu_proof goes
on. What lies in out/ then is what gpu_proof leaves; machine.json also says `through` and `sif`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_proof
import gpu_unpack

ROOT = Path(__file__).resolve().parent.parent
CARRIED = ROOT / "carry" / "sif"
PROGRAMS = ("mksquashfs", "unsquashfs")
WORK = Path("/dev/shm/gpu-sif")  # noqa: S108  # a machine of one user
THROUGH = ("apptainer", "unsquashfs")
READERS = 8  # layers that are inflated at once
GPU_TIERS = ("gpu", "multi-gpu")
STRANGER = (54321, 54321)  # as imgbuild.smoke has it
LINKS = Path("/opt/imgbuild-driver")  # the driver's libraries, as the loader is told of them
LOADER = Path("/etc/ld.so.conf.d/imgbuild-driver.conf")
BORROWED = {
    "liblzo2-2_": "liblzo2.so.2",
    "libseccomp2_": "libseccomp.so.2",
    "libsqlite3-0_": "libsqlite3.so.0",
}
# Ways to start a container, the usual one first.
WAYS: tuple[tuple[str, ...], ...] = ((), ("--unsquash",), ("--userns",))


def main(arguments: list[str]) -> int:
    """Do what the first word says."""
    options = read_options(arguments)
    prepare(options)
    return make(options) if options.verb == "make" else prove(options)


def read_options(arguments: list[str]) -> argparse.Namespace:
    """The command line; what `prove` does not know itself is gpu_proof's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("make", "prove"):
        verb = verbs.add_parser(name)
        verb.add_argument("image", type=Path, help="images/TARGET.json of gpu_pack")
        if name == "make":
            verb.add_argument("parts", type=Path, help="folder below which the parts lie")
            verb.add_argument("sif", type=Path)
            verb.add_argument("--sha256", help="of the SIF that was made elsewhere")
            verb.add_argument("--beside", type=Path, help="as gpu_unpack takes it")
        else:
            verb.add_argument("sif", type=Path)
            verb.add_argument("tests", type=Path, help="smoke_tests/ of the repository")
            verb.add_argument("out", type=Path, help="where the report goes")
            verb.add_argument("--through", choices=THROUGH, default=THROUGH[0])
        verb.add_argument("--carried", type=Path, default=CARRIED)
        verb.add_argument("--work", type=Path, default=WORK, help="folder for all else")
    options, rest = parser.parse_known_args(arguments)
    if options.verb == "make":
        return parser.parse_args(arguments)
    options.rest = rest
    places = (options.image, options.sif, options.tests, options.out)
    theirs = gpu_proof.read_options([*map(str, places), *rest])
    if any(getattr(theirs, name) is not None for name in gpu_proof.GIVEN):
        parser.error("a container's caches are in its own /tmp, empty at each start")
    return argparse.Namespace(**{**vars(options), **vars(theirs)})


def prepare(options: argparse.Namespace) -> None:
    """Make imgbuild's modules, mksquashfs and unsquashfs available."""
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    site = work / "site"
    for wheel in sorted((options.carried / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)  # carried by the caller
    sys.path[:0] = [str(ROOT / "builder"), str(site)]
    programs = work / "bin"
    programs.mkdir(exist_ok=True)
    carried = (options.carried / "squashfs").resolve()
    for name in PROGRAMS if carried.is_dir() else ():
        path = programs / name
        words = f'LD_LIBRARY_PATH="{carried}" exec "{carried}/{name}" "$@"'
        path.write_text(f"#!/bin/sh\n{words}\n", "utf-8")
        path.chmod(0o755)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"


def make(options: argparse.Namespace) -> int:
    """Write the SIF; status 1 if it is another than the one that was expected."""
    from imgbuild.oci import layout
    from imgbuild.sif import convert
    from imgbuild.sif.flat import Layer
    from imgbuild.values import Arch

    image = json.loads(options.image.read_text("utf-8"))
    documents = options.carried / "layouts" / image["target"]
    built = layout.read(documents)
    arch = Arch.parse(image["arch"])
    diff_ids = [layer["diff_id"] for layer in image["layers"]]
    if list(built.image(arch).diff_ids) != diff_ids:
        sys.exit(f"{documents} is another image than {options.image}")
    started = time.monotonic()
    files = tars(image, options)
    print(f"{len(files)} layers in {time.monotonic() - started:.1f} s", flush=True)
    # The layers lie here as plain tars, whose digests are the diff ids: convert checks each.
    layers = [
        Layer(path=path, digest=diff_id, size=path.stat().st_size)
        for path, diff_id in zip(files, diff_ids, strict=True)
    ]
    converting = time.monotonic()
    lock = (documents / "lock.json").read_bytes()
    made = convert.convert(built, arch, options.sif, convert.Options(), lock=lock, layers=layers)
    shutil.rmtree(options.work / "tars")
    ended = time.monotonic()
    layers_of(options.sif).write_text("\n".join(diff_ids) + "\n", "ascii")
    digest = made.digest.removeprefix("sha256:")
    print(f"{digest}  {options.sif}")
    print(f"{made.size} bytes by mksquashfs {made.tool} in {ended - converting:.1f} s")
    if options.sha256 not in (None, digest):
        print(f"it is another SIF than {options.sha256}")
        return 1
    return 0


def tars(image: dict[str, Any], options: argparse.Namespace) -> list[Path]:
    """The layers as tars, bottom first."""
    there = {path.name: path for path in options.parts.rglob("*") if path.is_file()}
    own = gpu_unpack.read_beside(options.beside)
    inflate = gpu_unpack.inflater(options.carried / "wheels")
    folder = Path(options.work) / "tars"
    folder.mkdir(exist_ok=True)

    def _write(layer: dict[str, Any]) -> Path:
        files = [there[part["name"]] for part in layer["parts"]]
        path: Path = folder / layer["diff_id"].removeprefix("sha256:")
        with path.open("wb") as stream:
            for chunk in gpu_unpack.content(layer, inflate(files), own):
                stream.write(chunk)
        return path

    lacking = [
        part["name"]
        for layer in image["layers"]
        for part in layer["parts"]
        if part["name"] not in there
    ]
    if lacking:
        sys.exit(f"{options.parts}: {len(lacking)} parts are not there: {' '.join(lacking[:3])} …")
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_write, image["layers"]))


def layers_of(path: Path) -> Path:
    """Where the diff ids of the layers are noted that `path`, a SIF or a root, was made of."""
    return path.with_name(path.name + ".layers")


def prove(options: argparse.Namespace) -> int:
    """Run the tests of a tier in the SIF; their status."""
    for name in ("sif", "work"):
        setattr(options, name, getattr(options, name).resolve())
    gpu_proof.empty_out(options.out)
    image = json.loads(options.image.read_text("utf-8"))
    gpus = gpu_proof.gpus(gpu_proof.libraries(options.driver))  # this makes its device files, too
    print(f"GPUs: {', '.join(gpus) or 'none'}", flush=True)
    with options.sif.open("rb") as stream:
        sif = {"sif": f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"}
    way = None
    if options.through == "apptainer":
        install(options.carried)
        if options.tier in GPU_TIERS:
            tell_loader(options.driver)
        way = first_way(options, image)
    if way is None:
        return by_root(options, sif)
    started = time.time()
    said = subprocess.run(["apptainer", "--version"], check=True, capture_output=True, text=True)
    version = re.findall(r"[0-9]+\.[0-9.]+", said.stdout)[0]
    machine = {
        **gpu_proof.record(image, options.sif, options, started),
        "through": " ".join(["apptainer", version, *way]),
        **sif,
        "caches": "nothing",  # the container's own
    }
    gpu_proof.keep(options.out / "machine.json", machine)
    words = gpu_proof.runner(options, image["expect"]["prefix"])
    command = in_container(options, image, way, words)
    print(" ".join(command), flush=True)
    with (options.out / "run.log").open("wb") as log:
        status = run(command, log, options.seconds)
    seconds = round(time.time() - started, 1)
    ended = {"status": status, "seconds": seconds, "tests": seconds}
    gpu_proof.keep(options.out / "machine.json", {**machine, **ended})
    gpu_proof.show(options.out, status, seconds)
    return status


def run(command: list[str], log: Any, seconds: float) -> int:
    """Run a command, and end it and all that it started after so many seconds; its status."""
    with subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return gpu_proof.OVER


def in_container(
    options: argparse.Namespace, image: dict[str, Any], way: tuple[str, ...], command: list[str]
) -> list[str]:
    """The command line that runs `command` in the SIF, as `imgbuild smoke --sif` makes it.

    What it needs is made anew: the tests and their expectation, an empty /tmp and home.
    """
    from imgbuild import apptainer

    shown, work = options.work / "shown", options.work / "scratch"
    for folder in (shown, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    work.chmod(0o1777)
    tests = shown / "smoke_tests"
    tests.mkdir()
    for path in options.tests.iterdir():
        if path.is_file():
            shutil.copyfile(path, tests / path.name)
            (tests / path.name).chmod(0o644)
    (shown / "expect.json").write_text(json.dumps(image["expect"]), "utf-8")
    place = f"/{gpu_proof.SHOWN}"
    binds = {f"{place}/{path.name}": path for path in shown.iterdir()}
    if options.model is not None:
        binds[f"{place}/model"] = options.model.resolve()
    more = ["--bind", f"{options.out}:{place}/out"]
    settings = apptainer.Running(
        binds=binds,
        work=work,
        workdir=image["settings"].get("WorkingDir") or "/",
        gpus=options.tier in GPU_TIERS,
        user=STRANGER,
        options=(*way, *more),
    )
    # As imgbuild.apptainer.run does; --env would cut "0,1" into two variables.
    for name, value in gpu_proof.passed_on().items():
        os.environ[f"APPTAINERENV_{name}"] = value
    return apptainer.command_line(apptainer.require(), options.sif, command, settings)


def install(carried: Path) -> None:
    """Unpack Apptainer into the root of this machine, if it has none; libraries where it lacks."""
    if shutil.which("apptainer") is not None:
        return
    known = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True)
    for path in sorted((carried / "debs").glob("*.deb")):
        library = next((name for key, name in BORROWED.items() if path.name.startswith(key)), None)
        if library is None or f"{library} (" not in known.stdout:
            subprocess.run(["dpkg-deb", "--extract", str(path), "/"], check=True)
    subprocess.run(["/sbin/ldconfig"], check=True)


def tell_loader(driver: Path) -> None:
    """Make the driver's libraries known to the loader, where --nv finds them, and its programs."""
    os.environ["PATH"] += f"{os.pathsep}{driver / 'bin'}"
    found = gpu_proof.libraries(driver)
    if found is None or not found.is_relative_to(driver):  # the system's own are known to it
        return
    shutil.rmtree(LINKS, ignore_errors=True)
    LINKS.mkdir()
    for path in sorted(found.glob("lib*.so*")):
        (LINKS / path.name).symlink_to(path)
    if not (LINKS / "libcuda.so").is_symlink():
        (LINKS / "libcuda.so").symlink_to("libcuda.so.1")  # what -lcuda looks for
    LOADER.write_text(f"{LINKS}\n", "ascii")
    subprocess.run(["/sbin/ldconfig"], check=True)


def first_way(options: argparse.Namespace, image: dict[str, Any]) -> tuple[str, ...] | None:
    """How Apptainer can start a container on this machine; None if it cannot."""
    os.environ |= {
        "APPTAINER_TMPDIR": str(options.work),
        "APPTAINER_CACHEDIR": str(options.work / "cache"),
    }
    python = f"{image['expect']['prefix']}/bin/python"
    for way in WAYS:
        command = in_container(options, image, way, [python, "-c", "print('started')"])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            print(f"apptainer {' '.join(way)}: nothing after 300 s", flush=True)
            continue
        if done.stdout == "started\n":
            return way
        print(f"apptainer {' '.join(way)}: {done.stdout}{done.stderr}", flush=True)
    return None


def by_root(options: argparse.Namespace, sif: dict[str, str]) -> int:
    """Unpack the SIF by unsquashfs, and let gpu_proof run the tests in the folder."""
    root: Path = options.work / "root"
    shutil.rmtree(root, ignore_errors=True)
    words = ["-no-progress", "-quiet", "-offset", str(file_system_at(options.sif))]
    subprocess.run(["unsquashfs", *words, "-dest", str(root), str(options.sif)], check=True)
    shutil.copy(layers_of(options.sif), layers_of(root))
    places = (options.image, root, options.tests, options.out)
    status = gpu_proof.main([*map(str, places), *options.rest])
    path = options.out / "machine.json"
    said = subprocess.run(["unsquashfs", "-version"], check=False, capture_output=True, text=True)
    version = " ".join(said.stdout.split()[:3:2])
    machine = json.loads(path.read_text("utf-8"))
    gpu_proof.keep(path, {**machine, "through": version, **sif})
    return status


def file_system_at(path: Path) -> int:
    """Where in the SIF its file system begins."""
    from imgbuild.sif import container

    with path.open("rb") as stream:
        head = stream.read(container.DATA_AT)
    for number in range(container.DESCRIPTORS):
        at = container.DESCRIPTORS_AT + number * container.DESCRIPTOR.size
        fields = container.DESCRIPTOR.unpack_from(head, at)
        if fields[0] == container.FILE_SYSTEM:
            return int(fields[5])
    sys.exit(f"{path} holds no file system")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
