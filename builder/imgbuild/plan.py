"""The image as a value: ordered layers, each with its inputs; configuration; no bytes yet.

Comes in: a lock and an architecture. Goes out: a `Plan`. A layer's id is the digest of the canonical
JSON of its recipe, in which a format number is raised by hand whenever its bytes would change.
"""

from __future__ import annotations

import msgspec

from imgbuild.matrix.model import User
from imgbuild.resolution import Deb, RegistryLayer, Wheel
from imgbuild.values import Arch, Digest

DEBIAN_FORMAT = 1
VENV_FORMAT = 1
WHEELS_FORMAT = 1
FILES_FORMAT = 1


class DebianRecipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="debian"):
    """A root file system of Debian packages with the effects of their scripts."""

    arch: Arch
    suite: str
    debs: tuple[Deb, ...]
    user: User


class RegistryRecipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="registry"):
    """A layer of a registry image. `image` says where to fetch it."""

    image: str
    layer: RegistryLayer


class VenvRecipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="venv"):
    """The empty virtual environment: pyvenv.cfg, links to the interpreter, activation script."""

    prefix: str
    python: str
    interpreter: str


class WheelsRecipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="wheels"):
    """Installed wheels, sorted by sha256. `omit` maps a package to the installed paths left out."""

    prefix: str
    python: str
    wheels: tuple[Wheel, ...]
    omit: dict[str, tuple[str, ...]] = {}


class FilesRecipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="files"):
    """imgbuild's own files: entry point, home, work and cache folders (and the user, on a registry base)."""

    settings_prefix: str
    user: User
    workdir: str
    cache: str


Recipe = DebianRecipe | RegistryRecipe | VenvRecipe | WheelsRecipe | FilesRecipe


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer to be: its name for people, its id, its recipe."""

    name: str
    id: Digest
    recipe: Recipe


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The run-time part of an image configuration. `created` is RFC 3339."""

    created: str
    user: str
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    labels: dict[str, str]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One image on one architecture, before any byte of it exists."""

    target: str
    arch: Arch
    layers: tuple[Layer, ...]
    config: Config
