"""Tests the values of names in scopes, after rebinding and in merged branches."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from imgbuild.audit.source.facts import Guard
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row

HEAD = """
import inspect
import trl
import vllm
from packaging.version import Version
v = Version(vllm.__version__)
least = "0.8"
found = find_spec("vllm") is not None
params = inspect.signature(vllm.LLM).parameters
"""
OLD = Guard("version", "vllm", "<0.8")
TAKES = Guard("takes", "m::vllm.LLM", "tags")
# Each tests the value of one name.
ASKED = {
    "v": "v < Version('0.8')",
    "least": "Version(vllm.__version__) < Version(least)",
    "found": "found",
    "params": "'tags' in params",
    "vllm": "vllm.__version__ < '0.8'",
}
KNOWN = ("version", "present", "takes")


def guards(source: str, head: str = HEAD) -> tuple[Guard, ...]:
    """The guards of `import marked` in these lines."""
    facts = read_module((head + dedent(source)).encode(), "m", "m.py", package=False)
    assert facts.broken == ""
    marked = [import_fact for import_fact in facts.imports if import_fact.module == "marked"]
    assert len(marked) == 1
    return marked[0].guards


def kinds(source: str, head: str = HEAD) -> set[str]:
    """The kinds of guards that require a version of vLLM or TRL."""
    package_guards = [guard for guard in guards(source, head) if guard.subject != "other"]
    return {str(guard.kind) for guard in package_guards if guard.kind in KNOWN}


def asking(name: str) -> str:
    return f"if {ASKED[name]}:\n    import marked\n"


@each_row("name", ASKED)
@each_row(
    "around",
    [
        "{0}",
        "def f():\n{1}",
        "async def f(other):\n    x = 1\n{1}",
        "def f():\n    def g():\n{2}",
        "class C:\n{1}",
        "class C:\n    def f(self):\n{2}",
        "class C:\n    {name} = 1\n    def f(self):\n{2}",
        "def f():\n    [{name} for {name} in x]\n{1}",
        "def f():\n    (lambda {name}: 1)(2)\n{1}",
        "def g({name}):\n    {name} = 2\ndef f():\n{1}",
        "def g():\n    for {name} in x:\n        pass\ndef f():\n{1}",
        "for x in y:\n{1}",
        "while x:\n{1}",
        "with x as y:\n{1}",
    ],
)
def test_name_bound_once_at_module_level_is_known_everywhere(around, name):
    text = asking(name)
    source = around.format(text, indent(text, "    "), indent(text, "        "), name=name)
    assert kinds(source) & set(KNOWN)


BOUND = [
    "{n} = other()",
    "{n}: str = other()",
    "x = {n} = other()",
    "{n} += other()",
    "{n}, x = other()",
    "[*{n}] = other()",
    "for {n} in other:\n    pass",
    "for x, {n} in other:\n    pass",
    "with other() as {n}:\n    pass",
    "with other() as (x, {n}):\n    pass",
    "try:\n    x\nexcept ImportError as {n}:\n    pass",
    "import other as {n}",
    "from other import {n}",
    "from other import x as {n}",
    "def {n}():\n    pass",
    "async def {n}():\n    pass",
    "class {n}:\n    pass",
    "({n} := other())",
    "x = [({n} := y) for y in other]",
    "if x:\n    {n} = other()",
    "if x:\n    pass\nelse:\n    {n} = other()",
    "while x:\n    {n} = other()",
    "for x in y:\n    if x:\n        {n} = other()\n        break",
    "try:\n    {n} = other()\nexcept KeyError:\n    pass",
    "match x:\n    case {n}:\n        pass",
    "match x:\n    case [*{n}]:\n        pass",
    "match x:\n    case {{**{n}}}:\n        pass",
    "match x:\n    case 1 as {n}:\n        pass",
    "del {n}",
    "def g():\n    global {n}\n    {n} = other()",
]


@each_row("name", ASKED)
@each_row("bound", BOUND)
def test_name_that_is_bound_again_is_unknown(bound, name):
    again = bound.format(n=name)
    assert not kinds(f"{again}\n{asking(name)}")
    assert not kinds(f"{again}\ndef f():\n{indent(asking(name), '    ')}")


@each_row("name", ASKED)
@each_row("bound", BOUND)
def test_name_bound_in_a_function_is_local_from_the_first_line(bound, name):
    again = indent(bound.format(n=name), "    ")
    text = indent(asking(name), "    ")
    assert not kinds(f"def f():\n{text}{again}\n")
    assert not kinds(f"def f():\n{again}\n{text}")


@each_row("name", ASKED)
@each_row("bound", BOUND)
def test_name_that_the_module_binds_again_is_unknown_in_functions(bound, name):
    again = bound.format(n=name)
    assert not kinds(f"def f():\n{indent(asking(name), '    ')}{again}\n")


@each_row("name", ASKED)
@each_row(
    "arguments", ["{n}", "{n}, /", "x, {n}=1", "*{n}", "*, {n}", "*, {n}=1", "**{n}", "{n}: str"]
)
def test_function_argument_hides_a_module_level_name(arguments, name):
    given = arguments.format(n=name)
    assert not kinds(f"def f({given}):\n{indent(asking(name), '    ')}")
    assert not kinds(f"class C:\n  def f({given}):\n{indent(asking(name), '    ')}")
    assert not kinds(f"def f({given}):\n  def g():\n{indent(asking(name), '    ')}")


@each_row("name", ASKED)
def test_bindings_end_with_their_function_or_class(name):
    head, _, _ = HEAD.partition("v = ")
    bindings = HEAD[len(head) :] if name != "vllm" else "import vllm\n"
    head = head if name != "vllm" else head.replace("import vllm\n", "")
    inside = indent(bindings, "    ")
    assert kinds(f"def f():\n{inside}{indent(asking(name), '    ')}", head)
    assert not kinds(f"def f():\n{inside}\ndef g():\n{indent(asking(name), '    ')}", head)
    assert not kinds(f"def f():\n{inside}\n{asking(name)}", head)
    assert not kinds(f"class C:\n{inside}\n{asking(name)}", head)
    method = f"    def f(self):\n{indent(asking(name), '        ')}"
    assert not kinds(f"class C:\n{inside}\n{method}", head)
    assert kinds(f"class C:\n{inside}\n{indent(asking(name), '    ')}", head)


def names_of(source: str) -> dict[int, tuple[Guard, ...]]:
    """The guards of each call of trl.run, in order."""
    facts = read_module((HEAD + dedent(source)).encode(), "m", "m.py", package=False)
    calls = [call for call in facts.calls if call.callee == "trl.run"]
    return {at: call.guards for at, call in enumerate(calls)}


@each_row(
    "form",
    [
        "[{} for {} in x]",
        "{{{} for {} in x}}",
        "{{1: {} for {} in x}}",
        "list({} for {} in x)",
        "[{} for y, {} in x]",
        "[{} for z in x for {} in z]",
        "(lambda {1}: {0})(x)",
        "(lambda *{1}: {0})(x)",
        "(lambda **{1}: {0})(x)",
        "(lambda {1}, /: {0})(x)",
    ],
)
@each_row("name", ASKED)
def test_comprehension_and_lambda_variables_hide_names(form, name):
    expression = f"(trl.run() if {ASKED[name]} else 0)"
    shadowed = form.format(expression, name)
    other = form.format(expression, "another")
    call_guards = names_of(f"{shadowed}\n{other}\n{expression}")
    assert not {guard.kind for guard in call_guards[0]} & set(KNOWN)
    assert call_guards[1] == call_guards[2]
    assert {guard.kind for guard in call_guards[1]} & set(KNOWN)


def test_comprehension_condition_applies_to_its_variables():
    call_guards = names_of(
        "[trl.run() for v in x if v < Version('0.8')]\n[trl.run() for y in x if found]"
    )
    assert [guard.kind for guard in call_guards[0]] == ["unknown"]
    assert call_guards[1] == (Guard("present", "vllm"),)


def test_global_and_nonlocal_names_belong_to_outer_scope():
    source = """
    def f():
        global v
        v = Version(trl.__version__)
        if v < Version("2"):
            import marked
    """
    assert guards(source) == (Guard("version", "trl", "<2"),)
    source = """
    def f():
        mine = Version(vllm.__version__)
        def g():
            nonlocal mine
            mine = other()
        if mine < Version("0.8"):
            import marked
    """
    assert not kinds(source)
    assert guards(source.replace("nonlocal", "print = ")) == (OLD,)


@each_row(
    ("first", "second", "expected"),
    [
        ("Version(vllm.__version__)", "Version(trl.__version__)", ()),
        ("Version(vllm.__version__)", "Version(vllm.__version__)", (OLD,)),
        ("Version(vllm.__version__)", "None", (OLD,)),
        ("None", "Version(vllm.__version__)", (OLD,)),
        ("Version(vllm.__version__)", "other()", ()),
        ("Version(vllm.__version__)", "Version('0.1')", ()),
    ],
)
def test_value_is_kept_if_both_branches_have_the_same_value(first, second, expected):
    condition = 'if w < Version("0.8"):\n    import marked\n'
    both = f"if x:\n    w = {first}\nelse:\n    w = {second}\n"
    rest = tuple(guard for guard in guards(both + condition) if guard.kind in KNOWN)
    assert rest == expected
    later = f"w = {first}\nif x:\n    w = {second}\n"
    rest = tuple(guard for guard in guards(later + condition) if guard.kind in KNOWN)
    assert rest == expected


@pytest.mark.parametrize(
    "source",
    [
        "w = 'N/A'\nif found:\n    w = version('vllm')\n",
        "if found:\n    w = version('vllm')\nelse:\n    w = '0.0'\n",
        "if not found:\n    w = '0.0'\nelse:\n    w = version('vllm')\n",
    ],
)
def test_fallback_version_of_a_missing_package_is_ignored(source):
    condition = 'if Version(w) < Version("0.8"):\n    import marked\n'
    assert guards(source + condition) == (OLD,)
    assert not kinds(source.replace("found", "x") + condition)


def test_values_of_a_branch_that_returns_are_ignored_after_the_branch():
    source = """
    def f():
        w = Version(vllm.__version__)
        if x:
            w = other()
            return
        if w < Version("0.8"):
            import marked
    """
    assert guards(source) == (OLD,)


@each_row("failed", ["None", "'0.0.0'", "Version('0')", "()"])
def test_fallback_value_of_a_failed_version_lookup_is_ignored(failed):
    source = f"""
    try:
        w = Version(vllm.__version__)
    except (ImportError, AttributeError):
        w = {failed}
    def f():
        if w < Version("0.8"):
            import marked
    """
    assert guards(source) == (OLD,)
    other = source.replace(f"w = {failed}", "w = Version(trl.__version__)")
    assert not kinds(other)


@each_row(
    ("source", "expected"),
    [
        ("flag = False\nif found:\n    flag = True\n", Guard("present", "vllm")),
        ("flag = None\nif found:\n    flag = True\n", Guard("present", "vllm")),
        ("flag = True\nif not found:\n    flag = False\n", Guard("present", "vllm")),
        ("flag = x\nif not found:\n    flag = False\n", Guard("present", "vllm")),
        ("if found:\n    flag = True\nelse:\n    flag = False\n", Guard("present", "vllm")),
        ("flag = False\nif x:\n    flag = v < Version('0.8')\n", OLD),
    ],
)
def test_flag_set_in_both_branches_becomes_a_guard(source, expected):
    assert guards(source + "if flag:\n    import marked\n") == (expected,)


@each_row(
    "source",
    [
        "flag = True\nif found:\n    flag = True\n",
        "flag = True\nif found:\n    flag = x\n",
        "flag = found and x\nflag = x\n",
        "flag = False\nif found:\n    flag = True\nif x:\n    flag = True\n",
    ],
)
def test_flags_without_a_known_condition_have_no_guards(source):
    assert not kinds(source + "if flag:\n    import marked\n")


def test_negated_flag_that_depends_on_data_has_no_guards():
    source = "flag = False\nif x:\n    flag = v < Version('0.8')\nif not flag:\n    import marked\n"
    assert not kinds(source)


def test_flag_set_by_two_conditions_is_unknown():
    source = """
    if x:
        flag = v < Version("0.8")
    else:
        flag = Version(trl.__version__) < Version("2")
    if flag:
        import marked
    """
    assert [guard.kind for guard in guards(source)] == ["unknown"]


def test_branch_for_type_checking_binds_no_names():
    source = """
    import typing
    if typing.TYPE_CHECKING:
        v = other()
    if v < Version("0.8"):
        import marked
    """
    assert guards(source) == (OLD,)
    assert not kinds(source.replace("if typing", "if not typing"))


def test_repeated_imports_of_a_module_or_its_submodules_keep_its_value():
    source = """
    def f():
        if vllm.__version__ < "0.8":
            import marked
    import vllm.envs
    for x in y:
        import vllm
    """
    assert guards(source) == (OLD,)


def test_optional_module_has_the_value_none_if_the_module_is_missing():
    source = """
    try:
        import trl
    except ImportError:
        trl = None
    def f():
        if Version(trl.__version__) < Version("2"):
            import marked
    """
    assert guards(source) == (Guard("version", "trl", "<2"),)


@each_row(
    "holder",
    [
        "{name: p for name, p in params.items()}",
        "{name: 1 for name in params}",
        "{p.name: p for p in params.values()}",
        "[name for name, _ in params.items()]",
        "{p.name for p in params.values()}",
        "dict(params)",
    ],
)
def test_comprehension_over_the_parameters_of_a_callable_is_followed(holder):
    assert guards(f"w = {holder}\nif 'tags' in w:\n    import marked\n") == (TAKES,)


@each_row(
    "holder",
    [
        "{p: name for name, p in params.items()}",
        "{name: p for name, p in params.items() if p.default}",
        "{name: p for name in params for p in x}",
        "{p.kind: p for p in params.values()}",
        "[other for name in params]",
        "{name: p for name, p in other.items()}",
    ],
)
def test_comprehensions_over_other_values_are_not_callable_parameters(holder):
    assert not kinds(f"w = {holder}\nif 'tags' in w:\n    import marked\n")
