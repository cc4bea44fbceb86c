"""The facts of a user's Python files, each cached by its content."""

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
    reader = code_digest(__name__)
    keys = {text.file: f"{reader} {digest(text)}" for text in python}
    facts: dict[str, ModuleFacts] = {}
    missing = []
    for text in python:
        data = store.fact(KEPT, keys[text.file])
        kept = unpack(data, ModuleFacts) if data is not None else None
        if kept is None:
            missing.append(text)
        else:
            facts[text.file] = kept
    for file, encoded in _read_all(missing).items():
        facts[file] = msgspec.msgpack.decode(encoded, type=ModuleFacts)
        store.put_fact(KEPT, keys[file], pack(msgspec.Raw(encoded)))
    return facts


def digest(text: CodeText) -> str:
    """The digest of a file's name, module and content."""
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
    return {text.file: digest(text) for text in texts}
