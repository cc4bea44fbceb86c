"""Tests the verdicts and the table of lab/oracle.py."""

import pytest

from imgbuild.report import ConflictRelation, Evidence, Finding, Severity
from oracle_verdicts import (
    Alarm,
    Failure,
    Row,
    SetResult,
    Verdict,
    metadata_verdict,
    module_of_file,
    same_reason,
    set_verdict,
    verdict_table,
    wilson_interval,
)

FAILURE = Failure(
    package="datasets",
    name="datasets",
    error="AttributeError: module 'pyarrow' has no attribute 'PyExtensionType'",
    trace=("datasets/__init__.py:22", "datasets/features/features.py:634"),
)

pytestmark = pytest.mark.long  # lab/ is not part of the product


def _alarm(check="calls", *, fact="holds", **changed):
    fields = {"package": "datasets", "version": "2.14.4", "other": "pyarrow"}
    evidence = Evidence(**{"relation": ConflictRelation.NAME, **fields, **changed})
    finding = Finding(check=check, severity=Severity.ERROR, message="broken", evidence=evidence)
    return Alarm(finding=finding, fact=fact)


def _result(*alarms, failures=(), unmet=(), audited=""):
    return SetResult(
        imported=("datasets",), failures=failures, unmet=unmet, alarms=alarms, audited=audited
    )


@pytest.mark.parametrize(
    ("alarm", "expected"),
    [
        pytest.param(
            _alarm(package="else", other="", file="datasets/features/features.py"),
            Verdict.TRUE,
            id="a file of the traceback",
        ),
        pytest.param(_alarm(), Verdict.TRUE, id="the forced and the failing package"),
        pytest.param(_alarm(fact="refuted"), Verdict.MISS, id="the same packages, but wrong"),
        pytest.param(_alarm(other="numpy"), Verdict.MISS, id="not about the forced package"),
        pytest.param(_alarm("metadata"), Verdict.TRUE, id="an error of another check"),
    ],
)
def test_audit_error_about_an_observed_failure_is_a_true_positive(alarm, expected):
    result = _result(alarm, failures=(FAILURE,))
    if alarm.finding.check == "metadata":
        expected = Verdict.MISS  # METADATA has a separate verdict
    assert set_verdict(result, "pyarrow") is expected


@pytest.mark.parametrize(
    ("alarm", "expected"),
    [
        (_alarm(file="datasets/features/features.py"), True),
        (_alarm(subject="pyarrow:PyExtensionType"), True),
        (_alarm(subject="pyarrow:JsonArray", file="datasets/json.py"), False),
        (_alarm("support", relation=ConflictRelation.WINDOW, subject="pyarrow 21.0.0"), True),
    ],
)
def test_audit_error_with_the_file_or_name_of_a_failure_has_the_same_reason(alarm, expected):
    result = _result(alarm, failures=(FAILURE,))
    assert set_verdict(result, "pyarrow") is Verdict.TRUE
    assert same_reason(result, "pyarrow") is expected


def test_observed_failure_without_an_audit_error_is_a_miss():
    assert set_verdict(_result(failures=(FAILURE,)), "pyarrow") is Verdict.MISS


NUMPY = "ImportError: pyarrow requires NumPy 2.0 or newer, found 1.26.4"


@pytest.mark.parametrize(
    ("error", "trace", "expected"),
    [
        (NUMPY, ("datasets/__init__.py:17", "pyarrow/__init__.py:59"), Verdict.TRUE),
        (NUMPY, ("datasets/__init__.py:17",), Verdict.MISS),
        ("ImportError: pyarrow", ("pyarrow/__init__.py:59",), Verdict.MISS),
    ],
)
def test_error_message_names_both_packages(error: str, trace: tuple[str, ...], expected: Verdict):
    failure = Failure(package="optimum", name="optimum.gptq", error=error, trace=trace)
    alarm = _alarm("rules", package="pyarrow", other="numpy", file="pyarrow/a.h", fact="unknown")
    result = _result(alarm, failures=(failure,))
    assert set_verdict(result, "optimum") is expected
    assert same_reason(result, "optimum") is (expected is Verdict.TRUE)


def test_gpu_errors_during_import_are_not_failures():
    error = "ImportError: libcuda.so.1: cannot open shared object file"
    failure = Failure(package="flashinfer", name="flashinfer", error=error)
    assert set_verdict(_result(failures=(failure,)), "flashinfer") is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        ("fails", Verdict.LATENT),
        ("holds", Verdict.LATENT),
        ("refuted", Verdict.FALSE_ALARM),
        ("unknown", Verdict.FALSE_ALARM),
    ],
)
def test_verdict_for_a_set_without_failures_depends_on_the_tested_claim(fact, expected):
    assert set_verdict(_result(_alarm(fact=fact)), "pyarrow") is expected


def test_audit_errors_that_cannot_be_tested_on_a_cpu_are_not_false_alarms():
    assert set_verdict(_result(_alarm("rules", fact="unknown")), "pyarrow") is Verdict.HEALTHY


def test_failed_audit_has_a_separate_verdict():
    result = _result(failures=(FAILURE,), audited="no answer after 900 s")
    assert set_verdict(result, "pyarrow") is Verdict.UNANSWERED
    assert metadata_verdict(result) is Verdict.UNANSWERED


@pytest.mark.parametrize(
    ("alarms", "unmet", "expected"),
    [
        ((), (), Verdict.HEALTHY),
        ((), ("datasets: pyarrow<20",), Verdict.MISS),
        ((_alarm("metadata", relation=ConflictRelation.REQUIREMENT),), (), Verdict.FALSE_ALARM),
        (
            (_alarm("metadata", relation=ConflictRelation.REQUIREMENT),),
            ("datasets: pyarrow<20", "datasets: numpy<2"),
            Verdict.TRUE,
        ),
    ],
)
def test_verdict_for_a_metadata_error_depends_on_the_package(alarms, unmet, expected):
    assert metadata_verdict(_result(*alarms, unmet=unmet)) is expected


@pytest.mark.parametrize(
    ("file", "module"),
    [("a/b.py", "a.b"), ("a/__init__.py", "a"), ("a.py", "a"), ("a/b.so", "")],
)
def test_file_paths_are_mapped_to_module_names(file, module):
    assert module_of_file(file) == module


def test_wilson_intervals_are_computed():
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def _row(seed, forced, *, fails=False, clean=True, reported=False):
    return Row(
        seed=seed,
        fails=fails,
        metadata_clean=clean,
        forced=forced,
        control=Verdict.HEALTHY,
        forced_metadata=Verdict.HEALTHY if clean else Verdict.TRUE,
        control_metadata=Verdict.HEALTHY,
        metadata_said=reported,
        same_reason=forced is Verdict.TRUE,
    )


def test_verdict_table_counts_each_half_of_the_sets():
    rows = [
        _row(2, Verdict.TRUE, fails=True),
        _row(4, Verdict.MISS, fails=True, clean=False, reported=True),
        _row(8, Verdict.FALSE_ALARM),
        _row(3, Verdict.HEALTHY),
    ]
    cells = {
        line.split(" | ")[0].removeprefix("| "): line.removesuffix(" |").split(" | ")[1:]
        for line in verdict_table(rows)[2:]
    }
    assert cells["audited draws"] == ["3", "1", "4"]
    assert cells["that fail"] == ["2", "0", "2"]
    assert cells["failures seen by code or libraries"][0].startswith("1 of 2: 50 % (9 % to 91 %)")
    assert cells["of these, for Python's reason"][0].startswith("1 of 1")
    assert cells["failures seen by these or METADATA"][0].startswith("2 of 2")
    assert cells["failures that METADATA allows, seen"][0].startswith("1 of 1")
    assert cells["healthy sets with a false alarm"][2].startswith("1 of 6")
