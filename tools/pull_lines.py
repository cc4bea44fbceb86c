#!/usr/bin/env python3
"""Writes commands into README.md that pull the images of a registry.

    tools/pull_lines.py ghcr.io/OWNER/REPOSITORY    write the commands
    tools/pull_lines.py                             write the text of a checkout without a registry

The text is between the comments `pull` and `/pull`. A README without these comments is not changed.
The recommended targets are listed, or all targets if no recommended target is published. A change
is printed as one line. The workflow update.yml runs this tool, and adds the line to its pull
request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from imgbuild.errors import ImgbuildError
from imgbuild.lock import published
from imgbuild.matrix.project_paths import find_project
from imgbuild.publish import listing, pull_page
from imgbuild.registry import image_reference
from imgbuild.registry.client import RegistryClient

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- pull -->", "<!-- /pull -->"
NOTE = "<!-- made by tools/pull_lines.py, by update.yml for the registry of its repository -->"
NO_REGISTRY_TEXT = """\
Where workflows publish the images of a repository, `imgbuild registry ls HOST/REPOSITORY --format
markdown` prints the `docker pull` and `apptainer pull` lines of each. The workflow `update` of a
[fork](docs/howto/publish.md) writes those of its own registry into this place."""


def pull_block(place: str, recommended: Sequence[str]) -> list[str] | None:
    """Return the text for the images in `place`, or None if it contains no image of a target."""
    client = RegistryClient()
    images = listing.list_images(client, [image_reference.parse_repository(place)])
    return pull_page.brief_commands(images, recommended)


def replace_block(text: str, lines: Sequence[str]) -> str | None:
    """Replace the lines between BEGIN and END in `text`.

    Returns None if these comments are missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return "".join((before, "\n".join((BEGIN, NOTE, "", *lines, "", END)), after))


def main(words: Sequence[str] | None = None) -> int:
    """Write the text. Returns exit status 1 if the registry cannot be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("place", nargs="?", metavar="REGISTRY/REPOSITORY")
    options = parser.parse_args(words)
    matrix = published.load_matrix(find_project(ROOT).matrix)
    recommended = [name for name, target in matrix.targets.items() if target.recommended]
    try:
        lines = pull_block(options.place, recommended) if options.place else None
    except ImgbuildError as error:
        print(f"README.md is unchanged: {error.message}", file=sys.stderr)
        return 1
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    changed = replace_block(text, lines or [NO_REGISTRY_TEXT])
    if changed is None:
        print(f"README.md is unchanged: it has no comments {BEGIN} and {END}", file=sys.stderr)
    elif changed != text:
        path.write_text(changed, encoding="utf-8")
        print("\nREADME.md: the commands that pull the published images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
