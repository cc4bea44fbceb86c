"""Tests the evaluation of functions that are easily evaluated incorrectly, and of hostile input."""

from __future__ import annotations

import textwrap

from imgbuild.audit.main_path.answers import answer_expression
from tests.support.rows import each_row
from tests.support.source_modules import SourceModules

# What Python returns; the audit may also leave it unknown.
PYTHON = {
    "an unknown version in try": (
        """
        import importlib.metadata as m
        import os
        def f():
            try:
                m.version(os.environ.get('NOPE', 'nothing-here'))
            except m.PackageNotFoundError:
                return False
            return True
        """,
        False,
    ),
    "an unknown item in try": (
        """
        import os
        def f():
            try:
                os.environ['NOPE_X']
                return True
            except KeyError:
                return False
        """,
        False,
    ),
    "an unknown number in try": (
        """
        import os
        def f():
            try:
                int(os.environ.get('NOPE_X', 'a'))
                return True
            except ValueError:
                return False
        """,
        False,
    ),
    "an attribute of the standard library": (
        """
        import sys
        def f():
            return hasattr(sys, 'pypy_version_info')
        """,
        False,
    ),
    "in a long range": (
        """
        def f():
            return 5000 in range(10000)
        """,
        True,
    ),
    "length of a long range": (
        """
        def f():
            return len(range(5000)) == 5000
        """,
        True,
    ),
    "a named tuple of exceptions": (
        """
        E = (ImportError, OSError)
        def g():
            try:
                import nothing_here
            except E:
                return False
            return True
        def f():
            try:
                g()
            except Exception:
                return True
            return False
        """,
        False,
    ),
    "an imported exception under another name": (
        """
        from importlib.metadata import version, PackageNotFoundError as P
        def g():
            try:
                version('nothing-here')
            except P:
                return 1
            return 2
        def f():
            try:
                return g() == 1
            except Exception:
                return False
        """,
        True,
    ),
    "an older name of an exception": (
        """
        def f():
            try:
                try:
                    raise OSError
                except IOError:
                    return True
            except Exception:
                return False
        """,
        True,
    ),
    "a list under two names": (
        """
        def f():
            a = []
            b = a
            b.append(1)
            return not a
        """,
        False,
    ),
    "a list that a loop fills": (
        """
        import os
        def f():
            seen = []
            for x in os.environ:
                if seen:
                    return False
                seen.append(x)
            return True
        """,
        False,
    ),
    "a list in a dictionary": (
        """
        def f():
            d = {'a': []}
            d['a'].append(1)
            return bool(d['a'])
        """,
        True,
    ),
    "a list that += changes": (
        """
        def f():
            a = []
            b = a
            b += [1]
            return bool(a)
        """,
        True,
    ),
    "find_spec below an absent package": (
        """
        import importlib.util
        def f():
            try:
                return importlib.util.find_spec('nothing_here.x') is not None
            except ModuleNotFoundError:
                return 'raised'
        """,
        "raised",
    ),
    "a comparison that the local part of a version decides": (
        """
        from packaging.version import Version
        import other
        def f():
            return Version(other.__version__) > Version("1")
        """,
        True,
    ),
    "a version with a local part": (
        """
        import other
        def f():
            return other.__version__ == "1+cu124"
        """,
        True,
    ),
}


@each_row("name", PYTHON)
def test_evaluated_condition_has_the_value_of_python_or_is_unknown(name: str) -> None:
    source, expected = PYTHON[name]
    assert _audit_answer(textwrap.dedent(source)) in (None, bool(expected))


def test_version_comparison_ignores_a_local_part_that_has_no_effect() -> None:
    source = "from packaging.version import Version as V\nimport other\n"
    assert _audit_answer(f"{source}def f():\n    return V(other.__version__) >= V('1')\n") is True
    assert _audit_answer(f"{source}def f():\n    return V(other.__version__) < V('1.1')\n") is True


# Each caused an exception in the audit, or took gigabytes or minutes.
HOSTILE = {
    "slice0": "def f():\n    return 'abc'[::0]\n",
    "bad key": "def f():\n    return {([],): 1}\n",
    "bad set": "def f():\n    return {[1]}\n",
    "bad get": "def f():\n    return {}.get(([],))\n",
    "format attr": "def f():\n    return '{0.foo}'.format(1)\n",
    "hexint": "def f():\n    return f'{0x%s}'\n" % ("f" * 9000),
    "big text": "def f():\n    return 'a' * 99999999999\n",
    "big list": "def f():\n    return [0] * 99999999999\n",
    "big mod": "def f():\n    return '%99999999999d' % 1\n",
    "big format": "def f():\n    return '{:9999999999}'.format(1)\n",
    "big int": "def f():\n    x = 0x%s\n" % ("f" * 1000)
    + "    x = x * x\n" * 22
    + "    return x == 1\n",
    "double text": "def f():\n    x = 'aaaaaaaa'\n" + "    x = f'{x}{x}'\n" * 36 + "    return x\n",
    "nest": "def f():\n    x = (1,)\n" + "    x = (x, x)\n" * 40 + "    return x == 1\n",
    "star": "def f():\n    x = [1]\n" + "    x = [*x, *x]\n" * 34 + "    return x == 1\n",
    "replace": "def f():\n    x = 'a' * 100\n    y = 'a' * 10000\n"
    "    return x.replace('a', y).replace('a', y).replace('a', y)\n",
    "digits": "def f():\n    return round(5, -1000000000) == 0\n",
}


@each_row("name", HOSTILE)
def test_evaluation_of_hostile_code_terminates(name: str) -> None:
    assert _audit_answer(HOSTILE[name]) in (None, True)


def _audit_answer(source: str) -> bool | None:
    """Return the evaluated result of f(), with a package `other` of version 1."""
    files = {"lib/__init__.py": "", "lib/t.py": source}
    packaging = {"packaging/__init__.py": "", "packaging/version.py": ""}
    others = {"other 1": {"other/__init__.py": "__version__ = '1'"}, "packaging 26.4": packaging}
    modules = SourceModules({"lib 1": files, **others})
    return answer_expression(modules, "lib.t::f()")
