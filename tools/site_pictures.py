#!/usr/bin/env python3
"""Writes pictures of the site to docs/pictures as PNG, drawn by Chromium.

    tools/site_pictures.py

The site is generated from this checkout. The pictures have three widths, in light and dark mode. No
test compares the pictures, because fonts differ between machines. Check them before you commit
them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser, browser  # noqa: E402 - of the repository

FOLDER = ROOT / "docs" / "pictures"
REGISTRY = "ghcr.io/example/rl-images"  # of the commands in the pictures


class SitePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A page with the width of the window and the height of the picture in CSS pixels.

    `fields` is the part of the URL that fills a form. `top` is the ID of the element at the top.
    """

    page: str
    width: int
    height: int
    dark: bool = False
    fields: str = ""
    top: str = ""


PICTURES = {
    "site-images.png": SitePicture(page="index.html", width=1600, height=1100),
    "site-matrix.png": SitePicture(page="matrix.html", width=1600, height=1250, dark=True),
    "site-image.png": SitePicture(page="targets/cu130-verl0.9.html", width=1600, height=1250),
    "site-layers.png": SitePicture(
        page="targets/cu130-verl0.9.html", width=1600, height=1150, dark=True, top="layers"
    ),
    "site-machine.png": SitePicture(
        page="machine.html", width=800, height=1000, fields="machine=A100%2C+driver+535"
    ),
    "site-tests.png": SitePicture(page="tests.html", width=800, height=900, dark=True, top="gpu-2"),
    "site-small.png": SitePicture(
        page="targets/cu130-verl0.9.html", width=360, height=900, dark=True
    ),
    "site-requirements.png": SitePicture(
        page="requirements.html", width=360, height=900, fields="requirements=vllm%3E%3D0.11%0Averl"
    ),
}


def draw_picture(window: Browser, site: Path, picture: SitePicture) -> bytes:
    """Return the PNG of a picture."""
    window.view(picture.width, picture.height, dark=picture.dark)
    window.open("about:blank")  # so that the form of another picture is not kept
    address = (site / picture.page).as_uri()
    window.open(f"{address}#{picture.fields}" if picture.fields else address)
    window.run("return window.imgbuildStarted.then(() => null)")
    if picture.top:
        window.run(f"document.getElementById({picture.top!r}).scrollIntoView()")
    return window.picture(whole=False)


def main(words: Sequence[str] | None = None) -> int:
    """Write the pictures, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        site = Path(folder) / "site"
        command = (sys.executable, "-m", "imgbuild", "site", "--documents")
        options = ("--output", str(site), "--registry", REGISTRY)
        subprocess.run([*command, *options], cwd=ROOT, check=True)
        for name, picture in PICTURES.items():
            (FOLDER / name).write_bytes(draw_picture(window, site, picture))
    return 0


if __name__ == "__main__":
    sys.exit(main())
