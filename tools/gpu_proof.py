#!/usr/bin/env python3
"""Runs the smoke tests of an unpacked image on a bare machine that has a GPU and no network.

    python3 gpu_proof.py images/cu124-vllm.json root/ smoke_tests/ out/ --tier gpu

Runs as root: in mounts and processes of its own it shows the root folder /proc, /dev, /sys and the
host's driver, all else is the image's; there it becomes the image's user. The driver's libraries
are linked into a folder in memory and put into a copy of the loader's cache, as NVIDIA's container
runtime does: the root's own loader cache stays. gcc finds `-lcuda` there by LIBRARY_PATH.

Leaves in out/: report.json (written after each case), run.log, machine.json. Status 0 if the tier
passed; 124 if --seconds were over. machine.json's `seconds` are from the start to the end of all,
with the mounts and the gates; `tests` those of the runner. With --fresh the caches, /tmp and the
home are empty, as in a new container; the caches lie in out/cache. An earlier out/cache gives parts
of it to them: --kernels FOLDER FlashInfer's compiled kernels, --triton FOLDER Triton's, --bytecode
FOLDER Python's, --caches FOLDER all. Runs with and without say what each is worth.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SHOWN = "run/imgbuild"  # below the root: a folder in memory that holds all that is shown
# Settings of the host that are about its machine, not its software: they go on into the image.
KEPT = (
    "FLASHINFER_EXTRA_",
    "NCCL_",
    "NVSHMEM_",
    "TORCH_SYMM_MEM_",
    "VLLM_ALLREDUCE_",
    "CUDA_VISIBLE_DEVICES",
)
NAMESPACES = ("--mount", "--propagation", "private", "--ipc", "--pid", "--fork", "--kill-child")
OVER = 124
PLACES = ("tmp", "home")  # below out/ while a fresh run goes on
KERNELS = ".cache/flashinfer"  # in the folder that the image's FLASHINFER_WORKSPACE_BASE names
# Options that give parts of an earlier out/cache: what each gives, and its name.
GIVEN = {
    "kernels": (KERNELS, "FlashInfer's kernels"),
    "triton": ("triton", "Triton's kernels"),
    "bytecode": ("pycache", "bytecode"),
    "caches": (".", "all of an earlier run's"),
}
OWN = ("libcuda.", "libcudadebugger.", "libnvidia-", "libnvcuvid.", "libnvoptix.")  # of the driver


def main(arguments: list[str]) -> int:
    """Run the tests in namespaces of their own, and keep what they say."""
    options = read_options(arguments)
    if options.inside:
        inside(options)
    empty_out(options.out)
    image = json.loads(options.image.read_text("utf-8"))
    started = time.time()
    machine = record(image, options.root, options, started)
    if machine["unpacked"] != machine["diff_ids"]:
        sys.exit(f"{options.root} does not hold the layers of {options.image}: unpack it again")
    keep(options.out / "machine.json", machine)
    if fresh(options):
        empty_cache(options, image["user"])
        empty_places(options, image["user"])
    begun = time.time()
    command = ["unshare", *NAMESPACES, sys.executable, __file__, "--inside", *arguments]
    with (options.out / "run.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = process.wait(options.seconds)
        except subprocess.TimeoutExpired:
            process.kill()  # and with it, all that it started
            process.wait()
            status = OVER
    seconds = round(time.time() - started, 1)
    tests = round(time.time() - begun, 1)
    for name in PLACES:
        shutil.rmtree(options.out / name, ignore_errors=True)
    ended = {"status": status, "seconds": seconds, "tests": tests}
    keep(options.out / "machine.json", {**machine, **ended})
    show(options.out, status, seconds)
    return status


def record(
    image: dict[str, Any], place: Path, options: argparse.Namespace, started: float
) -> dict[str, Any]:
    """What machine.json says when the tests of `image` begin in `place`, a root folder or a SIF."""
    return {
        "target": image["target"],
        "arch": image["arch"],
        "manifest": image["manifest"],
        "config": image["config"],
        "diff_ids": [layer["diff_id"] for layer in image["layers"]],
        "unpacked": unpacked(place),
        "tier": options.tier,
        "caches": caches(options),
        "jobs": options.jobs,
        "share": options.share if options.tier == "gpu" else 1,  # other tiers share no GPU
        "only": options.only,
        "model": options.model.name if options.model else "",
        "host": host(options.driver),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
    }


def read_options(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("image", type=Path, help="images/TARGET.json of gpu_pack")
    parser.add_argument("root", type=Path, help="root folder that gpu_unpack made")
    parser.add_argument("tests", type=Path, help="smoke_tests/ of the repository")
    parser.add_argument("out", type=Path, help="where the report goes")
    parser.add_argument("--tier", default="gpu")
    parser.add_argument("--driver", type=Path, default=Path("/usr/local/nvidia"))
    parser.add_argument("--seconds", type=float, default=570, help="stop after so long")
    parser.add_argument("--model", type=Path, help="folder of a real model")
    parser.add_argument("--fresh", action="store_true", help="empty caches, in out/cache")
    for name, (_, what) in GIVEN.items():
        parser.add_argument(
            f"--{name}", type=Path, help=f"an earlier out/cache: {what} of it; means --fresh"
        )
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--share", type=int, default=1, help="cases at a time on the GPU")
    parser.add_argument("--patience", type=float, default=1)
    options = parser.parse_args(arguments)
    for name in ("image", "root", "tests", "out", "driver"):
        setattr(options, name, getattr(options, name).resolve())
    for name, (below, _) in GIVEN.items():
        folder = getattr(options, name)
        if folder is not None and not (folder / below).is_dir():
            parser.error(f"--{name} {folder}: it holds no {below}")
    return options


def given(options: argparse.Namespace) -> dict[str, Path]:
    """The parts of earlier caches that were asked for, by the option's name."""
    return {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}


def fresh(options: argparse.Namespace) -> bool:
    """Whether the image's caches are made anew."""
    return bool(options.fresh or given(options))


def caches(options: argparse.Namespace) -> str:
    """What the image's caches held when the tests began."""
    if options.caches is not None:
        held = sorted(path.name for path in options.caches.iterdir())
        return f"{GIVEN['caches'][1]}: {' '.join(held) or 'nothing'}"
    if given(options):
        return ", ".join(GIVEN[name][1] for name in given(options))
    return "nothing" if options.fresh else "what earlier runs left"


def empty_cache(options: argparse.Namespace, user: dict[str, Any]) -> None:
    """Make out/cache anew: empty, or with what earlier runs give."""
    folder = options.out / "cache"
    made = options.out / "cache.new"  # what is given may lie in the folder that is emptied
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name, source in given(options).items():
        below = GIVEN[name][0]
        shutil.copytree(source / below, made / below, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    for place in folder.rglob("*"):
        os.chown(place, user["uid"], user["gid"], follow_symlinks=False)
    folder.chmod(0o1777)


def empty_out(out: Path) -> None:
    """Make the folder `out`; what an earlier run left there is no report of this one."""
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o1777)
    for name in ("report.json", "run.log", "machine.json"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "logs", ignore_errors=True)


def empty_places(options: argparse.Namespace, user: dict[str, Any]) -> None:
    """Make what stands for /tmp and the home, both empty."""
    for name in PLACES:
        folder = options.out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    (options.out / "tmp").chmod(0o1777)
    os.chown(options.out / "home", user["uid"], user["gid"])


def unpacked(root: Path) -> list[str]:
    """The diff ids of the layers that gpu_unpack applied to `root`, which it checked."""
    path = root.with_name(root.name + ".layers")
    return path.read_text("ascii").split() if path.exists() else []


def host(driver: Path) -> dict[str, Any]:
    """What runs the image: the GPUs and their driver, the kernel, the processors."""
    version = Path("/proc/driver/nvidia/version")
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "driver": version.read_text("utf-8").strip() if version.exists() else "",
        "gpus": gpus(libraries(driver)),
        "environment": passed_on(),
    }


def gpus(folder: Path | None) -> list[str]:
    """The names of the GPUs, as the driver gives them; this also makes its device files."""
    if folder is None:
        return []
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(str(folder / "libcuda.so.1"))
        count, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0:
            found = []
            for number in range(count.value):
                library.cuDeviceGetName(name, len(name), number)
                found.append(name.value.decode())
            return found
    return []


def libraries(driver: Path) -> Path | None:
    """The folder below `driver`, or of the system, that holds libcuda.so.1."""
    usual = [Path(f"/usr/lib/{platform.machine()}-linux-gnu"), Path("/usr/lib64")]
    for place in (driver, *usual):
        found = sorted(
            path.parent
            for path in place.rglob("libcuda.so.1")
            if wide(path) and not {"stubs", "compat"} & set(path.parts)
        )
        if found:
            return found[0]
    return None


def wide(path: Path) -> bool:
    """Whether this is a library of 64 bits: drivers bring some of 32 as well."""
    try:
        with path.open("rb") as stream:
            return stream.read(5) == b"\x7fELF\x02"
    except OSError:
        return False


def passed_on() -> dict[str, str]:
    """The variables of this machine that go on into the image."""
    return {name: value for name, value in os.environ.items() if name.startswith(KEPT)}


def inside(options: argparse.Namespace) -> None:
    """In the new namespaces: mount, become the image's user, and become the tests' runner."""
    os.umask(0o022)
    image = json.loads(options.image.read_text("utf-8"))
    root: Path = options.root
    for name in ("proc", "dev", "sys", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    mount("--rbind", root, root)
    try:
        mount("-t", "proc", "proc", root / "proc")
    except subprocess.CalledProcessError:  # a machine that hides parts of its own refuses a new one
        mount("--rbind", "/proc", root / "proc")
    mount("--rbind", "/dev", root / "dev")
    if (root / "dev/shm").is_dir():
        mount("-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "tmpfs", root / "dev/shm")
    mount("--rbind", "/sys", root / "sys")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "run")
    folder = root / SHOWN
    shutil.copytree(options.tests, folder / "smoke_tests", copy_function=shutil.copyfile)
    bind(options.out, folder / "out", writable=True)
    if options.model is not None:
        bind(options.model.resolve(), folder / "model", writable=False)
    if fresh(options):
        mount("--bind", options.out / "cache", root / image["expect"]["cache"].lstrip("/"))
        mount("--bind", options.out / "tmp", root / "tmp")
        home = root / image["user"]["home"].lstrip("/")
        if home.is_dir():
            mount("--bind", options.out / "home", home)
    show_driver(options.driver, root)
    expect = folder / "expect.json"
    expect.write_text(json.dumps(image["expect"]), "utf-8")
    expect.chmod(0o644)
    settings, user = image["settings"], image["user"]
    env = dict(item.split("=", 1) for item in settings.get("Env") or [])
    # Where gcc looks for -lcuda when FlashInfer links a kernel: the loader's cache is not its.
    env |= {"HOME": user["home"], "LIBRARY_PATH": f"/{SHOWN}/libraries", **passed_on()}
    wait_as_first()
    os.chroot(root)
    os.chdir(settings.get("WorkingDir") or "/")
    os.setgroups([])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    command = [*(settings.get("Entrypoint") or []), *runner(options, image["expect"]["prefix"])]
    os.execvpe(command[0], command, env)  # noqa: S606  # the image's own program


def wait_as_first() -> None:
    """Go on in a child; this process, the namespace's first, reaps what loses its parent."""
    child = os.fork()
    while child:
        ended, status = os.wait()
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def runner(options: argparse.Namespace, prefix: str) -> list[str]:
    """The command line of the tests' runner, in the places that it sees."""
    place = f"/{SHOWN}"
    words = [f"{prefix}/bin/python", f"{place}/smoke_tests/run.py", f"--tier={options.tier}"]
    words += [f"--expect={place}/expect.json", f"--report={place}/out/report.json"]
    words += [f"--only={options.only}", f"--jobs={options.jobs}", f"--share={options.share}"]
    words += [f"--patience={options.patience}", f"--logs={place}/out/logs"]
    if options.model is not None:
        words.append(f"--model={place}/model")
    return words


def show_driver(driver: Path, root: Path) -> None:
    """Bring the driver's libraries under `root`, and let the loader and ldconfig know of them."""
    found = libraries(driver)
    if found is None:
        print(f"{driver} has no libcuda.so.1, and neither has the system", flush=True)
        return
    shown = root / SHOWN
    bind(found, shown / "driver", writable=False)
    links = shown / "libraries"
    links.mkdir()
    whole = found.is_relative_to(driver)  # else it is the system's folder, with much besides
    for path in sorted(found.glob("lib*.so*")):
        if not whole and not path.name.startswith(OWN):
            continue
        if path.resolve().parent == found:
            (links / path.name).symlink_to(f"/{SHOWN}/driver/{path.name}")
        elif wide(path):
            shutil.copy(path, links / path.name)
    if not (links / "libcuda.so").exists() and not (links / "libcuda.so").is_symlink():
        (links / "libcuda.so").symlink_to("libcuda.so.1")  # what -lcuda looks for
    cache = f"/{SHOWN}/ld.so.cache"
    subprocess.run(
        ["chroot", str(root), "/sbin/ldconfig", "-X", "-C", cache, f"/{SHOWN}/libraries"],
        check=True,
    )
    (shown / "ld.so.cache").chmod(0o644)
    (root / "etc/ld.so.cache").touch()
    mount("--bind", shown / "ld.so.cache", root / "etc/ld.so.cache")


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Show a folder of the host."""
    target.mkdir(parents=True)
    mount("--bind", source, target)
    if not writable:
        mount("-o", "remount,bind,ro", target)


def mount(*words: str | Path) -> None:
    """Run mount; the program ends where it refuses."""
    subprocess.run(["mount", *map(str, words)], check=True)


def keep(path: Path, document: dict[str, Any]) -> None:
    """Write a document for people and programs."""
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def show(out: Path, status: int, seconds: float) -> None:
    """One line a case, and the log's end where there is no report."""
    report = out / "report.json"
    cases = json.loads(report.read_text("utf-8"))["cases"] if report.exists() else []
    for case in cases:
        words = f"{case['outcome']:8} {case['seconds']:7.1f} s  {case['name']:28}"
        print(f"{words} {case['message'][:300]}")
    if not cases:
        print((out / "run.log").read_text("utf-8", "replace")[-4000:])
    print(f"status {status} after {seconds} s")


if __name__ == "__main__":
    if shutil.which("unshare") is None:
        sys.exit("no unshare: install util-linux")
    sys.exit(main(sys.argv[1:]))
