"""Creates the wheel of an editable package from metadata, scripts and code folders.

The code is not in the wheel. It is mounted when a container starts. The bytes of the wheel depend
only on the arguments.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

ENTRY_TIME = (1980, 1, 1, 0, 0, 0)  # the oldest time of a zip file: no time is recorded
GENERATOR = "imgbuild"


def file_name(name: str, version: str) -> str:
    """Return the file name of the wheel of package `name`."""
    return f"{canonicalize_name(name).replace('-', '_')}-{version}-py3-none-any.whl"


def create_editable_wheel(
    name: str,
    version: str,
    *,
    roots: Sequence[str],
    scripts: Mapping[str, str],
    requires: Sequence[str],
    python: str,
) -> bytes:
    """Return the wheel of package `name` with modules in the absolute folders `roots`.

    `scripts` maps console scripts to `module:function`. `requires` are PEP 508 lines, and `python`
    is a specifier for supported Python versions, or "".
    """
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    metadata += [f"Requires-Python: {python}\n"] if python else []
    metadata += [f"Requires-Dist: {line}\n" for line in requires]
    files = {
        f"__editable__.{stem}.pth": "".join(f"{root}\n" for root in roots),
        f"{info}/METADATA": "".join(metadata),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: {GENERATOR}\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    if scripts:
        lines = [f"{script} = {place}\n" for script, place in sorted(scripts.items())]
        files[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "".join(lines)
    record = [_record(path, text.encode()) for path, text in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, text in files.items():
            member = zipfile.ZipInfo(path, ENTRY_TIME)
            member.external_attr = 0o100644 << 16
            member.create_system = 3  # Unix, whatever machine this is
            archive.writestr(member, text.encode())
    return buffer.getvalue()


def _record(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"
