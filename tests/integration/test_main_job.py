"""Tests building cu124-vllm from its committed lock and running the image.

All tests of this file use one build. It uses the cache of the user, so only the first run
downloads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from imgbuild.lock import lock_file
from imgbuild.oci import layout
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.plan import image_digests
from imgbuild.system.files import remove_tree
from imgbuild.values import Arch, digest_of
from tests.support import damaged, docker_registry, images, needs, prepared_program, squashed
from tests.support.docker_registry import OwnRegistry
from tests.support.layer_files import layer_file

ROOT = Path(__file__).parents[2]
TARGET = "cu124-vllm"
FOLDER = b"5"
# With this version the imports of vLLM 0.8.5.post1 succeed, but it does not start.
TOO_NEW = {
    "transformers": "5.6.0",
    "huggingface_hub": "1.16.1",
    "tokenizers": "0.22.2",
    "regex": "2026.5.9",
    "hf_xet": "1.5.0",
}

pytestmark = [pytest.mark.network, pytest.mark.disk(13), pytest.mark.timeout(1500)]


def imgbuild(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    done = prepared_program.run_prepared(arguments, cwd=cwd, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def target_digests():
    lock = lock_file.read_lock(ROOT / "images", TARGET)
    return image_digests.read_digests(ROOT / "images", lock)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The layout of the target after a real build."""
    needs.user_namespaces()
    out = tmp_path_factory.mktemp("main") / TARGET
    imgbuild("build", TARGET, "--output", str(out))
    yield out
    shutil.rmtree(out)


@pytest.fixture(scope="module")
def loaded(built):
    """The name of the image in Docker, from which it is removed at the end."""
    docker = needs.require_docker()
    needs.require_disk_space(
        13
    )  # in addition to the layout: Docker keeps the image packed and unpacked
    mine = subprocess.run([docker, "image", "inspect", TARGET], capture_output=True, check=False)
    answer = json.loads(imgbuild("load", TARGET, "--layout", str(built), "--json").stdout)
    yield docker, answer[0]
    if mine.returncode != 0:  # images that the user loaded are kept
        subprocess.run([docker, "image", "rm", "--force", answer[0]["reference"]], check=False)


def test_digest_of_the_built_image_matches_the_lock(built, target_digests):
    image_layout = images.verify_layout(built)
    assert image_layout.digest == target_digests.digest
    assert imgbuild("digest", TARGET).stdout.strip() == target_digests.digest
    stored = image_layout.image(Arch.X86_64)
    assert stored.diff_ids == tuple(
        layer.diff_id for layer in target_digests.arch[Arch.X86_64].layers
    )


def test_second_build_reuses_the_image(built, target_digests):
    answer = json.loads(imgbuild("build", TARGET, "--output", str(built), "--json").stdout)
    assert [(item["unchanged"], item["made"], item["digest"]) for item in answer] == [
        (True, 0, target_digests.digest)
    ]


@pytest.mark.long
def test_each_file_is_in_one_layer(built):
    """Layers are disjoint except for one empty file that all nvidia wheels share.

    A layer depends on its own wheels alone, so it cannot omit files of another one.
    """
    image_layout = layout.read_layout(built)
    owners: dict[str, int] = {}
    twice = []
    for number, layer in enumerate(image_layout.image(Arch.X86_64).layers):
        with open_inflated(layer_file(image_layout.blob(layer.digest))) as stream:
            reader = TarReader(stream, layer.digest)
            paths = [entry.path for entry in reader if entry.type != FOLDER]
        twice += [path for path in paths if owners.setdefault(path, number) != number]
    assert set(twice) == {"opt/venv/lib/python3.11/site-packages/nvidia/__init__.py"}
    assert len(owners) > 40_000


@pytest.mark.long
@pytest.mark.apptainer
@pytest.mark.timeout(3000)
def test_sif_has_image_files_and_passes_static_tests(built, tmp_path):
    """The SIF is deleted at the end, because of the limited disk space."""
    needs.require_apptainer()
    needs.require_disk_space(5)
    sif = tmp_path / "image.sif"
    imgbuild("build", "--from", str(built), "--format", "sif", "--output", str(sif))
    smoke = (
        "smoke",
        TARGET,
        "--sif-file",
        str(sif),
        "--tier",
        "static",
        "--json",
        "--timeout-factor",
        "4",
    )
    try:
        with ThreadPoolExecutor() as pool:  # none of the three uses two cores
            smoked = pool.submit(imgbuild, *smoke)
            layers = pool.submit(squashed.merged_tree, layout.read_layout(built), Arch.X86_64)
            actual = squashed.read_squashfs(sif, squashed.squashfs_offset(sif))
            expected = squashed.expected_entries(layers.result())
            reports = json.loads(smoked.result().stdout)
    finally:
        sif.unlink(missing_ok=True)
    assert not {path for path, facts in expected.items() if actual.get(path) != facts}
    assert {path.split("/")[1] for path in actual.keys() - expected.keys()} <= {
        ".exec", ".run", ".shell", ".singularity.d", ".test", "environment", "etc",
        "singularity",
    }  # fmt: skip
    assert [report["tier"] for report in reports] == ["static"]
    static = [case["outcome"] for case in reports[0]["cases"]]
    assert "failed" not in static
    assert static.count("passed") > 150


@pytest.mark.long  # test_engine.py loads small images
@pytest.mark.engine
def test_loaded_image_matches_layout(loaded, target_digests):
    assert loaded[1]["id"] == target_digests.digest


@pytest.mark.long  # the next tests run the unpacked image
@pytest.mark.engine
def test_image_runs_with_a_random_user_and_a_read_only_root(loaded):
    docker, image = loaded
    code = (
        "import getpass, os, pathlib, torch;"
        "path = pathlib.Path(os.environ['TRITON_CACHE_DIR']); path.mkdir(parents=True);"
        "(path / 'x').write_text('x'); pathlib.Path.home().joinpath('y').write_text('y');"
        "from vllm import LLM; from trl import GRPOTrainer;"
        "print(getpass.getuser())"
    )
    done = subprocess.run(
        [docker, "run", "--rm", "--network=none", "--user=54321:54321", "--read-only",
         "--tmpfs=/tmp", image["reference"], "python", "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def smoke_cases(
    built: Path, tier: str, *words: str, through: str = "docker", **env: str
) -> list[dict[str, Any]]:
    """The cases of a tier that ran in the image."""
    ran = ("--through", through, "--tier", tier, "--timeout-factor", "4")
    words = ("--layout", str(built), "--json", *ran, *words)
    done = imgbuild("smoke", TARGET, *words, cwd=ROOT, **env)
    [report] = json.loads(done.stdout)
    assert report["tier"] == tier
    return cast("list[dict[str, Any]]", report["cases"])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The variable of a cache for the unpacked image, which is too large for the user's cache."""
    cache = tmp_path_factory.mktemp("unpacked")
    yield {"IMGBUILD_CACHE": str(cache)}
    remove_tree(cache)


def test_unpacked_image_passes_static_tests_for_any_user(built, unpacked):
    """The files are read-only, and the image does not define the user.

    Long tests read every file.
    """
    names = ("system", "versions", "compiler", *(["files"] if needs.is_long_run() else []))
    words = ("--arbitrary-user", "--case", "|".join(names))
    cases = smoke_cases(built, "static", *words, through="root", **unpacked)
    assert {case["name"]: case["outcome"] for case in cases} == dict.fromkeys(names, "passed")


def test_main_packages_of_the_unpacked_image_are_imported(built, unpacked, tmp_path):
    """Long tests import every package."""
    tmp_path.chmod(0o755)  # the working folder, of which the user is not the owner
    code = "from vllm import LLM; from trl import GRPOTrainer; print(GRPOTrainer.__name__)"
    place = ("--matrix", str(ROOT / "matrix.yaml"), "--layout", str(built))
    words = (*place, "--through", "root", "--user", "54321", "--no-network")
    done = imgbuild("run", TARGET, *words, "--", "python", "-c", code, cwd=tmp_path, **unpacked)
    assert done.stdout.endswith("GRPOTrainer\n")


@pytest.mark.long
@pytest.mark.engine
def test_image_passes_static_tests(loaded, built):
    outcomes = [case["outcome"] for case in smoke_cases(built, "static")]
    assert "failed" not in outcomes
    assert outcomes.count("passed") > 150


@pytest.mark.long
@pytest.mark.engine
def test_image_passes_cpu_tests(loaded, built):
    cpu = smoke_cases(built, "cpu")
    # Other cases need packages that this image does not have.
    skipped = ("grpo step, lora", "verl reads images", "verl columns", "ray job")
    passed = ("vllm reads a model", "grpo step", "tokenizers", "trl help", "trl env")
    of_cases = {case["name"]: case["outcome"] for case in cpu if ":" not in case["name"]}
    assert of_cases == dict.fromkeys(passed, "passed") | dict.fromkeys(skipped, "skipped")
    assert "failed" not in {case["outcome"] for case in cpu}


@pytest.mark.long  # test_smoke.py damages small environments
@pytest.mark.engine
def test_compiler_smoke_test_fails_without_gcc(loaded, tmp_path):
    with damaged.run_container(loaded[0], loaded[1]["reference"]) as container:
        container.damage("rm /usr/bin/cc /usr/bin/*gcc*")
        lock = lock_file.read_lock(ROOT / "images", TARGET)
        cases = container.cases(lock, "static", "compiler|triton launcher", tmp_path)
    assert {outcome for outcome, _ in cases.values()} == {"failed"}
    assert cases["compiler"][1].startswith("FileNotFoundError: [Errno 2] No such file")
    assert "'cc'" in cases["compiler"][1]
    assert "'gcc'" in cases["triton launcher"][1]


@pytest.mark.long
@pytest.mark.engine
def test_vllm_smoke_test_fails_if_transformers_is_too_new(loaded, tmp_path):
    """After `pip install -U transformers` every import succeeds, but vLLM fails to start."""
    with damaged.run_container(loaded[0], loaded[1]["reference"]) as container:
        site = "/opt/venv/lib/python3.11/site-packages"
        container.damage(f"cd {site}; rm -r {' '.join(f'{name} {name}-*' for name in TOO_NEW)}")
        for wheel in damaged.download_wheels(
            tmp_path / "wheels", (f"{n}=={v}" for n, v in TOO_NEW.items())
        ):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tmp_path / "site")
        container.put(tmp_path / "site", site)
        container.damage(f"chmod -R a+rX {site}")
        lock = lock_file.read_lock(ROOT / "images", TARGET)
        cases = container.cases(lock, "cpu", "vllm reads a model", tmp_path)
    outcome, message = cases["vllm reads a model"]
    assert (outcome, "all_special_tokens_extended" in message) == ("failed", True), message


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry to which the image was pushed once, and the output of the push."""
    needs.require_disk_space(5)
    with docker_registry.serve_registry(tmp_path_factory.mktemp("registry") / "own") as running:
        yield running, push(running)


def push(running: OwnRegistry, *words: str) -> dict[str, Any]:
    """Push the target, with options `words`, to a registry."""
    done = imgbuild("push", TARGET, f"{running.host}/rl", "--json", *words)
    (answer,) = json.loads(done.stdout)
    return cast("dict[str, Any]", answer)


@pytest.mark.long
@pytest.mark.engine
def test_pulled_image_has_pushed_digest(built, target_digests, registry):
    """This test uses layers of several gigabytes; test_push.py uses small layers."""
    running, pushed = registry
    needs.require_disk_space(13)
    layers = target_digests.arch[Arch.X86_64].layers
    assert pushed["sent"] > sum(layer.size for layer in layers)
    assert {row["state"] for row in pushed["blobs"]} == {"sent"}
    skopeo, docker = needs.require_tool("skopeo"), needs.require_docker()
    raw = subprocess.run(
        [skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{running.host}/rl:{TARGET}"],
        check=True,
        capture_output=True,
    ).stdout
    assert digest_of(raw) == target_digests.digest
    pulled = f"{running.host}/rl@{target_digests.digest}"
    subprocess.run([docker, "pull", "--quiet", pulled], check=True)
    subprocess.run([docker, "image", "rm", "--force", pulled], check=True)


@pytest.mark.long
@pytest.mark.engine
def test_second_push_uploads_no_blob(registry):
    running, _ = registry
    before = len(running.received_requests())
    assert push(running)["sent"] == 0
    assert running.writes(before) == []


@pytest.mark.long
@pytest.mark.engine
def test_push_after_a_changed_trl_pin_uploads_few_other_bytes(tmp_path, registry):
    """The target is locked with another trl; sizes are measured on the disk of the registry."""
    running, _ = registry
    shutil.copytree(ROOT / "images", tmp_path / "images")
    head, row, rest = (ROOT / "matrix.yaml").read_text().partition(f"\n  {TARGET}:\n")
    changed = re.sub(r'(?<=\btrl: )"[^"]+"', '"0.18.1"', rest, count=1)
    (tmp_path / "matrix.yaml").write_text(head + row + changed)
    matrix = ("--matrix", str(tmp_path / "matrix.yaml"))
    imgbuild("lock", TARGET, *matrix)
    lock = lock_file.read_lock(tmp_path / "images", TARGET)
    [wheel] = [wheel for wheel in lock.arch[Arch.X86_64].wheels if wheel.package == "trl"]
    assert wheel.version == "0.18.1"
    before = running.blobs()
    pushed = push(running, *matrix)
    assert {row["name"] for row in pushed["blobs"] if row["state"] == "sent"} == {
        "trl", "configuration"
    }  # fmt: skip
    fresh = {digest: size for digest, size in running.blobs().items() if digest not in before}
    assert pushed["digest"] in fresh
    assert pushed["sent"] <= sum(fresh.values()) < wheel.size + 2_000_000
