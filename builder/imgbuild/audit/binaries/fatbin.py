"""Finds GPU code in libraries, fat binaries and cubins by magic number."""

# A separate module: a format.
from __future__ import annotations

import struct
from collections import Counter

from imgbuild.audit.source.facts import GpuCode

START = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # magic, version, bytes of the header
HEADER = struct.Struct("<IHHQ")  # and bytes of the entries
ENTRY = struct.Struct("<HHIQIIHHI")  # kind, _, header, payload, compressed, _, minor, major, arch
PTX, MACHINE_CODE = 1, 2
FLAGS_OFFSET = 40
ENTRY_NEEDS = 48
# Determined by compiling for sm_90, sm_90a, sm_100f and others with nvcc 13.0 and 12.4.
ONE_ARCH, ONE_FAMILY = 1 << 20, 1 << 21
ARCH_ABOVE = 8  # the ABI of machine code from which on its architecture is in the second byte


class FatbinScanner:
    """Scans a stream, piece by piece, for GPU code."""

    def __init__(self) -> None:
        self._codes: Counter[tuple[str, str]] = Counter()
        self._rest = b""
        self._at = 0  # the offset of the first byte of `_rest`
        self._entry = 0  # the offset of the next entry, within a fat binary
        self._end = 0  # where the fat binary ends

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the stream."""
        begin = self._at + len(self._rest)
        target = max(self._entry, begin) if self._entry < self._end else begin
        if target - begin >= len(piece) and not self._rest:
            self._at = begin + len(piece)
            return
        data = self._rest + piece
        offset = 0
        while True:
            if self._entry < self._end:
                offset = self._entry - self._at
                if offset + ENTRY_NEEDS > len(data):
                    break
                self._read_entry(data, offset)
                continue
            start = data.find(START, max(offset, self._end - self._at, 0))
            if start < 0:
                offset = max(len(data) - len(START) + 1, self._end - self._at)
                break
            offset = start
            if start + HEADER.size > len(data):
                break
            size = HEADER.unpack_from(data, start)[3]
            self._entry = self._at + start + HEADER.size
            self._end = self._entry + size
        offset = max(0, min(offset, len(data)))
        self._rest = data[offset:]
        self._at += offset

    def _read_entry(self, data: bytes, offset: int) -> None:
        kind, _, header, payload, _, _, minor, major, arch = ENTRY.unpack_from(data, offset)
        if kind not in (PTX, MACHINE_CODE) or header < 32 or not 20 <= arch <= 999:
            self._end = self._entry  # no entry: this is padding, or not a fat binary
            return
        (flags,) = struct.unpack_from("<Q", data, offset + FLAGS_OFFSET)
        # Only this architecture, its family, or also later ones.
        suffix = "a" if flags & ONE_ARCH else "f" if flags & ONE_FAMILY else ""
        if kind == PTX:
            self._codes[f"compute_{arch}{suffix}", f"{major}.{minor}"] += 1
        else:
            self._codes[f"sm_{arch}{suffix}", ""] += 1
        self._entry += header + payload

    def gpu_codes(self) -> tuple[GpuCode, ...]:
        """Return all GPU code in the pieces so far, sorted."""
        return tuple(
            GpuCode(arch, ptx, units) for (arch, ptx), units in sorted(self._codes.items())
        )


def cubin_arch(flags: int, abi: int) -> str:
    """Return the architecture of a cubin, from the flags and ABI in the ELF header.

    The header does not contain the suffix ("a" or "f"), so the architecture has none.
    """
    return f"sm_{flags >> 8 & 0xFF if abi >= ARCH_ABOVE else flags & 0xFF}"
