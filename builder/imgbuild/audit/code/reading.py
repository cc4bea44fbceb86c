"""Reads and caches the facts of a user's Python files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from imgbuild.audit.code.file_cache import FileCache, decode_value
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.summaries import Summary, summarize_module
from imgbuild.audit.code.variable_settings import FileVariables, file_variables
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.module import read_module
from imgbuild.cache.store import Store
from imgbuild.system.code_digest import code_digest
from imgbuild.system.collector import pause_collector
from imgbuild.system.forked import processor_count
from imgbuild.system.workers import WorkerPool
from imgbuild.values import sha256

MODULES_FACT = "code-modules"
SUMMARIES = "code-summaries"
PARALLEL_MINIMUM = 2 << 20  # bytes of source from which on processes are started
SHARE = 40  # files in one task


class CodeFacts(Mapping[str, ModuleFacts]):
    """Reads facts of the Python files in `texts`, by file.

    `summaries` maps files to summaries.
    """

    def __init__(self, texts: Sequence[CodeText], store: Store, place: str = "") -> None:
        """Read the files whose summaries are not cached. For `place`, see `FileCache`."""
        self._texts = {text.file: text for text in texts if text.kind == "python"}
        self._facts: dict[str, ModuleFacts] = {}
        self.summaries: dict[str, Summary] = {}
        reader = code_digest(__name__) if self._texts else ""
        python = list(self._texts.values())
        self._modules = FileCache(store, MODULES_FACT, reader, python, place)
        self._summaries = FileCache(store, SUMMARIES, reader, python, place)
        self.digests = {file: text_digest(text) for file, text in self._texts.items()}
        for file, key in self.digests.items():
            data = self._summaries.read(file, key)
            cached = decode_value(data, Summary) if data is not None else None
            if cached is not None:
                self.summaries[file] = cached
        self._store_facts(_read_all([t for f, t in self._texts.items() if f not in self.summaries]))

    def variables(self) -> Mapping[str, FileVariables]:
        """Map each file to the environment variables that it sets and reads."""
        return {file: each.variables for file, each in self.summaries.items()}

    def _store_facts(self, read: Mapping[str, tuple[bytes, Summary]]) -> None:
        for file, (encoded, file_summary) in read.items():
            self._facts[file] = msgspec.msgpack.decode(encoded, type=ModuleFacts)
            self.summaries[file] = file_summary
            self._modules.write(file, self.digests[file], encoded)
            summarized = msgspec.msgpack.encode(file_summary)
            self._summaries.write(file, self.digests[file], summarized)
        self._modules.save()
        self._summaries.save()

    def __getitem__(self, file: str) -> ModuleFacts:
        """Return the facts of a file, from the cache if possible."""
        if file not in self._facts:
            data = self._modules.read(file, self.digests[file])
            cached = decode_value(data, ModuleFacts) if data is not None else None
            if cached is not None:
                self._facts[file] = cached
            else:
                self._store_facts(read_texts([self._texts[file]]))
        return self._facts[file]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def text_digest(text: CodeText) -> str:
    """Return a digest of the name, module and content of a file."""
    content = (f"{text.file}\0{text.module}".encode(), text.source, text.commands)
    return sha256(b"\0".join(content))


def _read_all(texts: Sequence[CodeText]) -> dict[str, tuple[bytes, Summary]]:
    """Map each file to its facts (as MessagePack) and its summary."""
    processes = processor_count()
    if processes < 2 or sum(len(text.source) for text in texts) < PARALLEL_MINIMUM:
        return read_texts(texts)
    workers = WorkerPool(processes)
    facts: dict[str, tuple[bytes, Summary]] = {}
    try:
        shares = [texts[start : start + SHARE] for start in range(0, len(texts), SHARE)]
        for result in [workers.submit_call(read_texts, share) for share in shares]:
            facts.update(result.result())
    finally:
        workers.close()
    return facts


def read_texts(texts: Sequence[CodeText]) -> dict[str, tuple[bytes, Summary]]:
    """Map each file to its facts (as MessagePack) and its summary, read in this process."""
    read: dict[str, tuple[bytes, Summary]] = {}
    with pause_collector():
        for text in texts:
            facts = read_module(
                text.source, text.module, text.file, package=text.package, program=True
            )
            read[text.file] = (
                msgspec.msgpack.encode(facts),
                summarize_module(facts, file_variables(text)),
            )
    return read


def texts_key(texts: Sequence[CodeText]) -> Mapping[str, str]:
    """Map each file to the digest of its content."""
    return {text.file: text_digest(text) for text in texts}
