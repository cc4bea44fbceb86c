"""Tests reading calls and attributes, and the types of their receivers."""

from __future__ import annotations

from textwrap import dedent

import msgspec

from imgbuild.audit.source.facts import Guard, ModuleFacts
from imgbuild.audit.source.module import read_module
from tests.support.rows import each_row

HEAD = "from typing import Optional\nimport vllm\nfrom vllm import LLM, AsyncEngineArgs as Args\n"


def read(source: str) -> ModuleFacts:
    return read_module((HEAD + dedent(source)).encode(), "m", "m.py", package=False)


def calls(source: str) -> dict[str, str]:
    return {call.callee: call.receiver for call in read(source).calls}


def reads(source: str) -> dict[str, str]:
    return {attribute.expression: attribute.receiver for attribute in read(source).attributes}


def test_arguments_of_calls_are_read():
    (call,) = read("vllm.LLM('model', 'x', 3, *more, task=1, **kw)\n").calls
    assert (call.callee, call.keywords, call.literals) == ("vllm.LLM", ("task",), ("model", "x"))
    assert (call.positional, call.star, call.double_star) == (3, True, True)


def test_calls_of_unnamed_functions_are_ignored():
    receivers = calls(
        """
        def own(): ...
        def f(thing):
            print(1)
            thing.go()
            unknown()
            own()
            [x for x in thing][0].go()
        """
    )
    assert receivers == {"own": ""}


def test_function_parameter_hides_an_imported_name():
    assert calls("def f(vllm): vllm.go()\n") == {}
    assert calls("f = lambda vllm: vllm.go()\n") == {}
    assert calls("x = [vllm.go() for vllm in vllm.all()]\n") == {"vllm.all": ""}


@each_row(
    ("body", "receiver"),
    [
        ("x = LLM(1)", "LLM()"),
        ("x = vllm.LLM(1)", "vllm.LLM()"),
        ("x = Args.from_cli_args(1)", "Args.from_cli_args()"),
        ("x: LLM = make()", "LLM"),
        ("x: 'LLM | None' = make()", "LLM"),
        ("x: Optional[LLM] = make()", "LLM"),
        ("y = LLM(1); x = y", "LLM()"),
        ("x = None; x = LLM(1)", "LLM()"),
        ("if (x := LLM(1)): pass", "LLM()"),
    ],
)
def test_local_name_has_the_type_of_its_value(body, receiver):
    assert calls(f"def f():\n    {body}\n    x.go()\n").get("x.go") == receiver


@each_row(
    "body",
    [
        "x = make(1)",
        "x = LLM(1); x = Args()",
        "x: list[LLM] = make()",
        "x: 'LLM | Args' = make()",
        "for x in LLM(1): pass",
        "with LLM(1) as x: pass",
        "x, y = LLM(1)",
        "x = LLM(1) or y",
        "x = LLM(1); isinstance(x, Args)",
        "x: int = 1",
    ],
)
def test_local_name_with_several_types_has_no_known_type(body):
    receivers = calls(f"from m2 import make\ndef f():\n    {body}\n    x.go()\n")
    assert receivers.get("x.go") in (None, "make()")


def test_annotated_parameters_and_self_attributes_have_types():
    facts = read(
        """
        class A(Base):
            field: Args

            def __init__(self, args: Args):
                super().__init__(args.model, tokenizer=1)
                self.args = args
                self.llm = None
                self.mixed = Args()

            def run(self):
                self.llm = LLM()
                self.mixed = 1
                self.llm.generate(self.args.seed, self.field.seed, self.mixed.seed)
                self.go()
        """
    )
    assert {call.callee: call.receiver for call in facts.calls} == {
        "super().__init__": "",
        "Args": "",
        "LLM": "",
        "self.llm.generate": "LLM()",
        "self.go": "",
    }
    assert {
        attribute.expression: attribute.receiver
        for attribute in facts.attributes
        if attribute.receiver
    } == {
        "args.model": "Args",
        "self.args.seed": "Args",
        "self.field.seed": "Args",
    }


def test_method_of_a_call_result_has_the_call_as_receiver():
    assert calls("vllm.LLM(1).generate()\n") == {
        "vllm.LLM": "",
        "vllm.LLM().generate": "vllm.LLM()",
    }


def test_attribute_reads_are_recorded():
    receivers = reads(
        """
        import vllm.envs
        value = vllm.envs.VLLM_USE_V1
        other = getattr(vllm, "needed")
        soft = getattr(vllm, "perhaps", None)
        asked = hasattr(vllm, "asked")
        vllm.envs.mine = 1
        again = vllm.envs.mine
        def f(args: Args):
            args.added = 1
            return args.added, args.seed
        """
    )
    assert receivers == {
        "vllm.envs.VLLM_USE_V1": "",
        "vllm.needed": "",
        "vllm.envs": "",
        "args.seed": "Args",
    }


def test_annotations_are_read_unless_deferred():
    assert reads("def f(x: vllm.Gone): ...\n") == {"vllm.Gone": ""}
    late = "from __future__ import annotations\nimport vllm\ndef f(x: vllm.Gone): ...\n"
    facts = read_module(late.encode(), "m", "m.py", package=False)
    assert facts.attributes == ()


def test_calls_in_conditional_expressions_have_guards():
    facts = read(
        """
        a = is_peft_available() and vllm.one()
        b = vllm.two() if is_peft_available() else vllm.three()
        c = hasattr(vllm, "x") and vllm.x
        """
    )
    guards = {call.callee: call.guards for call in facts.calls}
    assert guards["vllm.one"] == guards["vllm.two"] == (Guard("result", "m::is_peft_available()"),)
    assert guards["vllm.three"] == (Guard("result", "m::is_peft_available()", "!"),)
    (read_of_x,) = facts.attributes
    assert read_of_x.guards == (Guard("handled", "AttributeError", "vllm.x"),)


def test_star_import_may_define_every_name_except_builtins():
    source = "from vllm import *\ndef f():\n    LLM()\n    print()\n"
    facts = read_module(source.encode(), "m", "m.py", package=False)
    assert [call.callee for call in facts.calls] == ["LLM"]


def test_literals_that_utf8_cannot_encode_are_omitted():
    source = rb"""
import re, vllm
vllm.one(re.compile("[\ud800-\udfff]"))
vllm.two("\ud800", "a")
"""
    facts = read_module(source, "m", "m.py", package=False)
    assert {call.callee: call.literals for call in facts.calls} == {
        "vllm.one": (), "vllm.two": (), "re.compile": (),
    }  # fmt: skip
    msgspec.msgpack.encode(facts)
