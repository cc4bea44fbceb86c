"""Tests reading keywords in dictionaries and names with several values from a user's program."""

from __future__ import annotations

import pytest

from imgbuild.audit.source.module import read_module


def _calls(source, callee):
    facts = read_module(source.encode(), "train", "train.py", package=False, program=True)
    assert not facts.broken
    return [call for call in facts.calls if call.callee.rpartition(".")[2] == callee]


@pytest.mark.parametrize(
    ("before", "call", "keywords", "more"),
    [
        ("", "f(**{'a': 1}, b=2)", {"a", "b"}, False),
        ("", "f(**dict(a=1))", {"a"}, False),
        ("kw = {'a': 1}", "f(**kw)", {"a"}, False),
        ("kw = dict(a=1)\nkw['b'] = 2", "f(**kw)", {"a", "b"}, True),
        ("kw = {'a': 1}\nkw.update(x)\nprint(kw['a'])", "f(**kw)", {"a"}, True),
        ("", "f(**kw)\nkw = {'a': 1}\nkw['b'] = 2", {"a"}, True),
        ("kw = {'a': 1}\nkw.pop('a')", "f(**kw)", set(), True),
        ("kw = {'a': 1}\ndel kw['a']", "f(**kw)", set(), True),
        ("kw = {'a': 1}\nchange(kw)", "f(**kw)", set(), True),
        ("kw = {'a': 1}\nkw = {}", "f(**kw)", set(), True),
        (
            "kw = {'a': 1}\nkw.update(b=2, **x)\nkw.update({'c': 3})",
            "f(**kw)",
            {"a", "b", "c"},
            True,
        ),
        ("kw = {'a': 1, **x}", "f(**kw)", {"a"}, True),
        ("kw = dict(x, a=1)", "f(**kw)", {"a"}, True),
        ("kw = {x: 1}", "f(**kw)", set(), True),
        ("base = {'a': 1}\nkw = {**base, 'b': 2}", "f(**kw)", {"a", "b"}, False),
        ("base = {'a': 1}\nbase['c'] = 3", "f(**{**base, 'b': 2})", {"a", "b", "c"}, True),
        ("base = {'a': 1}\nbase.pop('a')", "f(**{**base, 'b': 2})", {"b"}, True),
        ("kw = {'a': 1} if x else {}", "f(**kw)", set(), True),
        ("kw = {'a': 1}", "def g(**kw): f(**kw)", set(), True),
        ("", "partial(f, 1, a=1)", {"a"}, True),
        ("", "functools.partial(f, **{'a': 1})", {"a"}, True),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_keywords_of_a_user_call_are_read(before, call, keywords, more, inside):
    body = f"{before}\n{call}\n"
    if inside:
        body = "def main(x):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    for fact in _calls(f"from package import f\nimport functools\n{body}", "f"):
        assert (set(fact.keywords), fact.double_star) == (keywords, more)
        assert "partial" not in call or fact.star


@pytest.mark.parametrize(
    ("condition", "call", "keywords"),
    [
        ("if x:\n    kw['b'] = 2", "f(**kw)", [{"a"}, {"b"}]),
        ("if x:\n    pass\nelif y:\n    kw.update(b=2)", "f(**kw)", [{"a"}, {"b"}]),
        ("if 'b' in names:\n    kw['b'] = 2", "f(**kw)", [{"a"}]),
        ("if 'b' in names:\n    kw['b'] = 2\nelse:\n    kw['c'] = 2", "f(**kw)", [{"a"}]),
        ("if x:\n    kw['b'] = 2\n    return x", "f(**kw)", [{"a"}]),
        ("for b in x:\n    kw['b'] = 2", "f(**kw)", [{"a"}]),
        ("if x:\n    kw['b'] = 2", "if y:\n    f(**kw)", [{"a"}]),
    ],
)
def test_keywords_set_under_a_condition_are_another_call(condition, call, keywords):
    lines = f"kw = {{'a': 1}}\n{condition}\n{call}".splitlines()
    source = "".join(f"    {line}\n" for line in lines)
    for head in ("def main(x, y, names):\n", "def main(x, y, names):\n  if names:\n"):
        calls = _calls(f"from package import f\n{head}{source}", "f")
        assert sorted((set(each.keywords) for each in calls), key=sorted) == keywords
        assert all(each.double_star for each in calls)


RECEIVERS = [
    ("x = A()\nx = x.first()\nx.m()", "A().first()"),
    ("x = A()\nx.m()\nx = B()", "A()"),
    ("x = A()\ny = x.first().second()\ny.m()", None),
    ("x = A()\ny = x.first()\nz = y.second()\nz.m()", "A().first().second()"),
    ("A().first().m()", "A().first()"),
    ("x = A()\nfor i in j:\n    x = B()\nx.m()", None),
    ("x = A()\ny = x.first()\nfor i in j:\n    x = B()\ny.m()", None),
    ("x = A()\nx = B()\ndef g():\n    x.m()", None),
    ("x = A()\nif x.m():\n    pass\nx = 1", "A()"),
]


@pytest.mark.parametrize(("body", "receiver"), RECEIVERS)
@pytest.mark.parametrize("inside", [False, True])
def test_receiver_of_a_user_method_call_is_read(body, receiver, inside):
    if inside:
        body = "def main(j):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    calls = _calls(f"from package import A, B\n{body}\n", "m")
    assert {call.receiver for call in calls if call.receiver} == ({receiver} if receiver else set())


def test_assignments_of_names_are_recorded_in_user_code():
    facts = read_module(
        b"from package import A, B\nx = A()\nx = B()\n",
        "train",
        "train.py",
        package=False,
        program=True,
    )
    assert [entry.name for entry in facts.assigned] == ["x", "x"]


def test_keywords_from_a_dictionary_are_not_followed_in_package_code():
    source = b"from package import f\nkw = {'a': 1}\nf(**kw)\n"
    facts = read_module(source, "train", "train.py", package=False)
    assert [(call.keywords, call.double_star) for call in facts.calls] == [((), True)]
