"""Defines the filters of `imgbuild list`, and the error if no target matches them."""

# A separate module: size.
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from imgbuild.audit.binaries import gpu_models
from imgbuild.audit.binaries.gpu_models import GpuModel
from imgbuild.cli import _machine
from imgbuild.cli._options import AS_OF, CUDA, DRIVER, GPU, PYTHON
from imgbuild.cli._verb import TARGETS_PANEL, OptionGroup, option
from imgbuild.errors import InputError, NothingSelected
from imgbuild.lock import lock_file
from imgbuild.matrix import near, notes
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.resolve import python_support, source_only
from imgbuild.system import quoting
from imgbuild.system.syntax import parse_requirement
from imgbuild.values import Arch, Condition, normalize_package

GPU_COUNT = re.compile(r"^\d+ ")  # of --tested
OPERATORS = tuple("<>=!~")  # with which a specifier begins

With = Annotated[
    list[str] | None,
    option(
        "--with",
        "Select targets that contain this package, such as verl or 'verl>=0.6'. Can be repeated.",
        metavar="PACKAGE",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
Cuda = Annotated[
    str | None, CUDA("Select targets of this release; 12 selects all CUDA 12 releases.")
]
Gpu = Annotated[
    list[str] | None,
    GPU(
        "Select targets that contain code for this GPU. If repeated, select targets that run on "
        "all of them, also in machines of different architectures."
    ),
]
Driver = Annotated[str | None, DRIVER("Select targets that run on this driver.")]
PythonVersion = Annotated[
    list[str] | None,
    PYTHON(
        "Select targets with this version. Ranges such as '>=3.12' and major versions such as 3 "
        "are also accepted. Can be repeated or comma-separated."
    ),
]
Fits = Annotated[
    bool,
    option(
        "--fits",
        "Select locked targets that this machine can run, according to its GPU, driver and"
        " architecture.",
        panel=TARGETS_PANEL,
        often=True,
    ),
]
State = Annotated[
    list[Condition] | None,
    option(
        "--state",
        "Select targets in this state. The state 'needs' means that a target requires another "
        "index, or a wheel that you supply. Can be repeated.",
        panel=TARGETS_PANEL,
    ),
]


AsOf = Annotated[
    str | None, AS_OF("Select targets with this or an earlier date.", panel=TARGETS_PANEL)
]
TestedOn = Annotated[
    str | None,
    option(
        "--tested",
        "Select targets whose image has passed tests on this GPU, such as H200, or on several "
        "GPUs, such as '2 H200'.",
        metavar="GPU",
        panel=TARGETS_PANEL,
    ),
]


class ListFilters(OptionGroup, frozen=True, kw_only=True):
    """Filters for targets. A target must match all filters that are given."""

    package: With = None
    cuda: Cuda = None
    gpu: Gpu = None
    driver: Driver = None
    tested: TestedOn = None
    python: PythonVersion = None
    as_of: AsOf = None
    fits: Fits = False
    state: State = None

    def words(self) -> list[str]:
        """Return the filters as options of the command line."""
        return [
            *(f"--with {requirement}" for requirement in self.package or ()),
            *([f"--cuda {self.cuda}"] if self.cuda else []),
            *(f"--gpu {quoting.quote_word(gpu)}" for gpu in self.gpu or ()),
            *([f"--driver {self.driver}"] if self.driver else []),
            *([f"--tested {self.tested}"] if self.tested else []),
            *(f"--python {each}" for each in self.python or ()),
            *([f"--as-of {self.as_of}"] if self.as_of else []),
            *(["--fits"] if self.fits else []),
            *(f"--state {state}" for state in self.state or ()),
        ]

    @property
    def doctor(self) -> str:
        """The command that describes the targets on the machine of these filters."""
        given = [("--gpu", gpu) for gpu in self.gpu or ()]
        given += [("--driver", self.driver)] if self.driver else []
        words = (f" {option} {quoting.quote_word(text)}" for option, text in given)
        return f"imgbuild doctor{''.join(words)}"

    @property
    def arches(self) -> list[Arch]:
        """Return the architecture of machines with the GPUs, or nothing if there are several."""
        arches = {_machine.parse_gpu(gpu).arch for gpu in self.gpu or ()}
        return [arch for arch in arches if arch and len(arches) == 1]

    def machines(self, given: Sequence[Arch]) -> list[tuple[GpuModel, Arch | None]]:
        """Return each GPU with the architecture of its machines, or None if there are several.

        Next to a GPU of another architecture, the default is x86_64, unless `--arch` is `given`.
        """
        models = [_machine.parse_gpu(gpu) for gpu in self.gpu or ()]
        several = any(model.arch for model in models) and not given
        default = Arch.X86_64 if several else None
        return [(model, model.arch or default) for model in models]

    def without_one(self) -> Iterator[tuple[str, ListFilters]]:
        """Yield each filter as words, and the other filters."""
        for field in self.__struct_fields__:
            given = getattr(self, field)
            for each in given if isinstance(given, list) else [given] if given else []:
                several = isinstance(given, list)
                rest = [other for other in given if other != each] if several else None
                alone: ListFilters = msgspec.structs.replace(
                    ListFilters(), **{field: [each] if several else each}
                )
                others = msgspec.structs.replace(self, **{field: rest or None})
                yield " ".join(alone.words()), others

    def nothing_selected(
        self,
        matrix: Matrix,
        arches: Sequence[Arch],
        project: Project,
        reason: str = "",
        relaxed: Sequence[str] = (),
    ) -> NothingSelected:
        """Return an error with the filters and `reason`, because no row matches.

        The hint is the targets that match without one filter (`relaxed`), and the best match if
        there are none or its rank depends on every filter.
        """
        given = self.words() + [f"--arch {arch}" for arch in arches]
        requests = {
            normalize_package(requirement.name): str(requirement.specifier)
            for requirement in map(parse_filter, self.package or ())
        }
        cuda = next(
            (
                target.cuda
                for target in reversed(matrix.targets.values())
                if self.cuda in (target.cuda, target.cuda.split(".")[0])
            ),
            self.cuda,
        )
        arch = arches[0] if arches else Arch.X86_64
        names = near.rank_targets(matrix, requests, cuda, arch)
        locked = project.locked_targets()
        nearest = (
            f"nearest: {near.describe_target(matrix, names[0], arch, locked)}; " if names else ""
        )
        ranked = msgspec.structs.replace(self, package=None, cuda=None) == ListFilters()
        nearest = (nearest if ranked or not relaxed else "") + "".join(
            f"{each}; " for each in relaxed
        )
        pinned = {package for target in matrix.targets.values() for package in target.pins}
        for package in requests.keys() - pinned:
            similar = notes.nearest_choice(package, pinned)
            nearest = f"did you mean --with {similar}? {nearest}" if similar else nearest
        absences = {package: source_only.absence_text(package) for package in requests}
        for package in filter(absences.get, requests):
            locks = (lock for each in matrix.targets for lock in locked_versions(project, each))
            if not any(package in locked for locked in locks):
                nearest = f"no image has {package}: {absences[package]}; {nearest}"
        if self.gpu or self.driver:
            nearest = f"to show the reasons, run: {self.doctor}; {nearest}"
        name = GPU_COUNT.sub("", self.tested or "")
        if name and gpu_models.find_gpu_model(name) is not None:
            runs = f"imgbuild list --gpu {quoting.quote_word(name)}"
            nearest += f"to list the targets that run on it, run: {runs}; or "
        message = f"no target matches {' '.join(given) or 'the selection'}"
        pythons = {base.python for base in matrix.bases.values()}
        requested = parse_pythons(self.python or ())
        if requested and not any(each.contains(has) for each in requested for has in pythons):
            nearest = f"{python_support.bases_text(pythons)}; {nearest}"
        return NothingSelected(f"{message}{reason}", hint=f"{nearest}omit a filter")


def parse_pythons(given: Sequence[str]) -> list[SpecifierSet]:
    """Parse the values of `--python`, which can be comma-separated."""
    specs = []
    for text in given:
        for part in [text] if text.startswith(OPERATORS) else text.split(","):
            name = part.strip()
            text_of = name if name.startswith(OPERATORS) else f"=={name}.*"
            try:
                specs.append(SpecifierSet(text_of))
            except InvalidSpecifier as error:
                message = f"--python {text}: expected a version such as 3.11, or '>=3.12'"
                hint = "to show the versions, run: imgbuild list --wide"
                raise InputError(message, hint=hint) from error
    return specs


def parse_filter(text: str) -> Requirement:
    hint = "specify, for example, --with verl or --with 'verl>=0.6'"
    try:
        requirement = parse_requirement(text)
    except InvalidRequirement as error:
        message = f"--with {text}: invalid package or version specifier"
        raise InputError(message, hint=hint) from error
    if requirement.marker or requirement.url:
        message = f"--with {text}: markers and URLs are not supported"
        raise InputError(message, hint=hint)
    return requirement


def locked_versions(project: Project, target: str) -> list[dict[str, str]]:
    lock = lock_file.find_lock(project.images, target)
    return [each.versions for each in lock.arch.values()] if lock is not None else []
