"""Compares the files and configuration of two images for `imgbuild diff --files`.

The inputs are two images and a list of accepted differences. The output is an `ImageComparison`
with all differences in paths, types, modes, owners, link targets, attributes, contents and
configuration, and the reasons for accepted differences. Times and the division into layers are not
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from imgbuild.codec import encode_compact
from imgbuild.oci.documents import Configuration
from imgbuild.oci.image import ImageSummary
from imgbuild.oci.merged import MergedTree, TreeNode
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.show.accepted import AcceptedDifference, DifferenceMatcher, FileDifference
from imgbuild.system.control_characters import shown_path
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.system.threads import StopFlag, run_for_each
from imgbuild.values import Bytes, Digest

CONFIGURATION = "configuration"  # in place of a path


class CompareSide(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a comparison: digest, number of paths, and size of all files in bytes."""

    name: str
    path: str
    digest: Digest
    paths: int
    bytes: Bytes


class ImageComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two images. `unused` has the list entries without a match."""

    left: CompareSide
    right: CompareSide
    equal: bool  # except for what is accepted
    differences: tuple[FileDifference, ...]
    unused: tuple[AcceptedDifference, ...]

    @property
    def refused(self) -> tuple[FileDifference, ...]:
        """The differences that are not accepted."""
        return tuple(each for each in self.differences if not each.reason)


def compare_images(
    left: ImageSummary,
    right: ImageSummary,
    accepted: Sequence[AcceptedDifference] = (),
    *,
    names: tuple[str, str],
    reporter: Reporter = SILENT_REPORTER,
) -> ImageComparison:
    """Compare two images. `names` are the names for the images in the result.

    The images are read in parallel, with layers as streams. Raises IntegrityError if a layer is
    damaged.
    """
    acceptor = DifferenceMatcher(accepted, names)
    trees = _merge_layers((left, right), acceptor, reporter)
    raw_differences = [
        *_configurations(left.configuration, right.configuration),
        *_trees(trees[0].root, trees[1].root),
    ]
    differences = acceptor.accept_differences(raw_differences)
    return ImageComparison(
        left=_side(names[0], left, trees[0]),
        right=_side(names[1], right, trees[1]),
        equal=all(each.reason for each in differences),
        differences=differences,
        unused=acceptor.unused_entries(),
    )


def _side(name: str, summary: ImageSummary, tree: MergedTree) -> CompareSide:
    paths, size = 0, 0
    seen: set[int] = set()
    for _, node in tree.iterate_paths():
        paths += 1
        if node.names == 1 or id(node) not in seen:
            size += node.size
        if node.names > 1:
            seen.add(id(node))
    return CompareSide(
        name=name, path=str(summary.path), digest=summary.digest, paths=paths, bytes=size
    )


def _merge_layers(
    summaries: Sequence[ImageSummary], acceptor: DifferenceMatcher, reporter: Reporter
) -> list[MergedTree]:
    with reporter.progress("reading both images", None) as bar:

        def _read(number: int, stop: StopFlag) -> MergedTree:
            summary, tree = summaries[number], MergedTree()
            for layer in summary.layers:
                with open_inflated(layer) as stream:
                    reader = TarReader(stream, str(layer.path))
                    tree.add(
                        reader,
                        advance=stop.with_check(bar.advance),
                        also=acceptor.watch_side(number),
                    )
            return tree

        return run_for_each(range(len(summaries)), _read, threads=2)


# -- files


def _trees(left: TreeNode, right: TreeNode) -> Iterator[FileDifference]:
    """Yield the differences between two trees, ordered by path."""
    first = (_names(left), _names(right))
    todo: list[tuple[str, TreeNode | None, TreeNode | None]] = [("", left, right)]
    while todo:
        path, node, other = todo.pop()
        if node is None or other is None:
            yield _difference(path, "presence", _summary(node), _summary(other))
        else:
            yield from _nodes(path, node, other, first)
        mine, theirs = _children(node), _children(other)
        todo += [
            (f"{path}/{name}", mine.get(name), theirs.get(name))
            for name in sorted(mine.keys() | theirs.keys(), reverse=True)
        ]


def _nodes(
    path: str, node: TreeNode, other: TreeNode, first: tuple[dict[int, str], dict[int, str]]
) -> Iterator[FileDifference]:
    if node.kind != other.kind:
        yield _difference(path, "type", node.kind, other.kind)
        return
    if node.kind != "symlink" and node.mode != other.mode:  # the mode of a link has no effect
        yield _difference(path, "mode", f"{node.mode:04o}", f"{other.mode:04o}")
    if (node.uid, node.gid) != (other.uid, other.gid):
        yield _difference(path, "owner", _owner(node), _owner(other))
    if node.target != other.target:
        yield _difference(path, "target", node.target, other.target)
    if node.device != other.device:
        yield _difference(path, "device", str(node.device), str(other.device))
    if node.digest != other.digest:
        yield _difference(path, "content", _content(node), _content(other))
    mine, theirs = node.attributes or {}, other.attributes or {}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            yield _difference(path, f"attribute {name}", mine.get(name), theirs.get(name))
    same = (first[0].get(id(node)), first[1].get(id(other)))
    if same[0] != same[1]:
        yield _difference(path, "same file as", *same)


def _names(root: TreeNode) -> dict[int, str]:
    """Return the first name of each file with several hard links."""
    first_names: dict[int, str] = {}
    todo = [("", root)]
    while todo:
        path, node = todo.pop()
        if node.names > 1:
            first_names.setdefault(id(node), path)
        below = _children(node)
        todo += [(f"{path}/{name}", below[name]) for name in sorted(below, reverse=True)]
    return first_names


def _children(node: TreeNode | None) -> dict[str, TreeNode]:
    return (node.children if node else None) or {}


def _summary(node: TreeNode | None) -> str | None:
    if node is None:
        return None
    if node.kind == "symlink":
        return f"symlink to {node.target}"
    size = f", {node.size} bytes" if node.kind == "file" else ""
    return f"{node.kind} {node.mode:04o} of {_owner(node)}{size}"


def _owner(node: TreeNode) -> str:
    return f"{node.uid}:{node.gid}"


def _content(node: TreeNode) -> str:
    return f"{node.size} bytes, sha256 {node.digest.hex()}"


def _difference(path: str, field: str, left: str | None, right: str | None) -> FileDifference:
    return FileDifference(
        path=shown_path(path or "/"),
        field=field,
        left=None if left is None else shown_path(left),
        right=None if right is None else shown_path(right),
    )


# -- configuration


def _configurations(left: Configuration, right: Configuration) -> Iterator[FileDifference]:
    mine, theirs = _settings(left), _settings(right)
    for field in sorted(mine.keys() | theirs.keys()):
        if mine.get(field) != theirs.get(field):
            yield _difference(CONFIGURATION, field, mine.get(field), theirs.get(field))


def _settings(configuration: Configuration) -> dict[str, str]:
    """Convert all non-empty settings to text, with separate entries for variables and labels."""
    settings = {"architecture": configuration.architecture, "os": configuration.os}
    settings["variant"] = configuration.variant
    for key, value in (configuration.config or {}).items():
        if key == "Env" and isinstance(value, list):
            for item in value:
                name, _, content = str(item).partition("=")
                settings[f"Env {name}"] = f"={content}"  # so that an empty one differs from none
        elif key == "Labels" and isinstance(value, dict):
            settings |= {f"Labels {name}": f"={content}" for name, content in value.items()}
        elif value:
            settings[key] = value if isinstance(value, str) else encode_compact(value).decode()
    return {field: value for field, value in settings.items() if value}
