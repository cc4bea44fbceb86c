"""Tests the layers that contain no packages."""

from __future__ import annotations

import msgspec
import pytest

from imgbuild.assemble import skeleton
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.oci.layer import write_layer
from imgbuild.oci.tar import MemberKind
from imgbuild.plan import image_digests
from imgbuild.plan.plan import FilesRecipe, UserPackages, VenvRecipe, create_plan
from tests.support import samples
from tests.support.rows import each_row
from tests.support.source_code import ROOT

VENV = VenvRecipe(prefix="/opt/venv", python="3.11", interpreter="/usr/bin/python3.11")
FILES = FilesRecipe(user=samples.USER, workdir="/workspace", cache="/var/cache/imgbuild")
USER_PACKAGES = UserPackages(
    prefix="/opt/venv",
    python="3.11",
    versions={"torch": "2.6.0", "pip": "26.0", "setuptools": "80", "uv": "0.9", "wheel": "0.45"},
)
LOCKED = sorted(path.parent.name for path in ROOT.glob("images/*/lock.json"))


def by_path(members):
    return {member.path: member for member in members}


def test_virtual_environment_links_to_the_interpreter():
    members = by_path(skeleton.venv_members(VENV))
    assert members["opt/venv/bin/python"].target == "/usr/bin/python3.11"
    assert members["opt/venv/bin/python3.11"].target == "python"
    assert members["opt/venv/lib64"].target == "lib"
    assert b"home = /usr/bin\n" in members["opt/venv/pyvenv.cfg"].content
    assert members["opt/venv/lib/python3.11/site-packages"].kind is MemberKind.FOLDER


def test_work_and_cache_folders_of_the_image_are_writable_by_any_user():
    members = by_path(skeleton.files_members(FILES))
    assert members["workspace"].mode == members["var/cache/imgbuild"].mode == 0o1777
    home = members["home/imgbuild"]
    assert (home.uid, home.gid, home.mode) == (1000, 1000, 0o755)


@each_row("text", ["/c$(id)", '/c"', "/c\nid", "/c d", "/c;id"])
def test_paths_in_image_scripts_must_be_plain_words(text: str) -> None:
    with pytest.raises(InputError, match="is not a plain word"):
        skeleton.files_members(msgspec.structs.replace(FILES, cache=text))
    with pytest.raises(InputError, match="is not a plain word"):
        skeleton.venv_members(msgspec.structs.replace(VENV, prefix=text))


def test_private_cache_folder_is_accessible_only_to_its_user() -> None:
    members = by_path(skeleton.files_members(msgspec.structs.replace(FILES, private=True)))
    cache = members["var/cache/imgbuild"]
    assert (cache.uid, cache.gid, cache.mode) == (1000, 1000, 0o700)
    assert members["workspace"].mode == 0o1777
    script = members["opt/imgbuild/environment.sh"].content
    assert b"umask 077" in script
    assert b"any user" not in script


@each_row("name", LOCKED)
def test_layers_without_packages_match_golden_digests(name: str) -> None:
    """The bytes of published images must not change."""
    lock = lock_file.read_lock(ROOT / "images", name)
    for arch, target_digests in image_digests.read_digests(ROOT / "images", lock).arch.items():
        digests = {layer.name: layer.digest for layer in target_digests.layers}
        for layer in create_plan(lock, arch).layers:
            match layer.recipe:
                case VenvRecipe():
                    members = skeleton.venv_members(layer.recipe)
                case FilesRecipe():
                    members = skeleton.files_members(layer.recipe)
                case _:
                    continue
            assert write_layer(members, None).digest == digests[layer.name]


def test_entry_point_sets_cache_folder():
    members = by_path(skeleton.files_members(FILES))
    assert members["opt/imgbuild/entrypoint"].mode == 0o755
    text = members["opt/imgbuild/environment.sh"].content
    assert b"/var/cache/imgbuild" in text
    assert b"@" not in text.replace(b'"$@"', b"")


def test_image_user_is_not_added_again_to_a_debian_base():
    assert "etc/passwd" not in by_path(skeleton.files_members(FILES))


def test_image_user_is_added_once_to_a_registry_base():
    recipe = FilesRecipe(
        user=samples.USER,
        workdir="/workspace",
        cache="/var/cache/imgbuild",
        passwd="root:x:0:0::/root:/bin/sh\nimgbuild:x:5:5::/:/bin/sh\n",
        group="root:x:0:\n",
    )
    members = by_path(skeleton.files_members(recipe))
    assert members["etc/passwd"].content == (
        b"root:x:0:0::/root:/bin/sh\nimgbuild:x:1000:1000::/home/imgbuild:/bin/bash\n"
    )
    assert members["etc/group"].content == b"root:x:0:\nimgbuild:x:1000:\n"


def test_image_user_precedes_accounts_with_the_same_id():
    """Images of Ubuntu already have a user 1000, which must not take precedence."""
    recipe = FilesRecipe(
        user=samples.USER,
        workdir="/workspace",
        cache="/var/cache/imgbuild",
        passwd="root:x:0:0::/root:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\n",
        group="root:x:0:\nubuntu:x:1000:\nvideo:x:44:ubuntu\n",
    )
    members = by_path(skeleton.files_members(recipe))
    assert members["etc/passwd"].content.splitlines() == [
        b"root:x:0:0::/root:/bin/sh",
        b"imgbuild:x:1000:1000::/home/imgbuild:/bin/bash",
        b"ubuntu:x:1000:1000::/home/ubuntu:/bin/sh",
    ]
    assert members["etc/group"].content == (
        b"root:x:0:\nimgbuild:x:1000:\nubuntu:x:1000:\nvideo:x:44:ubuntu\n"
    )


def test_image_for_user_packages_has_pip_uv_and_constraints() -> None:
    recipe = msgspec.structs.replace(FILES, user_packages=USER_PACKAGES, readme="# small\n")
    members = by_path(skeleton.files_members(recipe))
    added = members.keys() - by_path(skeleton.files_members(FILES)).keys()
    assert added == {
        "opt/imgbuild/README", "opt/imgbuild/constraints.txt", "opt/imgbuild/packages.py",
        *(f"opt/imgbuild/bin/{name}" for name in ("pip", "pip3", "uv")), "opt/venv/pip.conf",
        "usr/lib/python3/dist-packages/imgbuild.pth",
    }  # fmt: skip
    assert members["opt/imgbuild/README"].content == b"# small\n"
    # Builds may need newer versions of the other packages.
    assert members["opt/imgbuild/constraints.txt"].content == b"torch==2.6.0\n"
    program = members["opt/imgbuild/packages.py"]
    assert program.mode == 0o755
    assert program.content.startswith(b"#!/opt/venv/bin/python -I\n")
    compile(program.content, "packages.py", "exec")
    assert b'\nFREE = {"pip", "setuptools", "uv", "wheel"}' in program.content
    assert b"@" not in program.content
    assert members["opt/imgbuild/bin/pip"].target == "../packages.py"
    script = members["opt/imgbuild/environment.sh"].content
    assert b'"/workspace"/.imgbuild-packages/*)' in script
    assert b"@" not in script.replace(b'"$@"', b"")
    text = members["usr/lib/python3/dist-packages/imgbuild.pth"].content
    assert text.startswith(b"import site, sys; '/opt/venv/lib/python3.11/site-packages' in")
    assert text.count(b"\n") == 1, "Python would run a line that begins with `import`"


def test_standalone_python_finds_image_packages() -> None:
    site = "/opt/python/lib/python3.12/site-packages"
    recipe = msgspec.structs.replace(
        FILES, user_packages=msgspec.structs.replace(USER_PACKAGES, site=site)
    )
    paths = by_path(skeleton.files_members(recipe)).keys()
    assert f"{site[1:]}/imgbuild.pth" in paths
    assert not any(path.startswith("usr/lib/") for path in paths)


def test_environment_for_user_packages_includes_system_packages() -> None:
    for user_site, value in ((True, b"true"), (msgspec.UNSET, b"false")):
        recipe = msgspec.structs.replace(VENV, user_site=user_site)
        text = by_path(skeleton.venv_members(recipe))["opt/venv/pyvenv.cfg"].content
        assert b"include-system-site-packages = " + value + b"\n" in text
