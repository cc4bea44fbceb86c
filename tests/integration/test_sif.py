"""SIF and squashfs of real images: their trees by unsquashfs, and run by a real Apptainer."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.oci import documents, layout
from imgbuild.registry.client import Client
from imgbuild.registry.reference import parse, parse_repository
from imgbuild.sif import convert, files, image
from imgbuild.values import Arch, sha256
from tests import needs, ordinary, ownregistry, smallworld, squashed
from tests.unit.test_sif_flat import info, members

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ARCH = Arch.X86_64
PREFIX = "/opt/venv"
LONG = "opt/" + "/".join(["a folder with a name of some length"] * 8)


# -- an image with all that a layer may hold


def odd_layers() -> list[bytes]:
    """Whiteouts, opaque folders, links of all kinds, devices, owners, modes, long and odd names."""
    return [
        members(
            (info("usr/lib/a", mode=0o644, uid=7, gid=9), b"first"),
            (info("lib", tarfile.SYMTYPE, linkname="usr/lib"), b""),
            (info("opt/gone"), b"hidden"),
            (info("opt/full/1"), b"1"),
            (info("opt/full/2"), b"2"),
            (info("opt/was a folder/x"), b"x"),
            (info("opt/linked"), b"linked" * 50_000),
            (info("run/pipe", tarfile.FIFOTYPE, mode=0o620), b""),
            (info("dev/zero", tarfile.CHRTYPE, devmajor=1, devminor=5, mode=0o666), b""),
            (info("dev/disk", tarfile.BLKTYPE, devmajor=259, devminor=7, mode=0o640), b""),
            (info(f"{LONG}/file"), b"deep"),
            (info("opt/far", tarfile.SYMTYPE, linkname=f"/{LONG}/file"), b""),
            (info("opt/ödd", tarfile.SYMTYPE, linkname="/opt/ünïcode"), b""),
            (info("opt/up", tarfile.SYMTYPE, linkname="../../" + "x/" * 60), b""),
            (info("opt/of many", uid=1 << 22, gid=(1 << 31) + 7), b""),
        ),
        members(
            (info("lib/b", mode=0o755), b"through a link"),
            (info("opt/.wh.gone"), b""),
            (info("opt/full/.wh..wh..opq"), b""),
            (info("opt/full/3"), b"3"),
            (info("opt/.wh.was a folder"), b""),
            (info("opt/was a folder", tarfile.SYMTYPE, linkname="full"), b""),
            (info("opt/also linked", tarfile.LNKTYPE, linkname="opt/linked"), b""),
            (info("usr/bin/su", mode=0o4755, uid=0, gid=1), b"setuid"),
            (info("opt/ünïcode \\ and spaces"), b"name"),
            (info("opt/closed", tarfile.DIRTYPE, mode=0o700, uid=70000, gid=70001), b""),
        ),
        members(
            (info("opt/.wh.linked"), b""),
            (info("usr/lib/a", mode=0o600, mtime=1_700_000_000), b"last layer wins"),
        ),
    ]


def make_layout(folder: Path, layers: Sequence[bytes]) -> layout.Layout:
    """A layout of plain and compressed layers, made by hand as other builders make them."""
    import gzip

    stored, ids = {}, []
    for number, data in enumerate(layers):
        packed = data if number % 2 else gzip.compress(data, mtime=0)
        digest = f"sha256:{sha256(packed)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest[7:]).write_bytes(packed)
        stored[digest] = (folder / digest[7:], len(packed), number % 2)
        ids.append(f"sha256:{sha256(data)}")
    config = codec.compact(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2025-06-20T00:00:00Z",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": ids},
        }
    )
    manifest = codec.compact(
        {
            "schemaVersion": 2,
            "mediaType": documents.MANIFEST,
            "config": {"mediaType": documents.CONFIG, "digest": f"sha256:{sha256(config)}",
                       "size": len(config)},
            "layers": [
                {"mediaType": documents.LAYER if plain else documents.LAYER_GZIP,
                 "digest": digest, "size": size}
                for digest, (_, size, plain) in stored.items()
            ],
        }
    )  # fmt: skip
    picture = layout.Image(
        config=config,
        manifest=manifest,
        layers={digest: path for digest, (path, _, _) in stored.items()},
    )
    layout.write(folder / "layout", {ARCH: picture}, "odd")
    return layout.read(folder / "layout")


def check_tree(of: layout.Layout, path: Path, offset: int) -> set[str]:
    """Every path of the image is in the squashfs as it is; what is there beside them."""
    wanted, found = squashed.expected(squashed.tree(of, ARCH)), squashed.read(path, offset)
    differing = {name: (wanted[name], found.get(name)) for name in wanted
                 if found.get(name) != wanted[name]}  # fmt: skip
    assert not differing
    return found.keys() - wanted.keys()


@pytest.fixture(scope="module", name="odd")
def _odd(tmp_path_factory):
    return make_layout(tmp_path_factory.mktemp("odd"), odd_layers())


@pytest.mark.parametrize("compressor", ["zstd", "gzip"])
def test_a_sif_has_the_files_of_its_image(odd, tmp_path, compressor):
    needs.tool("mksquashfs", "squashfs-tools")
    out = tmp_path / "odd.sif"
    convert.convert(odd, ARCH, out, convert.Options(compressor=compressor))
    beside = check_tree(odd, out, squashed.start(out))
    added = files.members(image.read(odd, ARCH), squashed.tree(odd, ARCH))
    assert beside == {f"/{member.path}" for member in added}
    assert [path.name for path in tmp_path.iterdir()] == ["odd.sif"]


def test_a_squashfs_has_the_files_of_its_image(odd, tmp_path):
    out = tmp_path / "odd.sqsh"
    convert.convert(odd, ARCH, out, convert.Options(format="squashfs"), lock=b"{}\n")
    assert check_tree(odd, out, 0) == {
        "/etc", "/etc/environment", "/etc/fstab", "/etc/rc", "/etc/rc.local", "/opt/imgbuild",
        "/opt/imgbuild/lock.json",
    }  # fmt: skip


def test_extended_attributes_come_along(tmp_path):
    needs.root()
    made = info("bin/ping")
    made.pax_headers = {"SCHILY.xattr.user.note": "kept"}
    found = make_layout(tmp_path / "image", [members((made, b"a program"))])
    convert.convert(found, ARCH, tmp_path / "x.sqsh", convert.Options(format="squashfs"))
    subprocess.run(
        [needs.tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-xattrs",
         "-dest", tmp_path / "root", tmp_path / "x.sqsh"],
        check=True, capture_output=True,
    )  # fmt: skip
    try:
        assert os.getxattr(tmp_path / "root/bin/ping", "user.note") == b"kept"
    except OSError as error:
        pytest.fail(f"{tmp_path} holds no attributes, or they were lost: {error}")


def test_the_bytes_follow_from_the_image_alone(odd, tmp_path):
    """Another folder, umask, clock's zone, SOURCE_DATE_EPOCH, one process or two."""
    made = convert.convert(odd, ARCH, tmp_path / "odd.sif", convert.Options(processors=2))
    other = tmp_path / "another folder"
    shutil.copytree(odd.path, other / "layout")
    command = [sys.executable, "-m", "imgbuild", "sif", "layout", "--output", "x.sif", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$@"', "sh", *command, "--jobs", "1"],
        cwd=other,
        env={**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"},
        capture_output=True,
        check=True,
    )
    [answer] = json.loads(done.stdout)
    assert answer["digest"] == made.digest
    assert answer["image"] == odd.image(ARCH).manifest.digest
    assert (other / "x.sif").read_bytes() == made.output.read_bytes()


def test_a_damaged_layer_leaves_nothing_behind(odd, tmp_path):
    shutil.copytree(odd.path, tmp_path / "layout")
    layer = layout.read(tmp_path / "layout").image(ARCH).layers[1]
    blob = tmp_path / "layout/blobs/sha256" / layer.digest[7:]
    blob.write_bytes(blob.read_bytes().replace(b"3", b"4"))
    (tmp_path / "x.sif").write_bytes(b"the old one")
    done = subprocess.run(
        [sys.executable, "-m", "imgbuild", "sif", "layout", "--output", "x.sif"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 9
    assert layer.digest in done.stderr
    assert (tmp_path / "x.sif").read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "x.sif"]


def test_what_a_killed_run_left_is_removed_and_what_another_writes_is_not(odd, tmp_path):
    free, held = (tmp_path / f".odd.sif.{name}.tmp" for name in ("dead", "busy"))
    free.write_bytes(b"half a file")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        convert.convert(odd, ARCH, tmp_path / "odd.sif", convert.Options())
    assert sorted(path.name for path in tmp_path.iterdir()) == [held.name, "odd.sif"]


def test_an_interrupt_leaves_nothing_behind(odd, tmp_path):
    real = needs.tool("mksquashfs", "squashfs-tools")
    slow = tmp_path / "bin/mksquashfs"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && exec {real} -version\n'
        f'touch {tmp_path}/started\nsleep 2\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "imgbuild", "sif", odd.path, "--output", out / "odd.sif"],
        env={**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
    ) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert list(out.iterdir()) == []


# -- a world with Python, run by Apptainer


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    (folder / "wheels").mkdir()
    return smallworld.make_layout(folder, smallworld.good(folder / "wheels"))


@pytest.fixture(scope="module", name="sif")
def _sif(world, tmp_path_factory):
    """Where everybody may read it: an ordinary user runs it too."""
    with ordinary.home() as folder:
        out = folder / "small.sif"
        lock = codec.encode({"a": "lock"})
        convert.convert(world, ARCH, out, convert.Options(), lock=lock)
        yield out


def apptainer(
    *words: str | Path,
    user: str | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Apptainer; `user`, UID:GID, has no rights at all."""
    done = subprocess.run(
        [needs.apptainer(), "--quiet", *words],
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


@pytest.mark.apptainer
def test_run_goes_through_the_entry_point_and_takes_words_as_they_are(sif):
    code = "import os, sys; print(sys.argv[1:], os.environ['HOME'] != '/')"
    odd = "a  'b' $HOME \"c\" *"
    assert apptainer("run", sif, "python", "-c", code, odd).stdout == f"{[odd]} True\n"
    assert apptainer("run", sif, "printf", "%s|", "x y", "").stdout == "x y||"


@pytest.mark.apptainer
def test_exec_has_the_environment_of_the_image_and_not_the_callers_packages(sif, tmp_path):
    look = "import os, sys; print(sys.executable, sys.path, os.environ.get('EXTRA'))"
    (tmp_path / "alpha.py").write_text("VALUE = 'the wrong one'\n")
    hostile = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PATH": os.environ["PATH"],
               "APPTAINERENV_EXTRA": "given", "LD_LIBRARY_PATH": "/nowhere"}  # fmt: skip
    said = apptainer("exec", sif, "python", "-c", look, env=hostile).stdout
    assert said.startswith(f"{PREFIX}/bin/python ")
    assert str(tmp_path) not in said
    assert said.endswith(" given\n")
    found = apptainer("exec", sif, "env", env=hostile).stdout.splitlines()
    assert (
        "PATH=/opt/venv/bin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin" in found
    )
    assert f"LD_LIBRARY_PATH={files.LIBRARIES}" in found


@pytest.mark.apptainer
def test_inspect_tells_where_it_came_from(sif, world):
    said = json.loads(apptainer("inspect", "--json", "--labels", sif).stdout)
    labels = said["data"]["attributes"]["labels"]
    assert labels[files.IMAGE_LABEL] == world.digest
    lock = codec.encode({"a": "lock"})
    assert labels[files.LOCK_LABEL] == f"sha256:{sha256(lock)}"
    assert world.digest in apptainer("inspect", "--deffile", sif).stdout
    listed = apptainer("sif", "list", sif).stdout.splitlines()
    number = [line.split("|")[0].strip() for line in listed if "JSON" in line][-1]
    assert apptainer("sif", "dump", number, sif).stdout.encode() == lock
    inside = apptainer("exec", sif, "cat", "/.singularity.d/labels.json").stdout
    assert json.loads(inside) == labels


@pytest.mark.apptainer
def test_a_user_without_any_right_runs_it_in_a_home_of_his_own(sif):
    """Read-only root, packages in ~/.local that must not be imported, --fakeroot."""
    home = sif.parent / "home"
    local = home / ".local/lib/python3.11/site-packages"
    local.mkdir(parents=True)
    (local / "alpha.py").write_text("VALUE = 'the wrong one'\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, 65534, 65534)
    bound = ("--home", f"{home}:/home/me")
    code = "import alpha, os, pathlib; pathlib.Path.home().joinpath('x').write_text('x');"
    code += " print(alpha.VALUE, os.getuid(), pathlib.Path.home())"
    # A world of wheels alone has no PYTHONNOUSERSITE; the images of targets have.
    said = as_nobody("exec", *bound, "--env", "PYTHONNOUSERSITE=1", sif, "python", "-c", code)
    assert said.stdout == "2 65534 /home/me\n"
    assert (home / "x").read_text() == "x"
    refused = as_nobody("exec", sif, "mkdir", "/opt/new", check=False)
    assert refused.returncode != 0
    assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr
    assert as_nobody("exec", "--fakeroot", sif, "id", "-u").stdout == "0\n"


@pytest.mark.apptainer
def test_with_nothing_of_the_machine_it_has_a_home_and_a_cache(sif):
    code = """
import os, pathlib
for place in (pathlib.Path(os.environ["PYTHONPYCACHEPREFIX"]), pathlib.Path.home()):
    place.mkdir(parents=True, exist_ok=True)
    (place / "x").write_text("x")
print("both can be written")
"""
    for words in (("--containall",), ("--containall", "--no-home"), ("--contain", "--cleanenv")):
        said = as_nobody("run", *words, sif, "python", "-c", code)
        assert said.stdout == "both can be written\n", words


@pytest.mark.apptainer
def test_without_a_network_nothing_is_reached(sif):
    host, _, port = needs.registry().partition(":")
    code = f"import socket; print(socket.socket().connect_ex(({host!r}, {port})))"
    assert apptainer("exec", sif, "python", "-c", code).stdout == "0\n"
    cut_off = apptainer("exec", "--net", "--network", "none", sif, "python", "-c", code)
    assert cut_off.stdout != "0\n"


@pytest.mark.apptainer
def test_old_runtimes_find_their_actions(sif, tmp_path):
    """Without Apptainer's own interpreter: the scripts of the file system, by a plain shell."""
    needs.root()
    root = tmp_path / "root"
    subprocess.run(
        [needs.tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-offset",
         str(squashed.start(sif)), "-dest", root, sif],
        check=True, capture_output=True,
    )  # fmt: skip
    for action, words in {"exec": ["env"], "run": ["env"]}.items():
        done = subprocess.run(
            [needs.tool("chroot", "coreutils"), root, f"/{files.HOME}/actions/{action}", *words],
            env={"PYTHONPATH": "/x", "PATH": "/host"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "PATH=/opt/venv/bin:/usr/bin:/bin" in done.stdout.splitlines()
        assert "PYTHONPATH=" in done.stdout.splitlines()


@pytest.mark.apptainer
def test_apptainer_makes_the_same_of_the_pushed_image(world, sif, tmp_path):
    """Its own SIF of docker://… has the same files but for the times and its own scripts."""
    registry, skopeo = needs.registry(), needs.tool("skopeo")
    place = f"{registry}/sif-small:{os.getpid()}"
    subprocess.run(
        [skopeo, "copy", "--quiet", "--dest-tls-verify=false", f"oci:{world.path}:small",
         f"docker://{place}"],
        check=True,
    )  # fmt: skip
    theirs = tmp_path / "theirs.sif"
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    apptainer("build", "--no-https", "--disable-cache", *fast, theirs, f"docker://{place}")
    assert apptainer("run", theirs, "python", "-c", "print(6 * 7)").stdout == "42\n"
    # All its files belong to the caller, who is root here: owners are left out, and so are times.
    found = _without_owners(squashed.read(theirs, squashed.start(theirs)))
    mine = _without_owners(squashed.read(sif, squashed.start(sif)))
    differing = {name for name in found.keys() | mine.keys() if found.get(name) != mine.get(name)}
    differing = {name for name in differing if not name.startswith(f"/{files.HOME}/")}
    assert differing == {"/root", "/var/tmp"}  # which both add; Apptainer gives both mode 0755


def _without_owners(found: dict[str, squashed.Facts]) -> dict[str, tuple[object, ...]]:
    return {name: (kind, mode, what) for name, (kind, mode, _, what, _) in found.items()}


@pytest.mark.apptainer
def test_a_pushed_sif_is_pulled_by_apptainer_and_refers_to_its_image(world, tmp_path):
    with ownregistry.serve(tmp_path / "registry") as registry:
        place = f"{registry.host}/team/small"
        command = [sys.executable, "-m", "imgbuild", "sif", world.path, "--output",
                   tmp_path / "small.sif", "--push", place, "--json"]  # fmt: skip
        early = subprocess.run(command, capture_output=True, text=True, check=False)
        assert early.returncode == 2
        assert f"does not have the image {world.digest}" in early.stderr
        assert "imgbuild push small" in early.stderr
        subprocess.run(
            [needs.tool("skopeo"), "copy", "--quiet", "--dest-tls-verify=false",
             f"oci:{world.path}:small", f"docker://{place}:small"],
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
        client, repository = Client(), parse_repository(place)
        [referrer] = client.referrers(repository, world.digest)
        assert referrer.digest == pushed["digest"]
        pulled = tmp_path / "pulled.sif"
        apptainer("pull", "--no-https", "--disable-cache", pulled, f"oras://{pushed['reference']}")
        assert pulled.read_bytes() == (tmp_path / "small.sif").read_bytes()
        # What Apptainer itself pushes has the same shape.
        apptainer("push", "--no-https", pulled, f"oras://{place}:theirs")
        mine, theirs = (
            json.loads(client.manifest(parse(f"{place}:{tag}")).data)
            for tag in ("small-x86_64-sif", "theirs")
        )
    for document in (mine, theirs):
        del document["layers"][0]["annotations"]
    assert mine.pop("subject")["digest"] == world.digest
    assert mine == theirs


@pytest.mark.apptainer
def test_a_driver_at_another_place_is_found(sif, tmp_path):
    """A library of the host's, put where --nv puts the driver's."""
    code = "import ctypes; ctypes.CDLL('libcuda.so.1'); print('loaded')"
    without = apptainer("exec", sif, "python", "-c", code, check=False)
    assert "libcuda.so.1: cannot open shared object file" in without.stderr
    driver = tmp_path / "libcuda.so.1"
    library = next(Path("/usr/lib").glob("*/libuuid.so.1"))
    shutil.copy(library, driver)
    named = {"APPTAINER_CONTAINLIBS": str(driver)}
    assert apptainer("exec", sif, "python", "-c", code, env=named).stdout == "loaded\n"
    assert apptainer("run", sif, "python", "-c", code, env=named).stdout == "loaded\n"
