"""Tests the guards of branches of `try`, `match` and classes, and the facts read in each branch."""

from __future__ import annotations

from textwrap import dedent

import pytest

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row
from tests.support.source_guards import DATA, NEW, guard_kinds, guards_of_import, version_guards


@each_row("caught", ["Exception", "RuntimeError", "OSError", "(ImportError, OSError)", ""])
def test_broad_handler_means_a_missing_package_only_if_the_try_block_only_imports(caught):
    source = f"try:\n    import ray\nexcept {caught}:\n    import marked\n"
    absent = (Guard("absent", "ray"),)
    assert guards_of_import(source) == absent
    alone = source.replace("import ray\n", "import ray\n    v = ray.__version__\n    OK = True\n")
    assert guards_of_import(alone) == absent
    more = source.replace("import ray\n", "import ray\n    n = ray.nodes()\n")
    assert guard_kinds(more) == ["unknown"]
    assert guards_of_import(more.replace(f"except {caught}:", "except ImportError:")) == absent


def test_code_after_caught_import_requires_its_module():
    source = "try:\n    import ray.util\n    import marked\nexcept ImportError:\n    pass\n"
    assert Guard("present", "ray.util") in guards_of_import(source)
    assert guards_of_import(source.replace("    pass", "    raise")) == ()
    inner = source.replace(
        "    import marked", "    def f():\n        import a\n        import marked"
    )
    assert Guard("present", "a") not in guards_of_import(inner)


def test_false_flag_of_a_try_block_with_other_calls_is_unknown():
    source = """
    OK = False
    try:
        import ray
        ray.nodes()
        OK = True
    except Exception:
        OK = False
    if OK:
        import marked
    """
    assert guards_of_import(source) == (Guard("present", "ray"),)
    assert guard_kinds(source.replace("if OK", "if not OK")) == ["unknown"]
    pure = source.replace("        ray.nodes()\n", "")
    assert guards_of_import(pure.replace("if OK", "if not OK")) == (Guard("absent", "ray"),)


def test_guard_of_a_case_is_a_condition_of_its_body():
    source = "match x:\n    case {{'a': y}} if {}:\n        import marked\n"
    assert guards_of_import(source.format(NEW)) == version_guards("vllm", ">=0.9")
    assert guards_of_import(source.format("y > 1")) == DATA


def test_case_guard_applies_to_pattern_variables():
    source = f"FLAG = {NEW}\nmatch x:\n    case FLAG if FLAG:\n        import marked\n"
    assert guards_of_import(source) == DATA


def test_calls_in_patterns_guards_and_annotations_are_read():
    facts = read_module(
        dedent(
            """
            import a
            match x:
                case a.ONE | [a.TWO, *_]:
                    pass
                case a.Three(y=a.FOUR) if a.five():
                    pass
                case {a.SIX: (a.SEVEN as z)}:
                    pass
            def f(*args: a.Eight, **more: a.Nine): ...
            """
        ).encode(),
        "m",
        "m.py",
        package=False,
    )
    read = {attribute.expression for attribute in facts.attributes}
    names = ["ONE", "TWO", "Three", "FOUR", "SIX", "SEVEN", "Eight", "Nine"]
    assert read == {f"a.{name}" for name in names}
    assert [call.callee for call in facts.calls] == ["a.five"]


def test_names_of_a_class_are_not_visible_in_a_nested_class():
    source = f"""
    class A:
        FLAG = {NEW}
        class B:
            if FLAG:
                import marked
    """
    assert guards_of_import(source) == DATA
    flat_source = source.replace("class B:", "if True:")
    assert guards_of_import(flat_source)[-1:] == version_guards("vllm", ">=0.9")
    assert guards_of_import(
        f"FLAG = {NEW}\n{dedent(source)}".replace("    FLAG =", "    OTHER =")
    ) == version_guards("vllm", ">=0.9")


KEPT = """
try:
    from vllm import LLM
    failure = None
except Exception as error:
    {keeps}
print()
if failure:
    raise {raises}
"""


@pytest.mark.parametrize(
    ("keeps", "raises", "expected"),
    [
        ("failure = error", "failure", ()),
        ("failure = str(error)", "failure", (Guard("handled", "Exception"),)),
        ("failure = error", "Other", (Guard("handled", "Exception"),)),
    ],
)
def test_stored_exception_that_is_raised_later_is_not_handled(keeps, raises, expected):
    source = KEPT.format(keeps=keeps, raises=raises).encode()
    facts = read_module(source, "m", "m.py", package=False)
    assert facts.imports[0].guards == expected
