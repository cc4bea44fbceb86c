"""Computes the name of a C++ symbol under the other ABI of std::string.

Findings contain this name if a library defines it instead. The ABI is set with
_GLIBCXX_USE_CXX11_ABI. Source: Itanium C++ ABI, section 5.1 (mangling); libstdc++ manual, "Dual
ABI".
"""

from __future__ import annotations

from collections.abc import Iterator

OLD_STRING = "Ss"  # the abbreviation of std::string, in the layout of GCC before 5
NEW_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def other_abi_names(symbol: str) -> Iterator[tuple[str, str]]:
    """Yield alternative names of a function, each with a description of the difference.

    Only names that contain std::string exactly once have alternatives. A second std::string would
    be encoded as a back-reference, which requires a full parser.
    """
    if symbol.count(OLD_STRING) == 1 and NEW_STRING not in symbol:
        yield symbol.replace(OLD_STRING, NEW_STRING), "with std::string of the C++11 ABI"
    if symbol.count(NEW_STRING) == 1:
        yield symbol.replace(NEW_STRING, OLD_STRING), "with std::string of the old ABI"
    # An integer that became signed or unsigned, as torch's line numbers did.
    if symbol.endswith("jb"):
        yield symbol[:-2] + "ib", "with int instead of unsigned int"
    if symbol.endswith("ib"):
        yield symbol[:-2] + "jb", "with unsigned int instead of int"
