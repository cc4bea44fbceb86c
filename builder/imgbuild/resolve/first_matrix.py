"""Writes the text of a first `matrix.yaml`, and a target as a row of a matrix.

Names, versions and URLs come from the command line and from a lock, which are untrusted. The YAML
library quotes them, and the text is parsed again and compared with the data.
"""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from imgbuild.errors import InputError
from imgbuild.lock.published import PublishedTarget
from imgbuild.matrix import project_paths
from imgbuild.matrix.model import PackageIndex, Target
from imgbuild.resolve.resolve_request import RequestedPackage
from imgbuild.system import quoting

BARE_SCALAR = re.compile(r"[A-Za-z/](?:[A-Za-z0-9_./+@:-]| (?![ #]))*(?<![: ])")
SCHEMA = "matrix.schema.json"
HEAD = f"""\
# yaml-language-server: $schema=./{project_paths.FOLDER}/{SCHEMA}
#
"""
PROJECT = """\
# The image of this project. `requirements` lists the files that declare its packages. `imgbuild
# lock` reads them and locks the whole image by hash; `imgbuild lock --check` shows whether they
# have changed.
"""
EXTENSION = """\
# An image that extends a published one. `imgbuild lock` resolves the additions and locks the whole
# image; `imgbuild build` creates the added layers. All other layers stay as published.
"""
COPIED_COMMENT = (
    "    # Copies of lock.json and digests.json. To renew them, run: imgbuild init --refresh\n"
)
LAYERS_COMMENT = "   # the layers are copied from here by digest\n"
NO_IMAGE_COMMENT = """\
    # The location of the layers: HOST/REPOSITORY, or oci:FOLDER. Without `image`, the layers are
    # built from the lock, byte for byte.
    # image: registry.example.org/imgbuild/{extends}
"""
AS_OF_COMMENT = """\
    # Added packages must have been uploaded before this day. The default is {as_of}, as for
    # {extends}, because packages of the same time are usually compatible.
    # as_of: {as_of}
"""
EXAMPLES = {
    "requires": "    # requires:\n    #   wandb: {reason: experiment tracking}\n",
    "pins": "",
    "packages": "    # packages: [rsync]   # Debian packages; their dependencies follow\n",
    "files": '    # files:\n    #   /opt/team/train.sh: {from: train.sh, mode: "0755"}\n',
}
LOGINS = """\
# Packages come from these indexes if the `indexes` of a row names them. Do not write credentials
# here: imgbuild reads them from ~/.netrc ($NETRC) or keyring.
"""
# Those with a line for each item.
BLOCKS = ("pins", "requires", "env", "links", "exclude", "indexes", "names")
ENV = "    # env:\n    #   WANDB_MODE: {value: offline, reason: nodes have no network}\n"
REASON = "requested with imgbuild init"


class WantedExtension(msgspec.Struct, frozen=True, kw_only=True):
    """The additions to a published target.

    `files` are pairs of a local path and a path in the image. `like` means that the versions of the
    published target can change. `requirements` are files of the project, `add` are PEP 508 lines,
    and `names` maps URLs of repositories to packages. `exclude` and `sdists` map packages to
    reasons. `relax` maps packages to the selected version and the reason. `indexes` maps packages
    to names in `index_rows`.
    """

    name: str
    summary: str = "our image"
    like: bool = False
    requirements: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    names: Mapping[str, str] = {}
    exclude: Mapping[str, str] = {}
    relax: Mapping[str, tuple[str, str]] = {}
    sdists: Mapping[str, str] = {}
    indexes: Mapping[str, str] = {}
    index_rows: Mapping[str, PackageIndex] = {}
    cuda: str = ""
    gpu: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    as_of: datetime.date | None = None
    packages: tuple[RequestedPackage, ...] = ()
    system: tuple[str, ...] = ()
    files: tuple[tuple[Path, str], ...] = ()


class _BlockMapping(dict[str, Any]):
    """A mapping that is written with one line for each key."""


class _QuotingDumper(yaml.SafeDumper):
    """Writes strings in double quotes if YAML could misread them."""


def _text(writer: yaml.SafeDumper, text: str) -> yaml.Node:
    # YAML reads a bare `null` as no value, and `a: b` as a mapping.
    bare = BARE_SCALAR.fullmatch(text) and ": " not in text and yaml.safe_load(text) == text
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _list(writer: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    return writer.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


def _mapping(writer: yaml.SafeDumper, mapping: dict[str, Any]) -> yaml.Node:
    flow = not isinstance(mapping, _BlockMapping)
    return writer.represent_mapping("tag:yaml.org,2002:map", mapping.items(), flow_style=flow)


_QuotingDumper.add_representer(str, _text)
_QuotingDumper.add_representer(list, _list)
for kind in (dict, _BlockMapping):
    _QuotingDumper.add_representer(kind, _mapping)


def matrix_text(
    extension: WantedExtension, below: PublishedTarget, folder: str, origin: str, image: str
) -> str:
    """Return the text of a matrix for `extension`, with examples of further additions in comments.

    `folder` contains the copy of the published target `below`. `origin` is the source of the copy,
    and `image` the location of the target's layers, or "".
    """
    published = {"lock": folder, "from": origin} | ({"image": image} if image else {})
    first = {"like" if extension.like else "extends": below.name, "summary": extension.summary}
    row = {**first, **_declared_fields(extension), **_addition_fields(extension)}
    whole = {"version": 1, "published": {below.name: published}, "targets": {extension.name: row}}
    sdists = {name: {"reason": reason} for name, reason in extension.sdists.items()}
    rows = {
        name: _BlockMapping(_drop_defaults(index)) for name, index in extension.index_rows.items()
    }
    ends = {
        key: _BlockMapping(table) for key, table in (("indexes", rows), ("sdists", sdists)) if table
    }
    whole |= ends
    words = {
        "extends": quoting.comment_line(below.name),
        "as_of": quoting.comment_line(below.lock.as_of),
    }
    about = PROJECT if extension.requirements else EXTENSION
    parts = [HEAD, about, _entry(0, "version", 1), "\n"]
    parts += [_head(0, "published"), _head(1, below.name), COPIED_COMMENT]
    parts += [_entry(2, "lock", folder), _entry(2, "from", origin)]
    parts += (
        [_entry(2, "image", image)[:-1], LAYERS_COMMENT]
        if image
        else [NO_IMAGE_COMMENT.format(**words)]
    )
    parts += ["\n", _head(0, "targets"), _head(1, extension.name)]
    parts += [_entry(2, key, row[key]) for key in (*first, *_declared_fields(extension))]
    parts += [] if extension.like or extension.as_of else [AS_OF_COMMENT.format(**words)]
    parts += [_entry(2, key, row[key]) if key in row else other for key, other in EXAMPLES.items()]
    parts.append(ENV)
    for key, table in ends.items():
        parts += ["\n", LOGINS if key == "indexes" else "", _entry(0, key, table)]
    document = "".join(parts)
    if yaml.safe_load(document) != whole:
        message = f"cannot write the matrix of {extension.name} as YAML: {document!r}"
        raise InputError(message, hint="use plain names and paths")
    return document


def _declared_fields(extension: WantedExtension) -> dict[str, Any]:
    relax = {
        package: {**({"spec": f"=={version}"} if version else {}), "reason": reason}
        for package, (version, reason) in extension.relax.items()
    }
    values: Mapping[str, Any] = {
        "requirements": list(extension.requirements),
        "extras": list(extension.extras),
        "groups": list(extension.groups),
        "add": list(extension.add),
        "names": _BlockMapping(extension.names),
        "exclude": _BlockMapping(extension.exclude),
        "relax": _BlockMapping(relax),
        "indexes": _BlockMapping(extension.indexes),
        "cuda": extension.cuda,
        "gpu": list(extension.gpu),
        "arch": list(extension.arch),
        "as_of": extension.as_of,
    }
    return {key: value for key, value in values.items() if value}


def _addition_fields(extension: WantedExtension) -> dict[str, Any]:
    _refuse_extras(extension.packages)
    requires = {
        package.package: {**({"spec": package.spec} if package.spec else {}), "reason": REASON}
        for package in extension.packages
        if package.pin is None
    }
    pins = {package.package: package.pin for package in extension.packages if package.pin}
    files = {
        there: {"from": here.as_posix(), "mode": _mode(here)} for here, there in extension.files
    }
    rows: Mapping[str, Any] = {
        "requires": _BlockMapping(requires),
        "pins": _BlockMapping(pins),
        "packages": list(extension.system),
        "files": _BlockMapping(files),
    }
    return {key: value for key, value in rows.items() if value}


def _refuse_extras(packages: Sequence[RequestedPackage]) -> None:
    """Raise InputError for packages with extras or markers, which a row cannot contain."""
    for package in packages:
        if package.extras or package.marker:
            marker = f"; {package.marker}" if package.marker else ""
            message = (
                f"{package.name}{package.spec}{marker}: a row of a matrix can list only packages"
                " without extras and markers"
            )
            hint = (
                "write the line into a requirements file, or list the packages that the extra "
                "requires"
            )
            raise InputError(message, hint=hint)


def _mode(path: Path) -> str:
    return "0755" if path.stat().st_mode & 0o100 else "0644"


def target_lines(name: str, target: Target) -> list[str]:
    """Return the lines of `target` to insert below `targets:` in a matrix."""
    row = _drop_defaults(target)
    row |= {key: _BlockMapping(row[key]) for key in BLOCKS if key in row}
    parts = [_head(1, name), *(_entry(2, key, value) for key, value in row.items())]
    return "".join(parts).splitlines()


def index_lines(indexes: Mapping[str, PackageIndex]) -> list[str]:
    """Return the lines of indexes to insert below `indexes:` in a matrix."""
    rows = (
        _entry(1, name, _BlockMapping(_drop_defaults(index))) for name, index in indexes.items()
    )
    return "".join(rows).splitlines()


def _drop_defaults(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return {
                field.encode_name: _drop_defaults(item)
                for field in msgspec.structs.fields(value)
                if (item := getattr(value, field.name)) != field.default
                and (item or field.required)
            }
        case dict():
            return {str(key): _drop_defaults(item) for key, item in sorted(value.items())}
        case tuple():
            return [_drop_defaults(item) for item in value]
        case str():
            return str(value)
    return value


def _entry(depth: int, key: str, value: object) -> str:
    written = yaml.dump(
        _BlockMapping({key: value}), Dumper=_QuotingDumper, sort_keys=False, allow_unicode=True,
        default_flow_style=None, width=1 << 20,
    )  # fmt: skip
    return textwrap.indent(written, "  " * depth)


def _head(depth: int, key: str) -> str:
    return _entry(depth, key, None).removesuffix(" null\n") + "\n"
