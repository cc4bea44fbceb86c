"""Tests loading a matrix with extensions and values of the published lock."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from imgbuild.assemble import sources
from imgbuild.deb import apt
from imgbuild.errors import InputError
from imgbuild.lock import extension, locked_matrix, published
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import DebianBase
from imgbuild.matrix.schema import EXTENSION_FILE, extension_schema, extension_schema_bytes
from imgbuild.matrix.select import select_targets
from imgbuild.values import Arch
from tests.support import extended, samples
from tests.support.matrix_text import VALID_MATRIX
from tests.support.rows import each_row

REPOSITORY = Path(__file__).parents[3]
MARK = "§"


def test_values_that_a_row_omits_come_from_the_published_lock(tmp_path: Path) -> None:
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    target, lock = matrix.targets[extended.OWN_TARGET], extended.published_lock()
    assert (target.cuda, target.base, target.arch) == ("12.4", "debian-12", (Arch.X86_64,))
    assert target.gpu == ("9.0",)
    assert target.flashinfer.mode == "off"
    assert target.as_of == datetime.date(2025, 7, 1)
    assert target.pins == {**lock.arch[Arch.X86_64].versions, "wandb": "0.20.1"}
    assert set(target.requires) == {"einops"}
    assert matrix.image.prefix == lock.settings.prefix
    assert matrix.layers.named == lock.layers.named
    assert matrix.bases["debian-12"].glibc == lock.base.glibc
    assert matrix.default_index == "pypi"
    overlay = published.find_overlay(matrix, extended.OWN_TARGET)
    assert overlay is not None
    assert overlay.published.lock == lock
    assert overlay.row.packages == ("rsync",)


def test_base_of_an_extension_is_hardened_like_the_published_base() -> None:
    lock = samples.lock()
    hard = msgspec.structs.replace(lock.base, hardened=True)
    for base, hardened in ((lock.base, False), (hard, True)):
        target_base = locked_matrix.base_from_lock(msgspec.structs.replace(lock, base=base), ())
        assert isinstance(target_base, DebianBase)
        assert target_base.hardened is hardened


def test_rows_keep_tools_and_user_packages_of_published_target(tmp_path: Path) -> None:
    lock = samples.lock_with_tools(samples.wheel("numpy", "2.2.6", 5000))
    text = extended.MATRIX + "  alike:\n    like: small\n    summary: as it\n"
    matrix = extended.read_extended(extended.create_repository(tmp_path, text, lock))
    for name in (extended.OWN_TARGET, "alike"):
        target = matrix.targets[name]
        base = matrix.bases[target.base]
        assert target.user_packages
        assert isinstance(base, DebianBase)
        assert base.tools == ("htop",)


def test_row_with_like_can_list_other_gpus(tmp_path: Path) -> None:
    like = extended.MATRIX + "  alike:\n    like: small\n    summary: as it\n"
    path = extended.create_repository(tmp_path, like + '    gpu: ["9.0"]\n')
    assert extended.read_extended(path).targets["alike"].gpu == ("9.0",)
    text = extended.MATRIX.replace("    extends: small\n", '    extends: small\n    gpu: ["9"]\n')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        extended.read_extended(path)
    problems = " ".join(f"{each.message} {each.expected}" for each in caught.value.problems)
    assert "the GPUs are already set" in problems
    assert "a compute capability, such as" in problems


def test_row_with_only_required_keys_is_accepted(tmp_path: Path) -> None:
    text = extended.MATRIX.partition("    as_of")[0]
    target = extended.read_extended(extended.create_repository(tmp_path, text)).targets[
        extended.OWN_TARGET
    ]
    assert target.as_of == datetime.date(2025, 6, 20)
    assert target.requires == {}


def test_target_table_shows_pins_of_publisher_and_user(tmp_path: Path) -> None:
    matrix = extended.read_extended(extended.create_repository(tmp_path))
    (row,) = published.shown_targets(
        matrix, select_targets(matrix, [extended.OWN_TARGET], everything=False, arches=[])
    )
    assert row.target.pins == {"torch": "2.6.0", "wandb": "0.20.1"}


def test_matrix_without_extensions_is_valid(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(VALID_MATRIX, encoding="utf-8")
    matrix = published.load_matrix(tmp_path / "matrix.yaml")
    assert matrix == load_matrix(tmp_path / "matrix.yaml")
    assert published.find_overlay(matrix, "cu124-vllm") is None
    with pytest.raises(InputError, match="does not extend a published target"):
        published.published_sources(tmp_path / "matrix.yaml")


PROBLEMS = {
    "another target": ("extends: small", "extends: §smal", "extends", "unknown published target"),
    "the same name": ("  ours:", "  §small:", "small", "already has this name"),
    "an older day": (
        "2025-07-01",
        "§2025-06-01",
        "as_of",
        "contains packages uploaded until 2025-06-20",
    ),
    "another torch": (
        'wandb: "0.20.1"',
        'torch: §"2.7.0"',
        "pins.torch",
        "small has torch 2.6.0, which an extension cannot change",
    ),
    "another range": (
        'einops: {spec: ">=0.8"',
        'numpy: §{spec: ">=3"',
        "requires.numpy",
        "small has numpy 2.2.6, which an extension cannot change",
    ),
    "a folder that is a link": (
        "/opt/team/train.sh: {",
        "§/bin/train: {",
        "files./bin/train",
        "/bin is not a plain folder",
    ),
    "a temporary folder": (
        "/opt/team/start: {",
        "§/tmp/start: {",
        "links./tmp/start",
        "/tmp is not a plain folder",
    ),
    "a path of packages": (
        "/opt/team/train.sh: {",
        "§/opt/venv/bin/train: {",
        "files./opt/venv/bin/train",
        "is reserved for packages",
    ),
    "the place of the environment": (
        "/opt/team/train.sh: {",
        "§/opt/venv: {",
        "files./opt/venv",
        "has this path, or requires a path below this path",
    ),
    "the interpreter's folder": (
        "/opt/team/start: {",
        "§/usr/bin: {",
        "links./usr/bin",
        "has this path, or requires a path below this path",
    ),
    "no absolute path": (
        "/opt/team/train.sh: {",
        "§train.sh: {",
        "files.train.sh",
        "the text does not have the expected format",
    ),
    "a file and a link": (
        "/opt/team/start: {to",
        "§/opt/team/train.sh: {to",
        "files./opt/team/train.sh",
        "a link has the same path",
    ),
    "a file used as a folder": (
        "/opt/team/start: {",
        "§/opt/team/train.sh/start: {",
        "links./opt/team/train.sh/start",
        "/opt/team/train.sh is an added file, which cannot have files below it",
    ),
    "a link used as a folder": (
        "/opt/team/train.sh: {",
        "§/opt/team/start/train.sh: {",
        "files./opt/team/start/train.sh",
        "/opt/team/start is an added link, which cannot have files below it",
    ),
    "a file of another folder": (
        "from: train.sh",
        "from: §a/../../train.sh",
        "files./opt/team/train.sh.from",
        "the file is outside the repository",
    ),
    "a file of this machine": (
        "from: train.sh",
        "from: §/etc/passwd",
        "files./opt/team/train.sh.from",
        "the path is absolute and may not exist on other machines",
    ),
    "no permissions": ('"0755"', "§rwxr-xr-x", "files./opt/team/train.sh.mode", "expected format"),
    "no package of Debian's": ("[rsync]", "[§Rsync_]", "packages[0]", "expected format"),
    "a package twice": ("[rsync]", "[rsync, §rsync]", "packages[1]", "rsync is listed twice"),
    "an index without address": (
        "    labels:",
        "    indexes: {wandb: §other}\n    labels:",
        "indexes.wandb",
        "unknown index",
    ),
    "a variable of imgbuild's": (
        "WANDB_MODE",
        "§LD_LIBRARY_PATH",
        "env.LD_LIBRARY_PATH",
        "would hide the driver libraries",
    ),
    "another PATH": (
        "WANDB_MODE: {",
        "PATH: §{",
        "env.PATH",
        "the commands of the environment are not first",
    ),
    "a label of imgbuild's": (
        "org.example.team",
        "§dev.imgbuild.target",
        "labels.dev.imgbuild.target",
        "imgbuild sets this label",
    ),
    "files of published packages": (
        "    labels:",
        "    drop:\n      - §{package: torch, paths: [bin/x], reason: not needed}\n    labels:",
        "drop[0]",
        "torch is in a layer of small",
    ),
    "another architecture": (
        "    summary:",
        "    arch: [§arm64]\n    summary:",
        "arch[0]",
        "unknown architecture of small",
    ),
    "an unknown key": ("    extends: small", "    extends: small\n    §base: x", "base", "unknown"),
}


@each_row("name", PROBLEMS)
def test_invalid_extension_is_reported_with_location(name: str, tmp_path: Path) -> None:
    old, new, path, message = PROBLEMS[name]
    assert extended.MATRIX.count(old) == 1
    text = extended.MATRIX.replace(old, new)
    before = text[: text.index(MARK)]
    with pytest.raises(InputError) as caught:
        published.load_matrix(extended.create_repository(tmp_path, text.replace(MARK, "")))
    problems = caught.value.problems
    result = [problem for problem in problems if message in problem.message]
    assert result, [str(problem) for problem in problems]
    assert result[0].path in (f"targets.{extended.OWN_TARGET}.{path}", f"targets.{path}")
    if name != "a file and a link":  # reported at its place in the file
        assert result[0].line == before.count("\n") + 1


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("registry.example.org/team/small:v1", "a tag is not accepted"),
        ("Registry", "expected format"),
        (f"registry.example.org/small@sha256:{'0' * 64}", "the digest in digests.json is sha256:"),
    ],
)
def test_image_of_an_extension_that_does_not_match_its_row_is_refused(
    image: str, message: str, tmp_path: Path
) -> None:
    text = extended.MATRIX.replace("    from: ../project", f"    image: {image}")
    with pytest.raises(InputError) as caught:
        published.load_matrix(extended.create_repository(tmp_path, text))
    assert message in caught.value.problems[0].message
    assert caught.value.problems[0].line == 5


@pytest.mark.parametrize("image", ["registry.example.org:5000/a/b", "oci:../image", "localhost/x"])
def test_image_locations_of_extensions_are_read(image: str, tmp_path: Path) -> None:
    text = extended.MATRIX.replace("    from: ../project", f"    image: {image}")
    assert (
        extended.published_target(
            extended.read_extended(extended.create_repository(tmp_path, text))
        ).image
        == image
    )


def test_link_of_a_published_folder_outside_the_repository_is_refused(tmp_path: Path) -> None:
    path = extended.create_repository(tmp_path / "ours")
    (path.parent / "train.sh").rename(path.parent / "other.sh")
    (path.parent / "train.sh").symlink_to("other.sh")
    extended.read_extended(path)  # one that stays inside is accepted
    (path.parent / "other.sh").rename(tmp_path / "other.sh")
    (path.parent / "train.sh").unlink()
    (path.parent / "train.sh").symlink_to("../other.sh")
    with pytest.raises(InputError) as caught:
        published.load_matrix(path)
    (problem,) = caught.value.problems
    assert (
        f"a symbolic link points to {tmp_path}/other.sh, outside the repository" in problem.message
    )
    assert problem.path == "targets.ours.files./opt/team/train.sh.from"
    assert (problem.line, problem.value) == (16, "train.sh")
    assert problem.expected == "a file in the repository; copy the file into the repository"


@pytest.mark.parametrize("source", ["train.sh", "folder/train.sh"])
def test_circular_links_to_published_locks_are_refused(source: str, tmp_path: Path) -> None:
    path = extended.create_repository(
        tmp_path, extended.MATRIX.replace("from: train", f"from: {source[:-3]}")
    )
    (tmp_path / "train.sh").unlink()
    loop = tmp_path / Path(source).parts[0]
    loop.symlink_to(loop.name)
    matrix = extended.read_extended(path)
    with pytest.raises(InputError, match=f"{source}: Too many levels of symbolic links"):
        extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))


def test_published_targets_keep_separate_bases(tmp_path: Path) -> None:
    """Two publishers have bases of the same name but different default indexes."""
    lock = extended.published_lock()
    base = msgspec.structs.replace(lock.base, suite="trixie", python="3.13", glibc="2.41")
    wheels = tuple(
        msgspec.structs.replace(wheel, index="mirror") for wheel in lock.arch[Arch.X86_64].wheels
    )
    other = msgspec.structs.replace(
        lock,
        target="other",
        base=base,
        indexes={"torch": "mirror"},
        arch={Arch.X86_64: msgspec.structs.replace(lock.arch[Arch.X86_64], wheels=wheels)},
    )
    extended.publish_target(tmp_path / "published/other", samples.with_current_labels(other))
    text = extended.MATRIX.replace("targets:\n", "  other: {lock: published/other}\ntargets:\n")
    text += "  theirs: {extends: other, summary: on the other one}\n"
    matrix = extended.read_extended(extended.create_repository(tmp_path, text))
    bases = {name: matrix.bases[target.base] for name, target in matrix.targets.items()}
    assert (bases["ours"].glibc, bases["theirs"].glibc) == ("2.36", "2.41")
    assert matrix.indexes.keys() >= set(matrix.targets["theirs"].indexes.values())


def test_system_packages_use_mirrors_of_target_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base of another target has the same name but is a registry image."""
    monkeypatch.setattr(apt, "archive_mirrors", lambda base: base.mirrors)  # not this machine's own
    lock = extended.published_lock()
    image = f"quay.example/base:1@sha256:{'c' * 64}"
    base = msgspec.structs.replace(lock.base, kind="registry", image=image, packages=())
    other = msgspec.structs.replace(lock, target="another", base=base)
    extended.publish_target(tmp_path / "published/another", samples.with_current_labels(other))
    text = extended.MATRIX.replace(
        "published:\n", "mirrors: ['https://mirror.example/debian']\npublished:\n"
        "  another: {lock: published/another}\n",
    )  # fmt: skip
    matrix = extended.read_extended(extended.create_repository(tmp_path, text))
    project_lock = msgspec.structs.replace(lock, target=extended.OWN_TARGET)
    found = sources.matrix_base(project_lock, matrix)
    assert isinstance(found, DebianBase)
    urls = apt.deb_urls(samples.deb("rsync"), found)
    assert [url.partition("pool/")[0] for url in urls] == ["https://mirror.example/debian/"]


def test_custom_registry_of_an_extension_is_read(tmp_path: Path) -> None:
    text = extended.MATRIX + "registry: registry.example.org/team/images\n"
    path = extended.create_repository(tmp_path, text)
    assert extended.read_extended(path).registry == "registry.example.org/team/images"
    path.write_text(text.replace("/team/images", ""), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        published.load_matrix(path)
    assert caught.value.problems[0].path == "registry"


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("indexes: {special: {url: 'https://me:hunter2@x.org/simple'}}\n", "indexes.special.url"),
        ("mirrors: ['https://a.org/debian', 'https://me:hunter2@x.org/debian']\n", "mirrors[1]"),
    ],
)
def test_url_with_credentials_is_refused_without_showing_it(
    tmp_path: Path, more: str, place: str
) -> None:
    with pytest.raises(InputError) as caught:
        extended.read_extended(extended.create_repository(tmp_path, extended.MATRIX + more))
    [problem] = caught.value.problems
    assert (problem.path, problem.message) == (place, "the URL contains a username or password")
    assert "hunter2" not in str(problem)


def test_index_of_an_extension_without_a_url_is_reported(tmp_path: Path) -> None:
    wheel = msgspec.structs.replace(samples.wheel("flash", "1.0"), index="special")
    lock = msgspec.structs.replace(extended.published_lock(wheel), indexes={"flash": "special"})
    path = extended.create_repository(tmp_path, lock=lock)
    with pytest.raises(InputError) as caught:
        published.load_matrix(path)
    (problem,) = caught.value.problems
    assert "flash is from the index special" in problem.message
    assert problem.path == "published.small.lock"
    text = extended.MATRIX + "indexes: {special: {url: 'https://example.org/simple'}}\n"
    path.write_text(text, encoding="utf-8")
    assert extended.read_extended(path).targets[extended.OWN_TARGET].indexes == {"flash": "special"}


def test_lock_of_another_published_target_is_refused(tmp_path: Path) -> None:
    text = extended.MATRIX.replace("  small:\n", "  tiny:\n").replace(
        "extends: small", "extends: tiny"
    )
    with pytest.raises(InputError, match="is the lock of small, not the lock of tiny") as caught:
        published.load_matrix(extended.create_repository(tmp_path, text))
    assert "imgbuild init --refresh" in str(caught.value.hint)


@pytest.mark.parametrize("file", [published.LOCK, published.DIGESTS_FILE])
def test_missing_copy_of_a_published_lock_is_refused(file: str, tmp_path: Path) -> None:
    path = extended.create_repository(tmp_path)
    (tmp_path / "published/small" / file).unlink()
    with pytest.raises(InputError, match=f"{file}: no such file, but matrix.yaml extends small"):
        published.load_matrix(path)


# -- the schema


def test_extension_schema_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(REPOSITORY / EXTENSION_FILE, extension_schema_bytes().decode())


def test_extension_schema_accepts_valid_rows_and_refuses_unknown_keys() -> None:
    import jsonschema  # which takes a second to load

    validator = jsonschema.Draft202012Validator(extension_schema())
    document = json.loads(json.dumps(yaml.safe_load(extended.MATRIX), default=str))
    assert [error.message for error in validator.iter_errors(document)] == []
    document["targets"]["ours"]["base"] = "debian-12"
    assert not validator.is_valid(document)


def test_row_can_waive_findings_and_vulnerabilities(tmp_path: Path) -> None:
    text = f"""{extended.MATRIX}\
    accept_cves:
      - {{id: CVE-2025-32434, reason: we load no files of others, expires: 2999-01-01}}
    waive:
      - {{check: calls, package: torch, subject: "torch:*", reason: it is never called}}
"""
    target = extended.read_extended(extended.create_repository(tmp_path, text)).targets[
        extended.OWN_TARGET
    ]
    assert [accepted.id for accepted in target.accept_cves] == ["CVE-2025-32434"]
    assert [waiver.subject for waiver in target.waive] == ["torch:*"]
