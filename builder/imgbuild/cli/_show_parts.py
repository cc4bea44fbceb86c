"""Prints the parts of `imgbuild show` on layers, history and tests."""

# A separate module: size.
from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import msgspec

from imgbuild.cli._output import (
    align_columns,
    fold_lines,
    format_count,
    print_result,
    size_text,
    terminal_width,
)
from imgbuild.cli._targets import SelectionOptions
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import ImageDigests
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    AddedFilesRecipe,
    DebianRecipe,
    Plan,
    PythonRecipe,
    Recipe,
    WheelsRecipe,
    create_plan,
)
from imgbuild.show import layer_bars, revisions, side_by_side, test_cases
from imgbuild.show.layer_bars import LayerBar
from imgbuild.show.page import TargetPage, distinct_notes
from imgbuild.show.revisions import TargetRevision
from imgbuild.show.table import short_digest
from imgbuild.smoke import recording
from imgbuild.smoke.records import RecordedRun, other_digests
from imgbuild.system.console import console
from imgbuild.values import Arch, Digest, native_arch_first

LAYERS_HEAD = ("#", "layer", "MB", "unpacked", "contents", "digest")
NUMBERS = frozenset({0, 2, 3})
WIDTH = 80
_BAR = re.compile(r"( *\d+  (?P<name>\S+) .*?B  )([█▏▎▍▌▋▊▉#]* *)(.*)")


def show_layers(selection: SelectionOptions) -> None:
    """Print the layers of each image, as bars on a terminal, else as a table."""
    project = selection.project()
    chosen = selection.selected_locks(project)
    planned = [
        create_plan(item.lock, each) for item in chosen for each in native_arch_first(item.arches)
    ]
    if console.json:
        print_result(planned, [])
        return
    digests = {
        item.lock.target: image_digests.read_digests(project.images, item.lock) for item in chosen
    }
    lines: list[str] = []
    width = terminal_width()
    for item in planned:
        image = digests[item.target].arch[item.arch]
        pulled, unpacked = image.size, sum(layer.unpacked for layer in image.layers)
        console.info(
            f"{item.target} {item.arch}: {format_count(len(item.layers), 'layer')},"
            f" {size_text(pulled)} to pull, {size_text(unpacked)} unpacked"
        )
        lines += [""] if lines else []
        lines += [f"{item.target} {item.arch}"] if len(planned) > 1 else []
        if width == sys.maxsize:
            rows = [LAYERS_HEAD, *_rows(item, image)]
            lines += align_columns(rows, right=NUMBERS, width=WIDTH)
        else:
            lines += layer_bars.bar_lines(_bars(item, image), width, blocks=_has_blocks())
    print_result(planned, lines, _bar_style)


def _bar_style(line: str) -> list[tuple[str, str]]:
    """Return the colour of a bar: blue (base), green (NVIDIA's libraries) or magenta (others)."""
    match = _BAR.fullmatch(line)
    if match is None:
        return [(line, "bold")]
    name = match["name"]
    kind = "magenta"
    if name.startswith("debian-"):
        kind = "blue"
    elif name.startswith("nvidia-"):
        kind = "green"
    elif name.startswith("group-"):
        kind = "cyan"
    return [(match[1], ""), (match[3], kind), (match[4], "dim")]


def _has_blocks() -> bool:
    """Whether stdout can show the characters of bars."""
    try:
        layer_bars.EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _bars(planned: Plan, image: ImageDigests) -> list[LayerBar]:
    return [
        LayerBar(
            name=layer.name, contents=_contents(layer.name, layer.recipe), size=locked_layer.size
        )
        for layer, locked_layer in zip(planned.layers, image.layers, strict=True)
    ]


def _rows(planned: Plan, image: ImageDigests) -> list[tuple[str, ...]]:
    """Return a row for each layer."""
    return [
        (
            str(number),
            layer.name,
            f"{locked_layer.size / 1e6:.1f}",
            f"{locked_layer.unpacked / 1e6:.1f}" if locked_layer.unpacked else "-",
            _contents(layer.name, layer.recipe),
            short_digest(locked_layer.digest),
        )
        for number, (layer, locked_layer) in enumerate(
            zip(planned.layers, image.layers, strict=True), start=1
        )
    ]


def _contents(name: str, recipe: Recipe) -> str:
    """Summarize the contents of the layer `name` in one or two words."""
    match recipe:
        case DebianRecipe() | AddedDebsRecipe():
            return format_count(len(recipe.debs), "package")
        case PythonRecipe():
            return f"CPython {recipe.archive.version}"
        case AddedFilesRecipe():
            return format_count(len(recipe.files) + bool(recipe.user_packages), "file")
        case WheelsRecipe() if len(recipe.wheels) > 1:
            return f"{len(recipe.wheels)} wheels"
        case WheelsRecipe() if recipe.wheels[0].package == name:
            return recipe.wheels[0].version
        case WheelsRecipe():
            return f"{recipe.wheels[0].package} {recipe.wheels[0].version}"
        case _:
            return "-"


class TargetHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of a target by revision, newest first."""

    target: str
    revisions: tuple[TargetRevision, ...]


def show_history(selection: SelectionOptions) -> None:
    """Print the digests of each target in the git history of the checkout."""
    project = selection.project()
    names = [item.lock.target for item in selection.selected_locks(project)]
    histories = [
        TargetHistory(target=name, revisions=revisions.target_history(project, name))
        for name in names
    ]
    lines: list[str] = []
    for each in histories:
        lines += ["", each.target] if lines else [each.target] if len(histories) > 1 else []
        rows: list[Sequence[str]] = [("date", "commit", "digest", "to pull", "subject")]
        rows += [
            (
                revision.date,
                revision.commit[:8],
                short_digest(revision.digest) if revision.digest else "removed",
                "/".join(f"{size / 1e9:.1f} GB" for size in _x86_64_first(revision.size)) or "-",
                revision.subject,
            )
            for revision in each.revisions
        ]
        lines += align_columns(rows)
    print_result(histories, lines)
    if not console.json and len(histories) == 1 and len(histories[0].revisions) > 1:
        [each] = histories
        commit = each.revisions[1].commit[:8]
        console.info(
            f"to show the latest change, run: imgbuild diff {each.target}@{commit} {each.target}"
        )


def _x86_64_first(sizes: dict[str, int]) -> list[int]:
    return [size for _, size in sorted(sizes.items(), reverse=True)]


class TargetTests(msgspec.Struct, frozen=True, kw_only=True):
    """The test records of an image: the latest run of each tier on each kind of GPU."""

    target: str
    arch: Arch
    digest: Digest
    runs: tuple[RecordedRun, ...]


def show_tests(selection: SelectionOptions) -> None:
    """Print the test records of each image as a table of cases by GPU."""
    project = selection.project()
    tests: list[TargetTests] = []
    for item in selection.selected_locks(project):
        digests = image_digests.read_digests(project.images, item.lock)
        counting = recording.counted_runs(project, digests)
        tests += [
            TargetTests(
                target=digests.target,
                arch=arch,
                digest=digests.arch[arch].manifest,
                runs=counting[arch],
            )
            for arch in native_arch_first(item.arches)
        ]
    lines: list[str] = []
    for each in tests:
        lines += [""] if lines else []
        lines.append(f"{each.target} {each.arch}, digest {short_digest(each.digest)}")
        if each.runs:
            lines += align_columns(test_cases.run_rows(each.runs), right=test_cases.NUMBERS)
            lines += fold_lines(other_digests(each.runs, each.digest))
            failures = [*test_cases.failure_lines(each.runs)]
            guide = f"known issues and what to use instead: imgbuild show {each.target} --guide"
            lines += fold_lines([*failures, guide] if failures else [])
            lines += fold_lines(test_cases.passed_cases(each.runs))
            lines += fold_lines(test_cases.skipped_cases(each.runs))
            notes = distinct_notes(note for run in each.runs for note in run.notes)
            lines += ["other log lines:"] if notes else []
            lines += fold_lines(f"  {note}" for note in notes)
        else:
            lines.append("no test record for this digest")
    lines += fold_lines(
        test_cases.tier_descriptions({run.tier for each in tests for run in each.runs})
    )
    print_result(tests, lines)


def side_by_side_lines(left: TargetPage, right: TargetPage) -> list[str]:
    """Format two pages as a table in which "=" marks equal values. In a pipe, it has 80 columns."""
    rows, width = side_by_side.comparison_rows(left, right), terminal_width()
    lines = align_columns(rows, width=WIDTH if width == sys.maxsize else width)
    console.info(
        '"=" marks equal values; to list packages that differ and bytes to pull, run: '
        f"imgbuild diff {left.row.target} {right.row.target}"
    )
    return lines
