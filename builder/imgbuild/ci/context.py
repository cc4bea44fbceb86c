"""How CI jobs are run: the project, the results, the registry, and the options of their verbs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec

from imgbuild.ci import results
from imgbuild.ci.jobs import CiJob, Step, TargetJobs
from imgbuild.ci.settings import CiSettings
from imgbuild.project import MATRIX, Project
from imgbuild.system import process
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch

IN_REGISTRY: frozenset[Step] = frozenset({"pull", *results.CHANGING})


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are run.

    `registry` is HOST/REPOSITORY, "" to push nothing. `arches` are those to test, none: all that a
    target has. `timeout_factor` and `through` are options of `smoke`, `key` and `keyless` of
    `sign`; `jobs` is a number of processes. `slurm` are options of sbatch for jobs with GPUs; None
    runs these on this machine, too.
    """

    project: Project
    settings: CiSettings
    results: Path
    registry: str
    date: datetime.date
    arches: tuple[Arch, ...] = ()
    key: Path | None = None
    keyless: bool = False
    through: str = ""
    timeout_factor: float = 1.0
    jobs: int = 0
    offline: bool = False
    plain_http: tuple[str, ...] = ()
    slurm: tuple[str, ...] | None = None
    reporter: Reporter = SILENT

    def jobs_of(self, found: TargetJobs) -> dict[str, CiJob]:
        """The jobs of a target by id, with the steps that apply here: no `sign` without a key."""
        left_out: set[Step] = set()
        if not self.registry:
            left_out.add("push")
        if not self.key and not self.keyless:
            left_out.add("sign")
        return {
            job.id: msgspec.structs.replace(
                job,
                steps=tuple(step for step in job.steps if step not in left_out),
                registry=self.registry,
            )
            for job in found.all
        }

    @property
    def plain(self) -> list[str]:
        """The options for registries that are reached by plain HTTP."""
        return repeated("--plain-http", self.plain_http)

    @property
    def testing(self) -> list[str]:
        """The options that say how images are tested, except the tiers."""
        words = ["--through", self.through] if self.through else []
        factor = self.timeout_factor
        return [*words, "--timeout-factor", str(factor)] if factor != 1.0 else words

    @property
    def signer(self) -> list[str]:
        """The options that say who signs."""
        words = ["--sign-key", str(self.key)] if self.key else []
        return [*words, "--keyless"] if self.keyless else words

    @property
    def _tests(self) -> list[str]:
        gate = repeated("--gate", self.settings.gate)
        return [*repeated("--arch", self.arches), *gate, *self.testing]

    def elsewhere(self) -> tuple[str, ...]:
        """The words after `imgbuild` that run a job on another machine, without its id."""
        words = ["ci", "run", "--matrix", str(self.project.matrix)]
        words += ["--results", str(self.results.resolve()), "--registry", self.registry]
        return (*words, *self.plain, *self._tests)

    def repeat(self, job: CiJob, *, alone: bool = False) -> str:
        """The command line that runs `job` as it is run here, to be pasted in this folder.

        With `alone` nothing is pushed, if the job can do without a registry.
        """
        words = ["imgbuild", "ci", "run", job.id]
        if self.project.matrix.resolve() != Path.cwd() / MATRIX:
            words += ["--matrix", str(self.project.matrix)]
        if self.results.resolve() != (self.project.work / "build/ci").resolve():
            words += ["--results", str(self.results.resolve())]
        if not self.registry or (alone and "gate" not in job.steps):
            words += ["--no-push"]
        else:
            words += ["--registry", self.registry, *self.signer, *self.plain]
        return process.pasted([*words, *self._tests, *(["--offline"] if self.offline else [])])


def repeated(flag: str, values: Iterable[object]) -> list[str]:
    """An option that is given once for each value."""
    return [word for value in values for word in (flag, str(value))]
