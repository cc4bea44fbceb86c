"""Every code block of the docs is run, or says why not; and the reader of these blocks itself."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.doc_blocks import (
    PICTURE,
    REASONS,
    ROOT,
    SCRIPTS,
    WORLDS,
    Block,
    Command,
    Mark,
    blocks,
    commands,
    papers,
    shows,
)

BLOCKS = [block for path in papers() for block in blocks(path)]
MARKED = [block for block in BLOCKS if block.language != PICTURE]
PAPER = ROOT / "docs/a.md"
# Options that the test which a block names does not give, and what gives them: CI's Slurm has no
# partitions and no GPUs, and the head of a Dockerfile has its commands word for word.
OPTIONS = {
    word: ROOT / path
    for word, path in {
        "--builder": "tests/integration/test_builders.py",
        "--changed-since": ".github/workflows/images.yml",
        "--gpus": "tests/integration/test_slurm_server.py",
        "--key": "tests/integration/test_cosign.py",
        "--no-push": ".github/workflows/images.yml",
        "--only": "tests/integration/test_render.py",
        "--partition": "tests/unit/slurm/test_array.py",
        "--sbatch": "tests/integration/test_slurm_wait.py",
        "--time": "tests/unit/slurm/test_commands.py",
    }.items()
}


def names(found: list[Block]) -> list[str]:
    return [block.place for block in found]


def test_the_papers_have_blocks() -> None:
    assert {"README.md", "CONTRIBUTING.md", "cli.md"} <= {block.path.name for block in MARKED}
    assert {"run", "run by", "not run"} == {block.mark.kind for block in MARKED if block.mark}


def test_every_block_has_a_language() -> None:
    assert names([block for block in BLOCKS if not block.language]) == []


def test_every_block_is_run_or_says_why_not() -> None:
    assert names([block for block in MARKED if block.mark is None]) == []


def test_pictures_hide_no_commands() -> None:
    pictures = [block for block in BLOCKS if block.language == PICTURE]
    assert names([block for block in pictures if re.search(r"(?m)^\s*\$ ", block.text)]) == []


@pytest.mark.parametrize("block", MARKED, ids=[block.place for block in MARKED])
def test_a_mark_is_one_that_is_known(block: Block) -> None:
    mark = block.mark
    if mark is None:
        return  # told above
    if mark.kind == "not run":
        assert mark.said in REASONS
    elif mark.kind == "run by":
        assert (ROOT / mark.said).is_file()
    else:
        assert mark.world in WORLDS
        assert bool(mark.verb) != (block.language in SCRIPTS)


ELSEWHERE = [
    (block, item, block.mark.said)
    for block in MARKED
    if block.mark and block.mark.kind == "run by" and block.language == "console"
    for item in commands(block)
]


def test_what_runs_a_block_elsewhere_knows_its_programs() -> None:
    """The file that is named has each program, script and target of make that the block has."""
    strange = [
        f"{block.place}: {item.words}"
        for block, item, path in ELSEWHERE
        if not re.search(rf"\b{_known_by(item)}\b", (ROOT / path).read_text())
    ]
    assert ELSEWHERE
    assert strange == []


def _known_by(command: Command) -> str:
    """The verb of imgbuild, the target of make, the script of Python, or the program itself."""
    program, *words = command.words.split()
    named = words[0] if program in ("imgbuild", "make", "python3") and words else program
    return re.escape(Path(named).stem)


def test_what_runs_imgbuild_elsewhere_gives_its_verb_and_options() -> None:
    """As words of a call, in the test or what it imports; an option may have a test of its own."""
    asked = [(block, item, ROOT / path) for block, item, path in ELSEWHERE if _asked(item)]
    strange = [
        f"{block.place}: {path.name} lacks {word}"
        for block, item, path in asked
        for word in _asked(item)
        if word not in _given(path) and word not in _given(OPTIONS.get(word, path))
    ]
    assert len(asked) > 10
    assert strange == []


def _asked(command: Command) -> list[str]:
    """The verb of imgbuild and the long options that it is given; nothing of other programs."""
    program, *words = shlex.split(command.words, comments=True)
    if program != "imgbuild":
        return []
    own = list(itertools.takewhile(lambda word: word != "--", words))
    return [own[0], *(word.partition("=")[0] for word in own if word.startswith("--"))]


@functools.cache
def _given(path: Path) -> frozenset[str]:
    """The words of all texts in a file's code, its docstrings aside; a test's helpers' too."""
    if path.suffix != ".py":
        return frozenset(re.split(r"[\s=\"]+", path.read_text()))
    tree = ast.parse(path.read_text())
    talk = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in talk
    ]
    words = {word for text in texts for word in re.split(r"[\s=]+", text)}
    helpers = [helper for helper in _imported(tree) if helper != path]
    return frozenset(words.union(*(_given(helper) for helper in helpers)))


def _imported(tree: ast.Module) -> list[Path]:
    """The helpers that a test imports, as `from tests import NAME` or `from tests.NAME import`."""
    names = [
        [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests")
    ]
    paths = [ROOT / f"{name.replace('.', '/')}.py" for each in names for name in each]
    return [path for path in paths if path.is_file()]


def test_words_are_those_of_calls(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text('"""--a"""\nrun("--b", "--c=1 --d")  # --e\ndef f():\n    """--f"""\n')
    assert _given(path) == {"--b", "--c", "--d", "1"}
    assert _asked(typed("$ imgbuild run x --a=1 --b 2 -- c --d  # --e\n")[0]) == [
        "run", "--a", "--b",
    ]  # fmt: skip
    assert _asked(typed("$ docker run --rm x\n")[0]) == []


def test_what_is_run_has_no_holes() -> None:
    holes = [
        f"{block.place}: {item.words}"
        for block in MARKED
        if block.mark and block.mark.kind == "run" and not block.mark.verb
        for item in commands(block)
        if "…" in item.words or re.search(r"<[A-Z]", item.words)
    ]
    assert holes == []


def read(text: str) -> list[Block]:
    return blocks(PAPER, dedent(text))


def test_a_mark_belongs_to_the_block_below_it() -> None:
    found = read(
        """\
        <!-- run: small -->
        ```console
        $ true
        ```

        ```console
        $ false
        ```

        <!-- not run: needs a GPU -->

        ```bash
        one
        ```

        1. <!-- run by: .ci/run -->
           ```console
           $ two
           ```

        <!-- run: small, writes a/ci.yaml -->
        ```yaml
        version: 1
        ```

        <!-- run: small -->
        and not this
        ```yaml
        ```

        <!-- a comment -->
        ```yaml
        ```

            indented
        """
    )
    assert [block.mark for block in found] == [
        Mark("run", "small", "small"),
        None,
        Mark("not run", "needs a GPU"),
        Mark("run by", ".ci/run"),
        Mark("run", "small, writes a/ci.yaml", "small", "writes", "a/ci.yaml"),
        None,
        None,
        None,
    ]
    assert [block.line for block in found][:3] == [2, 6, 12]
    assert found[-1].language == ""


def typed(text: str, language: str = "console") -> list[Command]:
    return commands(Block(PAPER, 10, language, dedent(text), None))


def test_commands_go_on_after_a_backslash_and_within_quotes() -> None:
    found = typed(
        """\
        $ one --a \\
            --b   # it's a comment
        said
        $ two 'a quote
            goes on' "and $(this)"
        $ three
        a line
          another
        """
    )
    assert found == [
        Command(11, "one --a \\\n    --b   # it's a comment", ("said",)),
        Command(14, "two 'a quote\n    goes on' \"and $(this)\"", ()),
        Command(16, "three", ("a line", "  another")),
    ]


def test_a_block_begins_with_a_command() -> None:
    with pytest.raises(ValueError, match=r"docs/a\.md:10: begins with no command: said"):
        typed("said\n$ one\n")


def test_other_scripts_are_one_command() -> None:
    assert typed("a\nb\n", "bash") == [Command(11, "a\nb\n", ())]
    assert typed("print(1)\n", "python")[0].words == "python - <<'PYTHON'\nprint(1)\nPYTHON"


@pytest.mark.parametrize(
    ("expected", "printed", "shown"),
    [
        (("a", "b"), "a\nb\n", True),
        (("a", "b"), "a  \nb", True),
        (("a", "b"), "a\n", False),
        (("a",), "a\nb\n", False),
        (("a … c",), "a long c\n", True),
        (("a … c",), "a\nc\n", False),
        (("a", "…", "c"), "a\nb\nb\nc\n", True),
        (("a", "…", "c"), "a\nc\n", True),
        (("a", "…"), "a\n", True),
        (("…", "c"), "a\nb\n", False),
        (("a.c",), "abc\n", False),
    ],
)
def test_output_is_compared(expected: tuple[str, ...], printed: str, *, shown: bool) -> None:
    assert shows(expected, printed, whole=True) is shown


def test_talk_may_stand_around_an_error() -> None:
    assert shows(("error: a", "hint: b"), "talk\nerror: a\nhint: b\nmore\n", whole=False)
    assert not shows(("error: a",), "an error: a\n", whole=False)
    assert Command(1, "x", ("error: a",)).fails
    assert not Command(1, "x", ("an error: a",)).fails


def test_places_are_below_the_repository() -> None:
    assert all(Path(block.place.rpartition(":")[0]).suffix == ".md" for block in BLOCKS)


def test_the_table_of_sizes_is_that_of_the_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is made anew moves sums, too: tools/sharing.py says the lines."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    sharing = importlib.import_module("sharing")
    text = (ROOT / "docs/benchmarks.md").read_text("utf-8").splitlines()
    assert [
        line for line in sharing.table(sharing.images(ROOT / "images")) if line not in text
    ] == []
