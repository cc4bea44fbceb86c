"""The main job on the real thing: cu124-vllm from its committed lock to a container that works.

One build serves all tests of this file. It uses this user's cache, so only the first run downloads.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from imgbuild.assemble import layers, sources
from imgbuild.lock import lock as locks
from imgbuild.lock.resolution import Wheel
from imgbuild.oci import layout
from imgbuild.oci.reader import Reader, inflated
from imgbuild.pipeline import targets
from imgbuild.plan import current
from imgbuild.plan import seal as seals
from imgbuild.plan.plan import plan
from imgbuild.values import Arch, digest_of, sha256
from tests.support import damaged, docker_registry, downloads, needs, ordinary, squashed
from tests.support.docker_registry import OwnRegistry

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"
FOLDER = b"5"
# What vLLM 0.8.5.post1 imports with, and cannot start with.
TOO_NEW = {
    "transformers": "5.6.0",
    "huggingface_hub": "1.16.1",
    "tokenizers": "0.22.2",
    "regex": "2026.5.9",
    "hf_xet": "1.5.0",
}
IMPORTS = "import torch, vllm, trl, tensordict; print(torch.__version__, vllm.__version__)"

pytestmark = [pytest.mark.network, pytest.mark.disk(13), pytest.mark.timeout(1500)]


def imgbuild(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def sealed():
    lock = locks.read_lock(ROOT / "images", TARGET)
    return seals.read_seal(ROOT / "images", lock)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The layout of the target, built for real."""
    out = tmp_path_factory.mktemp("main") / TARGET
    imgbuild("build", TARGET, "--output", str(out))
    yield out
    shutil.rmtree(out)


@pytest.fixture(scope="module")
def loaded(built):
    """The image in Docker, by the name that it got there; gone afterwards."""
    docker = needs.docker()
    needs.disk(13)  # beside the layout: Docker keeps the image packed and unpacked
    mine = subprocess.run([docker, "image", "inspect", TARGET], capture_output=True, check=False)
    answer = json.loads(imgbuild("load", TARGET, "--layout", str(built), "--json").stdout)
    yield docker, answer[0]
    if mine.returncode != 0:  # what a user has loaded stays
        subprocess.run([docker, "image", "rm", "--force", answer[0]["reference"]], check=False)


@pytest.fixture(name="user_folder")
def _user_folder():
    with ordinary.home() as folder:
        yield folder


def test_the_digest_is_the_sealed_one(built, sealed):
    found = layout.verify(built)
    assert found.digest == sealed.digest
    assert imgbuild("digest", TARGET).stdout.strip() == sealed.digest
    stored = found.image(Arch.X86_64)
    assert stored.diff_ids == tuple(layer.diff_id for layer in sealed.arch[Arch.X86_64].layers)


def test_a_second_build_has_nothing_to_do(built, sealed):
    answer = json.loads(imgbuild("build", TARGET, "--output", str(built), "--json").stdout)
    assert [(item["unchanged"], item["made"], item["digest"]) for item in answer] == [
        (True, 0, sealed.digest)
    ]


def test_no_file_is_in_two_layers(built):
    """Layers are disjoint but for one empty file that all nvidia wheels share, byte for byte.

    A layer depends on its own wheels alone, so it cannot leave out what another one has.
    """
    found = layout.read(built)
    owners: dict[str, int] = {}
    twice = []
    for number, layer in enumerate(found.image(Arch.X86_64).layers):
        with inflated(found.blob(layer.digest)) as stream:
            reader = Reader(stream, layer.digest)
            paths = [entry.path for entry in reader if entry.type != FOLDER]
        twice += [path for path in paths if owners.setdefault(path, number) != number]
    assert set(twice) == {"opt/venv/lib/python3.11/site-packages/nvidia/__init__.py"}
    assert len(owners) > 40_000


@pytest.mark.apptainer
@pytest.mark.timeout(3000)  # in turn 1445 s, beside a load of 12 to 32
def test_the_sif_has_the_images_files_and_passes_its_smoke_tests(built, tmp_path):
    """Made here and gone at the end: beside what the engine will hold there is no room for it."""
    needs.apptainer()
    needs.disk(5)
    sif = tmp_path / "image.sif"
    imgbuild("sif", TARGET, "--layout", str(built), "--output", str(sif))
    smoke = ("smoke", TARGET, "--sif", str(sif), "--json", "--timeout-factor", "4")
    try:
        with ThreadPoolExecutor() as pool:  # none of the three keeps two cores busy
            smoked = pool.submit(imgbuild, *smoke)
            layers = pool.submit(squashed.tree, layout.read(built), Arch.X86_64)
            found = squashed.read(sif, squashed.start(sif))
            wanted = squashed.expected(layers.result())
            reports = json.loads(smoked.result().stdout)
    finally:
        sif.unlink(missing_ok=True)
    assert not {path for path, facts in wanted.items() if found.get(path) != facts}
    assert {path.split("/")[1] for path in found.keys() - wanted.keys()} <= {
        ".exec", ".run", ".shell", ".singularity.d", ".test", "environment", "etc",
        "singularity",
    }  # fmt: skip
    assert [report["tier"] for report in reports] == ["static", "cpu"]
    static, cpu = ([case["outcome"] for case in report["cases"]] for report in reports)
    assert "failed" not in static
    assert static.count("passed") > 150
    assert set(cpu) == {"passed"}


@pytest.mark.engine
def test_the_packages_work_in_a_container(loaded, built):
    docker, image = loaded
    done = subprocess.run(
        [docker, "run", "--rm", "--network=none", image["reference"], "python", "-c", IMPORTS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["2.6.0+cu124", "0.8.5.post1"]


@pytest.mark.engine
def test_the_engine_has_the_layouts_image(loaded, sealed):
    assert loaded[1]["id"] == sealed.digest


@pytest.mark.engine
def test_a_random_user_id_with_a_read_only_root_works(loaded):
    docker, image = loaded
    code = (
        "import getpass, os, pathlib, torch;"
        "path = pathlib.Path(os.environ['TRITON_CACHE_DIR']); path.mkdir(parents=True);"
        "(path / 'x').write_text('x'); pathlib.Path.home().joinpath('y').write_text('y');"
        "print(getpass.getuser())"
    )
    done = subprocess.run(
        [docker, "run", "--rm", "--network=none", "--user=54321:54321", "--read-only",
         "--tmpfs=/tmp", image["reference"], "python", "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.engine
def test_the_image_passes_its_smoke_tests(loaded, built):
    answer = imgbuild(
        "smoke",
        TARGET,
        "--layout",
        str(built),
        "--through",
        "docker",
        "--json",
        "--timeout-factor",
        "4",
    )
    reports = json.loads(answer.stdout)
    assert [report["tier"] for report in reports] == ["static", "cpu"]
    static, cpu = ([case["outcome"] for case in report["cases"]] for report in reports)
    assert "failed" not in static  # what is skipped needs a driver, and says so
    assert static.count("passed") > 150
    assert set(cpu) == {"passed"}


@pytest.mark.engine
def test_without_gcc_the_compilers_case_fails(loaded, tmp_path):
    with damaged.container(loaded[0], loaded[1]["reference"]) as container:
        container.damage("rm /usr/bin/cc /usr/bin/*gcc*")
        lock = locks.read_lock(ROOT / "images", TARGET)
        found = container.cases(lock, "static", "compiler|triton launcher", tmp_path)
    assert {outcome for outcome, _ in found.values()} == {"failed"}
    assert found["compiler"][1].startswith("FileNotFoundError: [Errno 2] No such file")
    assert "'cc'" in found["compiler"][1]
    assert "'gcc'" in found["triton launcher"][1]


@pytest.mark.engine
def test_with_a_transformers_too_new_vllm_reads_no_model(loaded, tmp_path):
    """As `pip install -U transformers` leaves it: everything is there, and fails at the start."""
    with damaged.container(loaded[0], loaded[1]["reference"]) as container:
        site = "/opt/venv/lib/python3.11/site-packages"
        container.damage(f"cd {site}; rm -r {' '.join(f'{name} {name}-*' for name in TOO_NEW)}")
        for wheel in damaged.download(
            tmp_path / "wheels", (f"{n}=={v}" for n, v in TOO_NEW.items())
        ):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tmp_path / "site")
        container.put(tmp_path / "site", site)
        container.damage(f"chmod -R a+rX {site}")
        lock = locks.read_lock(ROOT / "images", TARGET)
        found = container.cases(lock, "cpu", "vllm reads a model", tmp_path)
    outcome, message = found["vllm reads a model"]
    assert (outcome, "all_special_tokens_extended" in message) == ("failed", True), message


@pytest.mark.engine
def test_another_user_with_another_surrounding_gets_the_same_digest(user_folder, built, sealed):
    """Another user, folder, umask, time zone, locale and one process; the layers are made anew.

    Downloads are shared with this user's cache, since no byte of a layer may come from elsewhere.
    """
    needs.disk(5)
    _, store, inputs = downloads.locked(TARGET)  # while `store` lives, nobody prunes them
    nobody = pwd.getpwnam("nobody")
    work, cache = user_folder / "ünusual folder", user_folder / "cache"
    shutil.copytree(ROOT / "images", work / "images")
    shutil.copy(ROOT / "matrix.yaml", work)
    for path in inputs.values():
        own = cache / path.relative_to(store.root)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.hardlink_to(path)
    for path in (work, cache, *work.rglob("*"), *(p for p in cache.rglob("*") if p.is_dir())):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    python = ordinary.python(user_folder)
    command = shlex.join(
        [python, "-m", "imgbuild", "build", TARGET, "--offline", "--jobs", "1", "--json"]
    )
    done = subprocess.run(
        ["sh", "-c", f"umask 077; exec {command}"],
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(work),
            "IMGBUILD_CACHE": str(cache),
            "TZ": "Pacific/Chatham",
            "LC_ALL": "C",
            "PYTHONHASHSEED": "7",
            "PYTHONPATH": str(ROOT / "builder"),
        },
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [item["digest"] for item in json.loads(done.stdout)] == [sealed.digest]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry of this file's own, to which the image is pushed once; what the push answered."""
    needs.disk(5)
    with docker_registry.serve(tmp_path_factory.mktemp("registry") / "own") as running:
        yield running, push(running)


def push(running: OwnRegistry, *words: str) -> dict[str, Any]:
    """Push the target, or what `words` say of it, to a registry."""
    done = imgbuild("push", TARGET, f"{running.host}/rl", "--json", *words)
    (answer,) = json.loads(done.stdout)
    return cast("dict[str, Any]", answer)


@pytest.mark.engine
def test_a_pull_of_what_was_pushed_gives_the_same_digest(built, sealed, registry):
    running, pushed = registry
    needs.disk(13)
    layers = sealed.arch[Arch.X86_64].layers
    assert pushed["sent"] > sum(layer.size for layer in layers)
    assert {row["state"] for row in pushed["blobs"]} == {"sent"}
    skopeo, docker = needs.tool("skopeo"), needs.docker()
    raw = subprocess.run(
        [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{running.host}/rl:{TARGET}"],
        check=True,
        capture_output=True,
    ).stdout
    assert digest_of(raw) == sealed.digest
    pulled = f"{running.host}/rl@{sealed.digest}"
    subprocess.run([docker, "pull", "--quiet", pulled], check=True)
    subprocess.run([docker, "image", "rm", "--force", pulled], check=True)


@pytest.mark.engine
def test_a_second_push_moves_no_blob(registry):
    running, _ = registry
    before = len(running.asked())
    assert push(running)["sent"] == 0
    assert running.writes(before) == []


@pytest.mark.engine
def test_a_changed_trl_pin_pushes_under_two_megabytes_beyond_the_package(tmp_path, registry):
    """DESIGN's mark, with the wheel of another version of trl; counted on the registry's disk."""
    running, _ = registry
    wheel = changed_pin(tmp_path, "trl", "0.18.1")
    before = running.blobs()
    pushed = push(running, "--matrix", str(tmp_path / "matrix.yaml"))
    assert {row["name"] for row in pushed["blobs"] if row["state"] == "sent"} == {
        "trl", "configuration"
    }  # fmt: skip
    fresh = {digest: size for digest, size in running.blobs().items() if digest not in before}
    assert pushed["digest"] in fresh
    assert pushed["sent"] <= sum(fresh.values()) < wheel.size + 2_000_000


def changed_pin(folder: Path, package: str, version: str) -> Wheel:
    """A copy of the project in `folder`, locked with another version of one wheel; that wheel.

    Nothing is resolved or audited: all other packages are those of the committed lock.
    """
    shutil.copytree(ROOT / "images", folder / "images")
    head, name, rows = (ROOT / "matrix.yaml").read_text().partition(f"\n  {TARGET}:\n")
    old = locks.read_lock(ROOT / "images", TARGET)
    pin = f'{package}: "{old.requirements[package].removeprefix("==")}"'
    assert pin in rows.partition("\n  cu")[0]
    changed = rows.replace(pin, f'{package}: "{version}"', 1)
    (folder / "matrix.yaml").write_text(head + name + changed)
    session = targets.open_session(folder, targets.Options())
    inputs = session.inputs()
    listed = sources.open_indexes(old, session.matrix, inputs.context.http).files(package)
    file = next(one for one in listed if one.is_wheel and str(one.version) == version)
    data = inputs.context.http.bytes(file.url)
    with inputs.store.scratch() as scratch:
        (scratch / "wheel").write_bytes(data)
        inputs.store.add_file(scratch / "wheel", sha256(data))
    resolution = old.arch[Arch.X86_64]
    (before,) = (one for one in resolution.wheels if one.package == package)
    wheel = msgspec.structs.replace(
        before, file=file.name, size=len(data), sha256=sha256(data), version=version
    )
    wheels = tuple(wheel if one == before else one for one in resolution.wheels)
    lock = locks.make_lock(
        session.matrix, TARGET, {Arch.X86_64: msgspec.structs.replace(resolution, wheels=wheels)}
    )
    sealed = seals.read_seal(ROOT / "images", old)
    known = seals.sealed_records(sealed)
    for layer in plan(lock, Arch.X86_64).layers:
        if layer.id not in known:
            job = layers.LayerJob(layer=layer, record=None, keep=False)
            known[layer.id] = layers.make_layer(job, inputs.store, lambda _: None).record
    floors = {arch: image.floors for arch, image in sealed.arch.items()}
    current.write_locked(session.project, lock, seals.seal(lock, known, floors))
    return wheel
