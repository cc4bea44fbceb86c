from __future__ import annotations

import pytest

from imgbuild.deb.tree import DebTree, merge_usr
from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import LayerMember, MemberKind
from tests.support.rows import each_row


def file(path: str, data: bytes = b"x", mode: int = 0o644) -> LayerMember:
    return LayerMember(path=path, mode=mode, size=len(data), content=data)


def hard(path: str, target: str) -> LayerMember:
    return LayerMember(path=path, kind=MemberKind.HARD, target=target)


@each_row(
    ("path", "expected"),
    [
        ("/bin/sh", "usr/bin/sh"),
        ("lib64/ld.so", "usr/lib64/ld.so"),
        ("libexec/x", "libexec/x"),
        ("bin", "usr/bin"),
        ("usr/bin/sh", "usr/bin/sh"),
        ("etc/lib/x", "etc/lib/x"),
    ],
)
def test_paths_of_debian_packages_are_merged_below_usr(path: str, expected: str) -> None:
    assert merge_usr(path) == expected


def test_merged_usr_has_links_for_the_used_folders() -> None:
    tree = DebTree()
    tree.add(file("bin/sh"), "dash")
    tree.add(file("lib64/ld.so"), "libc6")
    members = {member.path: member for member in tree.members()}
    links = {path: item.target for path, item in members.items() if item.kind is MemberKind.LINK}
    assert links == {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
    assert members["usr/bin/sh"].content == b"x"


def test_package_can_contain_the_links_of_merged_usr() -> None:
    """base-files of Debian 13 contains such links. A link with another target is refused."""
    tree = DebTree()
    tree.add(LayerMember(path="bin", kind=MemberKind.LINK, target="usr/bin"), "base-files")
    tree.add(LayerMember(path="usr/bin", kind=MemberKind.FOLDER), "base-files")
    members = {member.path: member for member in tree.members()}
    assert (members["bin"].target, members["usr/bin"].kind) == ("usr/bin", MemberKind.FOLDER)
    with pytest.raises(IntegrityError, match="both contain /usr/bin"):
        tree.add(LayerMember(path="bin", kind=MemberKind.LINK, target="opt/bin"), "other")


def test_members_of_the_debian_root_are_in_byte_order() -> None:
    tree = DebTree()
    for path in ("b", "a/z", "a", "a-b", "ä", "B"):
        tree.add(file(path), "demo")
    paths = [member.path for member in tree.members()]
    assert paths == sorted(paths, key=str.encode)


def test_debian_packages_can_share_folders_but_not_files() -> None:
    tree = DebTree()
    tree.add(LayerMember(path="bin", kind=MemberKind.FOLDER, mode=0o755), "one")
    tree.add(LayerMember(path="usr/bin", kind=MemberKind.FOLDER, mode=0o755), "two")
    tree.add(file("bin/tool", b"1"), "one")
    with pytest.raises(IntegrityError, match="two and one both contain /usr/bin/tool"):
        tree.add(file("usr/bin/tool", b"2"), "two")
    with pytest.raises(IntegrityError, match="folder 0700 and folder 0755"):
        tree.add(LayerMember(path="usr/bin", kind=MemberKind.FOLDER, mode=0o700), "three")


def test_first_path_of_hard_link_has_the_content() -> None:
    tree = DebTree()
    tree.add(file("usr/z", b"data", 0o755), "demo")
    tree.add(hard("usr/a", "usr/z"), "demo")
    tree.add(hard("bin/m", "usr/z"), "demo")
    members = {
        member.path: member for member in tree.members() if member.kind is not MemberKind.LINK
    }
    assert (members["usr/a"].kind, members["usr/a"].content) == (MemberKind.FILE, b"data")
    for path in ("usr/bin/m", "usr/z"):
        assert (members[path].kind, members[path].target) == (MemberKind.HARD, "usr/a")
        assert (members[path].mode, members[path].size, members[path].content) == (0o755, 0, None)


def test_broken_hard_link_is_refused() -> None:
    tree = DebTree()
    tree.add(hard("usr/a", "usr/gone"), "demo")
    with pytest.raises(IntegrityError, match="/usr/a is a hard link to /usr/gone"):
        tree.members()


def test_links_are_followed_inside_the_debian_root() -> None:
    tree = DebTree()
    tree.add(file("usr/lib/x/data", b"found"), "demo")
    tree.add_link("etc/absolute", "/lib/x")
    tree.add_link("etc/relative", "../etc/absolute/data")
    tree.add_link("etc/loop", "loop")
    tree.add_link("etc/outside", "../../../usr/lib/x/data")
    assert tree.read("etc/absolute/data") == b"found"
    assert tree.read("/etc/relative") == b"found"
    assert tree.read("etc/outside") == b"found"
    assert tree.resolve_member("etc/loop") is None
    assert tree.resolve_member("etc/nothing") is None
    with pytest.raises(IntegrityError, match="an effect reads /etc/loop"):
        tree.read("etc/loop")


def test_members_below_a_folder_are_listed_without_subfolders() -> None:
    tree = DebTree()
    for path in ("lib/b", "lib/a", "lib/c/d", "libx"):
        tree.add(file(path), "demo")
    assert [member.path for member in tree.members_below("/lib")] == ["usr/lib/a", "usr/lib/b"]
    deep = [member.path for member in tree.members_below("/lib", deep=True)]
    assert deep == ["usr/lib/a", "usr/lib/b", "usr/lib/c/d"]
