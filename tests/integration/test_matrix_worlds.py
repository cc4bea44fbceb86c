"""Tests that every x86_64 target on the default index matches the matrix and passes the audit.

CI jobs check a target when its digest changes, and test_lock_from_empty.py checks one target.
Targets that require another index or a wheel of the user are tested elsewhere.

The test uses the committed locks. Code and METADATA are read from the index by ranges. Shared
objects, which require complete wheels, were audited when the target was locked; their host
requirements are in the digests.
"""

import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.matrix import constraints, project_paths
from imgbuild.matrix.load import load_matrix
from imgbuild.pipeline import audit_lock
from imgbuild.plan import current
from imgbuild.report import Severity
from imgbuild.show import status
from imgbuild.values import Arch
from tests.support.source_code import ROOT

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(1800)]

PROJECT = project_paths.find_project(ROOT)
MATRIX = load_matrix(PROJECT.matrix)
READABLE = ("metadata", "imports", "calls", "support", "rules")
REACHED = [
    name
    for name, target in MATRIX.targets.items()
    if Arch.X86_64 in target.arch and not status.target_needs(MATRIX, name)
]
LOCKED_TARGETS = [
    name for name in PROJECT.locked_targets() if Arch.X86_64 in MATRIX.targets[name].arch
]
TARGETS = list(dict.fromkeys((*REACHED, *LOCKED_TARGETS)))


@pytest.fixture(scope="module")
def inputs():
    return Inputs(MATRIX, Context(Store.open(), HttpClient()))


def test_sample_of_tested_targets_is_not_empty():
    assert {"cu124-vllm", "cu130-vllm", "cu130-trl"} < set(REACHED)
    outside = {name for name, target in MATRIX.targets.items() if target.indexes}
    assert outside.isdisjoint(REACHED)


@pytest.mark.parametrize("name", TARGETS)
def test_locked_target_has_no_audit_errors(name, inputs):
    lock, target_digests = current.read_current(PROJECT, MATRIX, name)
    assert target_digests.arch[Arch.X86_64].floors is not None
    learned_constraints = constraints.read_constraints(PROJECT.images)
    report = audit_lock.audit_lock(lock, Arch.X86_64, inputs, learned_constraints, checks=READABLE)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert errors == []
