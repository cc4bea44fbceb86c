#!/usr/bin/env python3
"""Writes docs/pictures: terminal output of commands as SVG.

tools/pictures.py            write the pictures
    tools/pictures.py --check    exit with status 5 if the pictures are out of date

Each command of PICTURES runs in the repository on a separate terminal, and rich exports its output
as SVG. Pictures load no external resources.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
STALE = 5  # the exit status that imgbuild itself has for it
ROWS = 60
THEME = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
     (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65),
     (121, 192, 255), (210, 168, 255), (86, 212, 221), (240, 246, 252)],
)  # fmt: skip
# rich's default format uses fonts of another server.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- made by tools/pictures.py -->
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Picture(msgspec.Struct, frozen=True):
    """A command and the width of its terminal in columns."""

    command: str
    columns: int


PICTURES = {
    "list.svg": Picture("imgbuild list", 116),
    "show-layers.svg": Picture("imgbuild show cu130-verl0.9 --layers --arch x86_64", 100),
    "doctor.svg": Picture("imgbuild doctor --driver 535 --gpu A100", 100),
}


def draw_picture(picture: Picture) -> str:
    """Return the SVG of a picture."""
    text = Text.from_ansi(f"$ {picture.command}\n{run_for_picture(picture)}")
    console = Console(
        record=True,
        width=picture.columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        _environ={},
    )
    console.print(text, soft_wrap=True)
    svg = console.export_svg(
        title=picture.command, theme=THEME, code_format=FORMAT, unique_id="picture"
    )
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def run_for_picture(picture: Picture) -> str:
    """Return the output of the command on a terminal. Raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, picture.columns, 0, 0))
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8",
                   "HOME": "/nonexistent"}  # fmt: skip
    words = [sys.executable, "-m", "imgbuild", *shlex.split(picture.command)[1:]]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        chunks = []
        try:
            while chunk := os.read(ours, 1 << 16):
                chunks.append(chunk)
        except OSError:  # Linux ends a terminal with EIO
            pass
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, b"".join(chunks))
    return b"".join(chunks).decode().replace("\r\n", "\n")


def main(words: Sequence[str] | None = None) -> int:
    """Write or compare the pictures, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the pictures")
    options = parser.parse_args(words)
    stale = []
    for name, picture in PICTURES.items():
        text, path = draw_picture(picture), FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and options.check:
        print(f"stale: {', '.join(stale)}; run tools/pictures.py", file=sys.stderr)
        return STALE
    return 0


if __name__ == "__main__":
    sys.exit(main())
