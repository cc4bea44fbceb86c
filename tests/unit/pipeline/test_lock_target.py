"""Tests whether a lock is current with the matrix, learned constraints and audit results."""

from fnmatch import fnmatchcase

import msgspec
import pytest
import yaml

from imgbuild import codec
from imgbuild.cache.store import Store
from imgbuild.errors import AuditFailed, InputError, LockStale
from imgbuild.learn.loop import add_constraints
from imgbuild.lock import lock_file
from imgbuild.matrix.constraints import Constraint
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import Flashinfer
from imgbuild.matrix.project_paths import Project
from imgbuild.pipeline import lock_target
from imgbuild.plan import current
from imgbuild.report import ConflictRelation, Evidence, Finding, Report, Severity
from imgbuild.values import Arch
from imgbuild.wheel.conflicts import PathConflict
from tests.support import samples
from tests.support.source_code import ROOT

LEARNED = Constraint(
    package="trl",
    versions=">=1.0,<=1.16.0",
    needs="vllm>=0.11.1",
    check="imports",
    file="trl/generation/vllm_client.py",
    line=43,
    name="vllm.utils.network_utils",
    came="0.11.1",
)


def project(folder, *wheels):
    small_project = Project(matrix=folder / "matrix.yaml")
    lock = samples.lock(*wheels)
    codec.write_document(lock_file.lock_path(small_project.images, "small"), lock)
    for name, text in current.requirement_files(lock).items():
        codec.write_bytes(small_project.images / "small" / name, text.encode())
    return small_project


def test_lock_that_violates_a_learned_constraint_is_stale(tmp_path):
    small_project = project(tmp_path, samples.wheel("trl", "1.2.0"), samples.wheel("vllm", "0.8.5"))
    add_constraints(small_project.images, [LEARNED], Store.open(tmp_path / "cache"))
    with pytest.raises(LockStale) as caught:
        current.read_current(small_project, samples.matrix(), "small")
    assert (
        "x86_64: trl>=1.0,<=1.16.0 needs vllm>=0.11.1 (imports, "
        "trl/generation/vllm_client.py:43, vllm.utils.network_utils; added in 0.11.1), "
        "but vllm 0.8.5 is locked" in caught.value.message
    )


@pytest.mark.parametrize(
    "others", [[("trl", "0.18.2"), ("vllm", "0.8.5")], [("trl", "1.2.0")], [("vllm", "0.8.5")]]
)
def test_unrelated_learned_constraints_do_not_make_a_lock_stale(tmp_path, others):
    small_project = project(tmp_path, *(samples.wheel(*pair) for pair in others))
    add_constraints(small_project.images, [LEARNED], Store.open(tmp_path / "cache"))
    with pytest.raises(LockStale) as caught:  # it has no digests here
        current.read_current(small_project, samples.matrix(), "small")
    assert "trl" not in caught.value.message


def test_all_audit_errors_are_reported_with_exit_status_4():
    wrong = Finding(check="elf", severity=Severity.ERROR, message="undefined _Z1fv", where="a/b.so")
    cured = Finding(check="elf", severity=Severity.ERROR, message="no b", remedy="take b 2")
    doubt = Finding(check="elf", severity=Severity.NOTE, message="not this one", where="a/c.so")
    reports = [Report(target="small", arch="x86_64", findings=(wrong, doubt))]
    with pytest.raises(AuditFailed) as caught:
        lock_target.refuse_errors("small", reports)
    assert caught.value.exit_code == 4
    assert "x86_64: undefined _Z1fv (a/b.so)" in caught.value.message
    assert "not this one" not in caught.value.message
    assert "found 1 error:" in caught.value.message
    reports.append(Report(target="small", arch="arm64", findings=(cured,)))
    with pytest.raises(AuditFailed, match=r"found 2 errors:[^$]*no b \(\)\n    take b 2"):
        lock_target.refuse_errors("small", reports)
    lock_target.refuse_errors("small", [Report(target="small", arch="x86_64", findings=(doubt,))])


def _unsupported(subject, severity=Severity.WARNING):
    evidence = Evidence(
        relation=ConflictRelation.CUDA, package="triton", version="3.5.1", subject=subject
    )
    return Finding(
        check="cuda", severity=severity, message=f"triton: no {subject}", evidence=evidence
    )


def test_gpus_that_a_package_does_not_support_are_omitted(capsys):
    lock = samples.lock(samples.wheel("triton")).with_gpus(("9.0", "10.3", "12.1"))
    report = Report(target="small", arch="x86_64", findings=(_unsupported("sm_103, sm_121"),))
    assert lock_target.omit_unsupported_gpus(lock, [report]).gpu == ("9.0",)
    assert (
        "without the GPUs 10.3, 12.1 of the target in `like`: triton: no" in capsys.readouterr().err
    )
    waived = msgspec.structs.replace(
        report, findings=(_unsupported("sm_103", Severity.NOTE), _unsupported("libcudart.so.13"))
    )
    assert lock_target.omit_unsupported_gpus(lock, [waived]) is lock
    none = msgspec.structs.replace(report, findings=(_unsupported("sm_90, sm_103, sm_121"),))
    with pytest.raises(AuditFailed, match="small: no GPU is supported by all packages"):
        lock_target.omit_unsupported_gpus(lock, [none])


@pytest.mark.parametrize("mode", ["jit", "prebuilt"])
def test_flashinfer_mode_without_flashinfer_is_refused(mode):
    settings = Flashinfer(mode=mode, reason=samples.REASON)
    matrix = samples.matrix(cuda="13.0", flashinfer=settings)
    lock_target.refuse_mode(samples.lock(samples.wheel("flashinfer-python"), of=matrix))
    with pytest.raises(InputError, match=f"small: the matrix sets flashinfer: {mode}, but") as e:
        lock_target.refuse_mode(samples.lock(samples.wheel("vllm"), of=matrix))
    assert "x86_64" in e.value.message
    assert 'mode: "off"' in (e.value.hint or "")
    lock_target.refuse_mode(samples.lock(samples.wheel("vllm")))


def test_compiler_that_deepspeed_needs_is_kept_without_flashinfer():
    matrix = load_matrix(ROOT / "matrix.yaml")
    lock = lock_file.make_lock(matrix, "cu130-trl", {})
    like = lock_file.make_lock(matrix, "cu130-deepspeed", {})
    assert lock.settings.labels["dev.imgbuild.flashinfer"] == "off"
    assert lock.settings.links.items() <= like.settings.links.items()
    for name in ("CUDA_HOME", "LIBRARY_PATH"):
        assert lock.settings.env[name] == like.settings.env[name]
    for package in ("nvidia-cuda-nvcc", "nvidia-cuda-cccl"):
        assert lock.requirements[package] == like.requirements[package] == "==13.0.*"


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (["lib/site-packages/bench/a.txt"], '["lib/site-packages/bench/a.txt"]'),
        ([f"lib/site-packages/a/{n}.h" for n in range(9)], '["lib/site-packages/a/*"]'),
        ([f"lib/site-packages/{n}.h" for n in range(9)], '["lib/site-packages/0.h",'),
    ],
)
def test_error_about_conflicting_files_suggests_matrix_lines(paths, shown):
    lock = samples.lock()
    found = [PathConflict(path=path, owners=("alpha", "beta")) for path in paths]
    text = lock_target.drop_lines(lock, Arch.X86_64, found)
    (rule,) = yaml.safe_load(text)["drop"]
    assert (rule["package"], rule["beside"]) == ("alpha", "beta")
    assert f"paths: {shown}" in text
    assert all(any(fnmatchcase(path, each) for each in rule["paths"]) for path in paths)
