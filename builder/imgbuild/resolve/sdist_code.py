"""What an sdist would compile, seen from its members, without running any of it."""

from __future__ import annotations

from typing import Literal

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.pages import IndexFile
from imgbuild.values import sha256
from imgbuild.wheel.sdist import entries

Code = Literal["python", "native", "cuda"]
FACT = "sdist-code-1"
LIMIT = 16 << 20  # bytes of an sdist that is looked into
SCRIPT_LIMIT = 1 << 20  # bytes of a setup.py that are read
CUDA_ENDINGS = (".cu", ".cuh")
NATIVE_ENDINGS = (".c", ".cc", ".cpp", ".cxx", ".pyx", ".f90", ".rs", "/Cargo.toml", "/meson.build")
CUDA_WORDS = (b"CUDAExtension", b"nvcc", b"cuda_home", b"CUDA_HOME")
NATIVE_WORDS = (b"ext_modules", b"CppExtension", b"rust_extensions", b"cffi_modules")


def compiled(file: IndexFile, context: Context) -> Code:
    """What building the sdist `file` compiles; "native" for one that cannot be looked into."""
    if file.size is not None and file.size > LIMIT:
        return "native"
    key = file.sha256 or file.url
    remembered = context.store.fact(FACT, key)
    if remembered in (b"python", b"native", b"cuda"):
        return remembered.decode()  # type: ignore[return-value]
    try:
        code = _read(file, context)
    except ImgbuildError as error:
        context.reporter.detail(f"{file.name}: {error.message}")
        return "native"
    context.store.put_fact(FACT, key, code.encode())
    return code


def _read(file: IndexFile, context: Context) -> Code:
    data = context.http.bytes(file.url)
    if file.sha256 is not None and sha256(data) != file.sha256:
        return "native"
    native = False
    with context.store.scratch() as scratch:
        path = scratch / "sdist"
        path.write_bytes(data)
        for member, content in entries(path, file.name):
            name = "/" + member.path.partition("/")[2]
            if member.kind != "file" or name.startswith(("/tests/", "/test/", "/docs/")):
                continue
            if name.endswith(CUDA_ENDINGS):
                return "cuda"
            native |= name.endswith(NATIVE_ENDINGS)
            if name == "/setup.py" and member.size <= SCRIPT_LIMIT:
                text = b"".join(content())
                if any(word in text for word in CUDA_WORDS):
                    return "cuda"
                native |= any(word in text for word in NATIVE_WORDS)
    return "native" if native else "python"
