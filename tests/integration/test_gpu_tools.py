"""An image is packed into loads, put together elsewhere, and its smoke tests run in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from imgbuild.oci.layout import Layout
from imgbuild.oci.unpack import unpack
from imgbuild.values import Arch
from tests import carrying, needs, smallworld
from tests.carrying import REPOSITORY, places, tool

pytestmark = pytest.mark.engine
LOAD = 2_000_000


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module", name="built")
def _built(place: Path) -> Layout:
    return carrying.build(place)


@pytest.fixture(scope="module", name="packed")
def _packed(place: Path, built: Layout) -> Path:
    return carrying.pack(place, "--load", LOAD)


@pytest.fixture(scope="module", name="root")
def _root(place: Path, packed: Path) -> Path:
    done = tool("gpu_unpack.py", packed / "images/small.json", packed / "loads", place / "root")
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "root"


def told(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below `root`: type, mode, owner, size or target, time."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        what: object = info.st_size if stat.S_ISREG(info.st_mode) else None
        if path.is_symlink():
            what = str(path.readlink())
        times = None if path.is_symlink() else int(info.st_mtime)
        found[str(path.relative_to(root))] = (info.st_mode, info.st_uid, info.st_gid, what, times)
    return found


def test_loads_are_small_and_shared(place, built, packed):
    image = json.loads((packed / "images/small.json").read_text())
    loads = sorted((packed / "loads").iterdir())
    assert len(loads) > 1
    for load in loads:
        assert sum(path.stat().st_size for path in load.iterdir()) <= LOAD
    parts = [part for layer in image["layers"] for part in layer["parts"]]
    assert {(part["load"], part["name"]) for part in parts} == {
        (load.name, path.name) for load in loads for path in load.iterdir()
    }
    assert [layer["diff_id"] for layer in image["layers"]] == list(
        built.image(Arch.X86_64).diff_ids
    )
    again = tool("gpu_pack.py", packed, "small", *places(place), "--load", LOAD)
    assert again.returncode == 0, again.stderr
    assert sorted((packed / "loads").iterdir()) == loads


def test_the_root_is_that_of_imgbuild(place, built, root):
    blobs = [built.blob(layer.digest) for layer in built.image(Arch.X86_64).layers]
    unpack(blobs, place / "due")
    assert told(root) == told(place / "due")


def test_missing_parts_are_waited_for(place, packed, tmp_path):
    image = json.loads((packed / "images/small.json").read_text())
    first = image["layers"][0]["parts"]
    parts = tmp_path / "parts"
    parts.mkdir()
    for part in first:
        (parts / part["name"]).hardlink_to(packed / "loads" / part["load"] / part["name"])
    words = (packed / "images/small.json", parts, tmp_path / "root")
    done = tool("gpu_unpack.py", *words)
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 of ")
    for layer in image["layers"][1:]:
        for part in layer["parts"]:
            (parts / part["name"]).hardlink_to(packed / "loads" / part["load"] / part["name"])
    assert tool("gpu_unpack.py", *words).returncode == 0


def test_files_that_are_there_need_no_carrying(place, root, tmp_path):
    pieces = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    largest = max(pieces, key=lambda path: path.stat().st_size)
    own = tmp_path / "own"
    own.write_bytes(largest.read_bytes())
    listed = tmp_path / "beside"
    listed.write_text(f"{hashlib.sha256(own.read_bytes()).hexdigest()}  {own}\n")
    words = (*places(place), "--level", 1, "--load", LOAD, "--beside", listed)
    done = tool("gpu_pack.py", tmp_path / "carry", "small", *words)
    assert done.returncode == 0, done.stderr
    image = json.loads((tmp_path / "carry/images/small.json").read_text())
    assert any(layer["beside"] for layer in image["layers"])
    carried = [path for path in (tmp_path / "carry/loads").rglob("*") if path.is_file()]
    whole = [path for path in (place / "carry/loads").rglob("*") if path.is_file()]
    sizes = [sum(path.stat().st_size for path in paths) for paths in (carried, whole)]
    assert sizes[0] < sizes[1]
    carry = (tmp_path / "carry/images/small.json", tmp_path / "carry/loads")
    done = tool("gpu_unpack.py", *carry, tmp_path / "root", "--beside", listed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert told(tmp_path / "root") == told(root)
    own.unlink()
    again = tool("gpu_unpack.py", *carry, tmp_path / "again", "--beside", listed)
    assert again.returncode == 1
    assert str(own) in again.stderr


def test_damaged_parts_are_refused(packed, tmp_path):
    image = json.loads((packed / "images/small.json").read_text())
    image["layers"][0]["diff_id"] = "sha256:" + "0" * 64
    (tmp_path / "small.json").write_text(json.dumps(image))
    done = tool("gpu_unpack.py", tmp_path / "small.json", packed / "loads", tmp_path / "root")
    assert done.returncode == 1
    assert "carry its parts again" in done.stderr


def test_the_tests_run_in_the_root(place, packed, root):
    out = place / "static"
    words = (packed / "images/small.json", root, REPOSITORY / "smoke_tests", out)
    done = tool("gpu_proof.py", *words, "--tier", "static", "--only", "[vfsi]*")
    assert done.returncode == 0, done.stdout + (out / "run.log").read_text()
    cases = json.loads((out / "report.json").read_text())["cases"]
    outcomes = {case["name"]: case["outcome"] for case in cases}
    assert outcomes["versions"] == outcomes["files"] == outcomes["imports"] == "passed"
    machine = json.loads((out / "machine.json").read_text())
    assert machine["status"] == 0
    assert machine["unpacked"] == machine["diff_ids"]


def test_an_earlier_report_is_not_taken_for_this_runs(place, packed, root, tmp_path):
    """The tests cannot start: their folder lacks the runner."""
    out = place / "stale"
    words = (packed / "images/small.json", root)
    asked = (out, "--tier", "static", "--only", "versions")
    assert tool("gpu_proof.py", *words, REPOSITORY / "smoke_tests", *asked).returncode == 0
    (tmp_path / "empty").mkdir()
    done = tool("gpu_proof.py", *words, tmp_path / "empty", *asked)
    assert done.returncode not in (0, 1)
    assert "versions" not in done.stdout
    assert not (out / "report.json").exists()
    assert not (out / "logs").exists()


def test_a_fresh_run_sees_nothing_of_earlier_ones(place, packed, root):
    """As in a new container: /tmp and the home are empty, too."""
    out = place / "alone"
    home = root / smallworld.USER.home.lstrip("/")
    home.mkdir(parents=True, exist_ok=True)
    for folder in (home, root / "tmp"):
        (folder / "left").write_text("of an earlier run")
    image = json.loads((packed / "images/small.json").read_text())
    look = f'ls -A /tmp {image["user"]["home"]} > /run/imgbuild/out/seen; exec "$@"'
    image["settings"]["Entrypoint"] = ["/bin/sh", "-c", look, "--"]
    (place / "looking.json").write_text(json.dumps(image))
    words = (place / "looking.json", root, REPOSITORY / "smoke_tests", out, "--tier", "static")
    done = tool("gpu_proof.py", *words, "--only", "versions", "--fresh")
    assert done.returncode == 0, done.stdout + (out / "run.log").read_text()
    assert "left" not in (out / "seen").read_text()
    assert not (out / "tmp").exists()
    done = tool("gpu_proof.py", *words, "--only", "versions")
    assert (out / "seen").read_text().count("left") == 2
    for folder in (home, root / "tmp"):
        (folder / "left").unlink()


def test_fresh_caches_are_empty_and_may_be_given_kernels(place, packed, root):
    out, later = place / "fresh", place / "later"
    words = (packed / "images/small.json", root, REPOSITORY / "smoke_tests")
    asked = ("--tier", "static", "--only", "versions")
    assert tool("gpu_proof.py", *words, out, *asked, "--fresh").returncode == 0
    made = sorted(path.name for path in (out / "cache").iterdir())
    assert made == ["pycache"]
    kernel = out / "cache/.cache/flashinfer/1/90a/cached_ops/x/x.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"x")
    os.utime(kernel, (1e9, 1e9))  # ninja compares times
    done = tool("gpu_proof.py", *words, later, *asked, "--kernels", out / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    given = later / kernel.relative_to(out)
    assert (given.stat().st_uid, given.stat().st_mtime) == (smallworld.USER.uid, 1e9)
    told_ = [json.loads((each / "machine.json").read_text())["caches"] for each in (out, later)]
    assert told_ == ["nothing", "FlashInfer's kernels"]
    refused = tool("gpu_proof.py", *words, later, *asked, "--kernels", place / "loads")
    assert refused.returncode == 2
    assert "holds no .cache/flashinfer" in refused.stderr


def test_parts_of_an_earlier_runs_caches_are_given_to_the_next(place, packed, root):
    words = (packed / "images/small.json", root, REPOSITORY / "smoke_tests")
    asked = ("--tier", "static", "--only", "versions", "--jobs", "3", "--share", "2")
    first, second, third, fourth = (place / name for name in ("1st", "2nd", "3rd", "4th"))
    done = tool("gpu_proof.py", *words, first, *asked, "--fresh")
    assert done.returncode == 0, done.stdout + done.stderr
    (first / "cache/inductor").mkdir()
    (first / "cache/inductor/x.py").write_bytes(b"x")
    (first / "cache/triton/KEY").mkdir(parents=True)
    (first / "cache/triton/KEY/x.cubin").write_bytes(b"x")
    for out, option in ((second, "--bytecode"), (third, "--caches"), (fourth, "--triton")):
        done = tool("gpu_proof.py", *words, out, *asked, option, first / "cache")
        assert done.returncode == 0, done.stdout + done.stderr
    compiled = {path.relative_to(first) for path in (first / "cache/pycache").rglob("*.pyc")}
    assert compiled
    assert all((out / path).exists() for path in compiled for out in (second, third))
    assert not (second / "cache/inductor").exists()
    assert (fourth / "cache/triton/KEY/x.cubin").read_bytes() == b"x"
    assert not (fourth / "cache/inductor").exists()
    assert (third / "cache/inductor/x.py").stat().st_uid == smallworld.USER.uid
    outs = (first, second, third, fourth)
    told_ = [json.loads((out / "machine.json").read_text()) for out in outs]
    assert [machine["caches"] for machine in told_] == [
        "nothing",
        "bytecode",
        "all of an earlier run's: inductor pycache triton",
        "Triton's kernels",
    ]
    # Only the gpu tier shares GPUs.
    assert {(each["jobs"], each["share"], each["only"]) for each in told_} == {(3, 1, "versions")}
    assert all(0 < machine["tests"] <= machine["seconds"] for machine in told_)
    report = json.loads((third / "report.json").read_text())
    assert (report["jobs"], report["share"]) == (3, 1)
    assert "distributions" in (third / "logs/versions.log").read_text()


def test_no_gpu_is_a_failure(place, packed, root):
    out = place / "gpu"
    done = tool("gpu_proof.py", packed / "images/small.json", root,
                REPOSITORY / "smoke_tests", out, "--driver", place / "none")  # fmt: skip
    assert done.returncode == 1, done.stdout
    cases = json.loads((out / "report.json").read_text())["cases"]
    assert cases[0]["name"] == "device"
    assert "no GPU found" in cases[0]["message"]
    assert {case["outcome"] for case in cases[1:]} == {"skipped"}


STUB = """\
int cuInit(unsigned flags) { return 100; }
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
"""


def test_the_driver_of_the_host_is_found(place, packed, root):
    compiler, ldconfig = needs.tool("gcc"), needs.tool("ldconfig", "libc-bin")
    driver = place / "driver/lib64"
    driver.mkdir(parents=True)
    (driver / "stub.c").write_text(STUB)
    words = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", driver / "stub.c"]
    subprocess.run([compiler, *words, "-o", driver / "libcuda.so.1"], check=True)
    (root / "sbin").mkdir(exist_ok=True)
    shutil.copy(ldconfig, root / "sbin/ldconfig")  # Debian's needs no library
    out = place / "driven"
    done = tool("gpu_proof.py", packed / "images/small.json", root,
                REPOSITORY / "smoke_tests", out, "--driver", place / "driver",
                "--only", "device")  # fmt: skip
    assert done.returncode == 1, done.stdout
    [case] = json.loads((out / "report.json").read_text())["cases"]
    # It was loaded by its name alone; where a GPU's file is in /dev, it is asked as well.
    assert case["message"] in (
        "error: 0 GPU(s) found, 1 needed",
        "error: cuInit: CUDA_ERROR_NO_DEVICE (100)",
    )
