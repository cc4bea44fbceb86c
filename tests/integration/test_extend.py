"""Tests that a user's repository can extend a published target, and can lock, build and run it.

imgbuild builds the small published target from real Debian packages. These are stored in the cache
of the user, so only the first run downloads them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import imgbuild
from imgbuild.oci import layout
from imgbuild.oci.reader import TarReader, open_inflated
from tests.support import images, needs, sample_project, small_elf, torch_sdist
from tests.support.layer_files import layer_file
from tests.support.local_index import sdist_bytes
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network]
DEBIAN = {
    "kind": "debian", "suite": "bookworm", "python": "3.11", "glibc": "2.36",
    "packages": ["python3", "usr-is-merged"],
}  # fmt: skip
CUDA = '    cuda: "12.4"\n'
OWN = "ours"
SCRIPT = """\
#!/bin/sh
jq --version
python -c 'import gadget, thewheel; print(gadget.VALUE, thewheel.VERSION)'
echo "$TEAM"
"""
SAID = "jq-1.6\n42 1.0\nrl\n"
OFFICIAL = ".imgbuild/published/small"


@dataclass
class PublishedSite:
    """A project that publishes a target, with the index of all projects."""

    site: FileSite
    published: Project
    image: Path

    def user(self, folder: Path, *words: str, image: str = "") -> Project:
        """Initialize a user's repository with the options `words`."""
        folder.mkdir(parents=True)
        (folder / "train.sh").write_text(SCRIPT)
        (folder / "train.sh").chmod(0o755)
        project = Project(folder, self.site.url("simple"), cache=None)
        place = ("--image", image) if image else ()
        project.run(
            "init", OWN, "--extends", TARGET, "--lock", str(self.published.folder), *place, *words
        )
        return project


@pytest.fixture(scope="module")
def published_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedSite]:
    index = sample_project.sample_index()
    index.wheel("gadget", "1.0", ["helper"], files={"gadget.py": b"from helper import VALUE\n"})
    replaced = ("torch", "helper")
    index.published = [item for item in index.published if item.package not in replaced]
    scripts = {
        "helper-0.5.dist-info/entry_points.txt": b"[console_scripts]\nhelper = helper:main\n"
    }
    index.wheel("helper", "0.5", files={"helper.py": b"VALUE = 42\n", **scripts})
    for torch, runtime in (("2.6.0", "12.4.127"), ("2.7.0", "12.6.77")):
        index.wheel("torch", torch, [f"nvidia-cuda-runtime-cu12=={runtime}"])
        index.wheel("nvidia-cuda-runtime-cu12", runtime)
    index.wheel("torch", "2.5.1", ["nvidia-cuda-runtime-cu12==12.4.127"])
    index.wheel("torchaudio", "2.5.1", ["torch==2.5.1"])
    index.wheel("torch", "2.8.0", ["nvidia-cuda-runtime==13.0.96"])
    index.wheel("nvidia-cuda-runtime", "13.0.96")
    index.wheel("modern", "1.0", ["torch==2.8.0"])
    index.wheel("newer", "2.9", ["torch>=2.6"])
    for version in ("3.0", "3.1"):
        index.wheel("newer", version, ["torch>=2.7"])
    index.wheel("broken", "1.0", ["helper"], files={"broken.py": b"from helper import GONE\n"})
    index.wheel("puzzles", "1.0", ["another"], files={"puzzles.py": b"import another\n"})
    index.wheel("late", "1.0", uploaded="2025-08-01")
    index.wheel("strict", "1.0", ["helper<0.5", "another"])
    index.wheel("drift", "0.2", uploaded="2023-11-01")
    index.wheel("drift", "0.5", ["vanished"], uploaded="2024-10-01")
    index.wheel("drift", "0.6", ["vanished"])
    index.wheel("vllm", "0.5.1", uploaded="2024-07-06")
    index.wheel("vllm", "0.6.3", ["sourced"], uploaded="2024-10-14")
    index.add("sourced", "sourced-1.0.tar.gz", sdist_bytes("sourced", "1.0", {}))
    index.wheel("eager", "1.0", uploaded="2024-01-01")
    index.wheel("eager", "2.0", ["thewheel>=2"])
    index.wheel("overwriting", "1.0", files={"helper.py": b"VALUE = 43\n"})
    assembler = small_elf.elf_with_constants("sm_90", "sm_90a")
    index.wheel("compiler", "1.0", files={"compiler/bin/ptxas": assembler, "compiler.py": b""})
    sdist = sdist_bytes("kernels", "1.0", torch_sdist.FILES)
    index.add("kernels", "kernels-1.0.tar.gz", sdist)
    folder = tmp_path_factory.mktemp("published")
    with serve_site(FileSite(files=index.site_files())) as site:
        project = Project(folder / "project", site.url("simple"), cache=None)
        project.write(DEBIAN)
        path = project.folder / "matrix.yaml"
        path.write_text(path.read_text().replace(CUDA, f'{CUDA}    gpu: ["9.0", "12.0"]\n'))
        project.run("lock", TARGET, "--keep")
        project.run("build", TARGET, "--output", str(folder / "image"))
        yield PublishedSite(site=site, published=project, image=folder / "image")


@pytest.fixture(scope="module")
def user(published_site: PublishedSite, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A user's extension with a package, a system package and a file; layers come from a layout."""
    folder = tmp_path_factory.mktemp("user") / "ours"
    project = published_site.user(
        folder, "--add", "gadget", "--system", "jq", "--file", "train.sh:/opt/team/train.sh",
        image=f"oci:{published_site.image}",
    )  # fmt: skip
    edit(project, "    # env:\n    #   WANDB_MODE: {value: offline, reason: nodes have no network}",
         "    env:\n      TEAM: {value: rl, reason: scripts ask for it}")  # fmt: skip
    project.run("lock", OWN)
    return project


def edit(project: Project, old: str, new: str) -> None:
    path = project.folder / "matrix.yaml"
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))


def layers(project: Project, name: str) -> list[dict[str, Any]]:
    image_layers: list[dict[str, Any]] = project.read(f"{name}/digests.json")["arch"]["x86_64"][
        "layers"
    ]
    return image_layers


def paths(folder: Path, digest: str) -> dict[str, int]:
    """The modes of the paths in a layer of a layout."""
    blob = layout.read_layout(folder).blob(digest)
    with open_inflated(layer_file(blob)) as stream:
        return {entry.path.rstrip("/"): entry.mode for entry in TarReader(stream, str(blob))}


def test_extension_keeps_the_published_layers_unchanged(
    published_site: PublishedSite, user: Project
) -> None:
    below = layers(published_site.published, TARGET)
    user_layers = layers(user, OWN)
    assert user_layers[: len(below)] == below
    names = [layer["name"] for layer in user_layers[len(below) :]]
    assert names[0] == "added-debs"
    assert names[-1] == "added-files"
    assert len(names) == 3
    lock, published = (
        user.read(f"{OWN}/lock.json"),
        published_site.published.read(f"{TARGET}/lock.json"),
    )
    assert (
        lock["extends"]["digest"]
        == published_site.published.read(f"{TARGET}/digests.json")["digest"]
    )
    assert lock["extends"]["arch"]["x86_64"]["wheels"] == ["gadget"]
    assert "jq" in lock["extends"]["arch"]["x86_64"]["debs"]
    for kind in ("wheels", "debs"):
        old = published["arch"]["x86_64"][kind]
        assert [item for item in lock["arch"]["x86_64"][kind] if item in old] == old
    assert (
        "gadget==1.0"
        in (user.folder / f".imgbuild/images/{OWN}/requirements-x86_64.txt").read_text()
    )


def test_extension_builds_only_the_added_layers_and_runs(
    published_site: PublishedSite, user: Project, tmp_path: Path
) -> None:
    needs.user_namespaces()
    fresh = Project(user.folder, user.index_url, cache=tmp_path / "cache")
    published_site.site.requests.clear()
    messages = fresh.run("build", OWN, "--output", str(tmp_path / "image")).stderr
    assert "3 layers assembled" in messages
    assert published_site.site.received_requests("packages/gadget-1.0-py3-none-any.whl")
    assert not published_site.site.received_requests("packages/thewheel-1.0-py3-none-any.whl")
    digest = user.run("digest", OWN).stdout.strip()
    assert images.verify_layout(tmp_path / "image").digest == digest
    ran = fresh.run(
        "run",
        OWN,
        "--layout",
        str(tmp_path / "image"),
        "--through",
        "root",
        "--",
        "/opt/team/train.sh",
    )
    assert ran.stdout == SAID
    assert "nothing to do" in fresh.run("build", OWN, "--output", str(tmp_path / "image")).stderr


@pytest.mark.long
def test_published_layers_are_built_from_the_lock_if_no_image_is_given(
    user: Project, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(user.folder, copy, ignore=shutil.ignore_patterns("build"))
    other = Project(copy, user.index_url, cache=None)
    text = (copy / "matrix.yaml").read_text().splitlines(keepends=True)
    (copy / "matrix.yaml").write_text("".join(line for line in text if " image: " not in line))
    other.run("build", OWN, "--output", str(tmp_path / "image"))
    assert images.verify_layout(tmp_path / "image").digest == user.run("digest", OWN).stdout.strip()


@pytest.mark.long
def test_published_layers_are_fetched_from_the_registry(
    published_site: PublishedSite, user: Project, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(user.folder, copy, ignore=shutil.ignore_patterns("build"))
    name = sample_project.serve_image(published_site.site, published_site.image, "team/small")
    other = Project(copy, user.index_url, cache=tmp_path / "cache")
    edit(other, f"image: oci:{published_site.image} ", f"image: {name.partition('@')[0]} ")
    assert "3 layers assembled" in other.run("build", OWN).stderr
    built = images.verify_layout(copy / ".imgbuild/build" / OWN)
    assert built.digest == user.run("digest", OWN).stdout.strip()


def test_system_packages_layer_contains_only_differences(
    published_site: PublishedSite, user: Project, tmp_path: Path
) -> None:
    user.run("build", OWN, "--output", str(tmp_path / "image"))
    (added_layer,) = [layer for layer in layers(user, OWN) if layer["name"] == "added-debs"]
    base = next(layer for layer in layers(user, OWN) if layer["name"] == "below")
    added = paths(tmp_path / "image", added_layer["digest"])
    before = paths(tmp_path / "image", base["digest"])
    changed = {path for path in added if path in before and added[path] & 0o40000 == 0}
    assert {"usr/bin/jq", "var/lib/dpkg/info/jq.list"} <= added.keys() - before.keys()
    assert {"etc/ld.so.cache", "var/lib/dpkg/status"} <= changed
    assert "usr/bin/python3.11" not in added
    assert {path: mode for path, mode in added.items() if path in before} == {
        path: before[path] for path in added if path in before
    }, "modes of folders and files of the base must not change"


def test_changed_file_of_an_extension_makes_its_lock_stale(user: Project, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(user.folder, copy, ignore=shutil.ignore_patterns("build"))
    other = Project(copy, user.index_url, cache=None)
    assert other.run("lock", "--check", OWN).returncode == 0
    (copy / "train.sh").write_text("#!/bin/sh\necho other\n")
    for verb in (("lock", "--check", OWN), ("build", OWN)):
        result = other.run(*verb, status=5).stderr
        assert "train.sh has changed: its sha256 is" in result
        assert f"imgbuild lock {OWN}" in result
    (copy / "train.sh").unlink()
    assert "train.sh: No such file" in other.run("build", OWN, status=5).stderr


def test_changed_published_lock_makes_the_lock_of_an_extension_stale(
    user: Project, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(user.folder, copy, ignore=shutil.ignore_patterns("build"))
    other = Project(copy, user.index_url, cache=None)
    path = copy / OFFICIAL / "lock.json"
    path.write_bytes(path.read_bytes().replace(b"small image", b"small  image"))
    path.write_bytes(path.read_bytes() + b"\n")
    result = other.run("build", OWN, status=5).stderr
    assert "the lock extends small sha256:" in result
    result = other.run("init", "--refresh").stdout
    assert result.startswith("small sha256:")
    assert other.run("lock", "--check", OWN).returncode == 0


def test_package_that_requires_a_different_torch_is_refused(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    project = published_site.user(tmp_path / "newer", "--add", "newer==3.0")
    result = project.run("lock", OWN, status=8).stderr
    assert "newer cannot be added to small" in result
    assert "small has torch 2.6.0" in result
    assert "you require newer==3.0" in result
    assert "newer 3.0 requires torch>=2.7 (its METADATA)" in result
    assert (
        "suggestion: newer 2.9, with torch 2.6.0 for CUDA 12.4 (according to METADATA; its code"
        in result
    )
    assert "small cannot change" in result
    assert not (project.folder / ".imgbuild/images" / OWN).exists()


def test_version_range_without_a_compatible_version_is_refused(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    project = published_site.user(tmp_path / "range", "--add", "newer>=3")
    result = project.run("lock", OWN, status=8).stderr
    assert "the newest of which is 3.1" in result
    assert "and none of the 2 versions of newer is compatible" in result


def test_audit_covers_added_packages(published_site: PublishedSite, tmp_path: Path) -> None:
    project = published_site.user(tmp_path / "broken", "--add", "broken")
    result = project.run("lock", OWN, status=8).stderr
    assert "GONE" in result
    assert "broken.py:1" in result


def test_cutoff_date_of_the_published_target_applies_unless_overridden(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    project = published_site.user(tmp_path / "late", "--add", "late")
    assert "late" in project.run("lock", OWN, status=8).stderr
    edit(project, "    # as_of: 2025-06-20\n", "    as_of: 2025-09-01\n")
    project.run("lock", OWN)
    assert project.read(f"{OWN}/lock.json")["as_of"] == "2025-09-01"
    below = layers(published_site.published, TARGET)
    assert layers(project, OWN)[: len(below)] == below


@pytest.mark.long
def test_package_with_an_unreviewed_maintainer_script_is_refused(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    project = published_site.user(tmp_path / "scripts", "--system", "mariadb-common")
    result = project.run("lock", OWN, status=9).stderr
    assert "maintainer scripts that are not in the reviewed table" in result
    assert "mariadb-common" in result


def test_list_show_and_audit_commands_support_extensions(user: Project) -> None:
    (row,) = json.loads(user.run("list", "--json").stdout)
    assert (row["target"], row["state"]) == (OWN, "locked")
    assert row["pins"] == {"thewheel": "1.0", "torch": "2.6.0"}
    rows = user.run("show", "--layers", OWN).stdout
    assert "added-debs" in rows
    assert "1 file" in rows
    assert json.loads(user.run("audit", OWN, "--json").stdout)


@pytest.fixture(scope="module")
def with_facts(
    published_site: PublishedSite, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Environment variables that provide facts about the published target."""
    folder = tmp_path_factory.mktemp("facts")
    package = Path(imgbuild.__file__).parent
    overlay = folder / "imgbuild"
    (overlay / "data/facts").mkdir(parents=True)
    for path in (*package.iterdir(), *(package / "data").iterdir()):
        place = overlay / path.relative_to(package)
        if not place.exists() and path.name != "__pycache__":
            place.symlink_to(path.resolve())
    published = published_site.published
    tool = Path(__file__).parents[2] / "tools/facts.py"
    output = overlay / "data/facts/published.zip"
    command = [sys.executable, str(tool), TARGET, "--output", str(output)]
    environment = published.environment() | {"IMGBUILD_CACHE": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=published.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(folder)}


def kept_files(cache: Path) -> set[str]:
    """The hashes of the completely downloaded files in a cache."""
    return {path.name for path in (cache / "files").glob("*/*")}


@pytest.mark.long  # unit/audit/packages/test_published.py has the facts
def test_lock_uses_published_facts_instead_of_downloading_wheels(
    published_site: PublishedSite, with_facts: dict[str, str], tmp_path: Path
) -> None:
    words = ("--add", "gadget", "--file", "train.sh:/opt/team/train.sh")
    reference = published_site.user(tmp_path / "reference", *words)
    reference.run("lock", OWN)
    project = published_site.user(tmp_path / "ours", *words)
    project.cache, project.env = tmp_path / "cache", with_facts
    published_site.site.requests.clear()
    project.run("lock", OWN, "--keep")
    lock = project.read(f"{OWN}/lock.json")["arch"]["x86_64"]
    (gadget,) = [wheel for wheel in lock["wheels"] if wheel["package"] == "gadget"]
    locked = {file["sha256"] for file in (*lock["wheels"], *lock["debs"])}
    assert kept_files(tmp_path / "cache") & locked == {gadget["sha256"]}
    for wheel in lock["wheels"]:
        requests = published_site.site.received_requests(f"packages/{wheel['file']}")
        assert bool(requests) is (wheel is gadget), wheel["file"]
    assert project.files() == reference.files()


@pytest.mark.long  # unit/audit/packages/test_published.py has the facts
def test_added_package_is_checked_against_published_facts(
    published_site: PublishedSite, with_facts: dict[str, str], tmp_path: Path
) -> None:
    project = published_site.user(tmp_path / "broken", "--add", "broken")
    project.cache, project.env = tmp_path / "cache", with_facts
    assert "broken.py:1" in project.run("lock", OWN, status=8).stderr
    project = published_site.user(tmp_path / "overwriting", "--add", "overwriting")
    project.cache, project.env = tmp_path / "cache", with_facts
    result = project.run("lock", OWN, status=9).stderr
    assert "helper.py has different contents in helper, overwriting" in result


def test_audit_of_a_published_target_downloads_no_wheels(
    published_site: PublishedSite, with_facts: dict[str, str], tmp_path: Path
) -> None:
    published = published_site.published
    project = Project(published.folder, published.index_url, tmp_path / "cache", with_facts)
    published_site.site.requests.clear()
    report = json.loads(project.run("audit", TARGET, "--json").stdout)
    assert published_site.site.requests == []
    assert kept_files(tmp_path / "cache") == set()
    assert report == json.loads(published.run("audit", TARGET, "--json").stdout)
