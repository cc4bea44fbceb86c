"""Checks the classes in the default configurations of Hydra programs: part of `imports`.

Hydra instantiates `_target_: package.module.Class` when the program requests it.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgbuild.audit.checks.findings import FindingPlace, finding_at
from imgbuild.audit.main_path.closure import MainPath
from imgbuild.audit.main_path.configuration import HydraProgram, class_targets, find_hydra_program
from imgbuild.audit.names.lookup import look_up
from imgbuild.audit.packages.protocols import ImportablePackages
from imgbuild.report import ConflictRelation, Finding, Severity

CHECK = "imports"


def check_configured_targets(package_set: ImportablePackages, path: MainPath) -> Iterator[Finding]:
    """Yield a warning for each `_target_` that does not exist.

    The finding is not an error, because a run may not use the class.
    """
    modules = {name.rpartition(".")[0] for name, _ in path.starts}
    for module in sorted(filter(None, modules)):
        main = find_hydra_program(package_set, module)
        named = (
            set(class_targets(main.compose_configuration(main.name))) if main is not None else ()
        )
        for target in sorted(named):
            if main is not None and _is_absent(package_set, target):
                yield _finding(package_set, main, target)


def _is_absent(package_set: ImportablePackages, target: str) -> bool:
    module, _, name = target.rpartition(".")
    if package_set.owner(module.partition(".")[0]) is None:
        return False
    if package_set.exists(module):
        return look_up(package_set, module, name).state == "absent"
    return package_set.exists(module) is False and not package_set.exists(
        module.rpartition(".")[0]  # a class in a class
    )


def _finding(package_set: ImportablePackages, main: HydraProgram, target: str) -> Finding:
    other = package_set.owner(target.partition(".")[0]) or ""
    version = package_set.version(main.package) or ""
    other_version = package_set.version(other) or ""
    file, line = main.find_text(target)
    return finding_at(
        FindingPlace(main.package, version, file, line),
        CHECK,
        Severity.WARNING,
        f"{main.package} {version} refers to {target} in the configuration {main.name},"
        f" but {other} {other_version} does not have it",
        relation=ConflictRelation.NAME,
        remedy=f"set another class, or choose another version of {other}",
        subject=target,
        other=other,
        other_version=other_version,
    )
