"""Tests reading values in conditions: names, parts of versions and assigned conditions."""

from __future__ import annotations

from imgbuild.audit.source.facts import Guard
from tests.support.rows import each_row
from tests.support.source_guards import DATA, NEW, guard_kinds, guards_of_import, version_guards

# Results compared with constants


@each_row("number", ["1", "0", "1.0", "0.0"])
def test_comparison_of_a_condition_with_zero_or_one_is_unknown(number):
    assert guard_kinds(f"ok = {NEW}\nif ok == {number}:\n    import marked\n") == ["unknown"]


@each_row(
    ("test", "spec"),
    [
        ("ok is True", ">=0.9"),
        ("ok == True", ">=0.9"),
        ("ok is not True", "<0.9"),
        ("ok is False", "<0.9"),
        ("ok == False", "<0.9"),
    ],
)
def test_comparison_of_a_condition_with_a_bool_becomes_a_guard(test, spec):
    assert guards_of_import(f"ok = {NEW}\nif {test}:\n    import marked\n") == version_guards(
        "vllm", spec
    )


# Names of predicates


@each_row(
    ("bound", "test"),
    [
        ("has_requests = len(q) > 0", "has_requests"),
        ("is_torch = isinstance(x, torch.Tensor)", "is_torch"),
        ("x, is_torch = q", "is_torch"),
        ("x = (is_torch := q)", "is_torch"),
        ("with q as is_torch: pass", "is_torch"),
        ("vllm_available = q", "vllm_available"),
        ("vllm_available = False", "not vllm_available"),
    ],
)
def test_condition_on_a_local_variable_depends_on_its_value_and_not_on_its_name(bound, test):
    head = f"def f(q, x):\n    {bound}\n    if {test}:\n"
    assert guards_of_import(f"{head}        import marked\n") == DATA
    assert guards_of_import(f"{head}        return\n    import marked\n") == ()


@each_row("name", ["vllm_available", "is_torch", "has_requests"])
@each_row("given", ["{}", "*, {}=True", "*{}", "**{}"])
def test_condition_on_a_parameter_is_data_regardless_of_the_parameter_name(name, given):
    body = f"    if {name}:\n        import marked\n"
    assert guards_of_import(f"def f({given.format(name)}):\n{body}") == DATA
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    assert guards_of_import(f"def f({given.format(name)}):\n    def g():\n{inner}") == DATA


@each_row(
    "bound",
    [
        "",
        "from m.utils import vllm_available",
        "def vllm_available():\n    return ask()",
        "vllm_available = ask()",
        "if ask():\n    vllm_available = True\nelse:\n    vllm_available = False",
    ],
)
def test_condition_on_a_module_variable_is_recorded_as_a_guard(bound):
    test = "    if vllm_available:\n        import marked\n"
    evaluated = guards_of_import(f"{bound}\nif True:\n{test}")[-1]
    assert evaluated.kind == "result"
    assert evaluated.subject in ("m::vllm_available", "m::ask()")
    assert guards_of_import(f"{bound}\ndef f():\n{test}")[-1].kind == "result"


def test_imported_or_global_name_is_evaluated_in_its_defining_scope():
    test = "    if vllm_available:\n        import marked\n"
    evaluated = (Guard("result", "m:f:vllm_available"),)
    assert (
        guards_of_import(f"def f():\n    from m.utils import vllm_available\n{test}") == evaluated
    )
    assert guards_of_import(f"def f():\n    global vllm_available\n{test}") == evaluated


def test_parameter_hides_an_availability_function_of_the_module():
    body = "    if is_vllm_available():\n        import marked\n"
    assert guards_of_import(f"def f():\n{body}") == (Guard("result", "m:f:is_vllm_available()"),)
    assert guard_kinds(f"def f(is_vllm_available):\n{body}") == ["unknown"]


def test_condition_on_a_local_version_depends_on_its_value_and_not_on_its_name():
    body = "    if Version(torch_version) < Version('2'):\n        import marked\n"
    assert guard_kinds(f"def f(cfg):\n    torch_version = cfg.saved_with\n{body}") == ["result"]
    assert guard_kinds(f"def f(torch_version):\n{body}") == ["result"]
    assignment = "    torch_version = torch.__version__\n"
    assert guards_of_import(f"def f():\n{assignment}{body}") == version_guards("torch", "<2")


# Parts of versions


@each_row(
    ("test", "spec"),
    [
        ("Version(torch.__version__).release[:2] == (2, 6)", "==2.6.*"),
        ("Version(torch.__version__).release[:2] != (2, 6)", "!=2.6.*"),
        ("Version(torch.__version__).release[:2] <= (2, 6)", "<2.7"),
        ("Version(torch.__version__).release[0:2] > (2, 6)", ">=2.7"),
        ("Version(torch.__version__).release[:2] >= (2, 6)", ">=2.6"),
        ("(2, 6) > Version(torch.__version__).release[:2]", "<2.6"),
        ("Version(torch.__version__).release[0] > 1", ">=2"),
        ("Version(torch.__version__).major >= 2", ">=2"),
        ("torch.__version__.split('.')[0] == '2'", "==2.*"),
        ("torch.__version__.split('.')[:2] == ['2', '6']", "==2.6.*"),
        ("int(torch.__version__.split('.')[0]) < 2", "<2"),
        ("tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 6)", ">=2.6"),
        ("tuple(int(x) for x in torch.__version__.split('.')[:2]) <= (2, 6)", "<2.7"),
        ("Version(torch.__version__.split('+')[0]) < Version('2.6')", "<2.6"),
        ("Version(torch.__version__.partition('+')[0]) < Version('2.6')", "<2.6"),
    ],
)
def test_comparison_of_leading_version_components_becomes_a_guard(test, spec):
    assert guards_of_import(f"if {test}:\n    import marked\n") == version_guards("torch", spec)


@each_row(
    "test",
    [
        "Version(torch.__version__).release[:2] >= (2,)",
        "Version(torch.__version__).release[:2] >= (2, 6, 0)",
        "Version(torch.__version__).release[1] >= 6",
        "Version(torch.__version__).release[1:] >= (6,)",
        "Version(torch.__version__).release[:2] == [2, 6]",
        "Version(torch.__version__).minor >= 6",
    ],
)
def test_comparison_of_a_single_version_component_has_no_known_result(test):
    assert guard_kinds(f"if {test}:\n    import marked\n") == ["unknown"]


@each_row(
    "test",
    [
        "torch.__version__.split('.')[0] >= '2'",
        "torch.__version__.split('.')[1] == '6'",
        "torch.__version__.split('.')[0] == 2",
        "torch.__version__.split('.')[0] == wanted",
        "Version(torch.__version__.split('.')[0]) >= Version('2')",
        "tuple(map(str, torch.__version__.split('.')[:2])) >= (2, 6)",
        "tuple(int(y) for x in torch.__version__.split('.')[:2]) >= (2, 6)",
        "Version(torch.__version__.split('+')[1]) < Version('2.6')",
    ],
)
def test_comparison_of_version_strings_and_calls_becomes_a_guard_to_evaluate(test):
    assert guard_kinds(f"if {test}:\n    import marked\n") == ["result"]


def test_condition_on_a_name_for_version_components_becomes_a_guard_to_evaluate():
    source = "n = Version(torch.__version__).release[:2]\nif n >= (2, 6):\n    import marked\n"
    assert guards_of_import(source) == (Guard("result", "m::n >= (2, 6)"),)


# Names bound to results


@each_row(
    "source",
    [
        f"FLAG = {NEW}\nOTHER = FLAG\nif OTHER:\n    import marked\n",
        f"FLAG = True if {NEW} else False\nif FLAG:\n    import marked\n",
        f"FLAG = 0 if not ({NEW}) else 1\nif FLAG:\n    import marked\n",
        f"if (True if {NEW} else False):\n    import marked\n",
        f"if not (None if {NEW} else 'old'):\n    import marked\n",
        "a, b = Version(vllm.__version__), Version('0.9')\nif a >= b:\n    import marked\n",
        "a = Version(vllm.__version__)\nb = a\nif b >= Version('0.9'):\n    import marked\n",
    ],
)
def test_version_values_are_followed_through_assignments(source):
    assert guards_of_import(source) == version_guards("vllm", ">=0.9")


def test_flag_is_followed_through_assignments():
    source = "from m.utils import HAS_TRITON\nFLAG = HAS_TRITON\nif FLAG:\n    import marked\n"
    assert guards_of_import(source) == (Guard("result", "m::HAS_TRITON"),)


def test_call_that_returns_availability_and_version_gives_a_condition_and_a_version():
    source = """
    def f(x):
        _ray_available, it = _is_package_available("ray", return_version=True)
        if {}:
            import marked
    """
    assert guards_of_import(source.format("_ray_available")) == (Guard("present", "ray"),)
    assert guards_of_import(source.format("Version(it) < Version('2')")) == version_guards(
        "ray", "<2"
    )
    other = source.replace("_is_package_available", "other")
    assert guards_of_import(other.format("_ray_available")) == DATA


def test_names_swapped_in_one_assignment_exchange_their_values():
    source = """
    a, b = Version(vllm.__version__), Version(torch.__version__)
    a, b = b, a
    if a >= Version("2"):
        import marked
    """
    assert guards_of_import(source) == version_guards("torch", ">=2")


METHOD = """
class A:
    {0}
    def __init__(self):
        {1}
    def g(self):
        if {2}:
            import marked
"""


@each_row(
    ("own", "set_to", "test"),
    [
        ("x = 1", f"self.new = {NEW}", "self.new"),
        ("x = 1", f"self.new = {NEW}", "not self.new"),
        ("x = 1", f"self.new = {NEW}", "self.new == 1"),
        ("x = 1", f"self.new: bool = {NEW}", "self.new"),
        ("x = 1", "self.has = is_vllm_available()", "self.has"),
        ("x = 1", "self.v = vllm.__version__", "self.v == '0.9'"),
        ("V = Version(vllm.__version__)", "pass", "self.V >= Version('0.9')"),
        ("V = Version(vllm.__version__)", "pass", "A.V >= (0, 9)"),
        (f"NEW = {NEW}", "pass", "A.NEW"),
        ("V = vllm.__version__", "pass", "Version(A.V) >= self.least"),
    ],
)
def test_attribute_set_to_a_condition_is_unknown_or_becomes_a_guard_to_evaluate(own, set_to, test):
    evaluated = test.startswith("A.")
    assert guard_kinds(METHOD.format(own, set_to, test)) == ["result" if evaluated else "unknown"]


def test_attribute_that_depends_on_data_is_unknown_in_one_branch():
    source = METHOD.format("x = 1", "self.is_peft = is_peft_available() and y", "self.is_peft")
    assert guard_kinds(source) == ["unknown"]
    assert guards_of_import(source.replace("if self", "if not self")) == DATA
    both = source.replace("and y", "and y\n        self.is_peft = y")
    assert guards_of_import(both) == DATA
    assert guard_kinds(source.replace("and y", "and y\n        self.is_peft = False")) == [
        "unknown"
    ]


def test_comparison_with_an_imported_object_is_a_data_condition():
    source = """
    try:
        from m import Norm
    except ImportError:
        Norm = None
    if x.__class__ {} Norm:
        import marked
    """
    assert guards_of_import(source.format("is")) == guards_of_import(source.format("==")) == DATA


def test_test_of_an_attribute_set_to_none_is_a_data_condition():
    assert guards_of_import(METHOD.format("x = 1", "self.new = len(y) > 1", "self.new")) == DATA
    assert (
        guards_of_import(METHOD.format("x = 1", "self.new = hasattr(y, 'z')", "self.new")) == DATA
    )


@each_row(
    ("given", "test"),
    [
        ("Version(vllm.__version__)", "_ask() >= Version('0.9')"),
        ("Version(vllm.__version__)", "_ask() >= (0, 9)"),
        (NEW, "_ask()"),
        (NEW, "not _ask()"),
        ("other()", "_ask() >= Version('0.9')"),
    ],
)
def test_result_of_a_local_function_becomes_a_guard_to_evaluate(given, test):
    source = f"def _ask():\n    return {given}\nif {test}:\n    import marked\n"
    assert guard_kinds(source) == ["result"]
    on_data = source.replace(given, "len(x)").replace("Version('0.9')", "4")
    if test.endswith("_ask()"):
        assert guard_kinds(on_data) == ["result"]
        on_data = on_data.replace("if ", "def f():\n  if ").replace("    import", "     import")
    assert guards_of_import(on_data) == DATA


def test_comparison_of_an_attribute_with_a_literal_version_is_unknown():
    assert guard_kinds("def f(x):\n    if x.v >= Version('0.9'):\n        import marked\n") == [
        "unknown"
    ]
    assert guards_of_import("def f(x):\n    if x.v >= '0.9':\n        import marked\n") == DATA
