"""What an sdist would compile, seen from its members, without running any of it."""

from __future__ import annotations

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.pages import IndexFile
from imgbuild.solve import native_code
from imgbuild.solve.native_code import Code
from imgbuild.values import sha256
from imgbuild.wheel.sdist import entries

FACT = "sdist-code-2"
LIMIT = 16 << 20  # bytes of an sdist that is looked into
TEXT_LIMIT = 1 << 20  # bytes of a file that is read


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
    names: list[str] = []
    texts: dict[str, str] = {}
    with context.store.scratch() as scratch:
        path = scratch / "sdist"
        path.write_bytes(data)
        for member, content in entries(path, file.name):
            name = member.path.partition("/")[2]
            if member.kind == "file":
                names.append(name)
                if name in native_code.TEXTS and member.size <= TEXT_LIMIT:
                    texts[name] = b"".join(content()).decode("utf-8", "replace")
    return native_code.code_of(names, texts)
