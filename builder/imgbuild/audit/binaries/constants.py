"""What the constants of a shared object or program say, its section .rodata."""

from __future__ import annotations

import posixpath
import re

OLD_NUMPY, NEW_NUMPY = b"numpy.core._multiarray_umath", b"numpy._core._multiarray_umath"
_ARCH = re.compile(rb"sm_\d{2,3}[af]?(?=\0)")


def numpy_api(constants: bytes) -> int:
    """The numpy a library was compiled for: 2 uses both names of its core, 1 only the old."""
    if NEW_NUMPY in constants:
        return 2
    return 1 if OLD_NUMPY in constants else 0


def is_assembler(file: str) -> bool:
    """Whether a program is an assembler of GPU code: ptxas, or Triton's ptxas-blackwell."""
    return posixpath.basename(file).startswith("ptxas")


def assembled(constants: bytes) -> tuple[str, ...]:
    """The architectures that an assembler knows, such as "sm_90a".

    A ptxas has each name of its option --gpu-name at the end of a string, since equal tails are
    stored once, and names of GPUs that it dropped (ptxas 12.4, 12.8 and 12.9).
    """
    return tuple(sorted({name.decode() for name in _ARCH.findall(constants)}))
