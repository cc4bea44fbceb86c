"""Creates archives of a standalone Python in the layout of python-build-standalone.

- `pack_archive` creates an archive of given files.
- `debian_archive` archives the interpreter of this machine, which is not linked with libpython.
- `pyenv_archive` archives a version of pyenv, after replacing the absolute path of its libpython
  in the interpreter with a relative path.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

DEBIAN = "3.11"
SYSCONFIG = "_sysconfigdata__linux_x86_64-linux-gnu.py"
# The header of an ELF program for x86_64 without segments or sections.
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + bytes(44)
Entry = bytes | str | tarfile.TarInfo  # content, link target, or another member


def sample_entries(python: str = "3.12", patch: str = "3.12.11") -> dict[str, Entry]:
    """A minimal archive. Its program cannot run."""
    lib = f"python/lib/python{python}"
    variables = {
        "prefix": "/install", "BINDIR": "/install/bin", "CC": "/tools/llvm/bin/clang -pthread",
        "CXX": "clang++", "AR": "/tools/llvm/bin/llvm-ar", "SIZEOF_VOID_P": 8,
        "CFLAGS": "-O3 -fdebug-default-version=4 -I/install/include -flto=thin",
    }  # fmt: skip
    return {
        f"python/bin/python{python}": ELF + b"program",
        "python/bin/python3": f"python{python}",
        f"python/bin/python{python}-config": b"#!/bin/sh\nprefix=/install\n",
        f"python/bin/pip{python}": b"#!/install/bin/python3\n",
        f"python/include/python{python}/Python.h": b"/* headers */\n",
        f"python/include/python{python}/patchlevel.h": f'#define PY_VERSION "{patch}"\n'.encode(),
        f"{lib}/os.py": b"# the standard library\n",
        f"{lib}/LICENSE.txt": b"PSF\n",
        f"{lib}/{SYSCONFIG}": f"build_time_vars = {variables!r}\n".encode(),
        f"{lib}/test/test_os.py": b"# a test\n",
        f"{lib}/__pycache__/os.cpython-312.pyc": b"bytecode",
        f"{lib}/site-packages/pip/__init__.py": b"",
        "python/lib/pkgconfig/python3.pc": b"prefix=/install\nlibdir=${prefix}/lib\n",
        f"{lib}/tkinter/__init__.py": b"import _tkinter\n",
        f"{lib}/lib-dynload/_tkinter.cpython-312-x86_64-linux-gnu.so": b"\x7fELF",
        "python/lib/libtcl9.0.so": b"\x7fELF",
        "python/lib/tk9.0/tk.tcl": b"# Tk\n",
        "python/lib/libpython3.so": b"\x7fELF",
        "python/lib/libpython.a": b"static",
    }


def pack_archive(entries: Mapping[str, Entry]) -> bytes:
    """The archive of `entries` in the given order. Entries are by path."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=1) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, entry in entries.items():
            info = entry if isinstance(entry, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if isinstance(entry, str):
                info.type, info.linkname = tarfile.SYMTYPE, entry
            elif isinstance(entry, bytes):
                info.size, info.mode = len(entry), 0o755 if "/bin/" in name else 0o644
            tar.addfile(info, io.BytesIO(entry if isinstance(entry, bytes) else b""))
    return buffer.getvalue()


def debian_archive() -> bytes:
    """The archive of /usr/bin/python3.11 of this machine, with its library and headers."""
    entries: dict[str, Entry] = {}
    for folder in (f"lib/python{DEBIAN}", f"include/python{DEBIAN}"):
        entries |= dict(_files(Path("/usr", folder), f"python/{folder}"))
    # Debian's pyconfig.h includes that of the architecture, by its path below /usr/include.
    config = f"x86_64-linux-gnu/python{DEBIAN}/pyconfig.h"
    place = f"python/include/python{DEBIAN}/{config}"
    entries[place] = Path("/usr/include", config).read_bytes()
    entries[f"python/bin/python{DEBIAN}"] = Path(f"/usr/bin/python{DEBIAN}").read_bytes()
    return pack_archive(entries)


def pyenv_archive(folder: Path) -> bytes:
    """The archive of the version of pyenv in `folder`, relocatable."""
    name = f"python{'.'.join(folder.name.split('.')[:2])}"
    entries: dict[str, Entry] = {}
    for part in ("lib", "include"):
        entries |= dict(_files(folder / part, f"python/{part}"))
    program = (folder / "bin" / name).read_bytes()
    built = f"{folder}/lib\0".encode()
    relative = b"$ORIGIN/../lib".ljust(len(built), b"\0")
    assert built in program
    entries[f"python/bin/{name}"] = program.replace(built, relative)
    return pack_archive(entries)


def _files(folder: Path, below: str) -> Iterable[tuple[str, Entry]]:
    """The files and links of a folder by path; links out of the folder become files."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if {"__pycache__", "test", "tests", "site-packages", "idlelib"} & set(parts):
            continue
        name = "/".join((below, *parts))
        if path.is_symlink() and not Path(path.readlink()).is_absolute() and (
            path.resolve().is_relative_to(folder.resolve())
        ):  # fmt: skip
            yield name, str(path.readlink())
        elif path.is_file() and path.suffix != ".a":
            yield name, path.read_bytes()
