"""Finds CUDA code that is compiled at import (load_inline, nvcc) although nvcc is missing.

An image contains only the files of its packages. If no wheel contains `nvcc`, the import fails.
Other package sets can be used with a system-wide CUDA toolkit, so the finding is a warning for
them. It is also a warning if the import runs only in some cases.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.audit.checks.findings import finding_at, finding_place
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.source.facts import Call, ModuleFacts
from imgbuild.report import ConflictRelation, Finding, Severity

CHECK = "support"
# Functions that compile, and arguments that make them compile CUDA code.
COMPILERS = frozenset(("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline"))
CUDA_ARGUMENTS = frozenset(("with_cuda", "cuda_sources", "extra_cuda_cflags"))


def check_compiling(package_set: PackageSet, path: MainPath, *, image: bool) -> list[Finding]:
    """Return findings for code on the main path that is compiled at import.

    `image` means that the package set is an image, in which nothing else will be installed.
    """
    compilers = [name for name in package_set.packages if "nvcc" in name]
    if any(file.endswith("/bin/nvcc") for name in compilers for file in package_set.files(name)):
        return []
    view = path.view(package_set)
    findings: list[Finding] = []
    for facts in path.module_facts(view):
        findings += _module_findings(package_set, path, facts, image=image)
    return findings


def _module_findings(
    package_set: PackageSet, path: MainPath, facts: ModuleFacts, *, image: bool
) -> Iterator[Finding]:
    here = module_scopes(facts)
    for call in facts.calls:
        if not CUDA_ARGUMENTS & set(call.keywords) or not _is_compiler_call(facts, call):
            continue
        runner = here.scope_runner(call.scope)
        starts = [top_call for top_call in here.calls.get("", ()) if top_call.callee == runner]
        how = path.reached(facts.module, "")
        if how is None or how.level > Level.REMOTE or (runner and not starts):
            continue
        place = finding_place(package_set, facts, call.line, how.entry)
        course = judge_guards(package_set, [*call.guards, *(starts[0].guards if starts else ())])
        if (
            place is None
            or not course.runs
            or not course.certain
            or course.catches_error("OSError")
        ):
            continue
        fails = image and how.level is Level.CERTAIN
        yield finding_at(
            place,
            CHECK,
            Severity.ERROR if fails else Severity.WARNING,
            f"{place.package} {place.version} compiles CUDA code at import, which requires"
            f" nvcc, but no package in this set provides it (used by {place.entry})",
            relation=ConflictRelation.CUDA,
            remedy=f"add a package with nvcc, or choose another version of {place.package}",
            subject="nvcc",
        )


def _is_compiler_call(facts: ModuleFacts, call: Call) -> bool:
    first, _, rest = call.callee.partition(".")
    for line in facts.imports:
        if line.bound != first or line.scope not in ("", call.scope):
            continue
        whole = not line.name and line.module.partition(".")[0] == first
        start = first if whole else ".".join(filter(None, (line.module, line.name)))
        if (f"{start}.{rest}" if rest else start) in COMPILERS:
            return True
    return False
