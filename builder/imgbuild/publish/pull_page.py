"""Writes a Markdown page that lists the images in a registry, with commands to pull them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from imgbuild.publish.listing import ListedTag, RegistryListing
from imgbuild.system import quoting
from imgbuild.system.amounts import format_count, size_text

NAMED_PACKAGES = ("torch", "vllm", "trl", "verl", "sglang")  # versions that the page has
_WORD = re.compile(r"[\w./:@-]+", re.ASCII)  # text that a shell does not change


def page_lines(listing: RegistryListing) -> Iterator[str]:
    """Yield the lines of the page.

    Each image has a stable tag, the newest dated tag and the digest.

    Images without a target, damaged images, and names that need quoting in a shell are omitted.
    """
    entries = _shown_images(listing)
    if not entries:
        yield "No image of a target is published yet."
        return
    for number, entry in enumerate(entries):
        if number:
            yield ""
        yield from _entry(entry)


def brief_commands(listing: RegistryListing, first: Sequence[str]) -> list[str] | None:
    """Return Markdown with commands that pull the targets in `first`, or all targets.

    Returns None if no target is published. A comment marks the commands, so that tests of the
    documentation do not run them.
    """
    entries = {entry.target: entry for entry in sorted(_shown_images(listing), key=_age)}
    if not entries:
        return None
    chosen = [entries[name] for name in first if name in entries] or [*entries.values()]
    more = len(entries) - len(chosen)
    rest = f", and commands for {format_count(more, 'more target')}" if more else ""
    listed = f"`imgbuild registry ls {chosen[0].repository} --format markdown`"
    return [
        "<!-- not run: needs GitHub -->",
        "```console",
        *(f"$ docker pull {_tagged_reference(entry)}" for entry in chosen),
        *(
            f"$ apptainer pull {_file(entry)}.sif docker://{_tagged_reference(entry)}"
            for entry in chosen
        ),
        "```",
        "",
        f"{listed} prints these commands with digests{rest}.",
    ]


def _age(entry: ListedTag) -> tuple[bool, str]:
    """Return a sort key for a target's images, which sorts by age with the stable tag last."""
    return entry.target in entry.tags, max(entry.dates, default="")


def _shown_images(listing: RegistryListing) -> list[ListedTag]:
    """Return the intact images by target, except those with names that need quoting in a shell."""
    entries = [entry for entry in listing.entries if entry.target and not entry.other]
    safe = [entry for entry in entries if _WORD.fullmatch(_tagged_reference(entry))]
    return sorted(safe, key=lambda each: each.target)


def _entry(entry: ListedTag) -> Iterator[str]:
    arches = ", ".join(
        f"{arch} ({size_text(platform.size)})"
        for arch, platform in sorted(entry.arch.items(), reverse=True)
    )
    versions = [
        f"{name} {entry.versions[name]}" for name in NAMED_PACKAGES if name in entry.versions
    ]
    yield f"### {quoting.markdown_cell(entry.target)}"
    yield ""
    yield quoting.markdown_cell(": ".join([arches, ", ".join(versions)] if versions else [arches]))
    yield ""
    yield "```console"
    yield f"$ docker pull {_tagged_reference(entry)}"
    yield f"$ docker pull {entry.repository}@{entry.digest}"
    yield f"$ apptainer pull {_file(entry)}.sif docker://{entry.repository}@{entry.digest}"
    yield "```"


def _file(entry: ListedTag) -> str:
    """Return a file name based on the target, without characters that need quoting in a shell."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", entry.target)


def _tagged_reference(entry: ListedTag) -> str:
    tag = entry.target if entry.target in entry.tags else entry.tags[0]
    return f"{entry.repository}:{tag}"
