"""Defines the facts that are read from the files of a wheel.

`audit.source` and `audit.binaries` read facts, `packages.library` caches them by the digest of the
wheel, and `audit.checks` evaluates them. Increment FACTS_FORMAT if the result of a reader changes
for the same bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FACTS_FORMAT = 11
# Follows the name of a dataclass in a guard on one of its fields.
FIELDS = ".__dataclass_fields__"

SUPER_INIT = "super().__init__"  # a callee in `Function.kwargs_callees`


class Guard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A condition under which code runs. All guards in the tuple of a fact must hold.

    kind        subject                             spec
    version     package ("vllm")                    the required version: ">=0.10.1,<0.12"
    present     package or module                   "" or a specifier: is_vllm_available("0.8")
    absent      package or module                   "": the branch if it cannot be imported;
                                                    with a specifier, or has a different version
    handled     exceptions that are caught, or ""   ImportError, AttributeError, Exception, …
    python      part of sys.version_info: "" for    ">=3.11", ">=3.12.0.beta": the tuple, or the
                all, "[:2]" a slice, "[1]" an item  number, compared with CPython's semantics
    takes       "module:scope:callable", as         a parameter that its signature must have, or "!"
                written in that place               and one that it must not have
    result      "module:scope:expression", as       "" if it must be true, "!" if it must be false
                written in that place
    platform    "linux", "win32", "xpu", …          "" or "!" for the other branch
    typing      ""                                  "": under TYPE_CHECKING only
    data        ""                                  "": depends on data, not on installed packages
    unknown     the condition's source text         "": on installed packages, not recognized

    The subject of `present` and `absent` is "module:name" for a name in a module, and a
    comma-separated list for several: in the `except` branch of a `try` that imports a and c from b,
    "a,b:c" is absent. The spec of a `handled` AttributeError is the expression that hasattr tests
    ("vllm.envs.VLLM_USE_V1"); the code runs only if the expression exists. The callable of `takes`
    is "X.__dataclass_fields__" for a field of the dataclass X. In a `result`, `...` stands for
    arguments of a call that are not literals.
    """

    kind: Literal[
        "version",
        "present",
        "absent",
        "handled",
        "python",
        "takes",
        "result",
        "platform",
        "typing",
        "data",
        "unknown",
    ]
    subject: str = ""
    spec: str = ""


class Import(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name that an import statement binds. Relative imports are converted to absolute ones.

    `import a.b as c`: module "a.b", name "", bound "c"; `import a.b` binds "a". `import a.b as
    a` is recorded as `from a import b as a`, which is equivalent. `from a import b as c`:
    module "a", name "b", bound "c". `from a import *`: name "*". `scope` is the qualified name
    of the enclosing function or class, "" at the top of the module.
    """

    line: int
    module: str
    name: str
    bound: str
    scope: str = ""
    guards: tuple[Guard, ...] = ()


def import_target(line: Import) -> tuple[str, str]:
    """Return the module that an import binds, or the module and the name in it.

    `import a.b` binds a. `import a.b as c` binds a.b.
    """
    whole = line.name or line.module.partition(".")[0] != line.bound
    return (line.module if whole else line.bound), line.name


class Parameter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A parameter. `kind` is "positional" (only), "any" or "keyword" (only)."""

    name: str
    kind: Literal["positional", "any", "keyword"] = "any"
    default: bool = False
    annotation: str = ""


class Function(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function or method. `name` is qualified within its module ("Class.method").

    `returns` is the annotation, or "Self" for a classmethod without annotation that returns the
    result of `cls(…)`. `kwargs_callees` are the callees to which `**kwargs` is passed, if it is not
    used otherwise (`super().__init__` only in a program), and `popped_keys` are the keys that are
    removed before. `truthy` and `falsy` are the guards that hold if the result is true or false.
    Both are empty if they were not recognized. `raises` is set if the function or a nested one
    contains a `raise` or an `assert`.
    """

    name: str
    line: int
    parameters: tuple[Parameter, ...] = ()
    varargs: bool = False
    varkw: bool = False
    decorators: tuple[str, ...] = ()
    returns: str = ""
    guards: tuple[Guard, ...] = ()
    kwargs_callees: tuple[str, ...] = ()
    popped_keys: tuple[str, ...] = ()
    truthy: tuple[Guard, ...] = ()
    falsy: tuple[Guard, ...] = ()
    raises: bool = False


class Field(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An annotated or assigned name in a class. `default` is set if the name has a value.

    `init` is False for `field(init=False)`. For `value`, see AssignedName.
    """

    name: str
    line: int
    annotation: str = ""
    default: bool = False
    init: bool = True
    value: str = ""


class Class(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A class: its bases, decorators and metaclass as dotted expressions, and its names.

    `attributes` are names that methods assign to self. `methods` are the names of functions,
    including properties. `dynamic` is set if the class defines `__getattr__` or `__getattribute__`.
    """

    name: str
    line: int
    bases: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    metaclass: str = ""
    fields: tuple[Field, ...] = ()
    methods: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    dynamic: bool = False
    guards: tuple[Guard, ...] = ()


class AssignedName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A module-level name that is bound by an assignment, a loop, `with` or `global`.

    `value` is the right-hand expression if it is dotted ("vllm.LLM") or a union ("Union[A, B]"),
    the callee followed by "()" if it is a call ("LazyModule()"), else "".
    """

    name: str
    line: int
    value: str = ""
    guards: tuple[Guard, ...] = ()


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call. `callee` is dotted, and as written in the scope: "SFTConfig", "self.llm.generate".

    `positional` counts plain positional arguments; `star` and `double_star` show whether more
    arguments are unpacked. `receiver` is the type of the callee without its last component, if the
    scope determines it: the type of a local name ("args.x" with args: AsyncEngineArgs), or of an
    attribute of self ("self.llm.generate" with self.llm = LLM(…)). It is written as in the source:
    a type ("AsyncEngineArgs"), or an expression followed by "()" if calling the expression creates
    the object ("AsyncEngineArgs.from_cli_args()", "LLM()"); `receivers.receiver_class` finds
    the class in both cases. A method of super() is written "super().__init__". `literals` contains
    the leading positional arguments that are strings.
    """

    line: int
    callee: str
    keywords: tuple[str, ...] = ()
    positional: int = 0
    star: bool = False
    double_star: bool = False
    receiver: str = ""
    literals: tuple[str, ...] = ()
    scope: str = ""
    guards: tuple[Guard, ...] = ()


class CallValues(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The strings that calls of `callee` on a line of a program pass as keywords.

    `unpacked` is the number of names to which the result is assigned, or 0.
    """

    line: int
    callee: str
    scope: str
    texts: tuple[tuple[str, str], ...] = ()
    unpacked: int = 0


class Attribute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A read of a dotted `expression` that is not the callee of a recorded Call.

    A read is recorded only if the first component is an imported name, or a local name of known
    type (`receiver`, as in Call). Reads by getattr with a default, and reads under hasattr, are
    omitted. A subscript of a class that only some versions of Python can subscript is written
    "array.__class_getitem__". Reads and calls in annotations are guarded by the Python versions
    that evaluate annotations.
    """

    line: int
    expression: str
    receiver: str = ""
    scope: str = ""
    guards: tuple[Guard, ...] = ()


class VersionWindow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in code that raises an exception or warns for some versions of another package.

    `name` is the exception, or the function that warns. The place runs if all `guards` are true.
    The spec of a guard can be "!" and a specifier (its complement), or a comparison with the
    version of another package: "==@other", "!=@other", "^=@other" (starts with) or "!^=@other".
    """

    line: int
    outcome: Literal["raise", "warn"]
    name: str
    scope: str = ""
    guards: tuple[Guard, ...] = ()


class ModuleFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The facts about a Python module.

    `exports` is `__all__` if it is a literal (or sum of literals), else None. `lazy` maps a name to
    the module from which it is lazily imported (`_import_structure` of transformers and trl,
    MODULE_ATTRS of vLLM, PEP 562 tables): "LLM" → "vllm.entrypoints.llm". The value is the name
    itself for an exported submodule, "module:other" for a name that differs in the module, and ""
    for an unknown module. `lazy_stars` are modules whose exports are all lazily imported
    (transformers derives the table from the `__all__` of the files in the folder). "a.b.*" stands
    for every module below a.b. `registers` are names that the module assigns in `sys.modules` (with
    "*" for computed parts), and `aliases` are names that it assigns for other modules. `deleted`
    are module-level names that `del` removes. `dynamic` is set if names may be bound in
    unrecognized ways (`__getattr__` without a readable table, `globals().update`,
    `sys.modules[__name__] = …`). `broken` is the message of a syntax error, and all other fields
    are then empty. `stores` are the assignments to attributes of objects with a known type, and
    `values` the strings and results of calls, in a program. `refusals` are the `raise` statements
    outside of functions and classes. `audit.source.windows` reads `windows`, and
    `audit.source.module` the other fields.
    """

    module: str
    file: str
    package: bool = False
    imports: tuple[Import, ...] = ()
    functions: tuple[Function, ...] = ()
    classes: tuple[Class, ...] = ()
    assigned: tuple[AssignedName, ...] = ()
    calls: tuple[Call, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    stores: tuple[Attribute, ...] = ()
    values: tuple[CallValues, ...] = ()
    exports: tuple[str, ...] | None = None
    lazy: dict[str, str] = {}
    lazy_stars: tuple[str, ...] = ()
    registers: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    deleted: tuple[str, ...] = ()
    dynamic: bool = False
    broken: str = ""
    refusals: tuple[VersionWindow, ...] = ()
    windows: tuple[VersionWindow, ...] = ()


class OpaqueModule(msgspec.Struct, frozen=True):
    """A module that exists, but whose names are unknown.

    `why` is "compiled", "namespace", "stdlib", "injected" (a module that its package adds to
    sys.modules) or "unknown" (in a package missing from a partial package set). `lacks` are names
    that the module certainly does not have (`stdlib.missing_names`).
    """

    module: str
    why: str
    lacks: frozenset[str] = frozenset()


class GpuCode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """GPU code in a library: "sm_90a" for machine code, "compute_90" for PTX.

    `ptx` is the version of the PTX language ("8.4" for CUDA 12.4), or "" for machine code. `units`
    counts the fat binaries (about one per source file) with this architecture, because a library
    may have most kernels for one architecture and a few for another.
    """

    arch: str
    ptx: str = ""
    units: int = 1


class ElfFacts(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "required_versions": "wants",
        "defined_versions": "offers",
        "ptxas_architectures": "assembles",
    },
):
    """A shared object or program in a wheel. `file` is its path in the wheel.

    `undefined` are strong undefined dynamic symbols (loading does not fail for weak ones), written
    "name" or "name@VERSION". `defined` are hashes of exported symbols: the first 8 bytes of
    blake2b(name, digest_size=8) as little-endian integers, sorted, in one bytes object, because
    libtorch has a hundred thousand symbols. `required_versions` maps a library to the required
    symbol versions ("libc.so.6": ("GLIBC_2.28",)). `defined_versions` are the versions that the
    file defines. `ptxas_architectures` are the architectures that a ptxas supports ("sm_90a").
    `numpy` is the C API version for which the file was compiled: 1, 2, or 0 if none was detected.
    """

    file: str
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    required_versions: dict[str, tuple[str, ...]] = {}
    defined_versions: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    defined: bytes = b""
    gpu: tuple[GpuCode, ...] = ()
    ptxas_architectures: tuple[str, ...] = ()
    numpy: int = 0
    python: bool = False  # exports PyInit_*: an extension module
