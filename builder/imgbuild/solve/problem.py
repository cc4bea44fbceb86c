"""Defines the input of the solver: a target on one architecture, and the context."""

from __future__ import annotations

import functools

import msgspec

from imgbuild.cache.context import Context
from imgbuild.lock.project_requirements import ProjectRequirements
from imgbuild.lock.published import TargetOverlay, find_overlay, project_row
from imgbuild.lock.resolution import Resolution
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.model import Base, Matrix, Target
from imgbuild.values import Arch

NO_REQUIREMENTS = ProjectRequirements()


class SolveProblem(msgspec.Struct, frozen=True, dict=True):
    """The target `name` of `matrix` on `arch`. `known` are the learned constraints that apply."""

    matrix: Matrix
    name: str
    arch: Arch
    context: Context
    known: tuple[Constraint, ...] = ()

    @property
    def target(self) -> Target:
        """The target in the matrix."""
        return self.matrix.targets[self.name]

    @property
    def overlay(self) -> TargetOverlay | None:
        """The target's additions to a published target, or None if it does not extend one."""
        return find_overlay(self.matrix, self.name)

    @property
    def row(self) -> TargetOverlay | None:
        """The target's row in the matrix of a project, or None in other matrices."""
        return project_row(self.matrix, self.name)

    @functools.cached_property
    def requirements(self) -> ProjectRequirements:
        """The requirements in the project's files for this architecture.

        They are empty for a target that is not a row of a project.
        """
        return self.row.requirements_for(self.arch) if self.row is not None else NO_REQUIREMENTS

    @property
    def published(self) -> Resolution | None:
        """The locked resolution of the published target, or None if the target extends none."""
        overlay = self.overlay
        return overlay.published.lock.arch.get(self.arch) if overlay is not None else None

    @property
    def base(self) -> Base:
        """The base of the target in the matrix."""
        return self.matrix.bases[self.target.base]
