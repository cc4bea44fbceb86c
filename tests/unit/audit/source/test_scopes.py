"""Tests which names scopes bind, with and without reading expressions."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import imgbuild
from imgbuild.audit.source.module import read_module
from imgbuild.audit.source.scopes import binding_sites
from tests.support.rows import each_row

SOURCE = Path(imgbuild.__file__).parent
FORMS = """
a = b = c.d = e[0] = 1
f: int = 2
g += 1
h, (*i, [j]) = value
del k
for l, m in pairs:
    n = l
else:
    o = 1
while test:
    p = 1
else:
    q = 1
if test:
    r = 1
elif other:
    s = 1
else:
    t = 1
with opened() as u, opened() as (v, w):
    x = 1
try:
    y = 1
except Error as z:
    aa = 1
except (A, B):
    ab = 1
else:
    ac = 1
finally:
    ad = 1
try:
    ae = 1
except* Error as af:
    ag = 1
match value:
    case [ah, *ai] | {"k": ah, **ai}:
        aj = 1
    case Point(x=ak, y=0) as al if al:
        am = 1
    case an:
        ao = 1
def ap(inner=[aq for aq in ()], *, other=lambda x: x):
    ar = 1
class As(Base, metaclass=Meta):
    at = 1
async def au():
    async with av as aw:
        async for ax in ay:
            az = 1
import ba, bb.bc, bd as be, bf.bg as bh
from bi import bj, bk as bl
global bm
bm = 1
[bn for bn in (1,) if bn]
print(bo)
"""


# What only newer Pythons can parse.
NEWER = "type Pair = tuple[int, int]\n" if sys.version_info >= (3, 12) else ""
OWN = [path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("audit/**/*.py"))]


def lines(places: object) -> object:
    assert isinstance(places, dict)
    return {name: sorted((s.line, s.module, s.definition) for s in places[name]) for name in places}


def bodies(source: str) -> list[list[ast.stmt]]:
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For)
    return [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, kinds))]


def test_every_binding_form_is_recognized():
    [body, *_] = bodies(FORMS)
    names = {name for name in binding_sites(body) if name.islower()}
    expected = "a b f g h i j k l m n o p q r s t u v w x y z aa ab ac ad ae af ag ah ai aj ak al"
    more = "am an ao ap au ba bb be bh bj bl"
    assert names == {*expected.split(), *more.split()}


@each_row("source", [FORMS + NEWER, *(text for text in OWN if ":=" not in text)])
def test_expression_without_a_walrus_operator_binds_no_names(source: str):
    for body in bodies(source):
        assert lines(binding_sites(body, expressions=False)) == lines(binding_sites(body))


def test_walrus_operator_in_an_expression_binds_its_name():
    [body] = bodies("print([x for y in z if (found := y)])")
    assert list(binding_sites(body)) == ["found"]
    source = b"import vllm\ndef f():\n    use(vllm := 3)\n    return vllm.gone\n"
    facts = read_module(source, "m", "m.py", package=False)
    assert facts.attributes == ()
