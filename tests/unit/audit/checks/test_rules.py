"""Tests that rules for known failures apply only to their versions and to wheels with evidence."""

import pytest

from imgbuild.audit import judge
from imgbuild.audit.checks import rules
from imgbuild.audit.checks.rules import Rule, RuleEvidence
from imgbuild.audit.judge import AuditTerms
from imgbuild.report import ConflictRelation, Severity
from imgbuild.values import Arch
from tests.support import audited
from tests.support.rows import each_row

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


def rule_findings(tmp_path, pins, text="#define ONE\n#define TARGET 2\n", rule=RULE, **more):
    packages = {pin: ({"a/x.h": text} if pin.startswith("a==") else {}) for pin in pins}
    return rules.check_rules(audited.package_set(tmp_path, packages, **more), [rule])


def test_finding_of_a_rule_names_the_line_of_its_evidence(tmp_path):
    (finding,) = rule_findings(tmp_path, ["a==2.1", "b==1.9"])
    assert finding.severity is Severity.ERROR
    assert finding.where == "a 2.1 a/x.h:2"
    assert finding.remedy == "choose b>=2"
    assert finding.evidence.relation is ConflictRelation.RULE
    assert (finding.evidence.subject, finding.evidence.spec) == ("a-b", ">=2")


@pytest.mark.parametrize("pins", [["a==1.9", "b==1.9"], ["a==2.1", "b==2.0"], ["a==2.1"]])
def test_rule_has_no_findings_for_other_versions(tmp_path, pins):
    assert rule_findings(tmp_path, pins) == []


def test_rule_has_no_findings_without_its_evidence_in_the_wheel(tmp_path):
    assert rule_findings(tmp_path, ["a==2.1", "b==1.9"], text="#define TARGET 1\n") == []


def test_rule_can_be_limited_to_one_architecture(tmp_path):
    arm = audited.with_changes(RULE, arch=(Arch.ARM64,))
    assert rule_findings(tmp_path, ["a==2.1", "b==1.9"], rule=arm) == []
    assert (
        len(rule_findings(tmp_path / "arm", ["a==2.1", "b==1.9"], rule=arm, arch=Arch.ARM64)) == 1
    )


def test_every_bundled_rule_is_complete():
    release_rules = rules.load_rules()
    assert len({rule.id for rule in release_rules}) == len(release_rules) >= 3
    assert all(rule.why and rule.cure and rule.source and rule.shown.text for rule in release_rules)


def test_rule_reports_pyarrow_26_with_numpy_1(tmp_path):
    header = "#define NPY_TARGET_VERSION NPY_2_0_API_VERSION\n"
    files = {"pyarrow/src/arrow/python/numpy_interop.h": header}
    broken = audited.package_set(tmp_path, {"pyarrow==26.0.1": files, "numpy==1.26.4": {}})
    assert audited.finding_subjects(rules.check_rules(broken)) == ["pyarrow-numpy-1"]
    sound = audited.package_set(tmp_path / "2", {"pyarrow==26.0.1": files, "numpy==2.0.0": {}})
    assert rules.check_rules(sound) == []


def test_rule_reports_trl_0_15_with_vllm_0_7(tmp_path):
    files = {"trl/trainer/grpo_trainer.py": "LLM(\n    enable_prefix_caching=True,\n)\n"}
    broken = audited.package_set(tmp_path, {"trl==0.15.2": files, "vllm==0.7.2": {}})
    (finding,) = rules.check_rules(broken)
    assert finding.severity is Severity.WARNING
    assert finding.where == "trl 0.15.2 trl/trainer/grpo_trainer.py:2"
    sound = audited.package_set(tmp_path / "2", {"trl==0.16.0": files, "vllm==0.7.2": {}})
    assert rules.check_rules(sound) == []


def test_rule_reports_qwen2_5_vl_with_transformers_4_52(tmp_path):
    files = {"vllm/model_executor/models/qwen2.py": "x = dict(hidden_act=config.hidden_act)\n"}
    broken = audited.package_set(tmp_path, {"vllm==0.8.5.post1": files, "transformers==4.52.4": {}})
    findings = rules.check_rules(broken)
    assert audited.finding_subjects(findings) == ["vllm-qwen2.5-vl-text-config"]
    assert findings[0].severity is Severity.NOTE
    sound = audited.package_set(
        tmp_path / "2", {"vllm==0.8.5.post1": files, "transformers==4.51.3": {}}
    )
    assert rules.check_rules(sound) == []


def test_rule_reports_xgrammar_that_computes_a_wrong_row_stride(tmp_path):
    path = "xgrammar/kernels/apply_token_bitmask_inplace_triton.py"
    by_shape = {path: "kernel(\n    logits.shape[-1],\n)\n"}
    broken = {"vllm==0.8.5.post1": {}, "xgrammar==0.1.18": by_shape}
    (finding,) = rules.check_rules(audited.package_set(tmp_path, broken))
    assert finding.where == f"xgrammar 0.1.18 {path}:2"
    assert finding.severity is Severity.NOTE
    by_stride = {path: "kernel(\n    logits.stride()[0],\n)\n"}
    sound = {"vllm==0.10.2": {}, "xgrammar==0.1.23": by_stride}
    assert rules.check_rules(audited.package_set(tmp_path / "2", sound)) == []


def test_rule_reports_verl_0_9_0_without_flash_attn(tmp_path):
    line = "from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input\n"
    head = "def functions():\n    if is_torch_npu_available():\n        pass\n    else:\n"
    path = "verl/utils/attention_utils.py"
    needs = {"verl==0.9.0": {path: f"{head}        {line}"}}
    namespace = {"flash-attn-4==4.0.0": {"flash_attn/cute/x.py": ""}}
    (finding,) = rules.check_rules(
        audited.package_set(tmp_path / "missing", {**needs, **namespace})
    )
    assert finding.severity is Severity.ERROR
    assert finding.message.startswith("verl 0.9.0 without flash-attn: ")
    assert finding.where == f"verl 0.9.0 {path}:5"
    there = audited.package_set(tmp_path / "there", {**needs, "flash-attn==2.8.3": {}})
    assert rules.check_rules(there) == []
    partial = audited.package_set(tmp_path / "partial", needs, partial=True)
    assert rules.check_rules(partial) == []
    tries = {path: f"{head}        try:\n            {line}        except ImportError: ...\n"}
    assert rules.check_rules(audited.package_set(tmp_path / "tries", {"verl==0.9.0": tries})) == []


ALONE = audited.with_changes(RULE, other="", clash="", spec="", lacks="a._C")
OTHER_BUILD: audited.Files = {
    "a/__init__.py": "",
    "a/x.h": "TARGET 2",
    "a/_C.cpython-312-x86_64-linux-gnu.so": b"\0",
}


@pytest.mark.parametrize(("python", "there"), [("3.11", True), ("3.12", False), ("3.12.4", False)])
def test_rule_about_a_missing_module_is_limited_to_the_affected_python(tmp_path, python, there):
    sound = {**OTHER_BUILD, "a/_C.abi3.so": b"\0"}
    for number, (files, count) in enumerate(((OTHER_BUILD, there), (sound, 0))):
        package_set = audited.package_set(tmp_path / str(number), {"a==2.1": files}, python=python)
        findings = rules.check_rules(package_set, [ALONE])
        assert [finding.message for finding in findings] == [
            f"a 2.1 on Python {python}: it fails"
        ] * count


def test_rule_can_combine_a_missing_module_with_a_version_conflict(tmp_path):
    pair = audited.with_changes(RULE, lacks="a._C")
    for version, messages in (("1.9", ["a 2.1 with b 1.9 on Python 3.11: it fails"]), ("2.0", [])):
        packages: dict[str, audited.Files] = {"a==2.1": OTHER_BUILD, f"b=={version}": {}}
        findings = rules.check_rules(audited.package_set(tmp_path / version, packages), [pair])
        assert [finding.message for finding in findings] == messages


def test_rule_is_skipped_if_other_package_provides_module(tmp_path):
    rule = audited.with_changes(ALONE, unless="spare")
    spare: dict[str, audited.Files] = {"another==1": {"spare/__init__.py": ""}}
    package_set = audited.package_set(tmp_path, {"a==2.1": OTHER_BUILD, **spare})
    assert rules.check_rules(package_set, [rule]) == []
    complete_set = audited.package_set(
        tmp_path / "2", {"a==2.1": OTHER_BUILD}, unread_versions={"spare": "2.0"}
    )
    assert rules.check_rules(complete_set, [rule]) == []


@each_row(
    ("gpu", "severity", "expected"),
    [
        ((), Severity.ERROR, [Severity.WARNING]),
        (("8.0", "9.0"), Severity.ERROR, [Severity.ERROR]),
        (("8.0", "12.0"), Severity.ERROR, []),
        ((), Severity.NOTE, [Severity.NOTE]),
        (("9.0",), Severity.NOTE, [Severity.NOTE]),
    ],
)
def test_rule_can_be_limited_to_some_gpus(tmp_path, gpu, severity, expected):
    rule = audited.with_changes(RULE, gpu=("9.0", "10.0"), severity=severity)
    packages = {"a==2.1": {"a/x.h": "TARGET 2"}, "b==1.9": {}}
    findings = rules.check_rules(audited.package_set(tmp_path, packages), [rule], gpu=gpu)
    assert [finding.severity for finding in findings] == expected
    anywhere = audited.package_set(tmp_path / "2", packages)
    assert [finding.severity for finding in rules.check_rules(anywhere, [RULE], gpu=gpu)] == [
        Severity.ERROR
    ]


DEEP_GEMM: audited.Files = {
    "vllm/__init__.py": "",
    "vllm/third_party/__init__.py": "",
    "vllm/third_party/deep_gemm/__init__.py": "from . import _C\n",
    "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so": b"\0",
    "vllm/utils/deep_gemm.py": 'm = importlib.import_module("vllm.third_party.deep_gemm")\n',
}


@each_row(
    ("version", "python", "gpu", "expected"),
    [
        ("0.20.2", "3.11", ("8.0", "9.0"), [("rules", Severity.ERROR)]),
        ("0.20.0", "3.13", ("10.3",), [("rules", Severity.ERROR)]),
        ("0.20.2", "3.11", (), [("rules", Severity.WARNING)]),
        ("0.20.2", "3.11", ("8.0", "12.0"), [("imports", Severity.WARNING)]),
        ("0.21.0", "3.11", ("9.0",), [("imports", Severity.WARNING)]),
        ("0.20.2", "3.12", ("9.0",), []),
    ],
)
def test_vllm_0_20_has_deep_gemm_only_for_python_3_12(tmp_path, version, python, gpu, expected):
    packages = {f"vllm=={version}": DEEP_GEMM}
    package_set = audited.package_set(tmp_path, packages, python=python, partial=True)
    report = judge.audit_package_set(package_set, AuditTerms(gpu=gpu), checks=["imports", "rules"])
    assert [(finding.check, finding.severity) for finding in report.findings] == expected
    alone = judge.audit_package_set(package_set, AuditTerms(gpu=gpu), checks=["imports"])
    assert len(alone.findings) == (python != "3.12")


def test_warning_of_a_rule_does_not_hide_an_import_error(tmp_path):
    files = {**DEEP_GEMM, "vllm/__init__.py": "import vllm.third_party.deep_gemm\n"}
    package_set = audited.package_set(tmp_path, {"vllm==0.20.2": files}, partial=True)
    terms = AuditTerms(named=("vllm",))
    report = judge.audit_package_set(package_set, terms, checks=["imports", "rules"])
    assert [(finding.check, finding.severity) for finding in report.findings] == [
        ("imports", Severity.ERROR),
        ("rules", Severity.WARNING),
    ]
    terms = audited.with_changes(terms, gpu=("9.0",))
    report = judge.audit_package_set(package_set, terms, checks=["imports", "rules"])
    assert [finding.check for finding in report.findings] == ["rules"]


@each_row(
    "more",
    [{"missing": "c"}, {"other": ""}, {"clash": ""}, {"missing": "c", "other": "", "clash": ""}],
)
def test_rule_must_have_a_version_conflict_or_a_missing_package_or_module(more):
    with pytest.raises(ValueError, match="set other, clash and spec, or missing, or lacks"):
        audited.with_changes(RULE, **more)
    with pytest.raises(ValueError, match="set other, clash and spec"):
        audited.with_changes(ALONE, lacks="")


@each_row(
    ("ray", "click", "python", "count"),
    [
        ("2.49.1", "8.3.0", "3.10", 1),
        ("2.52.1", "8.4.0", "3.10", 1),
        ("2.49.1", "8.3.0", "3.11", 0),
        ("2.49.1", "8.2.2", "3.10", 0),
        ("2.53.0", "8.3.0", "3.10", 0),
    ],
)
def test_rule_reports_ray_commands_with_click_8_3_on_python_3_10(
    tmp_path, ray, click, python, count
):
    files = {
        "ray/scripts/scripts.py": "def alias(command):\n    new_command = copy.deepcopy(command)\n"
    }
    packages = {f"ray=={ray}": files, f"click=={click}": {}}
    findings = rules.check_rules(audited.package_set(tmp_path, packages, python=python))
    assert audited.finding_subjects(findings) == ["ray-click-sentinel"] * count
    assert all(f"with click {click} on Python 3.10: " in finding.message for finding in findings)
