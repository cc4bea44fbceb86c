"""Tests that CUDA code compiled at import is reported."""

from __future__ import annotations

from imgbuild.audit.checks import compiling
from imgbuild.audit.main_path.closure import main_path
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row
from tests.support.source_modules import rules

LOAD = """
import torch.utils.cpp_extension
def _load():
    torch.utils.cpp_extension.load(name="x", sources=["x.cu"], with_cuda=True)
"""
FROM = "from torch.utils.cpp_extension import load_inline as compile\n"
NVCC = {"nvidia/cu13/bin/nvcc": "#!"}


@each_row(
    ("source", "more", "severity"),
    [
        (LOAD + "_load()\n", {}, Severity.ERROR),
        (LOAD + "_load()\n", {"nvidia-cuda-nvcc==13.0.1": NVCC}, None),
        (LOAD, {}, None),
        (LOAD + "def later():\n    _load()\n", {}, None),
        (LOAD + "try:\n    _load()\nexcept Exception:\n    pass\n", {}, None),
        (LOAD + "if unknown():\n    _load()\n", {}, None),
        (LOAD.replace(", with_cuda=True", "") + "_load()\n", {}, None),
        (FROM + "compile('x', cuda_sources=['x'])\n", {}, Severity.ERROR),
        (FROM + "compile('x', cpp_sources=['x'])\n", {}, None),
    ],
)
def test_module_that_compiles_code_on_import_is_reported(tmp_path, source, more, severity) -> None:
    package_set = audited.package_set(tmp_path, {"user==1": {"user/__init__.py": source}, **more})
    path = main_path(package_set, rules("user"))
    findings = compiling.check_compiling(package_set, path, image=True)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    if severity:
        assert findings[0].evidence is not None
        assert findings[0].evidence.subject == "nvcc"
        elsewhere = compiling.check_compiling(package_set, path, image=False)
        assert [finding.severity for finding in elsewhere] == [Severity.WARNING]
