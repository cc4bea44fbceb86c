from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from imgbuild.codec import encode_compact
from imgbuild.deb import debian_root, table
from imgbuild.errors import InputError, IntegrityError
from imgbuild.lock.resolution import Deb
from imgbuild.matrix.model import User
from imgbuild.oci.layer import write_layer
from imgbuild.oci.tar import FileSlice, LayerMember, MemberKind
from imgbuild.plan import plan
from imgbuild.plan.plan import DebianRecipe
from imgbuild.values import Arch, sha256
from tests.support import debs

REPOSITORY = Path(__file__).parents[3]
USER = User(name="imgbuild", uid=1000, gid=1000, home="/home/imgbuild")
POSTINST = "#!/bin/sh\nexit 0\n"
# Hash of the parts of bookworm's table that affect bytes, by DEBIAN_FORMAT. If an image has been
# published with the old format, a new hash requires a new format.
REVIEWED = {1: "a21a69baaf243ff9e2b7d411401e0d1c6e0b8f6310e2a76a1fbb091a0f20653d"}

REVIEWED_TOOLS = {
    1: "c7f675bd07fe295588f8ae0c457a81c1ff9b5057fb60535da5605984a8f52c38"
}  # the same for the layers of tools, by ADDED_DEBS_FORMAT

TABLE = f"""
suite: tiny
exclude:
  - {{path: "/usr/share/doc/*", why: documentation}}
include:
  - {{path: "/usr/share/doc/*/copyright", why: licences}}
triggers: {{}}
packages:
  base:
    why: the postinst makes everything that this test looks at
    scripts:
      postinst: [{sha256(POSTINST.encode())}]
    effects:
      - {{do: folder, path: /var/mail, mode: "2775", gid: 8}}
      - {{do: file, path: /etc/timezone, text: "Etc/UTC\\n"}}
      - {{do: copy, source: /usr/share/doc/base/examples/list, path: /etc/list, match: "^deb "}}
      - {{do: copy, source: /usr/share/template, path: /etc/filled, fill: {{$one: "1", $none: ""}}}}
      - {{do: link, path: /etc/localtime, target: /usr/share/zoneinfo/Etc/UTC}}
      - {{do: file, path: /etc/native, text: "x86", arch: amd64}}
      - {{do: file, path: /etc/native, text: "arm", arch: arm64}}
      - {{do: group, name: _late, gid: 102}}
      - {{do: group, name: _early, gid: 101}}
      - {{do: owner, path: /bin/agent, gid: 101, mode: "2755"}}
      - {{do: diversion, path: /bin/sh, to: /bin/sh.distrib, package: base}}
      - {{do: alternative, name: pager, link: /usr/bin/pager, path: /bin/more, priority: 50}}
      - do: alternative
        name: pager
        link: /usr/bin/pager
        path: /usr/bin/less
        priority: 77
        slaves: [{{name: pager.1, link: /usr/share/man/pager.1, path: /usr/share/man/less.1}}]
      - {{do: alternative, name: editor, link: /usr/bin/editor, path: /usr/bin/vi, priority: 9}}
      - {{do: compute, what: accounts}}
"""

BASE = [
    debs.folder("./"),
    debs.folder("./bin/"),
    debs.file("./bin/agent", b"agent", 0o755),
    debs.file("./bin/more", b"more", 0o755),
    debs.file("./usr/bin/less", b"less", 0o755),
    debs.file("./etc/base.conf", b"configuration"),
    debs.file("./usr/share/template", b"head\n$one\n$none\ntail\n"),
    debs.file("./usr/share/base-passwd/passwd.master", b"root:*:0:0:the root:/root:/bin/bash\n"),
    debs.file("./usr/share/base-passwd/group.master", b"root:*:0:\nshadow:*:42:\n"),
    debs.folder("./usr/share/doc/base"),
    debs.file("./usr/share/doc/base/copyright", b"licence"),
    debs.file("./usr/share/doc/base/examples/list", b"# head\ndeb here\n#deb-src\n"),
    debs.symlink("./usr/share/doc/base/README", "README.gz"),
]
OTHER = [
    debs.symlink("./usr/share/doc/other", "base"),
    debs.file("./usr/bin/other", b"other", 0o4755),
]


class Packages(NamedTuple):
    debs: tuple[Deb, ...]
    paths: dict[str, Path]

    def recipe(self, user: User = USER, suite: str = "tiny") -> DebianRecipe:
        return DebianRecipe(arch=Arch.X86_64, suite=suite, debs=self.debs, user=user)

    def and_one(self, deb: Deb, path: Path) -> Packages:
        return Packages((*self.debs, deb), {**self.paths, deb.sha256: path})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tiny.yaml").write_text(TABLE)
    monkeypatch.setattr(table, "DATA", tmp_path / "tables")
    control = {"postinst": POSTINST, "conffiles": "/etc/base.conf\nremove-on-upgrade /etc/old\n"}
    built_debs = {
        "base": debs.write_deb(
            tmp_path / "base.deb", "base", BASE, control=control, Multi_Arch="same"
        ),
        "other": debs.write_deb(tmp_path / "other.deb", "other", OTHER, Description="x\n y"),
    }
    paths = {deb.sha256: tmp_path / f"{name}.deb" for name, deb in built_debs.items()}
    return Packages(tuple(built_debs.values()), paths)


def text(member: LayerMember) -> str:
    if isinstance(member.content, FileSlice):
        data = member.content.path.read_bytes()
        return data[member.content.offset :][: member.content.length].decode()
    return (member.content or b"").decode()


@pytest.fixture
def root_members(packages: Packages, tmp_path: Path) -> dict[str, LayerMember]:
    members = debian_root.base_members(packages.recipe(), packages.paths, tmp_path / "spool")
    assert len({member.path for member in members}) == len(members)
    return {member.path: member for member in members}


def test_reviewed_effects_of_maintainer_scripts_are_applied(
    root_members: dict[str, LayerMember],
) -> None:
    mail = root_members["var/mail"]
    assert (mail.kind, mail.mode, mail.gid) == (MemberKind.FOLDER, 0o2775, 8)
    assert text(root_members["etc/timezone"]) == "Etc/UTC\n"
    assert root_members["etc/localtime"].target == "/usr/share/zoneinfo/Etc/UTC"
    assert text(root_members["etc/filled"]) == "head\n1\ntail\n"
    agent = root_members["usr/bin/agent"]
    assert (agent.mode, agent.gid, text(agent)) == (0o2755, 101, "agent")
    assert root_members["usr/bin/other"].mode == 0o4755
    assert text(root_members["etc/native"]) == "x86"  # the recipe is for x86_64


@pytest.mark.parametrize("hardened", [True, False])
def test_setuid_bits_are_cleared_if_the_table_or_the_base_requires_it(
    packages: Packages, tmp_path: Path, *, hardened: bool
) -> None:
    if not hardened:
        (table.DATA / "tiny.yaml").write_text(f"set_id: false\n{TABLE}")
    recipe = msgspec.structs.replace(packages.recipe(), hardened=hardened)
    members = debian_root.base_members(recipe, packages.paths, tmp_path / "spool")
    special = {member.path: member.mode for member in members if member.mode & 0o6000}
    assert special == {"var/mail": 0o2775}  # the bit of a folder runs no program
    modes = {member.path: (member.mode, member.gid) for member in members}
    assert (modes["usr/bin/agent"], modes["usr/bin/other"]) == ((0o755, 101), (0o755, 0))


def test_file_that_is_excluded_from_the_image_can_still_be_copied(
    root_members: dict[str, LayerMember],
) -> None:
    assert text(root_members["etc/list"]) == "deb here\n"
    assert "usr/share/doc/base/examples/list" not in root_members


def test_exclude_and_include_patterns_are_applied(root_members: dict[str, LayerMember]) -> None:
    documents = {path for path in root_members if path.startswith("usr/share/doc")}
    # The link of `other` points to a licence; README is a broken link now.
    assert documents == {
        "usr/share/doc/base",
        "usr/share/doc/base/copyright",
        "usr/share/doc/other",
    }
    excludes = text(root_members["etc/dpkg/dpkg.cfg.d/imgbuild"]).splitlines()[1:]
    assert excludes == ["path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright"]


def test_alternative_with_the_highest_priority_is_installed(
    root_members: dict[str, LayerMember],
) -> None:
    assert root_members["usr/bin/pager"].target == "/etc/alternatives/pager"
    assert root_members["etc/alternatives/pager"].target == "/usr/bin/less"
    assert "etc/alternatives/pager.1" not in root_members  # neither the manual page exists
    assert "usr/bin/editor" not in root_members  # nor the program
    assert text(root_members["var/lib/dpkg/alternatives/pager"]) == (
        "auto\n/usr/bin/pager\npager.1\n/usr/share/man/pager.1\n\n"
        "/bin/more\n50\n\n/usr/bin/less\n77\n/usr/share/man/less.1\n\n"
    )


def test_accounts_of_maintainer_scripts_are_created(root_members: dict[str, LayerMember]) -> None:
    assert text(root_members["etc/passwd"]) == (
        "root:x:0:0:the root:/root:/bin/bash\nimgbuild:x:1000:1000::/home/imgbuild:/bin/bash\n"
    )
    assert text(root_members["etc/group"]) == (
        "root:x:0:\nshadow:x:42:\n_early:x:101:\n_late:x:102:\nimgbuild:x:1000:\n"
    )
    assert (
        text(root_members["etc/shadow"])
        == "root:*:3652:0:99999:7:::\nimgbuild:!:3652:0:99999:7:::\n"
    )
    assert text(root_members["etc/gshadow"]).splitlines()[2:] == [
        "_early:!::",
        "_late:!::",
        "imgbuild:!::",
    ]
    for name in ("shadow", "gshadow"):
        assert (root_members[f"etc/{name}"].mode, root_members[f"etc/{name}"].gid) == (0o640, 42)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "root"}, r"user root \(0\)"),
        ({"uid": 1000, "gid": 42}, r"group shadow \(42\)"),
        ({"name": "shadow"}, r"group shadow \(42\)"),
    ],
)
def test_image_user_with_an_existing_name_is_refused(
    packages: Packages, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    user = msgspec.structs.replace(USER, **change)
    with pytest.raises(InputError, match=message):
        debian_root.base_members(packages.recipe(user), packages.paths, tmp_path / "spool")


def test_package_database_of_dpkg_is_written(root_members: dict[str, LayerMember]) -> None:
    digest = hashlib.md5(b"configuration").hexdigest()
    assert text(root_members["var/lib/dpkg/status"]) == (
        "Package: base\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: same\n"
        f"Version: 1.0-1\nConffiles:\n /etc/base.conf {digest}\n"
        " /etc/old newconffile remove-on-upgrade\n\n"
        "Package: other\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.0-1\n"
        "Description: x\n y\n\n"
    )
    info = "var/lib/dpkg/info"
    assert text(root_members[f"{info}/base:amd64.list"]).startswith("/.\n/bin\n/bin/agent\n")
    assert "/usr/share/doc/base/examples/list\n" in text(root_members[f"{info}/base:amd64.list"])
    assert root_members[f"{info}/base:amd64.postinst"].mode == 0o755
    assert root_members[f"{info}/base:amd64.conffiles"].mode == 0o644
    assert text(root_members["var/lib/dpkg/diversions"]) == "/bin/sh\n/bin/sh.distrib\nbase\n"


def test_error_for_an_unknown_maintainer_script_contains_the_script_hash(
    packages: Packages, tmp_path: Path
) -> None:
    script = "#!/bin/sh\nrm -rf /\n"
    path = tmp_path / "new.deb"
    deb = debs.write_deb(path, "new", control={"preinst": script}, version="2:3")
    more = packages.and_one(deb, path)
    with pytest.raises(IntegrityError) as caught:
        debian_root.base_members(more.recipe(), more.paths, tmp_path / "spool")
    assert f"new 2:3: preinst {sha256(script.encode())}" in caught.value.message
    assert "data/debian/tiny.yaml" in (caught.value.hint or "")


def test_changed_maintainer_script_of_a_known_package_is_refused(
    packages: Packages, tmp_path: Path
) -> None:
    del packages
    path = tmp_path / "base2.deb"
    deb = debs.write_deb(path, "base", BASE, control={"postinst": POSTINST + "# changed\n"})
    recipe = DebianRecipe(arch=Arch.X86_64, suite="tiny", debs=(deb,), user=USER)
    with pytest.raises(IntegrityError, match=r"base 1\.0-1: postinst"):
        debian_root.base_members(recipe, {deb.sha256: path}, tmp_path / "spool")


@pytest.mark.parametrize(
    ("triggers", "message"),
    [
        ("activate-noawait ldconfig", "new: activates the trigger ldconfig"),
        ("interest-noawait /usr/share/fonts", "new 1.0-1: triggers "),
    ],
)
def test_unknown_dpkg_trigger_is_refused(
    packages: Packages, tmp_path: Path, triggers: str, message: str
) -> None:
    path = tmp_path / "new.deb"
    deb = debs.write_deb(path, "new", control={"triggers": f"# comment\n{triggers}\n"})
    more = packages.and_one(deb, path)
    with pytest.raises(IntegrityError, match=message):
        debian_root.base_members(more.recipe(), more.paths, tmp_path / "spool")


def test_debian_suite_without_a_table_is_refused(packages: Packages, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table of script effects for Debian trixie") as caught:
        debian_root.base_members(
            packages.recipe(suite="trixie"), packages.paths, tmp_path / "spool"
        )
    assert caught.value.hint == "use a suite with a table: tiny"


def test_debian_package_that_differs_from_the_lock_is_refused(
    packages: Packages, tmp_path: Path
) -> None:
    wrong = msgspec.structs.replace(packages.debs[1], version="9")
    recipe = DebianRecipe(arch=Arch.X86_64, suite="tiny", debs=(wrong,), user=USER)
    with pytest.raises(IntegrityError, match=r"contains other 1\.0-1, but the lock has other 9"):
        debian_root.base_members(recipe, packages.paths, tmp_path / "spool")


def test_base_layer_does_not_depend_on_package_order_or_folder(
    packages: Packages, tmp_path: Path
) -> None:
    digests = set()
    for seed in range(3):
        base = packages.recipe()
        shuffled = tuple(random.Random(seed).sample(base.debs, len(base.debs)))
        members = debian_root.base_members(
            msgspec.structs.replace(base, debs=shuffled), packages.paths, tmp_path / f"spool{seed}"
        )
        digests.add(write_layer(members, None, advance=lambda _: None).digest)
    assert len(digests) == 1


def test_bookworm_table_matches_the_recorded_format_number() -> None:
    reviewed = table.load_table("bookworm")
    # Entries for packages outside the targets' bases, for users to add, do not affect any base.
    locks = [json.loads(path.read_bytes()) for path in (REPOSITORY / "images").glob("*/lock.json")]
    resolutions = [each for lock in locks for each in lock["arch"].values()]
    tools = {name for each in resolutions for name in each.get("tools", ())}
    based = {deb["package"] for each in resolutions for deb in each["debs"]} - tools
    decisive = {
        "exclude": [item.path for item in reviewed.exclude],
        "include": [item.path for item in reviewed.include],
        "effects": {
            name: entry.effects for name, entry in reviewed.packages.items() if name in based
        },
    }
    assert sha256(encode_compact(decisive)) == REVIEWED[plan.DEBIAN_FORMAT]
    effects = {name: reviewed.packages[name].effects for name in tools & reviewed.packages.keys()}
    assert sha256(encode_compact(effects)) == REVIEWED_TOOLS[plan.ADDED_DEBS_FORMAT]


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_every_entry_of_the_debian_tables_has_a_reason(suite: str) -> None:
    for name, entry in table.load_table(suite).packages.items():
        assert len(entry.why) >= 20, name
        assert entry.scripts, name
        for script, hashes in entry.scripts.items():
            assert script in (*table.SCRIPTS, "triggers"), name
            assert hashes, (name, script)


def added(packages: Packages, tmp_path: Path, *members: object, **fields: str) -> list[LayerMember]:
    """Return the members that a third package with `members` adds."""
    deb = debs.write_deb(tmp_path / "third.deb", "third", members, **fields)  # type: ignore[arg-type]
    recipe = plan.AddedDebsRecipe(base=packages.recipe(), debs=(deb,))
    paths = {**packages.paths, deb.sha256: tmp_path / "third.deb"}
    return debian_root.added_members(recipe, paths, tmp_path / "spool-of-both")


def test_layer_of_added_packages_contains_only_differences(
    packages: Packages, root_members: dict[str, LayerMember], tmp_path: Path
) -> None:
    members = added(
        packages,
        tmp_path,
        debs.file("./usr/bin/third", b"third", 0o755),
        debs.hardlink("./usr/bin/third-too", "./usr/bin/third", 0o755),
        debs.file("./var/mail/note", b"note"),
        debs.file("./usr/share/doc/third/copyright", b"licence"),
        debs.file("./usr/share/doc/third/changelog", b"omitted"),
    )
    added_members = {member.path: member for member in members}
    new = {path for path, member in added_members.items() if root_members.get(path) != member}
    assert new == {
        "usr/bin/third",
        "usr/bin/third-too",
        "usr/share/doc/third/copyright",
        "var/lib/dpkg/info/third.list",
        "var/lib/dpkg/status",
        "var/mail/note",
    }
    assert "Package: third" in text(added_members["var/lib/dpkg/status"])
    assert "Package: base" in text(added_members["var/lib/dpkg/status"])
    # A folder of the base is included unchanged: a layer would give it the default mode.
    assert added_members["var/mail"] == root_members["var/mail"]
    assert all(added_members[path].kind is MemberKind.FOLDER for path in added_members.keys() - new)


def test_layer_of_added_packages_is_independent_of_the_order(
    packages: Packages, tmp_path: Path
) -> None:
    file = debs.file("./usr/bin/third", b"third", 0o755)
    first = added(packages, tmp_path, file)
    second = added(Packages(tuple(reversed(packages.debs)), packages.paths), tmp_path, file)
    digests = [write_layer(members, None, advance=lambda _: None) for members in (first, second)]
    assert digests[0] == digests[1]


def test_added_package_with_an_unreviewed_maintainer_script_is_refused(
    packages: Packages, tmp_path: Path
) -> None:
    deb = debs.write_deb(tmp_path / "third.deb", "third", control={"postinst": POSTINST})
    recipe = plan.AddedDebsRecipe(base=packages.recipe(), debs=(deb,))
    paths = {**packages.paths, deb.sha256: tmp_path / "third.deb"}
    with pytest.raises(IntegrityError, match=r"third 1\.0-1: postinst"):
        debian_root.added_members(recipe, paths, tmp_path / "other-spool")
