"""Implements `imgbuild init`, which creates a project from a published target."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from imgbuild.cache.context import Context
from imgbuild.cli import _machine, _project_report
from imgbuild.cli._help import create_command
from imgbuild.cli._options import CUDA, DRIVER, FROM, GPU, LOCK, SYSTEM, TARGET, OneArch
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._selection import at_most_one_arch
from imgbuild.cli._verb import TARGETS_PANEL, OptionGroup, create_verb, option
from imgbuild.doctor.host import Host, HostGpu, accelerator_host
from imgbuild.errors import ImgbuildError, InputError, NoSolution, NothingSelected
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file
from imgbuild.lock.published import load_matrix
from imgbuild.matrix import project_paths
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import declared_files
from imgbuild.pipeline.choose_target import TargetChoice, TargetChooser
from imgbuild.pipeline.declared_files import ReadFiles
from imgbuild.pipeline.opened import open_project
from imgbuild.pipeline.target_facts import ChoiceRequest
from imgbuild.project.model import Declarations
from imgbuild.resolve import choose, init, python_support, repositories, resolve_request
from imgbuild.resolve.first_matrix import WantedExtension
from imgbuild.show import status
from imgbuild.solve import repository_name
from imgbuild.system import quoting
from imgbuild.system.console import console
from imgbuild.system.syntax import valid_requirement
from imgbuild.values import Arch, normalize_package

ADD = "Additions"
READ = "The project's files"
MATRIX = "matrix.yaml"
PYTHON = "python"  # in --relax, for the Python that the project requires


NameOption = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The name of the image, or '.' for the name of the current folder. Default: '.'.",
        show_default=False,
    ),
]
ExtendsOption = Annotated[
    str | None,
    option(
        "--extends",
        "The published target to extend. All of its versions are kept. Default: the best match, "
        "or if no file declares requirements, the target recommended for vLLM.",
        metavar="TARGET",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
TargetOption = Annotated[
    list[str] | None,
    TARGET("Start from this target instead of the best match."),
]
LockOption = Annotated[
    str | None,
    LOCK(
        "A folder or URL with lock.json and digests.json, or a checkout of imgbuild. Default: the "
        "catalogue installed with imgbuild."
    ),
]
ImageOption = Annotated[
    str,
    option(
        "--image",
        "The location of the published layers: HOST/REPOSITORY, or oci:FOLDER. By default, layers "
        "are built from the lock.",
        metavar="LOCATION",
        panel=TARGETS_PANEL,
    ),
]
CudaOption = Annotated[str | None, CUDA("Consider only targets for this release.")]
DriverOption = Annotated[str | None, DRIVER("Default: the driver of this machine.")]
GpuOption = Annotated[
    list[str] | None,
    GPU(
        "Consider only targets that support this GPU. Can be repeated. Default: the GPUs "
        "of this machine."
    ),
]
FromOption = Annotated[
    list[str] | None,
    FROM(
        "A file, a folder, or a git URL with @REVISION that declares requirements. Can be "
        "repeated. Default: the current folder."
    ),
]
ExtraOption = Annotated[
    list[str] | None,
    option(
        "--extra",
        "Include this extra of the project. Can be repeated.",
        metavar="NAME",
        panel=READ,
    ),
]
GroupOption = Annotated[
    list[str] | None,
    option(
        "--group",
        "Include this dependency group of the project. Can be repeated.",
        metavar="NAME",
        panel=READ,
    ),
]
RelaxOption = Annotated[
    list[str] | None,
    option(
        "--relax",
        "Use the target's version of this package, even if the project requires another version. "
        "Can be repeated.",
        metavar="PACKAGE",
        panel=READ,
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    option(
        "--exclude",
        "Exclude a package that the project requires. Can be repeated. Packages that are published"
        " only as CUDA source code are always excluded.",
        metavar="PACKAGE",
        panel=READ,
        often=True,
    ),
]
AddOption = Annotated[
    list[str] | None,
    option(
        "--add",
        "Add this Python package, such as wandb or 'peft>=0.15'. Can be repeated.",
        metavar="PACKAGE",
        panel=ADD,
        often=True,
    ),
]
SystemOption = Annotated[
    list[str] | None,
    SYSTEM(),
]
FileOption = Annotated[
    list[str] | None,
    option(
        "--file",
        "Copy the file SRC to the path DST in the image. Can be repeated.",
        metavar="SRC:DST",
        panel=ADD,
    ),
]
RefreshOption = Annotated[
    bool,
    option(
        "--refresh",
        "Update the copied locks of published targets from their sources in the matrix.",
    ),
]


class ProjectOptions(OptionGroup, frozen=True, kw_only=True):
    """Options that select the project's files to read, and the target to start from."""

    origin: FromOption = None
    extra: ExtraOption = None
    group: GroupOption = None
    relax: RelaxOption = None
    exclude: ExcludeOption = None
    target: TargetOption = None
    cuda: CudaOption = None
    driver: DriverOption = None
    gpu: GpuOption = None
    arch: OneArch = None

    def limits_targets(self) -> bool:
        """Return whether an option names a target, or limits the targets to compare."""
        return any((self.target, self.cuda, self.driver, self.gpu))

    def choice_request(self, extends: str | None) -> ChoiceRequest:
        """Return the criteria for a target. The versions in the target `extends` are kept."""
        if len(self.target or ()) + (extends is not None) > 1:
            message = "--target and --extends cannot be combined"
            raise InputError(message, hint="omit one of these options")
        arch = at_most_one_arch(self.arch, "a project can be based on only one target")
        arch = arch or Arch.parse(platform.machine())
        host = self._host(arch)
        return ChoiceRequest(
            host=host,
            arch=arch,
            target=extends or next(iter(self.target or ()), None),
            extends=extends is not None,
            cuda=resolve_request.requested_cuda(self.cuda, None),
            relax=tuple(normalize_package(name) for name in self.relax or ()),
            exclude=tuple(normalize_package(name) for name in self.exclude or ()),
            gpu=tuple(sorted({gpu.capability for gpu in host.gpus})) if self.gpu else (),
        )

    def _host(self, arch: Arch) -> Host:
        """Return the machine that must be able to run the image. Unknown properties are empty."""
        here = accelerator_host()
        if here.arch != arch:
            here = Host(arch=arch)
        if self.driver is not None:
            named = _machine.parse_driver(self.driver)
            here = msgspec.structs.replace(here, driver=named, gpus=())
        if self.gpu:
            models = {text: _machine.parse_gpu(text) for text in self.gpu}
            gpus_here = tuple(
                HostGpu(name=text, capability=model.capability) for text, model in models.items()
            )
            here = msgspec.structs.replace(here, gpus=gpus_here)
        return here


class AdditionOptions(OptionGroup, frozen=True, kw_only=True):
    """Options that add packages to those in the project's files."""

    add: AddOption = None
    system: SystemOption = None
    file: FileOption = None


class CreatedProject(msgspec.Struct, frozen=True, kw_only=True):
    """A new project: the row of the matrix, and the files that were written.

    `read` and `choice` are None if no file declares requirements.
    """

    name: str
    target: str
    form: choose.RowForm
    wrote: tuple[Path, ...]
    read: Declarations | None = None
    choice: TargetChoice | None = None


class TargetSource(msgspec.Struct, frozen=True, kw_only=True):
    """The targets to choose from, with the values for `from` and `image` in the matrix."""

    catalogue: Project
    place: str
    image: str


@create_verb
def init_project(
    project: ProjectOptions,
    additions: AdditionOptions,
    name: NameOption = None,
    extends: ExtendsOption = None,
    lock: LockOption = None,
    image: ImageOption = "",
    refresh: RefreshOption = False,
) -> None:
    """Create an image for a project from the best matching target.

    Reads the requirements of the project in the current folder from requirements files,
    pyproject.toml, lock files, setup.cfg, environment.yml or a Dockerfile. Compares the
    requirements with every target, prints the three best matches, and writes matrix.yaml with a row
    that refers to these files. All other files are written to .imgbuild/. Existing files are not
    changed. If no file declares requirements, the image extends the recommended target, or the best
    match for --add, --gpu, --driver, --cuda and --target.

    If a tested target satisfies all requirements of the project, the row has `extends: TARGET` and
    keeps the versions. Otherwise, the row has `like: TARGET`: imgbuild solves the requirements
    again and prefers the target's versions. If requirements cannot be satisfied, all of them are
    listed and nothing is written.

    Examples:

        imgbuild init

        imgbuild init --from requirements.txt --driver 535

        imgbuild init --extra vllm --gpu H100 --exclude flash-attn

        imgbuild init my-image --extends cu124-vllm --add wandb --system rsync

        imgbuild init my-image --extends team-image --lock https://example.org/images

        imgbuild init --refresh
    """
    if refresh:
        _refresh_catalogue()
        return
    catalogue = _catalogue(lock)
    if extends is None and catalogue is None:
        message = f"--lock {lock} has no {MATRIX}, so --extends is required"
        raise InputError(message, hint="run imgbuild init my-image --extends TARGET --lock LOCK")
    path = Path.cwd() / MATRIX
    init.refuse_existing(path)
    request = project.choice_request(extends)
    context = Context.open(console)
    with tempfile.TemporaryDirectory() as scratch:
        files = declared_files.read_files(
            path.parent,
            project.origin or (),
            Path(scratch),
            context,
            extras=project.extra or (),
            groups=project.group or (),
        )
        place = lock or init.CATALOGUE_PLACE
        compares = declared_files.declares_anything(files.declared) or (
            extends is None and bool(additions.add or project.limits_targets())
        )
        if catalogue is None or not compares:
            if extends is None:
                declared_files.require_read(files.declared)
            for line in _project_report.read_lines(files):
                console.info(line)
            name = init.target_name_for(name or "my-image")
            target = (
                extends if catalogue is None else _select_target(catalogue, extends, request.arch)
            )
            arch = (request.arch.value,) if project.arch else ()
            _write_extension(path, name, target or "", place, image, additions, arch)
            return
        source = TargetSource(catalogue=catalogue, place=place, image=image)
        started = _create_project(
            path, init.target_name_for(name or "."), files, request, source, additions, context
        )
    print_result(started, _project_report.report_lines(started.choice, path))
    if started.choice is not None and started.choice.as_of is not None:
        console.info(
            f"as_of is {started.choice.as_of}: files that were uploaded later are not used; to use "
            "newer versions of packages without pins, change as_of in matrix.yaml"
        )
    console.info(f"next: imgbuild lock && imgbuild run -- python {_script(path.parent)}")


def _script(folder: Path) -> str:
    """Return the only train*.py or main.py in the folder, quoted for a shell, or SCRIPT."""
    names = [path.name for path in (*folder.glob("train*.py"), *folder.glob("main.py"))]
    return quoting.quote_word(names[0]) if len(names) == 1 else "SCRIPT"


def _create_project(
    path: Path,
    name: str,
    files: ReadFiles,
    request: ChoiceRequest,
    source: TargetSource,
    additions: AdditionOptions,
    context: Context,
) -> CreatedProject:
    for line in _project_report.read_lines(files):
        console.info(line)
    more = tuple(repository_name.add_name(word, context) for word in additions.add or ())
    additions = msgspec.structs.replace(additions, add=list(more))
    declared = declared_files.add_requirements(files.declared, more)
    matrix = load_matrix(source.catalogue.matrix)
    chooser = TargetChooser(source.catalogue, matrix, declared, request, context)
    choice = chooser.choose_target(files.folder)
    for line in _project_report.base_lines(declared, choice.chosen.target, matrix.targets):
        console.info(line)
    _print_differences(declared, choice)
    system = additions.system or ()
    debs = [*(item.name for item in declared.debian), *system]
    base = matrix.targets[choice.chosen.target].base
    lacking = declared_files.unknown_debs(matrix, base, debs, request.arch, context)
    absent = {}
    for item in declared.debian:
        if item.name in lacking and item.name not in system:
            near = f"; nearest: {lacking[item.name]}" if lacking[item.name] else ""
            console.warn(f"omitted {item.place}: Debian has no package {item.name}{near}")
            absent[item.name] = f"Debian has no such package{near}"
    lacking = {name: near for name, near in lacking.items() if name in system}
    asked = chooser.demands(choice.chosen.python)
    failures = [*files.failures, *repositories.repository_failures(asked, context)]
    _refuse_choice(choice, request, lacking, declared, failures)
    target = choice.chosen.target
    row = _row(f"{name}-project" if name == target else name, files, choice, request, additions)
    if row.like and not declared_files.declares_anything(files.declared):
        locked = lock_file.read_lock(source.catalogue.images, target).requirements
        row = msgspec.structs.replace(row, add=(*_other_names(locked, more), *row.add))
    row = msgspec.structs.replace(row, exclude={**row.exclude, **absent})
    copies = declared_files.copy_files(files, path.parent)
    try:
        below = init.begin_matrix(
            path, row, extends=target, place=source.place, image=source.image, http=HttpClient()
        )
    except BaseException:
        for copy in copies:
            copy.unlink()
        raise
    wrote = [path, below.folder / "lock.json", below.folder / "digests.json"]
    wrote += [*init.write_editor_files(path.parent), *copies]
    return CreatedProject(
        name=row.name,
        target=target,
        form=choice.chosen.form,
        wrote=tuple(wrote),
        read=declared,
        choice=choice,
    )


def _other_names(packages: Iterable[str], more: Sequence[str]) -> list[str]:
    """Return the names in `packages`, except those that the requirements `more` name."""
    named = {normalize_package(each.name) for each in map(valid_requirement, more) if each}
    return [name for name in packages if name not in named]


def _print_differences(declared: Declarations, choice: TargetChoice) -> None:
    for line in (
        *_project_report.python_lines(declared, choice),
        *_project_report.cuda_lines(declared, choice),
    ):
        console.warn(line)
    for each in choice.advice:
        console.warn(
            "\n  ".join((f"{each.package} is excluded: {each.reason}", *each.remedy_lines))
        )
    for line in (*choice.missed, *choice.indexes.failures):
        console.warn(line)
    for line in choice.indexes.notes:
        console.info(line)
    for reason in choice.sdists.values():
        console.info(f"{reason}, so it is built in the sandbox")


def _refuse_choice(
    choice: TargetChoice,
    request: ChoiceRequest,
    lacking: dict[str, str],
    declared: Declarations,
    failures: Sequence[ImgbuildError],
) -> None:
    """Raise NoSolution with all requirements that cannot be satisfied, and remedies.

    If all requirements can be satisfied, `failures` are raised, which are errors of git
    repositories.
    """
    chosen = choice.chosen
    if request.extends and chosen.changed:
        message = f"the versions in {chosen.target} do not satisfy the requirements of the project"
        hint = (
            f"run imgbuild init --target {chosen.target} to change these versions, or accept the"
            " target's version of a package with --relax PACKAGE"
        )
        raise NoSolution(message, reasons=tuple(map(str, chosen.changed)), hint=hint)
    reasons = [str(each) for each in choice.obstacles]
    if PYTHON not in request.relax and not choose.accepts_python(
        msgspec.structs.replace(declared, python=declared.required_python), chosen.python
    ):
        reasons += [
            f"{item.place} requires Python {item.spec}; --relax {PYTHON} uses {chosen.python}"
            for item in declared.required_python
        ]
        nearest = _project_report.change_lines(chosen)
        reasons[-1] += "\n    ".join((", of the nearest target:", *nearest))
    reasons += [
        f"Debian has no package {name}" + (f"; nearest: {near}" if near else "")
        for name, near in lacking.items()
    ]
    if failures and not reasons:
        raise repositories.refusal_error(failures)
    reasons += repositories.error_lines(failures)
    if reasons:
        number = f"{len(reasons)} requirements" if len(reasons) > 1 else "a requirement"
        message = f"{number} of the project cannot be satisfied with Python {chosen.python}"
        hint = (
            "change the requirements in the project's files, exclude a package with --exclude "
            "PACKAGE, or accept"
        )
        hint += " the target's version with --relax PACKAGE"
        if any(each.cause == "python" for each in choice.obstacles):
            hint += f"; {python_support.OTHER_PYTHON_REMEDY}"
        raise NoSolution(message, reasons=tuple(reasons), hint=hint)


def _row(
    name: str,
    files: ReadFiles,
    choice: TargetChoice,
    request: ChoiceRequest,
    additions: AdditionOptions,
) -> WantedExtension:
    chosen = choice.chosen
    relaxed = (
        "relaxed with imgbuild init --relax, although the project requires a different version"
    )
    minor = ".".join(chosen.python.split(".")[:2])
    return WantedExtension(
        name=name,
        summary=f"the image of {name}",
        like=chosen.form == "like",
        requirements=declared_files.listed_files(files),
        extras=tuple(files.extras),
        groups=tuple(files.groups),
        add=tuple(additions.add or ()),
        names=files.names,
        exclude=choice.excluded,
        relax={
            **{package: (version, relaxed) for package, version in choice.relaxed.items()},
            **({PYTHON: (f"{minor}.*", relaxed)} if PYTHON in request.relax else {}),
        },
        sdists=choice.sdists,
        indexes=choice.indexes.packages,
        index_rows=choice.indexes.indexes,
        cuda=choice.cuda,
        gpu=request.gpu if chosen.form == "like" else (),
        arch=(request.arch.value,),
        as_of=choice.as_of,
        system=tuple(additions.system or ()),
        files=init.parse_file_pairs(additions.file or ()),
    )


def _write_extension(
    path: Path,
    name: str,
    extends: str,
    place: str,
    image: str,
    additions: AdditionOptions,
    arch: tuple[str, ...],
) -> None:
    plain = [word for word in additions.add or () if not _has_more(word)]
    extension = WantedExtension(
        name=name,
        add=tuple(word for word in additions.add or () if _has_more(word)),
        packages=resolve_request.parse_requests(plain, [], {})[0] if plain else (),
        system=tuple(additions.system or ()),
        files=init.parse_file_pairs(additions.file or ()),
        arch=arch,
    )
    below = init.begin_matrix(
        path, extension, extends=extends, place=place, image=image, http=HttpClient()
    )
    console.info(f"{name} extends {extends} {below.digest}")
    console.info(f"next: imgbuild lock {name} && imgbuild build {name} && imgbuild run {name}")
    wrote = [path, below.folder / "lock.json", below.folder / "digests.json"]
    wrote += init.write_editor_files(path.parent)
    started = CreatedProject(name=name, target=extends, form="extends", wrote=tuple(wrote))
    print_result(started, [str(each) for each in wrote])


def _has_more(word: str) -> bool:
    """Return whether `word` has an extra, a URL or a marker, which `requires:` cannot contain."""
    requirement = valid_requirement(word)
    return requirement is not None and bool(
        requirement.extras or requirement.url or requirement.marker
    )


def _catalogue(lock: str | None) -> Project | None:
    """Return the checkout at `lock` (default: the catalogue), or None if it has no matrix."""
    if lock is None:
        return project_paths.catalogue_project()
    path = Path(lock).expanduser()
    return project_paths.find_project(path) if (path / MATRIX).is_file() else None


def _select_target(catalogue: Project, extends: str | None, arch: Arch) -> str:
    if extends is None:
        targets = load_matrix(catalogue.matrix).targets
        stacks = {name: target.recommended for name, target in targets.items()}
        return init.recommended_target(catalogue, stacks, arch)
    if extends not in catalogue.locked_targets():
        matrix = load_matrix(catalogue.matrix)
        if extends in matrix.targets:
            message = f"{extends} is not locked"
            raise NothingSelected(message, hint=status.lock_remedy(matrix, extends))
    init.require_target(catalogue, extends)
    return extends


def _refresh_catalogue() -> None:
    project = open_project(None)
    project.require_writable("imgbuild init --refresh")
    updates = init.refresh_targets(project.matrix, HttpClient())
    lines = [
        f"{item.target} {item.after} (unchanged)" if item.before == item.after
        else f"{item.target} {item.before or 'none'} -> {item.after}"
        for item in updates
    ]  # fmt: skip
    changed = any(item.before != item.after for item in updates)
    console.info("next: imgbuild lock --all" if changed else "nothing has changed")
    print_result(updates, fold_lines(lines))


COMMAND = create_command(init_project)
