"""The names of a C++ symbol under the other ABI of std::string (_GLIBCXX_USE_CXX11_ABI).

Findings use them to tell which symbol a library has instead.
Source: Itanium C++ ABI, section 5.1 (mangling); libstdc++ manual, "Dual ABI".
"""

from __future__ import annotations

from collections.abc import Iterator

OLD = "Ss"  # the abbreviation of std::string, as GCC before 5 laid it out
NEW = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def counterparts(symbol: str) -> Iterator[tuple[str, str]]:
    """Other names of the same function, each with a description of the difference.

    Only for a name with one such string: with several, the later ones are references to the
    first, and the whole name would have to be parsed.
    """
    if symbol.count(OLD) == 1 and NEW not in symbol:
        yield symbol.replace(OLD, NEW), "with the new std::string of C++11"
    if symbol.count(NEW) == 1:
        yield symbol.replace(NEW, OLD), "with the old std::string"
    # An integer that became signed or unsigned, as torch's line numbers did.
    if symbol.endswith("jb"):
        yield symbol[:-2] + "ib", "with an int in place of an unsigned int"
    if symbol.endswith("ib"):
        yield symbol[:-2] + "jb", "with an unsigned int in place of an int"
