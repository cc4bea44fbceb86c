"""Finds generated protobuf code that the installed runtime rejects (part of `support`).

Each `_pb2.py` calls `ValidateProtobufRuntimeVersion` with the version of its generator. The check
evaluates this function of the installed protobuf as if the variable that disables the validation
were unset.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.main_path.answers import package_set_evaluator
from imgbuild.audit.main_path.closure import Level, MainPath
from imgbuild.audit.main_path.evaluation import Evaluation
from imgbuild.audit.main_path.guards import judge_guards
from imgbuild.audit.main_path.values import CallFrame, FunctionValue
from imgbuild.audit.names.scopes import module_scopes
from imgbuild.audit.packages.generated import GeneratedCode, generated_files
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.reading import module_name
from imgbuild.report import ConflictRelation, Finding, Severity

CHECK = "support"
RUNTIME = "protobuf"
MODULE = "google.protobuf.runtime_version"
FUNCTION = "ValidateProtobufRuntimeVersion"
# The domain and the counter of warnings, which the rule needs and which depend on no version.
_NAMES = {"DOMAIN": "", "_warning_count": 0}


def check_generated_code(package_set: PackageSet, path: MainPath) -> Iterator[Finding]:
    """Yield findings for modules that protobuf rejects: errors on the main path, else warnings.

    If a package contains a module in several folders, one for each protobuf version, the module is
    reported only if all its versions are rejected.
    """
    if package_set.version(RUNTIME) is None:
        return
    refused: dict[str, tuple[str, GeneratedCode]] = {}
    for package in package_set.packages:
        if package != RUNTIME:
            codes = _modules(package_set, package)
            bad = {module for module, code in codes.items() if _is_refused(package_set, code)}
            generated = filter(None, map(module_name, generated_files(package_set.files(package))))
            accepted = {module.rpartition(".")[2] for module in set(generated) - bad}
            for module in sorted(bad):
                if module.rpartition(".")[2] not in accepted:
                    refused[module] = (package, codes[module])
    users = _users(package_set, path, frozenset(refused)) if refused else {}
    for module, (package, code) in refused.items():
        yield _finding(package_set, package, code, users.get(module))


def _modules(package_set: PackageSet, package: str) -> Mapping[str, GeneratedCode]:
    return {
        module: code
        for code in package_set.generated_code(package)
        if (module := module_name(code.file)) is not None
    }


def _is_refused(package_set: PackageSet, code: GeneratedCode) -> bool:
    """Return whether importing the module raises an exception. False if that is unknown."""
    source = package_set_evaluator(package_set).source(MODULE)
    if source is None:
        return package_set.exists(MODULE) is False
    definition = source.bindings.get(FUNCTION, [None])[-1]
    if not isinstance(definition, ast.FunctionDef):
        return False
    # `global` makes no difference for one call, and is not followed.
    body = [part for part in definition.body if not isinstance(part, ast.Global)]
    function = ast.FunctionDef(FUNCTION, definition.args, body, [], lineno=1, col_offset=0)
    frame = CallFrame(MODULE)
    frame.names.update(_NAMES)
    arguments = (_NAMES["DOMAIN"], *code.version, code.suffix, code.file)

    def _validate(run: Evaluation) -> object:
        return run.apply_call(FunctionValue(function, frame), arguments, {})

    return any(
        end.raised and end.certain
        for end in package_set_evaluator(package_set).all_outcomes(_validate)
    )


def _users(
    package_set: PackageSet, path: MainPath, modules: frozenset[str]
) -> dict[str, FindingPlace]:
    users: dict[str, FindingPlace] = {}
    for facts in path.module_facts(package_set):
        name = facts.module
        here = module_scopes(facts)
        for line in facts.imports:
            module = next(
                (each for each in (f"{line.module}.{line.name}", line.module) if each in modules),
                None,
            )
            course = judge_guards(package_set, line.guards) if module is not None else None
            if module is None or course is None or not course.runs or course.catches_error():
                continue
            how = path.reached(name, here.scope_runner(line.scope))
            if how is None and course.certain:  # functions in a table are not followed
                how = path.reached(name, "")
            entry = how.entry if how is not None and how.level < Level.DOUBTFUL else ""
            owner = package_set.owner(name) or ""
            place = FindingPlace(
                owner, package_set.version(owner) or "", facts.file, line.line, entry
            )
            if entry or module not in users:
                users[module] = place
    return users


def _finding(
    package_set: PackageSet, package: str, code: GeneratedCode, user: FindingPlace | None
) -> Finding:
    version, runtime = package_set.version(package) or "", package_set.version(RUNTIME) or ""
    generated = ".".join(map(str, code.version)) + code.suffix
    text = f"raises VersionError when it is imported with protobuf {runtime}"
    text += f": it was generated by protobuf {generated}"
    text += f"; {user.package} imports it ({user.file}:{user.line})" if user is not None else ""
    text += f" (used by {user.entry})" if user is not None and user.entry else ""
    newer = code.version > tuple(int(part) for part in runtime.split(".")[:3] if part.isdigit())
    spec = f">={generated}" if newer else ""
    return finding_at(
        FindingPlace(package, version, code.file, code.line),
        CHECK,
        Severity.ERROR if user is not None and user.entry else Severity.WARNING,
        f"{package} {version} {module_name(code.file)} {text}",
        relation=ConflictRelation.WINDOW,
        remedy=f"choose {RUNTIME}{spec}, or another version of {package}"
        if spec
        else f"choose another version of {RUNTIME} or of {package}",
        subject=f"{RUNTIME} {runtime}",
        other=RUNTIME,
        other_version=runtime,
        spec=spec,
    )
