"""Determines from tags (manylinux, abi3, cp311) which wheels are compatible, and ranks them.

The order is the same as in pip and uv: the most specific tag is first.
"""

from __future__ import annotations

from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag
from packaging.utils import parse_wheel_filename

from imgbuild.values import Arch, environment_markers

# The oldest glibc that a wheel tag can name, and PEP 513/571/599's names for three of them.
OLDEST_GLIBC_MINOR = {Arch.X86_64: 5, Arch.ARM64: 17}
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def platform_tags(glibc: str, arch: Arch) -> list[str]:
    """Return the platform tags for glibc `glibc` ("2.36") on `arch`, most specific first."""
    newest = int(glibc.split(".")[1])
    platform_tags = [f"linux_{arch.wheel}"]  # first, as in packaging: built for this machine
    for minor in range(newest, OLDEST_GLIBC_MINOR[arch] - 1, -1):
        platform_tags.append(f"manylinux_2_{minor}_{arch.wheel}")
        if minor in LEGACY:
            platform_tags.append(f"{LEGACY[minor]}_{arch.wheel}")
    return platform_tags


class WheelTags:
    """The wheel tags of a target for one architecture. `python` is "3.11" or "3.11.9"."""

    def __init__(self, *, python: str, glibc: str, arch: Arch) -> None:
        self.python = python
        self.glibc = glibc
        self.arch = arch
        major, minor = (int(part) for part in python.split(".")[:2])
        plain = f"cp{major}{minor}"
        system = platform_tags(glibc, arch)
        every = [
            *cpython_tags((major, minor), abis=[plain], platforms=system),
            *compatible_tags((major, minor), interpreter=plain, platforms=system),
        ]
        self._ranks: dict[Tag, int] = {}
        for rank, tag in enumerate(every):
            self._ranks.setdefault(tag, rank)
        self._known: dict[str, tuple[int, int, str] | None] = {}  # file name → rank
        self._of_tags: dict[str, int | None] = {}  # the tags of a file name → the first rank

    def rank_wheel(self, name: str) -> tuple[int, int, str] | None:
        """Return a key that sorts the preferred wheel first, or None if the wheel is incompatible.

        The key consists of the tag, the build number and the name.
        """
        if name not in self._known:
            self._known[name] = self._rank(name)
        return self._known[name]

    def _rank(self, name: str) -> tuple[int, int, str] | None:
        tags = "-".join(name.removesuffix(".whl").split("-")[-3:])  # the same in many names
        try:
            if tags not in self._of_tags:
                ranks = (self._ranks[tag] for tag in parse_tag(tags) if tag in self._ranks)
                self._of_tags[tags] = min(ranks, default=None)
            first = self._of_tags[tags]
            build = parse_wheel_filename(name)[2] if first is not None else ()
        except ValueError:  # InvalidWheelFilename is one, and so is a number of 5,000 digits
            return None
        return (first, -(build[0] if build else 0), name) if first is not None else None

    def is_compatible(self, name: str) -> bool:
        """Return whether a wheel with this file name can be installed."""
        return self.rank_wheel(name) is not None

    @property
    def uv_platform(self) -> str:
        """The value of uv's `--python-platform`. uv supports glibc 2.17, 2.28 and 2.31 to 2.40."""
        minors = (17, 28, *range(31, 41))
        newest = max(minor for minor in minors if minor <= max(17, int(self.glibc.split(".")[1])))
        return f"{self.arch.wheel}-manylinux_2_{newest}"

    @property
    def markers(self) -> dict[str, str]:
        """The values of environment markers (PEP 508) for the target."""
        return environment_markers(self.python, self.arch)
