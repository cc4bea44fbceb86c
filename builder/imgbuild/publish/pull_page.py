"""A Markdown page of the images in a registry: versions, sizes, and the commands that pull them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imgbuild.publish.listing import ListedTag, Listing
from imgbuild.system import quoting
from imgbuild.system.amounts import size_text

NAMED = ("torch", "vllm", "trl", "verl", "sglang")  # versions that the page has
_WORD = re.compile(r"[\w./:@-]+", re.ASCII)  # what a shell leaves as it is


def lines(listing: Listing) -> Iterator[str]:
    """The page. Each image of a target has its stable tag, its newest dated one and its digest.

    Images of no target, damaged ones, and names that a shell would change are left out.
    """
    entries = [entry for entry in listing.entries if entry.target and not entry.other]
    entries = [entry for entry in entries if _WORD.fullmatch(_tagged(entry))]
    if not entries:
        yield "No image of a target is published yet."
        return
    for number, entry in enumerate(sorted(entries, key=lambda each: each.target)):
        if number:
            yield ""
        yield from _entry(entry)


def _entry(entry: ListedTag) -> Iterator[str]:
    arches = ", ".join(
        f"{arch} ({size_text(platform.size)})"
        for arch, platform in sorted(entry.arch.items(), reverse=True)
    )
    versions = [f"{name} {entry.versions[name]}" for name in NAMED if name in entry.versions]
    yield f"### {quoting.markdown(entry.target)}"
    yield ""
    yield quoting.markdown(": ".join([arches, ", ".join(versions)] if versions else [arches]))
    yield ""
    yield "```console"
    yield f"$ docker pull {_tagged(entry)}"
    yield f"$ docker pull {entry.repository}@{entry.digest}"
    yield f"$ apptainer pull {_file(entry)}.sif docker://{entry.repository}@{entry.digest}"
    yield "```"


def _file(entry: ListedTag) -> str:
    """A name for a file: that of the target as far as every shell takes it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", entry.target)


def _tagged(entry: ListedTag) -> str:
    """The reference by tag: the target's own, else the first."""
    tag = entry.target if entry.target in entry.tags else entry.tags[0]
    return f"{entry.repository}:{tag}"
