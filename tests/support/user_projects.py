"""Creates small user projects with files of each type, and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imgbuild import codec
from imgbuild.errors import InputError, InputProblem
from imgbuild.project.model import Declarations
from imgbuild.project.read import read_declared


def write_project(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write the files of a project and return its folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def read_declarations(
    folder: Path,
    files: Mapping[str, str | bytes],
    *names: str,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> Declarations:
    """The declarations of a project with `files`, read from all or from the named files."""
    return read_declared(write_project(folder, files), names, extras=extras, groups=groups)


def reported_problems(
    folder: Path, files: Mapping[str, str | bytes], *names: str
) -> tuple[InputProblem, ...]:
    """The problems reported for a project with `files`."""
    with pytest.raises(InputError) as caught:
        read_declared(write_project(folder, files), names)
    assert all(str(problem) in caught.value.message for problem in caught.value.problems)
    return caught.value.problems


def requirement_texts(result: Declarations, kind: str = "requirement") -> list[str]:
    """The texts of the requirements of a kind, in order."""
    return [each.text for each in result.requirements if each.kind == kind]


def unread_reasons(result: Declarations) -> dict[str, str]:
    """The reason for each text that was not read."""
    return {each.text: each.reason for each in result.not_read}


def golden_text(result: Declarations) -> str:
    """The declarations in the format of a golden file, with locations as FILE:LINE."""
    return codec.encode(_brief(msgspec.to_builtins(result))).decode()


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"file", "line"}:
            return f"{value['file']}:{value['line']}" if value["line"] else value["file"]
        kept = {
            key: _brief(each) for key, each in value.items() if each not in ("", [], (), {}, None)
        }
        return {key: each for key, each in kept.items() if each is not False}
    return [_brief(each) for each in value] if isinstance(value, list | tuple) else value
