"""The facts of a user's Python files, cached by content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.packages.library import pack, unpack
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.module import read_module
from imgbuild.cache.store import Store
from imgbuild.system.code_digest import code_digest
from imgbuild.system.workers import Workers
from imgbuild.values import sha256

KEPT = "code-modules"
WORTH = 2 << 20  # bytes of source for which starting processes pays
SHARE = 40  # files in one task


def read_facts(texts: Sequence[CodeText], store: Store) -> dict[str, ModuleFacts]:
    """File → facts, for the Python files among `texts`."""
    python = [text for text in texts if text.kind == "python"]
    if not python:
        return {}
    digests = {text.file: _digest(text) for text in python}
    key = f"{code_digest(__name__)} {sha256(chr(0).join(sorted(digests)).encode())}"
    data = store.fact(KEPT, key)
    kept = (unpack(data, dict[str, msgspec.Raw]) if data is not None else None) or {}
    missing = [text for text in python if digests[text.file] not in kept]
    if missing:
        encoded = _read_all(missing)
        kept = {digest: kept[digest] for digest in digests.values() if digest in kept}
        kept.update({digests[file]: msgspec.Raw(facts) for file, facts in encoded.items()})
        store.put_fact(KEPT, key, pack(kept))
    return {
        file: msgspec.msgpack.decode(kept[digest], type=ModuleFacts)
        for file, digest in digests.items()
    }


def _digest(text: CodeText) -> str:
    return sha256(f"{text.file}\0{text.module}\0".encode() + text.source)


def _read_all(texts: Sequence[CodeText]) -> dict[str, bytes]:
    """File → its facts as MessagePack."""
    processes = len(os.sched_getaffinity(0))
    if processes < 2 or sum(len(text.source) for text in texts) < WORTH:
        return read_texts(texts)
    workers = Workers(processes)
    facts: dict[str, bytes] = {}
    try:
        shares = [texts[start : start + SHARE] for start in range(0, len(texts), SHARE)]
        for result in [workers.submit(read_texts, share) for share in shares]:
            facts.update(result.result())
    finally:
        workers.close()
    return facts


def read_texts(texts: Sequence[CodeText]) -> dict[str, bytes]:
    """File → facts as MessagePack, read in this process."""
    return {
        text.file: msgspec.msgpack.encode(
            read_module(text.source, text.module, text.file, package=text.package, program=True)
        )
        for text in texts
    }


def texts_key(texts: Sequence[CodeText]) -> Mapping[str, str]:
    """File → the digest of its content."""
    return {text.file: _digest(text) for text in texts}
