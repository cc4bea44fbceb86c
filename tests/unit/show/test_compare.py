from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import documents as oci_documents
from imgbuild.oci import image as summary
from imgbuild.oci import layout
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan import image_documents
from imgbuild.plan.plan import RuntimeConfig
from imgbuild.show import accepted
from imgbuild.show.accepted import AcceptedDifference
from imgbuild.show.compare import ImageComparison, compare_images
from imgbuild.values import Arch
from imgbuild.wheel import scripts
from tests.support import images
from tests.support.rows import each_row

NAMES = ("embedded", "docker")
INFO = "opt/venv/lib/python3.11/site-packages/demo-1.0.dist-info"
SITE = "opt/venv/lib/python3.11/site-packages"


def layered_image(
    folder: Path, *layers: Iterable[LayerMember], config: RuntimeConfig | None = None
) -> summary.ImageSummary:
    """The image of these layers, read back."""
    folder.mkdir(parents=True, exist_ok=True)
    stack = [images.make_layer(folder / "blobs", list(members)) for members in layers]
    plan = images.create_plan(names=[str(number) for number in range(len(stack))])
    if config is not None:
        plan = msgspec.structs.replace(plan, config=config)
    records = [record for record, _ in stack]
    data = image_documents.image_configuration(plan, [record.diff_id for record in records])
    image_files = layout.ImageFiles(
        config=data,
        manifest=oci_documents.docker_manifest(data, records),
        layers={record.digest: path for record, path in stack},
    )
    layout.write_layout(folder / "layout", {Arch.X86_64: image_files}, "tiny")
    return summary.read_image(folder / "layout")


def compared(
    folder: Path,
    left: Sequence[Iterable[LayerMember]],
    right: Sequence[Iterable[LayerMember]],
    *accepted: AcceptedDifference,
) -> ImageComparison:
    left_image, other = (
        layered_image(folder / "left", *left),
        layered_image(folder / "right", *right),
    )
    return compare_images(left_image, other, accepted, names=NAMES)


def differences(comparison: ImageComparison) -> list[tuple[str, str, str | None, str | None]]:
    return [(each.path, each.field, each.left, each.right) for each in comparison.refused]


paths = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "ünï/x"])
members = st.builds(
    lambda path, kind, text, mode, owner: LayerMember(
        path=path, kind=kind, mode=0o777 if kind is MemberKind.LINK else mode, uid=owner, gid=owner,
        target=text if kind is MemberKind.LINK else "",
        size=len(text) if kind is MemberKind.FILE else 0,
        content=text.encode() if kind is MemberKind.FILE else None,
    ),
    paths,
    st.sampled_from([MemberKind.FILE, MemberKind.FILE, MemberKind.LINK]),
    st.sampled_from(["x", "yy", "zzz"]),
    st.sampled_from([0o644, 0o755, 0o4755]),
    st.sampled_from([0, 1000]),
)  # fmt: skip
trees = st.lists(members, min_size=1, max_size=6, unique_by=lambda member: member.path)


@settings(max_examples=12, deadline=None)
@given(trees, st.integers(0, 6))
def test_image_comparison_ignores_the_division_into_layers(
    tree: list[LayerMember], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        whole = sorted(tree, key=lambda member: member.path.encode())
        parts = [part for part in (whole[:cut], whole[cut:]) if part]
        answer = compared(Path(name), [whole], parts)
        assert (answer.equal, answer.differences) == (True, ())
        assert answer.left.paths == answer.right.paths
        assert answer.left.bytes == sum(member.size for member in tree)


@settings(max_examples=20, deadline=None)
@given(trees, st.data())
def test_image_comparison_reports_each_change_once(
    tree: list[LayerMember], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(tree) - 1))
    old = tree[place]
    changes: dict[str, dict[str, object]] = {"owner": {"uid": old.uid + 1}}
    if old.kind is MemberKind.FILE:
        changes |= {
            "mode": {"mode": old.mode ^ 0o1},
            "content": {"content": b"other", "size": 5},
            "type": {"kind": MemberKind.LINK, "content": None, "size": 0, "target": "x"},
        }
    else:
        changes |= {"target": {"target": old.target + "/more"}}
    field = data.draw(st.sampled_from(sorted(changes)))
    new = list(tree)
    new[place] = msgspec.structs.replace(old, **changes[field])
    with tempfile.TemporaryDirectory() as name:
        answer = compared(Path(name), [tree], [new])
        assert [(each.path, each.field) for each in answer.refused] == [(f"/{old.path}", field)]
        assert not answer.equal


def test_path_in_only_one_image_is_reported_with_its_contents(tmp_path):
    answer = compared(
        tmp_path,
        [[images.text_member("a/b/c", "x"), images.text_member("d", "y")]],
        [[images.text_member("d", "y"), LayerMember(path="z", kind=MemberKind.LINK, target="d")]],
    )
    assert differences(answer) == [
        ("/a", "presence", "folder 0755 of 0:0", None),
        ("/a/b", "presence", "folder 0755 of 0:0", None),
        ("/a/b/c", "presence", "file 0644 of 0:0, 1 bytes", None),
        ("/z", "presence", None, "symlink to d"),
    ]


def test_file_removed_by_a_later_layer_is_not_compared(tmp_path):
    removed = [images.text_member("opt/.wh.b", "")]
    answer = compared(
        tmp_path,
        [[images.text_member("opt/a", "x")]],
        [[images.text_member("opt/a", "x"), images.text_member("opt/b", "y")], removed],
    )
    assert (answer.equal, answer.right.paths) == (True, 2)


def test_hard_linked_file_is_compared_once(tmp_path):
    hard = LayerMember(path="b", kind=MemberKind.HARD, target="a")
    answer = compared(
        tmp_path,
        [[images.text_member("a", "x"), hard]],
        [[images.text_member("a", "x"), images.text_member("b", "x")]],
    )
    assert differences(answer) == [
        ("/a", "same file as", "/a", None),
        ("/b", "same file as", "/a", None),
    ]


def test_image_settings_are_compared_by_name(tmp_path):
    config = images.create_plan().config
    other = msgspec.structs.replace(
        config,
        env=("WORD=two words", "PATH=/bin:/sbin", "EMPTY="),  # the order is ignored
        cmd=(),
        user="0",
        labels={**config.labels, "more": "x"},
        created="2026-01-01T00:00:00Z",
    )
    tree = [images.text_member("a", "x")]
    left_image = layered_image(tmp_path / "left", tree, config=config)
    answer = compare_images(
        left_image, layered_image(tmp_path / "right", tree, config=other), names=NAMES
    )
    assert differences(answer) == [
        ("configuration", "Cmd", '["cat","/opt/hello"]', None),
        ("configuration", "Env EMPTY", None, "="),
        ("configuration", "Env PATH", "=/bin", "=/bin:/sbin"),
        ("configuration", "Labels more", None, "=x"),
        ("configuration", "User", "1000:1000", "0"),
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_damaged_layer_ends_the_image_comparison(tmp_path, side):
    text = "".join(f"{number}" for number in range(400_000))
    good = [images.text_member("a", text), images.text_member("b", text)]
    left_image, other = (
        layered_image(tmp_path / "left", good),
        layered_image(tmp_path / "right", good),
    )
    bad = left_image if side == "left" else other
    blob = bad.layers[0].path
    data = bytearray(blob.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    blob.unlink()
    blob.write_bytes(data)
    with pytest.raises(IntegrityError):
        compare_images(left_image, other, names=NAMES)


# -- what is accepted


def entry(path: str, field: str = "content", **more: object) -> AcceptedDifference:
    return msgspec.convert(
        {"path": path, "field": field, "reason": "because", **more}, AcceptedDifference
    )


def test_accepted_difference_applies_only_to_its_path_and_field(tmp_path):
    left = [
        images.text_member("a/x", "1"),
        images.text_member("a/b/x", "1"),
        images.text_member("a/y", "1"),
    ]
    right = [
        images.text_member("a/x", "2"),
        images.text_member("a/b/x", "2"),
        images.text_member("a/y", "1", 0o600),
    ]
    answer = compared(tmp_path, [left], [right], entry("/a/*"), entry("/c/**"))
    assert [(each.path, each.field) for each in answer.refused] == [
        ("/a/b/x", "content"),
        ("/a/y", "mode"),
    ]
    assert [each.reason for each in answer.differences] == ["", "because", ""]
    assert [each.path for each in answer.unused] == ["/c/**"]


@pytest.mark.parametrize(("only", "equal"), [(["docker"], True), (["embedded"], False)])
def test_accepted_difference_can_apply_to_one_builder(tmp_path, only, equal):
    trees_ = (
        [[images.text_member("a", "x")]],
        [[images.text_member("a", "x"), images.text_member("b", "x")]],
    )
    answer = compared(tmp_path, *trees_, entry("/b", "presence", only=only))
    assert answer.equal is equal
    both = [[images.text_member("b", "x")]], [[images.text_member("b", "y")]]
    assert not compared(tmp_path / "both", *both, entry("/b", "*", only=only)).equal


def test_accepted_differences_of_other_builders_are_not_reported_as_unused(tmp_path):
    tree = [[images.text_member("a", "x")]]
    answer = compared(tmp_path, tree, tree, entry("/b", "presence", only=["podman"]))
    assert answer.unused == ()


RECORD = entry("/**/RECORD", like="record")
ROWS = "demo.py,sha256=abc,3\n../../../bin/tool,sha256=def,5\n"


def record(rows: str, *more: LayerMember) -> list[LayerMember]:
    return [images.text_member(f"{INFO}/RECORD", rows), *more]


@each_row(
    ("left", "right", "equal"),
    [
        (ROWS, "".join(reversed(ROWS.splitlines(keepends=True))), True),
        (ROWS, ROWS.replace("abc", "xyz"), False),
        (ROWS, ROWS.replace("demo.py", "other.py"), False),
        (ROWS, ROWS + "more.py,sha256=abc,3\n", False),
        (ROWS, ROWS.replace("def", "xyz"), True),  # of a file whose own difference is accepted
        (ROWS, "", False),
    ],
)
def test_record_files_are_compared_by_rows(tmp_path, left, right, equal):
    tool = entry("/**/bin/tool")
    left_record = record(left, images.text_member("opt/venv/bin/tool", "one"))
    other = record(right, images.text_member("opt/venv/bin/tool", "two"))
    assert compared(tmp_path, [left_record], [other], RECORD, tool).equal is equal


def test_different_record_row_is_accepted_only_for_an_accepted_file(tmp_path):
    left_record = record(ROWS, images.text_member(f"{SITE}/demo.py", "one"))
    other = record(ROWS.replace("abc", "xyz"), images.text_member(f"{SITE}/demo.py", "two"))
    answer = compared(tmp_path, [left_record], [other], RECORD)
    assert {each.path for each in answer.refused} == {f"/{SITE}/demo.py", f"/{INFO}/RECORD"}


PLAIN = scripts.launcher_script(
    scripts.EntryPoint(name="tool", module="demo", attribute="main"), "/opt/venv/bin/python"
).decode()
OTHER = """\
#!/opt/venv/bin/python
# -*- coding: utf-8 -*-
import sys
from demo import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""


@each_row(
    ("script", "equal"),
    [
        (OTHER, True),
        (OTHER.replace("/opt/venv/bin/python", "/usr/bin/python3"), False),
        (OTHER.replace("from demo", "from evil"), False),
        (OTHER.replace("main", "other"), False),
        (OTHER.replace("    sys.exit(main())", "    print()"), False),
        (OTHER.replace("import sys\n", "import sys\nimport os; os.system('x')\n"), False),
        (OTHER.replace("[:-4]", "[:-4] + 'x'"), False),
        (OTHER.replace("    sys.exit", "    sys.argv.append('--more')\n    sys.exit"), False),
        (OTHER.replace("# -*- coding: utf-8 -*-", "# -*- coding: rot13 -*-"), False),
        (OTHER + "print('more')\n", False),
        (OTHER + "# more\n", False),
        ("echo\n", False),
    ],
)
def test_launchers_that_call_the_same_function_are_equal(tmp_path, script, equal):
    entries = entry("/**/bin/*", like="launcher")
    left_launcher, other = (
        images.text_member("opt/bin/tool", PLAIN),
        images.text_member("opt/bin/tool", script),
    )
    assert compared(tmp_path, [[left_launcher]], [[other]], entries).equal is equal


def test_folder_can_be_accepted_only_if_it_is_empty(tmp_path):
    entries = entry("/**", "presence", only=["docker"], like="folder")
    folders = [
        LayerMember(path=path, kind=MemberKind.FOLDER, mode=0o755) for path in ("a", "a/b", "c")
    ]
    left_members = [images.text_member("x", "x")]
    answer = compared(tmp_path, [left_members], [[*folders, *left_members]], entries)
    assert (answer.equal, len(answer.differences)) == (True, 3)
    file = images.text_member("a/b/file", "y")
    answer = compared(tmp_path / "file", [left_members], [[*folders, file, *left_members]], entries)
    assert [each.path for each in answer.refused] == ["/a", "/a/b", "/a/b/file"]
    leave = entry("/a/b/file", "presence")
    answer = compared(
        tmp_path / "leave", [left_members], [[*folders, file, *left_members]], entries, leave
    )
    assert answer.equal


def test_text_of_a_large_file_is_not_kept_for_the_comparison(tmp_path):
    entries = entry("/**/bin/*", like="launcher")
    large = "#" * 100_000
    left_launcher, other = (
        images.text_member("opt/bin/tool", PLAIN + large),
        images.text_member("opt/bin/tool", OTHER + large),
    )
    assert not compared(tmp_path, [[left_launcher]], [[other]], entries).equal


def test_accepted_builder_differences_are_unique_and_have_reasons():
    entries = accepted.builder_differences()
    assert len(entries) == len({(each.path, each.field, each.like) for each in entries})
    assert all(len(each.reason) > 40 for each in entries)
    # Different content is never accepted.
    assert all(each.like for each in entries if each.field == "content")


@each_row(
    ("text", "result"),
    [
        ("- {path: /a, field: mode}", "reason"),
        ("- {path: /a, field: mode, reason: ' '}", "the reason is missing"),
        ("- {path: /a, field: mode, reason: x, because: y}", "because"),
        ("- {path: /a, field: mode, reason: x, like: that}", "like"),
        ("a: [", "not a valid list of accepted differences"),
    ],
)
def test_invalid_list_of_accepted_differences_is_refused(tmp_path, text, result):
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(InputError, match=result):
        accepted.read_accepted(tmp_path / "list.yaml")


def test_path_patterns_are_not_regular_expressions():
    for text, path in itertools.product(["/a.b/*", "/a.b/**"], ["/axb/c", "/a.b"]):
        assert accepted.path_pattern(text).fullmatch(path) is None
    assert accepted.path_pattern("/**/c").fullmatch("/a/b/c")
    assert accepted.path_pattern("/*/c").fullmatch("/a/b/c") is None
