"""Known failures: they fire in their versions alone, and only where the wheel still shows them."""

import pytest

from imgbuild.audit.checks import rules
from imgbuild.audit.checks.rules import Rule, RuleEvidence
from imgbuild.report import Relation, Severity
from imgbuild.values import Arch
from tests.support import audited

RULE = Rule(
    id="a-b",
    package="a",
    versions=">=2",
    other="b",
    clash="<2",
    spec=">=2",
    why="it fails",
    cure="choose b>=2",
    source="tried",
    shown=RuleEvidence(file="a/x.h", text="TARGET 2"),
)


def found(tmp_path, pins, text="#define ONE\n#define TARGET 2\n", rule=RULE, **more):
    packages = {pin: ({"a/x.h": text} if pin.startswith("a==") else {}) for pin in pins}
    return rules.check(audited.package_set(tmp_path, packages, **more), [rule])


def test_a_rule_names_the_line_that_shows_it(tmp_path):
    (finding,) = found(tmp_path, ["a==2.1", "b==1.9"])
    assert finding.severity is Severity.ERROR
    assert finding.where == "a 2.1 a/x.h:2"
    assert finding.remedy == "choose b>=2"
    assert finding.evidence.relation is Relation.RULE
    assert (finding.evidence.subject, finding.evidence.spec) == ("a-b", ">=2")


@pytest.mark.parametrize("pins", [["a==1.9", "b==1.9"], ["a==2.1", "b==2.0"], ["a==2.1"]])
def test_other_versions_are_clean(tmp_path, pins):
    assert found(tmp_path, pins) == []


def test_a_wheel_that_does_not_show_it_is_clean(tmp_path):
    assert found(tmp_path, ["a==2.1", "b==1.9"], text="#define TARGET 1\n") == []


def test_a_rule_of_one_architecture(tmp_path):
    arm = audited.changed(RULE, arch=(Arch.ARM64,))
    assert found(tmp_path, ["a==2.1", "b==1.9"], rule=arm) == []
    assert len(found(tmp_path / "arm", ["a==2.1", "b==1.9"], rule=arm, arch=Arch.ARM64)) == 1


def test_the_rules_of_this_release_are_whole():
    known = rules.load()
    assert len({rule.id for rule in known}) == len(known) >= 3
    assert all(rule.why and rule.cure and rule.source and rule.shown.text for rule in known)


def test_pyarrow_26_beside_numpy_1(tmp_path):
    header = "#define NPY_TARGET_VERSION NPY_2_0_API_VERSION\n"
    files = {"pyarrow/src/arrow/python/numpy_interop.h": header}
    broken = audited.package_set(tmp_path, {"pyarrow==26.0.1": files, "numpy==1.26.4": {}})
    assert audited.subjects(rules.check(broken)) == ["pyarrow-numpy-1"]
    sound = audited.package_set(tmp_path / "2", {"pyarrow==26.0.1": files, "numpy==2.0.0": {}})
    assert rules.check(sound) == []


def test_qwen2_5_vl_beside_transformers_4_52(tmp_path):
    files = {"vllm/model_executor/models/qwen2.py": "x = dict(hidden_act=config.hidden_act)\n"}
    broken = audited.package_set(tmp_path, {"vllm==0.8.5.post1": files, "transformers==4.52.4": {}})
    known = rules.check(broken)
    assert audited.subjects(known) == ["vllm-qwen2.5-vl-text-config"]
    assert known[0].severity is Severity.NOTE
    sound = audited.package_set(
        tmp_path / "2", {"vllm==0.8.5.post1": files, "transformers==4.51.3": {}}
    )
    assert rules.check(sound) == []


def test_verl_0_9_0_without_flash_attn(tmp_path):
    line = "from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input\n"
    head = "def functions():\n    if is_torch_npu_available():\n        pass\n    else:\n"
    path = "verl/utils/attention_utils.py"
    needs = {"verl==0.9.0": {path: f"{head}        {line}"}}
    namespace = {"flash-attn-4==4.0.0": {"flash_attn/cute/x.py": ""}}
    (finding,) = rules.check(audited.package_set(tmp_path / "missing", {**needs, **namespace}))
    assert finding.severity is Severity.ERROR
    assert finding.message.startswith("verl 0.9.0 without flash-attn: ")
    assert finding.where == f"verl 0.9.0 {path}:5"
    there = audited.package_set(tmp_path / "there", {**needs, "flash-attn==2.8.3": {}})
    assert rules.check(there) == []
    partial = audited.package_set(tmp_path / "partial", needs, partial=True)
    assert rules.check(partial) == []
    tries = {path: f"{head}        try:\n            {line}        except ImportError: ...\n"}
    assert rules.check(audited.package_set(tmp_path / "tries", {"verl==0.9.0": tries})) == []


@pytest.mark.parametrize(
    "more",
    [{"missing": "c"}, {"other": ""}, {"clash": ""}, {"missing": "c", "other": "", "clash": ""}],
)
def test_a_rule_names_a_pair_or_a_missing_package(more):
    with pytest.raises(ValueError, match="give other, clash and spec, or missing"):
        audited.changed(RULE, **more)
