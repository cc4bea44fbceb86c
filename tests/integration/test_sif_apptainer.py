"""Tests that Apptainer runs, pulls and pushes the SIF of a small image with Python."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.container import apptainer as running
from imgbuild.oci import layout
from imgbuild.registry.client import RegistryClient
from imgbuild.registry.image_reference import parse_reference, parse_repository
from imgbuild.sif import convert, files
from imgbuild.values import Arch, sha256
from tests.support import docker_registry, needs, ordinary, smoke_environment, squashed

pytestmark = [pytest.mark.engine, pytest.mark.apptainer, pytest.mark.timeout(600)]
ARCH = Arch.X86_64
PREFIX = "/opt/venv"
SMOKE = Path(__file__).parents[2] / "smoke_tests"


@pytest.fixture(scope="module", name="sample")
def _sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    (folder / "wheels").mkdir()
    return smoke_environment.make_layout(folder, smoke_environment.good_wheels(folder / "wheels"))


@pytest.fixture(scope="module", name="sif")
def _sif(sample, tmp_path_factory):
    """Build the SIF in a folder that every user can read."""
    needs.require_tool("mksquashfs", "squashfs-tools")
    with ordinary.nobody_home() as folder:
        out = folder / "small.sif"
        lock = codec.encode({"a": "lock"})
        convert.convert_image(sample, ARCH, out, convert.ConvertOptions(), lock=lock)
        yield out


def apptainer(
    *words: str | Path,
    user: str | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Apptainer, as the user UID:GID without capabilities if `user` is given."""
    done = subprocess.run(
        [needs.require_apptainer(), "--quiet", *words],
        env={
            **os.environ,
            **({"IMGBUILD_APPTAINER_USER": user} if user else {}),
            **(env or {}),
        },
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


NOBODY = "65534:65534"
as_nobody = functools.partial(apptainer, user=NOBODY)


def test_apptainer_run_passes_exact_arguments_to_the_entry_point(sif):
    code = "import os, sys; print(sys.argv[1:], os.environ['HOME'] != '/')"
    odd = "a  'b' $HOME \"c\" *"
    assert apptainer("run", sif, "python", "-c", code, odd).stdout == f"{[odd]} True\n"
    assert apptainer("run", sif, "printf", "%s|", "x y", "").stdout == "x y||"


def test_apptainer_exec_uses_the_image_environment_without_packages_of_the_caller(sif, tmp_path):
    look = "import os, sys; print(sys.executable, sys.path, os.environ.get('EXTRA'))"
    (tmp_path / "alpha.py").write_text("VALUE = 'the wrong one'\n")
    hostile = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PATH": os.environ["PATH"],
               "APPTAINERENV_EXTRA": "given", "LD_LIBRARY_PATH": "/nowhere"}  # fmt: skip
    output = apptainer("exec", sif, "python", "-c", look, env=hostile).stdout
    assert output.startswith(f"{PREFIX}/bin/python ")
    assert str(tmp_path) not in output
    assert output.endswith(" given\n")
    variables = apptainer("exec", sif, "env", env=hostile).stdout.splitlines()
    assert (
        "PATH=/opt/venv/bin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"
        in variables
    )
    assert f"LD_LIBRARY_PATH={files.LIBRARIES}" in variables


@pytest.mark.long
def test_python_variables_come_from_the_image_and_not_from_the_caller(sample, tmp_path):
    """As in Docker, PYTHONPATH comes from the image; HOME comes from the caller."""
    place = tmp_path / "layout"
    shutil.copytree(sample.path, place)
    settings = ("PYTHONPATH=/opt/mine", "HOME=/root/of/the/image", "UID=1000", "ODD-NAME=1")
    words = [word for setting in settings for word in ("--config.env", setting)]
    umoci = [needs.require_tool("umoci"), "config", "--image", f"{place}:small", *words]
    subprocess.run(umoci, check=True, capture_output=True)
    out = tmp_path / "mine.sif"
    convert.convert_image(layout.read_layout(place), ARCH, out, convert.ConvertOptions())
    hostile = {"PYTHONPATH": "/the/callers", "PYTHONHOME": "/nowhere"}
    completed = apptainer("exec", out, "env", env=hostile)
    variables = completed.stdout.splitlines()
    assert "PYTHONPATH=/opt/mine" in variables
    assert not {"PYTHONHOME=/nowhere", "HOME=/root/of/the/image", "UID=1000"} & set(variables)
    assert completed.stderr == ""
    bound = ("--home", f"{tmp_path}:/home/me", "--env", "PYTHONPATH=/my/code")
    variables = apptainer("exec", *bound, out, "env").stdout.splitlines()
    assert {"HOME=/home/me", "PYTHONPATH=/my/code"} <= set(variables)


def test_apptainer_inspect_shows_the_digests_of_the_image_and_its_lock(sif, sample):
    inspection = json.loads(apptainer("inspect", "--json", "--labels", sif).stdout)
    labels = inspection["data"]["attributes"]["labels"]
    assert labels[files.IMAGE_LABEL] == sample.digest
    lock = codec.encode({"a": "lock"})
    assert labels[files.LOCK_LABEL] == f"sha256:{sha256(lock)}"
    assert sample.digest in apptainer("inspect", "--deffile", sif).stdout
    listed = apptainer("sif", "list", sif).stdout.splitlines()
    number = [line.split("|")[0].strip() for line in listed if "JSON" in line][-1]
    assert apptainer("sif", "dump", number, sif).stdout.encode() == lock
    inside = apptainer("exec", sif, "cat", "/.singularity.d/labels.json").stdout
    assert json.loads(inside) == labels


def test_unprivileged_user_runs_sif_with_own_home(sif):
    """The root is read-only, packages in ~/.local are not imported, and --fakeroot works."""
    home = sif.parent / "home"
    local = home / ".local/lib/python3.11/site-packages"
    local.mkdir(parents=True)
    (local / "alpha.py").write_text("VALUE = 'the wrong one'\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, 65534, 65534)
    bound = ("--home", f"{home}:/home/me")
    code = "import alpha, os, pathlib; pathlib.Path.home().joinpath('x').write_text('x');"
    code += " print(alpha.VALUE, os.getuid(), pathlib.Path.home())"
    # A package set of wheels alone has no PYTHONNOUSERSITE; the images of targets have.
    completed = as_nobody("exec", *bound, "--env", "PYTHONNOUSERSITE=1", sif, "python", "-c", code)
    assert completed.stdout == "2 65534 /home/me\n"
    assert (home / "x").read_text() == "x"
    refused = as_nobody("exec", sif, "mkdir", "/opt/new", check=False)
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr
    assert as_nobody("exec", "--fakeroot", sif, "id", "-u").stdout == "0\n"


@pytest.mark.long
def test_sif_run_with_containment_has_home_and_cache(sif):
    code = """
import os, pathlib
for place in (pathlib.Path(os.environ["PYTHONPYCACHEPREFIX"]), pathlib.Path.home()):
    place.mkdir(parents=True, exist_ok=True)
    (place / "x").write_text("x")
print("both can be written")
"""
    for words in (("--containall",), ("--containall", "--no-home"), ("--contain", "--cleanenv")):
        completed = as_nobody("run", *words, sif, "python", "-c", code)
        assert completed.stdout == "both can be written\n", words


def test_sif_run_without_network_is_isolated(sif):
    host, _, port = needs.require_registry().partition(":")
    code = f"import socket; print(socket.socket().connect_ex(({host!r}, {port})))"
    assert apptainer("exec", sif, "python", "-c", code).stdout == "0\n"
    cut_off = apptainer("exec", "--net", "--network", "none", sif, "python", "-c", code)
    assert cut_off.stdout != "0\n"


def test_older_apptainer_versions_find_the_action_scripts(sif, tmp_path):
    """A plain shell runs the scripts in the file system, without the interpreter of Apptainer."""
    needs.require_root()
    root = tmp_path / "root"
    subprocess.run(
        [needs.require_tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-offset",
         str(squashed.squashfs_offset(sif)), "-dest", root, sif],
        check=True, capture_output=True,
    )  # fmt: skip
    for action, words in {"exec": ["env"], "run": ["env"]}.items():
        done = subprocess.run(
            [
                needs.require_tool("chroot", "coreutils"),
                root,
                f"/{files.HOME}/actions/{action}",
                *words,
            ],
            env={"PYTHONPATH": "/x", "PATH": "/host"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "PATH=/opt/venv/bin:/usr/bin:/bin" in done.stdout.splitlines()
        assert "PYTHONPATH=" in done.stdout.splitlines()


@pytest.mark.long
def test_apptainer_builds_an_equal_sif_from_the_pushed_image(sample, sif, tmp_path):
    """Apptainer's SIF of docker://… has the same files except for times and its own scripts."""
    registry, skopeo = needs.require_registry(), needs.require_tool("skopeo")
    place = f"{registry}/sif-small:{os.getpid()}"
    subprocess.run(
        [skopeo, "copy", "--quiet", "--dest-tls-verify=false", f"oci:{sample.path}:small",
         f"docker://{place}"],
        check=True,
    )  # fmt: skip
    theirs = tmp_path / "theirs.sif"
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    apptainer("build", "--no-https", "--disable-cache", *fast, theirs, f"docker://{place}")
    assert apptainer("run", theirs, "python", "-c", "print(6 * 7)").stdout == "42\n"
    # All its files belong to the caller, here root: owners and times are not compared.
    apptainer_tree = _without_owners(
        squashed.read_squashfs(theirs, squashed.squashfs_offset(theirs))
    )
    mine = _without_owners(squashed.read_squashfs(sif, squashed.squashfs_offset(sif)))
    differing = {
        name
        for name in apptainer_tree.keys() | mine.keys()
        if apptainer_tree.get(name) != mine.get(name)
    }
    differing = {name for name in differing if not name.startswith(f"/{files.HOME}/")}
    assert differing == {"/root", "/var/tmp"}  # which both add; Apptainer gives both mode 0755


def _without_owners(tree: dict[str, squashed.Facts]) -> dict[str, tuple[object, ...]]:
    return {name: (kind, mode, what) for name, (kind, mode, _, what, _) in tree.items()}


def test_pushed_sif_is_pulled_by_apptainer_and_refers_to_image(sample, tmp_path):
    with docker_registry.serve_registry(tmp_path / "registry") as registry:
        place = f"{registry.host}/team/small"
        imgbuild = [sys.executable, "-m", "imgbuild"]
        command = [*imgbuild, "push", place, "--sif", "--layout", sample.path, "--json"]
        early = subprocess.run(command, capture_output=True, text=True, check=False)
        assert early.returncode == 2
        assert f"has no image {sample.digest}" in early.stderr
        assert "imgbuild push small" in early.stderr
        subprocess.run(
            [needs.require_tool("skopeo"), "copy", "--quiet", "--dest-tls-verify=false",
             f"oci:{sample.path}:small", f"docker://{place}:small"],
            check=True,
        )  # fmt: skip
        first, second = (
            json.loads(subprocess.run(command, capture_output=True, check=True).stdout)[0]
            for _ in range(2)
        )
        pushed = first["pushed"]
        assert pushed["reference"] == f"{place}:small-x86_64-sif"
        assert (pushed["moved"], second["pushed"]["moved"]) == (first["size"], 0)
        assert second["pushed"]["digest"] == pushed["digest"]
        client, repository = RegistryClient(), parse_repository(place)
        [referrer] = client.referrers(repository, sample.digest)
        assert referrer.digest == pushed["digest"]
        # Also of the image in the registry, with only its name.
        again = ["build", "--from", f"{place}:small", "--format", "sif"]
        again = [*again, "--output", tmp_path / "again.sif"]
        subprocess.run([*imgbuild, *again], check=True, capture_output=True)
        assert (tmp_path / "again.sif").read_bytes() == Path(first["output"]).read_bytes()
        pulled = tmp_path / "pulled.sif"
        apptainer("pull", "--no-https", "--disable-cache", pulled, f"oras://{pushed['reference']}")
        assert pulled.read_bytes() == Path(first["output"]).read_bytes()
        # Artifacts pushed by Apptainer have the same structure.
        apptainer("push", "--no-https", pulled, f"oras://{place}:theirs")
        mine, theirs = (
            json.loads(client.manifest(parse_reference(f"{place}:{tag}")).data)
            for tag in ("small-x86_64-sif", "theirs")
        )
    for document in (mine, theirs):
        del document["layers"][0]["annotations"]
    assert mine.pop("subject")["digest"] == sample.digest
    assert mine == theirs


@pytest.mark.long
def test_driver_library_at_another_location_is_found(sif, tmp_path):
    """The library of the host is at the path to which --nv mounts the driver."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1'); print('loaded')"
    without = apptainer("exec", sif, "python", "-c", code, check=False)
    assert "libcuda.so.1: cannot open shared object file" in without.stderr
    driver = tmp_path / "libcuda.so.1"
    shutil.copy(next(Path("/usr/lib").glob("*/libuuid.so.1")), driver)
    named = {"APPTAINER_CONTAINLIBS": str(driver)}
    assert apptainer("exec", sif, "python", "-c", code, env=named).stdout == "loaded\n"
    assert apptainer("run", sif, "python", "-c", code, env=named).stdout == "loaded\n"


STUB = """\
int cuInit(unsigned flags) { return 100; }
int cuDeviceGetCount(int *count) { *count = 0; return 100; }
"""


@pytest.fixture(scope="module", name="driver")
def _driver():
    """A folder with a stub of a driver that reports no GPU."""
    compiler = needs.require_tool("gcc")
    with ordinary.nobody_home() as place:
        folder = place / "driver"
        folder.mkdir()
        (place / "stub.c").write_text(STUB)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            words = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}", str(place / "stub.c")]
            subprocess.run([compiler, *words, "-o", str(folder / f"{name}.580")], check=True)
            (folder / name).symlink_to(f"{name}.580")
        (folder / "libcuda.so").symlink_to("libcuda.so.1")
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "a user"])
def test_nv_option_mounts_the_driver_found_in_the_loader_cache(sif, driver, user):
    env = {"IMGBUILD_APPTAINER_DRIVER": str(driver)}
    code = (
        "import ctypes, os\n"
        "print(ctypes.CDLL('libcuda.so.1').cuInit(0))\n"
        "print(sorted(os.listdir('/.singularity.d/libs')))\n"
    )
    for verb in ("exec", "run"):
        done = apptainer(
            verb, "--containall", "--nv", sif, "python", "-c", code, env=env, user=user
        )
        libraries = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"]
        assert done.stdout.splitlines() == ["100", str(libraries)], done.stderr
    without = apptainer("exec", sif, "python", "-c", code, env=env, user=user, check=False)
    assert "libcuda.so.1: cannot open shared object file" in without.stderr


@pytest.mark.long
def test_gpu_tier_runs_with_the_nv_option(sif, driver, monkeypatch):
    """The messages of the tests state that the driver was loaded and has no GPU."""
    monkeypatch.setenv("IMGBUILD_APPTAINER_DRIVER", str(driver))
    with ordinary.nobody_home() as work:
        binds = {"/smoke_tests": SMOKE}
        work.chmod(0o1777)
        options = running.ApptainerOptions(binds=binds, work=work, gpus=True, user=(54321, 54321))
        look = ["python", "/smoke_tests/doctor.py", "--gpus", "1"]
        done = running.run_in_sif(needs.require_apptainer(), sif, look, options)
    assert (
        "/.singularity.d/libs/libcuda.so.1 detects 0 GPUs (CUDA error 100), 1 were" in done.stdout
    )
