"""Creates small valid ELF files for x86_64: with a dynamic section, a dynamic linker, constants."""

from __future__ import annotations

import struct

NEEDED, SONAME = 1, 14  # tags of the dynamic section


def elf_file(tag: int, name: str) -> bytes:
    """An ELF file whose dynamic section has `name` under `tag`, unless `name` is empty."""
    strings = b"\0" + name.encode() + b"\0"
    tags = [(tag, 1)] if name else []
    start = 64 + 2 * 56
    dynamic_size = (len(tags) + 3) * 16
    tags += [(5, start + dynamic_size), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    size = start + len(dynamic) + len(strings)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    segment = struct.pack("<IIQQQQQQ", 2, 4, start, start, start, len(dynamic), len(dynamic), 8)
    return head + load + segment + dynamic + strings


def elf_with_linker(path: str) -> bytes:
    """An ELF file that requires the dynamic linker at `path`, without a dynamic section."""
    name = path.encode() + b"\0"
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 3, 4, 120, 120, 120, len(name), len(name), 1)
    return head + segment + name


def elf_with_constants(*constants: str) -> bytes:
    """An ELF file whose section .rodata has these strings, without a dynamic section."""
    names = b"\0.rodata\0.shstrtab\0"
    text = b"\0" + b"".join(constant.encode() + b"\0" for constant in constants)
    start = 64 + len(names) + len(text)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, start, 0, 64, 0, 0, 64, 3, 2)
    sections = [(1, 1, 64 + len(names), len(text)), (9, 3, 64, len(names))]
    table = bytes(64) + b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)
        for name, kind, offset, size in sections
    )
    return head + names + text + table
