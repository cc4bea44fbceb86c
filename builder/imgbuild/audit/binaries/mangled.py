"""The names of a C++ symbol under the other ABI of std::string (_GLIBCXX_USE_CXX11_ABI).

Findings use them to name the symbol that a library has instead. Source: Itanium C++ ABI, section
5.1 (mangling); libstdc++ manual, "Dual ABI".
"""

from __future__ import annotations

from collections.abc import Iterator

OLD = "Ss"  # the abbreviation of std::string, as GCC before 5 laid it out
NEW = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def counterparts(symbol: str) -> Iterator[tuple[str, str]]:
    """Alternative names of the same function, each with a description of the difference.

    Only for names with one such string: in others, later occurrences are back-references, which
    would require a full parser.
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
