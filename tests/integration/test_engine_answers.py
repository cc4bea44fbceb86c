"""Tests how unexpected responses of an engine's command are handled, with a stub of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.container import engine
from imgbuild.container.engine import Engine
from imgbuild.errors import WorkFailed

ERROR = "Error response from daemon: NotFound: content digest sha256:27: not found"
LAYER = "sha256:" + "2" * 64
IMAGE = json.dumps([{"Id": "sha256:" + "1" * 64, "RootFS": {"Layers": [LAYER]}}])


def listing(folder: Path, failures: int) -> Engine:
    """A stub of an engine whose first `image ls` fails because an image was removed."""
    program = folder / "docker"
    program.write_text(
        f"""#!/bin/sh
[ "$2" = inspect ] && echo '{IMAGE}' && exit
echo >>{folder}/calls
[ $(wc -l <{folder}/calls) -gt {failures} ] && echo sha256:1 && exit
echo '{ERROR}' >&2
exit 1
"""
    )
    program.chmod(0o755)
    return Engine(kind="docker", program=str(program), version="28", rootless=False)


def test_image_list_is_read_again_if_an_image_is_removed_meanwhile(tmp_path: Path) -> None:
    assert engine.diff_ids(listing(tmp_path, 1)) == {LAYER}


def test_repeated_error_of_the_image_list_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="content digest sha256:27: not found"):
        engine.diff_ids(listing(tmp_path, 2))
