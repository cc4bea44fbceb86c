"""Adapts `_sysconfigdata_*.py` of a standalone build to images.

The module assigns a dictionary to `build_time_vars`. The values contain the folder and the
compilers of the build, and an image has neither. Sources: Lib/sysconfig of CPython, and
python-build-standalone's relocatable form, in which values are f-strings with `installed_base`.
"""

# A separate module: a file format.
from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from imgbuild.system.syntax import parse_source

INSTALL_PREFIX = "/install"  # where python-build-standalone installs
VARIABLE = "build_time_vars"
BASE = "installed_base"
COMPILERS = ("BLDSHARED", "CC", "CXX", "LDCXXSHARED", "LDSHARED", "LINKCC", "MAINCC")
TOOLS = ("AR", "RANLIB")
# Flags of clang and its linker that gcc rejects, or with files of the build.
_FOREIGN = re.compile(
    r"-flto(=.*)?|-fprofile-(instr-)?(use|generate)(=.*)?|-fuse-ld=.*|-fdebug-default-version=.*"
    r"|--?rtlib=.*|--target=.*|--sysroot=.*"
)
_FLAGS = re.compile(r"(.*_)?(C|CPP|LD|CXX)FLAGS(_.*)?|OPT|BASECFLAGS|CCSHARED")

SysconfigValues = dict[str, str | int]


def read_sysconfig(source: bytes) -> tuple[SysconfigValues, str]:
    """Return the values in the module `source`, and the Python folder in these values.

    Raises ValueError if `source` is a different module, and the errors of the parser if `source` is
    invalid.
    """
    for statement in parse_source(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table) if (
                name == VARIABLE
            ):
                pairs = zip(table.keys, table.values, strict=True)
                values = dict(_pair(key, value) for key, value in pairs)
                folder = values.get("prefix", "")
                named = isinstance(folder, str) and folder.startswith("/")
                return values, str(folder) if named and folder != "/" else INSTALL_PREFIX
    message = f"it assigns no dictionary to {VARIABLE}"
    raise ValueError(message)


def _pair(key: ast.expr | None, value: ast.expr) -> tuple[str, str | int]:
    match key:
        case ast.Constant(value=str() as name):
            return name, _value(name, value)
    message = f"a key of {VARIABLE} is not text"
    raise ValueError(message)


def _value(name: str, value: ast.expr) -> str | int:
    match value:
        case ast.Constant(value=str() | int() as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
        case ast.JoinedStr(values=parts):
            return "".join(_part(name, part) for part in parts)
    message = f"the value of {name} is neither text nor number"
    raise ValueError(message)


def _part(name: str, part: ast.expr) -> str:
    match part:
        case ast.Constant(value=str() as text):
            return text
        case ast.FormattedValue(value=ast.Name(id=variable), format_spec=None) if variable == BASE:
            return INSTALL_PREFIX
    message = f"the value of {name} contains an expression other than {BASE}"
    raise ValueError(message)


def encode_sysconfig(values: Mapping[str, str | int], built_at: str, prefix: str) -> bytes:
    """Return the source of the sysconfig data module with `values`.

    The values are adapted to Python in `prefix`, not in `built_at`, and to the image's compilers.
    """
    lines = [
        f"    {name!a}: {_adapt_value(name, value, built_at, prefix)!a},"
        for name, value in sorted(values.items())
    ]
    head = "# system configuration generated and used by the sysconfig module"
    return "\n".join([head, f"{VARIABLE} = {{", *lines, "}", ""]).encode()


def _adapt_value(name: str, value: str | int, built_at: str, prefix: str) -> str | int:
    if not isinstance(value, str):
        return value
    value = relocate_text(value, built_at, prefix)
    words = value.split()
    if name in COMPILERS:
        words = [_compiler(word) for word in words]
    elif name in TOOLS:
        words = [_tool_name(name, word) for word in words]
    if name in COMPILERS or _FLAGS.fullmatch(name):
        words = [word for word in words if _FOREIGN.fullmatch(word) is None]
    return value if words == value.split() else " ".join(words)


def relocate_text(text: str, built_at: str, prefix: str) -> str:
    """Replace the folder `built_at` with `prefix` at the start of paths in `text`."""
    pattern = rf"(^|[\s=,:'\"]|-[LI]){re.escape(built_at)}(?=[/\s,:'\"]|$)"
    return re.sub(pattern, lambda match: f"{match[1]}{prefix}", text, flags=re.MULTILINE)


def _compiler(word: str) -> str:
    """Replace a compiler with the image's compiler. Every base with headers has cc and c++."""
    program = word.rpartition("/")[2]
    if re.fullmatch(r"(.*-)?(clang|gcc)(-[0-9.]+)?", program):
        return "cc"
    return "c++" if re.fullmatch(r"(.*-)?(clang|g)\+\+(-[0-9.]+)?", program) else word


def _tool_name(name: str, word: str) -> str:
    program, plain = word.rpartition("/")[2], name.lower()
    return plain if re.fullmatch(rf"(.*-)?{plain}(-[0-9.]+)?", program) else word
