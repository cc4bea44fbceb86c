"""Reads and caches the facts of a user's Python files. Each file is parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from imgbuild.audit.code.commands import python_commands
from imgbuild.audit.code.file_cache import FileCache, decode_value
from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.option_settings import OptionUse, file_options
from imgbuild.audit.code.shell import Command
from imgbuild.audit.code.summaries import Summary, summarize_module
from imgbuild.audit.code.variable_settings import FileVariables, file_variables
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.module import read_module
from imgbuild.cache.store import Store
from imgbuild.system import decoding, forked
from imgbuild.system.code_digest import code_digest
from imgbuild.system.collector import pause_collector
from imgbuild.values import sha256

MODULES_FACT = "code-modules"
SUMMARIES = "code-summaries"
SHARE = 256 << 10  # bytes of source that are worth a share of a process
Uses = tuple[FileVariables, tuple[OptionUse, ...], tuple[Command, ...]]
ReadFile = tuple[bytes, Summary]  # the facts of a file as MessagePack, and its summary


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

    def _store_facts(self, read: Mapping[str, ReadFile]) -> None:
        for file, (encoded, summary) in read.items():
            self.summaries[file] = summary
            self._modules.write(file, self.digests[file], encoded)
            self._summaries.write(file, self.digests[file], msgspec.msgpack.encode(summary))
        self._modules.save()
        self._summaries.save()

    def __getitem__(self, file: str) -> ModuleFacts:
        """Return the facts of a file, from the cache if possible."""
        if file not in self._facts:
            data = self._modules.read(file, self.digests[file])
            facts = decode_value(data, ModuleFacts) if data is not None else None
            if facts is None:
                read = _read_texts([self._texts[file]])
                self._store_facts(read)
                facts = decoding.decode_msgpack(read[file][0], ModuleFacts)
            self._facts[file] = facts
        return self._facts[file]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def text_digest(text: CodeText) -> str:
    """Return a digest of the name, module and content of a file."""
    content = (f"{text.file}\0{text.module}\0{text.broken}".encode(), text.source, text.commands)
    return sha256(b"\0".join(content))


def _read_all(texts: Sequence[CodeText]) -> dict[str, ReadFile]:
    """Read files in several processes. Maps each file to its facts and summary."""
    processes = forked.copy_limit()
    shares = forked.split_shares(texts, lambda text: len(text.source), processes, SHARE)

    def _read_shares(shares: Iterable[Sequence[CodeText]]) -> dict[str, ReadFile]:
        return _read_texts(text for share in shares for text in share)

    read, copies = forked.compute_shares(
        shares, _read_shares, lambda each: msgspec.msgpack.encode(_read_shares(each)), processes
    )
    for data in copies:
        read |= decoding.decode_msgpack(data or b"\x80", dict[str, ReadFile])
    return read | _read_texts(text for text in texts if text.file not in read)


def _read_texts(texts: Iterable[CodeText]) -> dict[str, ReadFile]:
    with pause_collector():
        return {text.file: _read_text(text) for text in texts}


def _read_text(text: CodeText) -> ReadFile:
    uses: Uses | None = None

    def _look(tree: ast.Module) -> None:
        nonlocal uses
        uses = _read_uses(text, tree)

    facts = read_module(
        text.source, text.module, text.file, package=text.package, program=True, look=_look
    )
    summary = summarize_module(facts, *(uses or _read_uses(text, None)))
    return msgspec.msgpack.encode(facts), summary


def _read_uses(text: CodeText, tree: ast.Module | None) -> Uses:
    commands = tuple(python_commands(text.source, tree)) if tree is not None else ()
    return file_variables(text, tree), file_options(text, tree), commands


def texts_key(texts: Sequence[CodeText]) -> Mapping[str, str]:
    """Map each file to the digest of its content."""
    return {text.file: text_digest(text) for text in texts}
