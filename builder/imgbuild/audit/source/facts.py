"""Defines the facts that are read from a wheel's files.

`audit.source` and `audit.binaries` read them, `packages.library` caches them by the wheel's digest,
`audit.checks` evaluates them. Raise FACTS_FORMAT if a reader's result changes for the same bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FACTS_FORMAT = 11
# Follows the name of a dataclass in a guard on one of its fields.
FIELDS = ".__dataclass_fields__"

SUPER_INIT = "super().__init__"  # a callee in `Function.kwargs_callees`


class Guard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A condition under which code runs. A fact has a tuple of them, all of which must hold.

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

    The subject of `present` and `absent` is "module:name" for a name in a module, and a list
    with commas for several: in the `except` branch of a `try` that imports a and c from b, "a,
    b:c" is absent. The spec of a `handled` AttributeError is the expression that hasattr tests
    ("vllm.envs.VLLM_USE_V1"); the code runs only if that exists. The callable of `takes` is
    "X.__dataclass_fields__" for a field of the dataclass X. In a `result`, `...` represents
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
    """One name that an import statement binds. Relative imports are made absolute.

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
    """The module that an import binds, or the module and the name in it.

    `import a.b` binds a, `import a.b as c` binds a.b.
    """
    whole = line.name or line.module.partition(".")[0] != line.bound
    return (line.module if whole else line.bound), line.name


class Parameter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A parameter; `kind` is "positional" (only), "any", "keyword" (only)."""

    name: str
    kind: Literal["positional", "any", "keyword"] = "any"
    default: bool = False
    annotation: str = ""


class Function(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function or method: `name` is qualified within its module ("Class.method").

    `returns` is the annotation, "Self" for a classmethod without one that returns the result of
    `cls(…)`. `kwargs_callees` are the callees that get its `**kwargs`, if they are not used
    otherwise (`super().__init__` only in a program); `popped_keys` the keys that it removes before.
    `truthy` and `falsy` are the guards that hold if its result is true, and if it is false; both
    are empty if they are not recognized.
    With `raises`, the function or one nested in it has a `raise` or an `assert`.
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
    """A class-level name, annotated (`annotation`) or assigned. With `default`, it has a value.

    `init` is False for `field(init=False)`; `value` is as in Assigned.
    """

    name: str
    line: int
    annotation: str = ""
    default: bool = False
    init: bool = True
    value: str = ""


class Class(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A class: its bases, decorators and metaclass as written (dotted expressions), its own names.

    `attributes` are names assigned on self in its methods, `methods` names of its functions
    (properties included); `dynamic` if it has `__getattr__` or `__getattribute__`.
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
    """A module-level name bound by other means: an assignment, a loop, `with`, `global`.

    `value` is the right-hand expression if it is dotted ("vllm.LLM", also "Union[A, B]"), the
    called expression and "()" if it is a call ("LazyModule()"), else "".
    """

    name: str
    line: int
    value: str = ""
    guards: tuple[Guard, ...] = ()


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call. `callee` is dotted and as written in its scope: "SFTConfig", "self.llm.generate".

    `positional` counts plain positional arguments; `star` and `double_star` are whether more are
    unpacked. `receiver` is the type of the callee without its last component, if known in the
    scope: the type of a local name ("args.x" with args: AsyncEngineArgs), or of an attribute of
    self ("self.llm.generate" with self.llm = LLM(…)). It is as written in the source: a type
    ("AsyncEngineArgs"), or an expression whose call creates the object, followed by "()"
    ("AsyncEngineArgs.from_cli_args()", "LLM()"); `names.class_of` finds the class of either. A
    method of super() is written "super().__init__". `literals` are the leading positional arguments
    that are strings.
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


class Attribute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A read of `expression` (dotted, as written) that is not the callee of a recorded Call.

    Only if the first component is an imported name, or a local one of known type (`receiver`,
    as in Call). Reads through getattr with a default, and under hasattr, are omitted. A
    subscript of a class that only some versions of Python can subscript is written
    "array.__class_getitem__". In annotations, reads and calls are guarded by the versions that
    evaluate annotations.
    """

    line: int
    expression: str
    receiver: str = ""
    scope: str = ""
    guards: tuple[Guard, ...] = ()


class VersionWindow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place that raises or warns for some versions of another package.

    `name` is the exception or the function that warns. It runs if all `guards` hold; a guard's
    spec may be "!" and a specifier (its complement), or compare with another package's version:
    "==@other", "!=@other", "^=@other" (starts with) and "!^=@other".
    """

    line: int
    outcome: Literal["raise", "warn"]
    name: str
    scope: str = ""
    guards: tuple[Guard, ...] = ()


class ModuleFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The facts of a Python module.

    `exports` is `__all__` if it is a literal (or sum of literals), else None. `lazy` maps a name to
    the module that it is lazily imported from (`_import_structure` of transformers and trl, vLLM's
    MODULE_ATTRS, PEP 562 tables): "LLM" → "vllm.entrypoints.llm"; for a submodule that is itself
    exported, its own name; "module:other" if it has another name there; "" if the module is
    unknown. `lazy_stars` are modules whose exports are all lazily imported (transformers derives
    its table from the `__all__` of the files in the folder); "a.b.*" means every module below a.b.
    `registers` are names that the module assigns in `sys.modules` (with "*" for computed parts),
    `aliases` the names that it assigns for other modules. `deleted` are module-level names that
    `del` removes. With `dynamic`, names may be bound by unrecognized means (`__getattr__` without a
    readable table, `globals().update`, `sys.modules[__name__] = …`). `broken` is the message of a
    syntax error; all other fields are empty then. `refusals` are the `raise` statements outside of
    functions and classes. `windows` are read by `windows`, the rest by `module`.
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
    """A module that exists and whose names are unknown.

    `why` is "compiled", "namespace", "stdlib", "injected" (a module that its package adds to
    sys.modules) or "unknown" (of a package missing from a partial package set). `lacks` are
    names that it certainly does not have (`stdlib.lacks`).
    """

    module: str
    why: str
    lacks: frozenset[str] = frozenset()


class GpuCode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """GPU code in a library: "sm_90a" for machine code, "compute_90" for PTX and its version.

    `ptx` is the version of the PTX language ("8.4" for CUDA 12.4), "" for machine code. `units`
    counts the fat binaries (about one per source file) with this architecture: a library may
    have most of its kernels for one architecture and a few for another.
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
    """A shared object or program of a wheel; `file` is its path in the wheel.

    `undefined` are strong undefined dynamic symbols (weak ones do not fail to load), written "name"
    or "name@VERSION". `defined` are hashes of exported symbols: the first 8 bytes of blake2b(name,
    digest_size=8) as little-endian integers, sorted, in one bytes object, which is compact for
    libtorch's hundred thousand symbols. `required_versions` maps a library to the symbol versions
    required of it ("libc.so.6": ("GLIBC_2.28",)); `defined_versions` are the versions that the file
    itself defines. `ptxas_architectures` are the architectures that a ptxas supports ("sm_90a").
    `numpy` is the C API that it was compiled against: 1, 2, or 0 for none detected.
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
