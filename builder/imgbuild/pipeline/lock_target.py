"""Locks a target: solves, audits, learns constraints, computes digests, and writes files.

resolve → audit → lock → plan → fetch → assemble (digests only) → conflicts → audit → digests

`resolve_target` ends before the download, so that the total download size of several targets can be
computed.

Shared objects and GPU code are audited after the download, because this check needs complete files.
If imgbuild learns a constraint from an error, the target is resolved again. Otherwise, locking
fails, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from imgbuild import codec
from imgbuild.assemble import folders
from imgbuild.assemble.inputs import Inputs, split_into_batches
from imgbuild.assemble.layer_contents import LayerJob
from imgbuild.assemble.workers import assemble_all
from imgbuild.attest.sbom import packages
from imgbuild.audit.checks.cuda import unsupported_gpus
from imgbuild.audit.judge import CHECKS
from imgbuild.audit.packages.library import Library
from imgbuild.errors import AuditFailed, FilesDisagree, InputError
from imgbuild.learn.loop import READABLE_CHECKS, add_constraints, learn_from_errors, resolve_audited
from imgbuild.lock import extension, published, same_files
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Deb, Wheel
from imgbuild.matrix import constraints, flashinfer
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import downloads
from imgbuild.pipeline.audit_lock import audit_lock
from imgbuild.pipeline.source_packages import imports_of_excluded
from imgbuild.plan import current, image_digests, records
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import DebianRecipe, Layer, create_plan
from imgbuild.plan.records import RecordedLayers
from imgbuild.render import readme
from imgbuild.report import Floors, Report, Severity
from imgbuild.solve.problem import SolveProblem
from imgbuild.system.console import console
from imgbuild.values import Arch, sha256
from imgbuild.wheel import conflicts
from imgbuild.wheel.conflicts import PathConflict

SHOWN_FILES: Final = 8  # of a package; of more only their folder
SITE_PACKAGES: Final = "/site-packages"


def resolve_target(project: Project, name: str, inputs: Inputs) -> Lock:
    """Resolve the lock of target `name` from METADATA and Python code, without downloading files.

    Learned constraints are stored even if locking fails, because they apply to the packages.
    """
    matrix = inputs.matrix

    def _keep_constraints(learned: Iterable[Constraint]) -> tuple[Constraint, ...]:
        add_constraints(project.images, learned, inputs.store)
        return published.known_constraints(matrix, project.images)

    recorded = published.known_constraints(matrix, project.images)
    arches = matrix.targets[name].arch
    audited = resolve_audited(matrix, name, arches, inputs.context, recorded, _keep_constraints)
    row = published.project_row(matrix, name)
    for line in imports_of_excluded(row, audited.reports.values()) if row is not None else ():
        console.warn(line)
    lock = extension.make_lock(matrix, name, audited.resolutions, audited.sources)
    if row is not None and row.prefers_gpus:
        lock = omit_unsupported_gpus(lock, audited.reports.values())
    refuse_mode(lock)
    for drop in same_files.duplicate_file_drops(lock) if row is not None else ():
        console.info(f"omitted files of {drop.package}: {drop.reason}")
    if lock.extends is None and lock.settings.user_packages:
        text = readme.readme_text(lock, matrix.targets[name], project.images)
        settings = msgspec.structs.replace(lock.settings, readme=text)
        lock = msgspec.structs.replace(lock, settings=settings)
    return lock


def lock_target(
    project: Project, lock: Lock, inputs: Inputs, *, processes: int, drop: bool
) -> tuple[Lock, TargetDigests]:
    """Write `lock` and its digests, or resolve again if the audit yields constraints.

    Files are written only on success. If `drop` is set, downloaded files are removed from the cache
    after the digests of their layers are computed.
    """
    name = lock.target
    while True:
        recorded = published.known_constraints(inputs.matrix, project.images)
        if any(
            constraints.violated_constraints(recorded, resolution.versions)
            for resolution in lock.arch.values()
        ):
            lock = resolve_target(project, name, inputs)
        lock = folders.complete_lock(lock, inputs)
        with console.step(f"computing the digests of {name}"):
            layers = _lock_layers(project, lock, inputs, processes=processes, drop=drop).layers
            refuse_conflicts(lock, inputs)
        reports = _audit_lock(project, lock, inputs, drop=drop)
        if reports is not None:
            break
        lock = resolve_target(project, name, inputs)
    row = published.project_row(inputs.matrix, name)
    if row is not None and row.prefers_gpus:
        lock = omit_unsupported_gpus(lock, reports)
    floors = {Arch(report.arch): _without_gpus(report, lock.omitted_gpus) for report in reports}
    target_digests = image_digests.compute_digests(lock, layers, floors)
    with console.step(f"reading the metadata of the packages of {name}"):
        packages.record_packages(project.images, lock, inputs.store)
    current.write_locked(project, lock, target_digests)
    return lock, target_digests


def _audit_lock(project: Project, lock: Lock, inputs: Inputs, *, drop: bool) -> list[Report] | None:
    """Return the reports, or None if new constraints were learned.

    For a lock that extends another, only checks that need complete files are run, because
    `resolve_target` or the audit of the published lock has run the other checks. Raises AuditFailed
    for errors that yield no constraint.
    """
    recorded = published.known_constraints(inputs.matrix, project.images)
    checks = [check for check in CHECKS if lock.extends is None or check not in READABLE_CHECKS]
    reports = [
        audit_lock(lock, arch, inputs, recorded, checks=checks, drop=drop) for arch in lock.arch
    ]
    learned = recorded
    for report in reports:
        if errors := [finding for finding in report.findings if finding.severity is Severity.ERROR]:
            arch = Arch(report.arch)
            problem = SolveProblem(inputs.matrix, lock.target, arch, inputs.context, learned)
            learned = learn_from_errors(problem, errors)
            add_constraints(project.images, learned, inputs.store)
            learned = published.known_constraints(inputs.matrix, project.images)
    if learned == recorded:
        refuse_errors(lock.target, reports)
        return reports
    return None


def omit_unsupported_gpus(lock: Lock, reports: Iterable[Report]) -> Lock:
    """Remove GPUs that not all packages support from `lock`, with a warning.

    Raises AuditFailed if no GPU is left.
    """
    findings = {
        finding.message: unsupported_gpus(finding)
        for report in reports
        for finding in report.findings
        if finding.severity is Severity.WARNING and unsupported_gpus(finding)
    }
    omitted = {capability for capabilities in findings.values() for capability in capabilities}
    gpus = [capability for capability in lock.gpu if capability not in omitted]
    if gpus == [*lock.gpu]:
        return lock
    if not gpus:
        message = "\n  ".join([f"{lock.target}: no GPU is supported by all packages:", *findings])
        raise AuditFailed(message, hint="change a pin, or `like` in matrix.yaml")
    shown = ", ".join(capability for capability in lock.gpu if capability in omitted)
    reasons = "; ".join(findings)
    console.warn(
        f"{lock.target} is locked without the GPUs {shown} of the target in `like`: {reasons}"
    )
    return lock.with_gpus(gpus)


def _without_gpus(report: Report, omitted: Collection[str]) -> Floors | None:
    if report.floors is None:
        return None
    return msgspec.structs.replace(
        report.floors,
        gpu=tuple(each for each in report.floors.gpu if each not in omitted),
        gpu_ptx=tuple(each for each in report.floors.gpu_ptx if each not in omitted),
    )


def refuse_mode(lock: Lock) -> None:
    """Raise InputError if the matrix sets a FlashInfer mode but the lock has no FlashInfer."""
    for arch, resolution in lock.arch.items():
        if flashinfer.is_contradicted(lock.flashinfer, resolution.versions):
            message = (
                f"{lock.target}: the matrix sets flashinfer: {lock.flashinfer}, but the "
                f"package {flashinfer.PACKAGE} is not installed on {arch}"
            )
            hint = (
                'set mode: "off", or if another package needs a compiler, add FlashInfer to '
                "requires:"
            )
            raise InputError(message, hint=hint)


def refuse_errors(target: str, reports: Iterable[Report]) -> None:
    """Raise AuditFailed with all errors in `reports`, if any."""
    errors = [
        (report.arch, finding)
        for report in reports
        for finding in report.findings
        if finding.severity is Severity.ERROR
    ]
    if errors:
        summary = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        lines = [f"the audit of {target} found {summary}:"]
        for arch, finding in errors:
            lines.append(f"{arch}: {finding.message} ({finding.where})")
            lines += [f"  {finding.remedy}"] if finding.remedy else []
        message = "\n  ".join(lines)
        hint = "change a pin, or waive a finding in matrix.yaml with a reason; nothing was locked"
        raise AuditFailed(message, hint=hint)


def refuse_conflicts(lock: Lock, inputs: Inputs) -> None:
    """Raise FilesDisagree if two wheels of an image have different files with the same path."""
    for arch in lock.arch:
        tables = inputs.file_tables(lock, create_plan(lock, arch).layers)
        file_conflicts = [
            conflict
            for conflict in conflicts.find_conflicts(tables)
            if not _replaces_script(lock, arch, conflict)
        ]
        if file_conflicts:
            lines = "\n  ".join(str(conflict) for conflict in file_conflicts)
            message = f"{lock.target} {arch}: packages have conflicting files:\n  {lines}"
            hint = (
                "omit one of the packages with `exclude:`, or omit files with these lines in the"
                f" row {lock.target} of matrix.yaml:\n{drop_lines(lock, arch, file_conflicts)}"
            )
            raise FilesDisagree(message, hint=hint)


def _replaces_script(lock: Lock, arch: Arch, conflict: PathConflict) -> bool:
    """Return whether a script of the project's package replaces a script of the published target.

    Such a conflict is allowed, because the layer of the project's package is above the other
    layers, and pip also replaces scripts.
    """
    if lock.project is None or lock.extends is None or conflict.folder:
        return False
    added = [owner for owner in conflict.owners if owner in lock.extends.arch[arch].wheels]
    return (
        conflict.path.startswith("bin/") and len(added) == 1 and added[0] in lock.project.packages
    )


def drop_lines(lock: Lock, arch: Arch, file_conflicts: Iterable[PathConflict]) -> str:
    """Return lines for `matrix.yaml` that omit the conflicting files of one of the packages.

    Files of added packages are omitted first, and files of the project's packages last. Files of
    published packages cannot be omitted.
    """
    added = lock.extends.arch[arch].wheels if lock.extends is not None else ()
    of_project = lock.project.packages if lock.project is not None else {}
    paths: dict[tuple[str, str], list[str]] = {}
    for conflict in file_conflicts:
        first, *others = sorted(
            conflict.owners, key=lambda owner: (owner not in added, owner in of_project, owner)
        )
        paths.setdefault((first, others[0]), []).append(conflict.path)
    lines = ["  drop:"]
    for (package, other), files in paths.items():
        folder = os.path.commonpath([os.path.dirname(file) for file in files])
        whole = len(files) > SHOWN_FILES and not folder.endswith(SITE_PACKAGES)
        shown = [f"{folder}/*"] if whole and folder else files
        reason = codec.encode_compact(f"{other} has files with the same paths").decode()
        lines.append(f"    - package: {package}")
        lines.append(f"      beside: {other}")
        lines.append(f"      paths: {codec.encode_compact(shown).decode()}")
        lines.append(f"      reason: {reason}")
    return "\n".join(lines)


def _input_size(layer: Layer) -> int:
    return layer.recipe.input_size


def _lock_layers(
    project: Project, lock: Lock, inputs: Inputs, *, processes: int, drop: bool
) -> RecordedLayers:
    # Records are saved after each batch: an interrupted run can be resumed.
    saved_records = _save_records(project, downloads.recorded_layers(project, lock, inputs), inputs)
    given = current.published_records(published.find_overlay(inputs.matrix, lock.target))
    unrecorded, unread = downloads.layers_to_read(project, lock, inputs)
    for batch in split_into_batches(unrecorded, _input_size, bounded=drop):
        fetched = inputs.fetch_inputs(lock, batch)
        # A base takes longest for its size, and builds of all its targets need it.
        jobs = [
            LayerJob(layer=layer, record=None, keep=isinstance(layer.recipe, DebianRecipe))
            for layer in batch
        ]
        batch_layers = assemble_all(jobs, inputs.context, processes=processes)
        batch_records = RecordedLayers(
            layers={item.id: item.record for item in batch_layers},
            wheels={key: fact for item in batch_layers for key, fact in item.wheels.items()},
        )
        saved_records = _save_records(
            project, records.merge_records(saved_records, [batch_records]), inputs
        )
        inputs.file_tables(lock, batch)  # read while the files are available
        if drop:
            read_whole(batch, inputs)
            inputs.drop_files(fetched)
    for batch in split_into_batches(unread, _input_size, bounded=drop):
        fetched = inputs.fetch_inputs(lock, batch)
        inputs.file_tables(lock, batch)
        if drop:
            read_whole(batch, inputs)
            inputs.drop_files(fetched)
    return records.merge_records(saved_records, [RecordedLayers(layers=given)])


def _save_records(project: Project, added: RecordedLayers, inputs: Inputs) -> RecordedLayers:
    with inputs.store.hold_lock(f"records-{sha256(str(project.images).encode())}"):
        before = records.read_records(project.images)
        merged = records.merge_records(before, [added])
        if merged != before:
            codec.write_document(records.records_path(project.images), merged, below=project.root)
    return merged


def read_whole(layers: Sequence[Layer], inputs: Inputs) -> None:
    """Read facts for the audit and the SBOM while the files are available."""
    read_elf_facts(layers, inputs)
    files = [file for layer in layers for file in layer.recipe.contents]
    packages.look_up_packages(
        ((file.sha256, file) for file in files if isinstance(file, Wheel | Deb)), inputs.store
    )


def read_elf_facts(layers: Iterable[Layer], inputs: Inputs) -> None:
    """Read shared objects in the wheels of `layers` for the audit, while files are available."""
    files = [file for layer in layers for file in layer.recipe.contents]
    wheels = [file for file in files if isinstance(file, Wheel)]
    with Library(inputs.store) as library:
        located = ((wheel, inputs.store.file(wheel.sha256)) for wheel in wheels)
        library.prefetch_elf_facts([library.wheel(wheel, path) for wheel, path in located if path])
