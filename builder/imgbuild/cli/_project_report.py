"""Prints the requirements of a project and the nearest targets."""

# A separate module: size.
from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from imgbuild.audit.binaries import gpu_models
from imgbuild.cli._output import align_columns, fold_lines, format_count, size_text, terminal_width
from imgbuild.pipeline import declared_files
from imgbuild.pipeline.choose_target import TargetChoice
from imgbuild.pipeline.declared_files import ReadFiles
from imgbuild.project import images
from imgbuild.project.model import Declarations
from imgbuild.resolve import choose, python_support
from imgbuild.resolve.choose import TargetCandidate
from imgbuild.show.table import RETIRED_MARK
from imgbuild.system import boundary
from imgbuild.values import normalize_package

SHOWN_TARGETS = 3  # targets of the table
SHOWN_EXCLUDED = 12  # lines on parts that were not read
CHOICES = 40  # extras and groups
FEW_REQUIREMENTS = 4  # packages of a target that is not the first
SHOWN_ADDITIONS = 20  # packages of the first target; --json has all
CHANGES = 8  # lines on changes; --json has all
WIDTH = 80
HEAD = ("target", "add", "change", "Python", "driver", "GPUs", "size", "tests")
RIGHT_COLUMNS = frozenset((1, 2, 6))


def read_lines(files: ReadFiles) -> list[str]:
    """Return the parts that were read from each file, and then the omitted parts with reasons."""
    declared = files.declared
    lines = [f"read {line}" for line in declared_files.declared_summary(declared)]
    for option, names, chosen in (
        ("--extra", declared.extras, files.extras),
        ("--group", declared.groups, files.groups),
    ):
        others = [name for name in names if name not in set(map(normalize_package, chosen))]
        if others:
            more = len(others) - CHOICES
            words = f" and {more} more; to list all, add --json" if more > 0 else ""
            verb = "also accepts" if chosen else "accepts"
            lines.append(f"{option} {verb} {', '.join(others[:CHOICES])}{words}")
    left_out = declared_files.unread_entries(declared)
    lines += [f"omitted {line}" for line in left_out[:SHOWN_EXCLUDED]]
    more = len(left_out) - SHOWN_EXCLUDED
    return [*lines, f"and {more} more omitted; to list all, add --json"] if more > 0 else lines


def python_lines(declared: Declarations, choice: TargetChoice) -> list[str]:
    """Return lines about available wheels if the project rejects the chosen target's Python."""
    if choice.chosen.python_accepted:
        return []
    demanded = ", ".join(f"{item.spec} ({item.place})" for item in declared.python)
    have = " or ".join(each.python for each in choice.wheels if not each.unlocked)
    where = (
        f"images have Python {have}, and {choice.chosen.target} has Python {choice.chosen.python}"
    )
    lines = [f"the project requires Python {demanded}; {where}"]
    for each in choice.wheels:
        if each.pinned:
            missing = f", not {', '.join(each.missing)}" if each.missing else ""
            there = each.pinned - len(each.missing)
            lines.append(
                f"Python {each.python}: {there} of {format_count(each.pinned, 'pinned package')}"
                f" can be installed{missing}"
            )
    unlocked = [
        f"{name} has Python {each.python}, and is not locked; in a clone of imgbuild, run: "
        f"imgbuild lock {name} ({python_support.HOW_TO_PAGE})"
        for each in choice.wheels
        if choose.accepts_python(declared, f"{each.python}.2")
        for name in each.unlocked
    ]
    lines += unlocked or [python_support.OTHER_PYTHON_REMEDY]
    return ["\n  ".join(lines)]


def cuda_lines(declared: Declarations, choice: TargetChoice) -> list[str]:
    """Return a line if the project's files specify only CUDA releases that the image lacks."""
    cuda = choice.cuda or choice.chosen.cuda
    named = [f"{item.name} ({item.place})" for item in declared.cuda]
    if not named or cuda in {item.name for item in declared.cuda}:
        return []
    return [f"the image has CUDA {cuda}, as its torch build requires, not {', '.join(named)}"]


def base_lines(declared: Declarations, chosen: str, names: Collection[str]) -> list[str]:
    """Return how to compare `chosen` with the targets `names` that are base images."""
    bases = {images.split_image(each.name)[1]: each.place for each in declared.images}
    return [
        f"{place} is based on {name}; to show how {chosen} differs, and how much to download, run: "
        f"imgbuild diff {name} {chosen}"
        for name, place in bases.items()
        if name in names and name != chosen
    ]


def report_lines(choice: TargetChoice | None, matrix: Path) -> list[str]:
    """Return the nearest targets, the changes to the nearest one, and the new matrix row."""
    if choice is None:
        return []
    return [
        *candidate_table(choice.candidates[:SHOWN_TARGETS]),
        "",
        *fold_lines(change_lines(choice.chosen)),
        *fold_lines(command_to_keep_versions(choice.chosen, matrix)),
        *fold_lines(map(change_summary, choice.candidates[1:SHOWN_TARGETS])),
        "",
        f"# {matrix.name}",
        *_matrix_row_lines(matrix),
    ]


def candidate_table(candidates: Sequence[TargetCandidate]) -> list[str]:
    """Return the table of candidates, in at most 80 columns."""
    rows = [HEAD, *(_cells(each) for each in candidates)]
    return align_columns(rows, right=RIGHT_COLUMNS, width=min(terminal_width(), WIDTH))


def _cells(item: TargetCandidate) -> tuple[str, ...]:
    minor = ".".join(item.python.split(".")[:2])
    return (
        item.target + (RETIRED_MARK if item.retired else ""),
        str(len(item.added)),
        str(len(item.changed)),
        minor if item.python_accepted else f"{minor} (!)",
        item.driver.partition(".")[0] + "+" if item.driver else "-",
        gpu_models.gpu_span(item.gpu) or "-",
        size_text(item.size),
        item.tested or "-",
    )


def change_lines(chosen: TargetCandidate) -> list[str]:
    """Return lines about requirements that the target meets, and packages to add or change."""
    met = f": {format_count(len(chosen.met), 'requirement')} met" if chosen.met else ""
    lines = [f"{chosen.form} {chosen.target}{met}"]
    if chosen.added:
        lines.append(f"added: {', '.join(_first_few(chosen.added, SHOWN_ADDITIONS))}")
    lines += [f"changed: {change}" for change in chosen.changed[:CHANGES]]
    if len(chosen.changed) > CHANGES:
        lines.append(f"and {len(chosen.changed) - CHANGES} more changes; to list all, add --json")
    return lines


def command_to_keep_versions(chosen: TargetCandidate, matrix: Path) -> list[str]:
    """Return how to keep the target's versions if only project files require other versions."""
    if not chosen.changed or any(change.by for change in chosen.changed):
        return []
    relax = " ".join(f"--relax {change.package}" for change in chosen.changed)
    return [
        f"to keep the versions of {chosen.target}, run: rm {matrix.name} && imgbuild init {relax}"
    ]


def change_summary(other: TargetCandidate) -> str:
    """Return a line with the packages that another target would have to add or change."""
    changed = [f"{each.package} {each.has} -> {each.wanted}" for each in other.changed]
    parts = [f"add {', '.join(_first_few(other.added))}"] if other.added else []
    parts += [f"change {', '.join(_first_few(changed))}"] if changed else []
    return f"{other.target}: {'; '.join(parts) or 'nothing to add or change'}"


def _first_few(words: Sequence[str], most: int = FEW_REQUIREMENTS) -> list[str]:
    more = len(words) - most
    return [*words[:most], f"{more} more"] if more > 0 else [*words]


def _matrix_row_lines(matrix: Path) -> list[str]:
    text = boundary.read_regular_file(matrix).decode().splitlines()
    start = text.index("targets:")
    return [line for line in text[start:] if line.strip() and not line.lstrip().startswith("#")]
