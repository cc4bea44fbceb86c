"""Checks within seconds whether an image's packages can work in this container on this host.

`imgbuild doctor TARGET --through WAY` and `imgbuild slurm --job check` run it in the image.

Prints findings with remedies, or one document with --json. The exit status is 1 if any finding is
an error. The script imports no package of the image and creates no GPU context. Each check takes at
most a few seconds.
"""

from __future__ import annotations

import argparse
import getpass
import importlib.util
import json
import os
import resource
import shutil
import site
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from doctor_driver import Finding, driver

FORMAT = 1
STACK = ("torch", "vllm", "ray", "trl", "transformers", "verl", "numpy")
# Variables with the path of a writable folder; compiled kernels are loaded from the first.
COMPILED = ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
PLACES = ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX")
WRITTEN = (*PLACES, *COMPILED)
LEAST_SHARED = 1 << 30
LEAST_TEMPORARY = 4 << 30
LEAST_FILES = 65_536  # Ray and vLLM open a few for each worker and each connection
LEAST_THREADS = 4_096
SOCKET_PATH = 107  # bytes in the path of a socket; a limit of the kernel
RAY_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
NETWORK_TIME_LIMIT = 2.0
TIME_LIMIT = 7.0  # seconds for all checks: a driver or a network disk may not respond
NETWORK_DISKS = {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "cifs"}


def packages() -> Iterator[Finding]:
    """Check that the image, not ~/.local or PYTHONPATH, provides every package of the stack.

    Packages added by a user follow the image's packages on sys.path, and do not replace them.
    """
    inside = tuple({f"{path}/" for path in sysconfig.get_paths().values()})
    site_packages = sysconfig.get_path("purelib")
    end = sys.path.index(site_packages) if site_packages in sys.path else len(sys.path)
    first = [path for path in sys.path[:end] if path and not f"{path}/".startswith(inside)]
    before = tuple(f"{path}/" for path in first)
    strange = [path for path in first if path != sys.path[0] and not path.endswith(".zip")]
    leaked = {}
    for name in STACK:
        spec = importlib.util.find_spec(name)
        place = spec.origin if spec else None
        if place and place.startswith(before):
            leaked[name] = place
    remedy = "unset PYTHONPATH, or start with apptainer --cleanenv"
    for name, place in leaked.items():
        message = f"{name} is imported from {place}, not from {sys.prefix}"
        yield Finding("packages", "error", message, remedy)
    if strange and not leaked:
        message = f"Python searches {', '.join(strange)} before the image's packages"
        yield Finding("packages", "warning", message, remedy)
    added = _added_packages(site_packages)
    if not strange and not leaked:
        which = "the packages of the image" if added else "all"
        yield Finding("packages", "note", f"{which} come from {sys.prefix}")
    if added:
        names = ", ".join(added)
        folder = site.getuserbase()
        yield Finding("packages", "note", f"added by the user in {folder}: {names}")


def _added_packages(site_packages: str) -> list[str]:
    if not site.ENABLE_USER_SITE:
        return []
    names = {path.name for path in Path(site.getusersitepackages()).glob("*.dist-info")}
    image = {path.name for path in Path(site_packages).glob("*.dist-info")}  # uv has links to them
    return [name.removesuffix(".dist-info").replace("-", " ", 1) for name in sorted(names - image)]


def user() -> Iterator[Finding]:
    """Check that the user has a name, which torch and vLLM require."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        yield Finding(
            "user", "error", f"user id {os.getuid()} has no name, which torch requires",
            "start through /opt/imgbuild/entrypoint, or set USER and LOGNAME",
        )  # fmt: skip
        return
    yield Finding("user", "note", f"{name}, id {os.getuid()}")


def folders() -> Iterator[Finding]:
    """Check folders that must be writable, and folders from which compiled code is loaded."""
    locations = {name: os.environ[name] for name in WRITTEN if os.environ.get(name)}
    if locations.get("PYTHONPYCACHEPREFIX", "").startswith(f"{sys.prefix}/"):
        del locations["PYTHONPYCACHEPREFIX"]  # a wheel of bytecode, which is read alone
    locations["/tmp"] = "/tmp"  # by its name: Ray and sockets go there, whatever else takes files
    good = 0
    for name, folder in sorted(locations.items()):
        if problem := _unwritable(folder):
            yield Finding(
                "folders", "error", f"{name}: cannot write to {folder}: {problem}",
                "start through /opt/imgbuild/entrypoint, or bind a folder there"
                " (apptainer: --bind SCRATCH:/var/cache/imgbuild)",
            )  # fmt: skip
            continue
        loaded = name in COMPILED or (name == "/tmp" and "TMPDIR" not in locations)
        if loaded and os.statvfs(folder).f_flag & os.ST_NOEXEC:
            yield Finding(
                "folders", "error",
                f"{name}: {folder} is mounted noexec, but compiled kernels are loaded from there",
                f"set {'TMPDIR' if name == '/tmp' else name} to a folder on another disk",
            )  # fmt: skip
            continue
        good += 1
    root = "is read-only" if os.statvfs("/").f_flag & os.ST_RDONLY else "can be written"
    yield Finding("folders", "note", f"{good} of {len(locations)} are writable; the root {root}")


def _unwritable(folder: str) -> str:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"x")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def temporary() -> Iterator[Finding]:
    """Check the free space in /tmp, and the length of its path, where Ray creates sockets."""
    # Not tempfile, which uses another folder if this one is not writable.
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    free = shutil.disk_usage(folder).free
    length = len(folder.encode()) + len(RAY_SOCKET)
    if length > SOCKET_PATH:
        yield Finding(
            "temporary files", "warning",
            f"{folder} is too long: paths of Ray's sockets below it have {length} of {SOCKET_PATH}"
            " bytes",
            "bind a folder to /tmp and leave TMPDIR unset, or: ray start --temp-dir /tmp/ray",
        )  # fmt: skip
    if free < LEAST_TEMPORARY:
        yield Finding(
            "temporary files", "warning",
            f"{folder} has {free >> 20} MB free; Ray and compilers write there",
            "bind a folder of the node's disk: apptainer --bind SCRATCH:/tmp",
        )  # fmt: skip
    else:
        yield Finding("temporary files", "note", f"{folder} has {free >> 30} GB free")


def shared_memory(least: int) -> Iterator[Finding]:
    """Check the size of /dev/shm, used by NCCL, data loaders and Ray's object store."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as error:
        yield Finding(
            "shared memory", "error", f"/dev/shm: {error.strerror}", "mount a tmpfs there"
        )
        return
    required = least or LEAST_SHARED
    if free < required:
        yield Finding(
            "shared memory", "error" if least else "warning",
            f"{free >> 20} MB are free in /dev/shm, {required >> 20} MB are required: otherwise"
            " NCCL and data loaders fail with a bus error",
            "docker: --shm-size 16g or --ipc host; on a cluster: request more memory, or contact"
            " its administrator",
        )  # fmt: skip
    else:
        yield Finding("shared memory", "note", f"{free >> 20} MB free in /dev/shm")


def limits() -> Iterator[Finding]:
    """Check the limits on threads and files, including those of cgroups, by starting threads."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        raise_it = "ulimit -n $(ulimit -Hn)" if hard > soft else "request a higher hard limit"
        yield Finding("limits", "warning", f"{soft} open files are allowed (ulimit -n)", raise_it)
    threads = _thread_limit()
    started = _start_threads(min(threads, 512) if threads else 512)
    if started < 512:
        yield Finding(
            "limits", "error",
            f"only {started} threads can be started here: pthread_create fails in Ray and BLAS",
            "ulimit -u $(ulimit -Hu) in the job, OMP_NUM_THREADS=1, or request a higher limit",
        )  # fmt: skip
    elif threads and threads < LEAST_THREADS:
        yield Finding(
            "limits", "warning", f"{threads} threads are allowed (ulimit -u, pids.max)",
            "ulimit -u $(ulimit -Hu) in the job, and OMP_NUM_THREADS=1",
        )  # fmt: skip
    else:
        files = "any number of" if soft == resource.RLIM_INFINITY else soft
        yield Finding("limits", "note", f"{files} open files, {threads or 'any number of'} threads")


def _thread_limit() -> int:
    """Return the lowest known limit on processes and threads, or 0 if there is none."""
    bounds = [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        try:
            text = Path(path).read_text("ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            bounds.append(int(text))
    return min((each for each in bounds if each != resource.RLIM_INFINITY), default=0)


def _start_threads(count: int) -> int:
    """Start up to `count` threads, and end them. Returns how many were started."""
    done = threading.Event()
    running = []
    before = threading.stack_size(64 * 1024)
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            running.append(thread)
    except RuntimeError:
        pass
    finally:
        threading.stack_size(before)
        done.set()
        for thread in running:
            thread.join()
    return len(running)


def cores() -> Iterator[Finding]:
    """Check that this process may use all cores of the machine, which libraries count."""
    machine = os.cpu_count() or 1
    granted = len(os.sched_getaffinity(0))
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal():
        granted = min(granted, int(slurm))
    if granted < machine:
        yield Finding(
            "cores", "warning",
            f"{granted} of the machine's {machine} cores are granted: Ray starts a worker for each"
            " core by default, which fail to register with the raylet",
            f"ray start --num-cpus={granted}, OMP_NUM_THREADS={granted} or less",
        )  # fmt: skip
    else:
        yield Finding("cores", "note", f"{granted} cores, all of the machine's")


def model_disk() -> Iterator[Finding]:
    """Check whether models are on a network disk, from which each process reads them slowly."""
    folder = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    kind = _file_system_type(os.path.realpath(folder))
    if kind in NETWORK_DISKS:
        yield Finding(
            "model disk", "warning", f"{folder} is on a network disk ({kind}): models load slowly",
            "copy the model to the node first (imgbuild slurm --stage), load_format=safetensors",
        )  # fmt: skip
    else:
        yield Finding("model disk", "note", f"{folder} is on {kind or 'an unknown file system'}")


def _file_system_type(folder: str) -> str:
    best, kind = "", ""
    for row in Path("/proc/mounts").read_text("utf-8", "replace").splitlines():
        _, place, name, *_ = row.split()
        holds = folder == place or folder.startswith(place.rstrip("/") + "/")
        if holds and len(place) >= len(best):
            best, kind = place, name
    return kind


def network() -> Iterator[Finding]:
    """Check network access. Without it, each lookup of a model waits for a timeout."""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        yield Finding("network", "note", "HF_HUB_OFFLINE is set, so no network is used")
        return
    host = "huggingface.co"
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        yield Finding("network", "note", "a proxy is set; not checked")
        return
    answers: list[object] = []

    def _ask() -> None:
        try:
            answers.append(socket.getaddrinfo(host, 443))
        except OSError:
            answers.append(None)

    asking = threading.Thread(target=_ask, daemon=True)
    asking.start()
    asking.join(NETWORK_TIME_LIMIT)
    if answers and answers[0]:
        yield Finding("network", "note", f"{host} can be resolved")
    else:
        yield Finding(
            "network", "warning", f"{host} cannot be resolved: downloads will time out",
            "download first, and set HF_HUB_OFFLINE=1",
        )  # fmt: skip


def examine(gpus: int, shared: int) -> list[Finding]:
    """Run all checks concurrently. A check that fails to run or to end yields a warning."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "packages": packages,
        "user": user,
        "folders": folders,
        "temporary files": temporary,
        "shared memory": lambda: shared_memory(shared),
        "cores": cores,
        "driver": lambda: driver(gpus),
        "model disk": model_disk,
        "network": network,
    }
    end = time.monotonic() + TIME_LIMIT
    # If GPUs were requested, a check of the driver that cannot run is an error.
    bad = {"driver": "error"} if gpus else {}
    begun = [_begin(name, check, bad.get(name, "warning")) for name, check in checks.items()]
    findings = [finding for looking in begun for finding in _ended(looking, end)]
    # Alone, because it starts many threads.
    return [*findings, *_ended(_begin("limits", limits), max(end, time.monotonic() + 1))]


class _Looking(NamedTuple):
    """A started check and its findings. `thread` is None if no thread could be started."""

    name: str
    found: list[Finding]
    thread: threading.Thread | None
    severity: str  # of a check that could not be made


def _begin(
    name: str, check: Callable[[], Iterator[Finding]], severity: str = "warning"
) -> _Looking:
    findings: list[Finding] = []

    def _look() -> None:
        try:
            findings.extend(check())
        except Exception as error:  # noqa: BLE001  # an error must not look like "no finding"
            bad = "warning" if findings else severity
            findings.append(Finding(name, bad, f"could not be checked: {error!r}"))

    thread = threading.Thread(target=_look, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started; the check of limits reports it
        _look()
        return _Looking(name, findings, None, severity)
    return _Looking(name, findings, thread, severity)


def _ended(looking: _Looking, end: float) -> list[Finding]:
    """Return the findings of a check, after waiting at most until the clock shows `end` seconds."""
    if looking.thread is not None:
        looking.thread.join(max(0, end - time.monotonic()))
        if looking.thread.is_alive():
            why = f"timed out after {TIME_LIMIT:.0f} s: a driver or a disk hangs or is slow"
            bad = "warning" if looking.found else looking.severity
            late = Finding(looking.name, bad, why, "check it manually on this node")
            return [*looking.found, late]
    return looking.found


def main(arguments: list[str]) -> int:
    """Run the checks and print the findings. Returns 1 if a finding is an error."""
    parser = argparse.ArgumentParser(
        description="Check whether the packages of this image can work in this container."
    )
    parser.add_argument("--gpus", type=int, default=0, help="required number of GPUs")
    parser.add_argument("--shared", type=int, default=0, help="required free MB in /dev/shm")
    parser.add_argument("--json", action="store_true", help="print one JSON document to stdout")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    findings = examine(options.gpus, options.shared << 20)
    if options.json:
        print(json.dumps({
            "format": FORMAT,
            "seconds": round(time.monotonic() - started, 3),
            "findings": [finding._asdict() for finding in findings],
        }))  # fmt: skip
    else:
        place = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        for finding in findings:
            print(f"{place}: {finding.severity:8} {finding.check}: {finding.message}")
            if finding.remedy:
                print(f"{place}:          remedy: {finding.remedy}")
    return int(any(finding.severity == "error" for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
