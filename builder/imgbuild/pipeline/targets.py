"""The program as a list of steps: read this first.

    lock:   settle (resolve → audit → learn → resolve) → lock → plan → fetch → assemble (digests
            only) → audit of whole files → seal → render
    build:  lock and seal → plan → fetch → assemble → OCI layout

`lock_target` and `assemble.layout` hold the steps of one target; here they are put in order for
several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from imgbuild.assemble import layout as building
from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.layout import BuiltImage
from imgbuild.cache import prune
from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError, InputError, NoSolution, NothingSelected
from imgbuild.lock import published
from imgbuild.lock.lock import Lock
from imgbuild.matrix import constraints
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import Selected, left_out, select
from imgbuild.oci import archive, layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline import lock_target, security_updates
from imgbuild.pipeline.downloads import downloads
from imgbuild.pipeline.opened import open_project, report_templates
from imgbuild.plan import current
from imgbuild.plan.seal import Seal
from imgbuild.project import CATALOGUE, MATRIX, Project
from imgbuild.render import bake, contexts, write
from imgbuild.show import diff, revisions, status
from imgbuild.solve.problem import SolveProblem
from imgbuild.system import files
from imgbuild.system.amounts import count, size_text
from imgbuild.system.console import console
from imgbuild.values import Arch


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to work: processes, whether the network may be used, whether to check everything again.

    `mirror` names one for this run, `mirror_only` asks no other server; otherwise both are as set.
    `plain_http` are registries without TLS.
    """

    jobs: int = 1
    offline: bool = False
    verify: bool = False
    mirror: str | None = None
    mirror_only: bool = False
    plain_http: tuple[str, ...] = ()


def select_in(
    own: Project,
    matrix: Matrix,
    patterns: Sequence[str],
    *,
    everything: bool = False,
    arches: Sequence[Arch] = (),
) -> list[Selected]:
    """As `select` in the matrix of `own`; NothingSelected names it, and what the catalogue has."""
    try:
        return select(matrix, patterns, everything=everything, arches=arches)
    except NothingSelected as error:
        if not own.writable or not patterns:
            raise
        offered = published.load(CATALOGUE / MATRIX).targets
        for pattern in patterns:
            found = [name for name in offered if fnmatchcase(name, pattern)]
            if found and not any(fnmatchcase(name, pattern) for name in matrix.targets):
                message = f"no target matches {pattern} in {own.matrix}"
                hint = (
                    f"the catalogue of imgbuild has {found[0]}: use it with"
                    f" `--matrix {CATALOGUE / MATRIX}`, or extend it in another folder:"
                    f" `imgbuild init --extends {found[0]}`"
                )
                raise NothingSelected(message, hint=hint) from error
        message = f"{error.message} in {own.matrix}"
        raise NothingSelected(message, hint=error.hint) from error


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A project with its matrix read, and how to work on it."""

    project: Project
    matrix: Matrix
    options: Options

    def select(
        self, patterns: Sequence[str], *, everything: bool = False, arches: Sequence[Arch] = ()
    ) -> list[Selected]:
        """The targets that the patterns name, with their architectures; NothingSelected if none.

        A target without a lock that needs more than the default index is left out with a message,
        unless it is named itself.
        """
        chosen = select_in(
            self.project, self.matrix, patterns, everything=everything, arches=arches
        )
        for line in left_out(self.matrix, patterns, everything=everything, arches=arches):
            console.info(line)
        return status.within_reach(self.project, self.matrix, chosen, patterns, console)

    def inputs(self, *, locking: bool = False) -> Inputs:
        """The cache and the ways to fill it; InputError if the setting of a mirror cannot be read.

        A lock is made from the indexes: for it a mirror is never the only source.
        """
        named = mirror.find(self.project.root, self.options.mirror, only=self.options.mirror_only)
        own = mirror.Mirror.of(named, any_source=locking, plain_http=self.options.plain_http)
        context = Context.open(console, offline=self.options.offline)
        return Inputs(self.matrix, context, mirror=own)


def open_session(matrix: Path | None, options: Options) -> Session:
    """Find and read the matrix; InputError with every problem of it."""
    project = open_project(matrix)
    return Session(project=project, matrix=published.load(project.matrix), options=options)


class LockResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of locking several targets: digests, and the error of each that failed."""

    sealed: tuple[Seal, ...]
    failed: dict[str, ImgbuildError]


def lock_all(
    session: Session, selected: Sequence[Selected], *, drop: bool, again: bool = True
) -> LockResult:
    """Lock and seal each target; one that fails does not stop the others.

    `again=False` skips locks that are current: an interrupted run continues where it stopped. A
    single target's error is raised as it is. InputError if the project is read-only.
    """
    report_templates(session.project)
    session.project.require_writable("imgbuild lock")
    images = session.project.images
    places = [images, *(images / item.name for item in selected), session.project.root / bake.FILE]
    files.require_writable(places, hint="work on a copy of the project that may be written to")
    inputs = session.inputs(locking=True)
    project, matrix, count = session.project, session.matrix, len(selected)
    done: dict[str, Seal] = {}
    failed: dict[str, ImgbuildError] = {}
    settled: dict[str, Lock] = {}
    for number, item in enumerate(selected, start=1):
        if not again and (current := _current(session, item.name)) is not None:
            console.info(f"{item.name}: locked and current ({number} of {count})")
            done[item.name] = current
            continue
        with _attempt(session, item.name, inputs, failed, single=count == 1):
            settled[item.name] = lock_target.settle_target(project, matrix, item.name, inputs)
    total = downloads(project, list(settled.values()), inputs)
    if settled:
        total.transfer.announce()
    for name, lock in settled.items():
        inputs = inputs.counting(total.transfer, spared=total.later[name])
        with _attempt(session, name, inputs, failed, single=count == 1):
            done[name] = lock_target.lock_target(
                project, matrix, lock, inputs, processes=session.options.jobs, drop=drop
            )[1]
            console.info(f"{name}: locked ({len(done) + len(failed)} of {count})")
        if drop:
            inputs.drop(total.missing)
    total.transfer.close()
    bases = [(lock, matrix.bases[matrix.targets[name].base]) for name, lock in settled.items()]
    security_updates.report(bases, inputs.context)
    sealed = [done[item.name] for item in selected if item.name in done]
    write.keep_new(project, matrix, [one.target for one in sealed], console)
    prune.trim(inputs.store)
    return LockResult(sealed=tuple(sealed), failed=failed)


@contextlib.contextmanager
def _attempt(
    session: Session, name: str, inputs: Inputs, failed: dict[str, ImgbuildError], *, single: bool
) -> Iterator[None]:
    """Report an error of target `name` and keep it in `failed`; raise that of a `single` one."""
    try:
        with _explaining(session, name, inputs):
            yield
    except ImgbuildError as error:
        if single:
            raise
        console.error(f"{name}: {error.message}", hint=error.hint)
        failed[name] = error


@contextlib.contextmanager
def _explaining(session: Session, name: str, inputs: Inputs) -> Iterator[None]:
    try:
        yield
    except NoSolution as error:
        with console.step(f"looking for the cause, and for suggestions near {name}"):
            raise _explained(error, session, name, inputs) from error


def _explained(error: NoSolution, session: Session, name: str, inputs: Inputs) -> NoSolution:
    """`error` with a short conflict and suggestions, if there are any; else unchanged."""
    from imgbuild.resolve import explain

    known = constraints.read(session.project.images)
    for arch in session.matrix.targets[name].arch:
        problem = SolveProblem(session.matrix, name, arch, inputs.context, known)
        better = explain.explained(error, problem)
        if better is not error:
            return NoSolution(
                f"{name} for {arch}: {better.message}",
                reasons=better.reasons,
                nearest=better.nearest,
                hint=better.hint,
            )
    return error


def _current(session: Session, name: str) -> Seal | None:
    with contextlib.suppress(ImgbuildError):
        return current.read_current(session.project, session.matrix, name)[1]
    return None


def check_all(session: Session, selected: Iterable[Selected]) -> list[Seal]:
    """The seals of the targets; LockStale if one does not follow from the matrix."""
    return [
        current.read_current(session.project, session.matrix, item.name)[1] for item in selected
    ]


def diff_all(session: Session, selected: Iterable[Selected], revision: str) -> list[diff.Diff]:
    """What changed in each target since a git revision."""
    return [
        diff.diff(
            revisions.sealed_at(session.project, item.name, revision),
            current.read_current(session.project, session.matrix, item.name),
        )
        for item in selected
    ]


def build_all(
    session: Session,
    selected: Sequence[Selected],
    output: Path | None,
    *,
    form: str = "oci",
    only_base: bool = False,
) -> list[BuiltImage]:
    """Build each target from its lock; LockStale if one is out of date."""
    refuse_one_file(selected, output, form)
    files.require_writable(
        [session.project.below("build")] if output is None else [output], hint=files.OUTPUT_HINT
    )
    inputs = session.inputs()
    made = []
    for item in selected:
        locked = current.read_current(session.project, session.matrix, item.name)
        own = session.project.output(item.name)
        if only_base:
            own = contexts.base_folder(session.project, item.name)
        place = placed(own, item.name, output, several=len(selected) > 1, form=form)
        folder = place if form == "oci" else own
        with console.step(f"building {item.name} for {', '.join(item.arches)}"):
            built = building.build(
                *locked,
                item.arches,
                folder,
                inputs,
                processes=session.options.jobs,
                verify=session.options.verify,
                only_base=only_base,
            )
        if form != "oci":
            archive.write(folder, place, form, item.name, reporter=console)
            built = msgspec.structs.replace(built, output=place)
        report_built(built)
        made.append(built)
    prune.trim(inputs.store)
    return made


def built_layout(session: Session, name: str, folder: Path | None) -> Layout:
    """The layout of `name` that was built; InputError if there is none."""
    place = folder or session.project.output(name)
    if not place.exists():
        message = f"{place}: {name} is not built"
        raise InputError(message, hint=f"imgbuild build {name}")
    return layout.read(place)


def refuse_one_file(selected: Sequence[Selected], output: Path | None, form: str) -> None:
    """InputError if several targets would be written to one file."""
    if output is not None and form != "oci" and len(selected) > 1:
        message = f"--output {output} is one file, {len(selected)} targets are selected"
        raise InputError(message, hint="name one target, or leave --output out")


def placed(own: Path, name: str, output: Path | None, *, several: bool, form: str) -> Path:
    """The place of the image of `name`: beside `own`, `output`, or a folder in it for several."""
    suffix = "" if form == "oci" else f".{form}.tar"
    if output is None:
        return own.with_name(own.name + suffix)
    return output / f"{name}{suffix}" if several else output


def report_built(built: BuiltImage) -> None:
    """Report the result of a build."""
    work = "nothing to do" if built.unchanged else f"{count(built.made, 'layer')} assembled"
    console.info(f"{built.target}: {size_text(built.size)} in {built.output}, {work}")
