"""Detects whether the build of a package compiles code, from file names and contents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

CodeKind = Literal["python", "native", "cuda"]
SETUP, CMAKE, PYPROJECT = "setup.py", "CMakeLists.txt", "pyproject.toml"
CUDA = {
    SETUP: re.compile(r"\bCUDAExtension\b|\bnvcc\b|\bCUDA_HOME\b|\bcuda_home\b|\.cu[\"']"),
    CMAKE: re.compile(
        r"enable_language\s*\(\s*CUDA|project\s*\([^)]*\bCUDA\b|CUDAToolkit", re.IGNORECASE
    ),
}
NATIVE_SIGNS = {
    SETUP: re.compile(
        r"\bext_modules\b|\b\w*Extension\s*\(|\bcythonize\b|\bcffi_modules\b"
        r"|\brust_extensions\b"
    ),
    PYPROJECT: re.compile(
        r"[\"'](scikit[-_]build(?:[-_]core)?|cmake|meson[-_]python|maturin|setuptools[-_]rust"
        r"|cython|pybind11|nanobind)(?![\w-])",
        re.IGNORECASE,
    ),
    CMAKE: re.compile(r"\bproject\s*\(", re.IGNORECASE),
}
TEXTS = (SETUP, PYPROJECT, CMAKE)
# Name endings of compiled sources, except those of tests and documentation.
CUDA_ENDINGS = (".cu", ".cuh")
NATIVE_ENDINGS = (".c", ".cc", ".cpp", ".cxx", ".pyx", ".f90", ".rs", "/Cargo.toml", "/meson.build")
EXCLUDED_FOLDERS = ("tests/", "test/", "docs/")
# Defined in torch.utils.cpp_extension: such a setup.py fails without torch.
SURELY_CUDA = re.compile(r"\bCUDAExtension\s*\(")
TORCH_REQUIREMENT = re.compile(r"^requires\s*=\s*\[[^\]]*[\"']torch\b(?![\w-])", re.MULTILINE)
WHEEL_BY_URL = (
    "only pure Python is built from source: use a wheel for this Python, torch and CUDA (NAME @ "
    "https://…/NAME-….whl) or a target that includes the package, or remove the package"
)


def first_sign(files: Mapping[str, str]) -> str | None:
    """Return the first sign of sources to compile, with file and evidence, or None."""
    sign = _find_sign(files)
    if sign is None:
        return None
    code, name, match = sign
    line = files[name][: match.start()].count("\n") + 1
    word = " ".join(match[0].split())[:40]
    what = "CUDA code" if code == "cuda" else "an extension module"
    return f"it compiles {what}: {name}:{line} has {word}"


def _find_sign(files: Mapping[str, str]) -> tuple[CodeKind, str, re.Match[str]] | None:
    tables: tuple[tuple[CodeKind, Mapping[str, re.Pattern[str]]], ...] = (
        ("cuda", CUDA), ("native", NATIVE_SIGNS),
    )  # fmt: skip
    for code, table in tables:
        for name, pattern in table.items():
            match = pattern.search(_blank_comments(name, files.get(name, "")))
            if match is not None:
                return code, name, match
    return None


def code_kind(names: Iterable[str], files: Mapping[str, str]) -> CodeKind:
    """Return the type of code that a build compiles. `files` maps file names to contents."""
    built = [f"/{name}" for name in names if not name.startswith(EXCLUDED_FOLDERS)]
    sign = _find_sign(files)
    kinds = {sign[0]} if sign is not None else set()
    if "cuda" in kinds or any(name.endswith(CUDA_ENDINGS) for name in built):
        return "cuda"
    native = kinds or any(name.endswith(NATIVE_ENDINGS) for name in built)
    return "native" if native else "python"


def surely_cuda(files: Mapping[str, str]) -> bool:
    """Return whether a build certainly compiles CUDA code, so that it is not attempted."""
    if SURELY_CUDA.search(_blank_comments(SETUP, files.get(SETUP, ""))) is not None:
        return True
    cuda = any(
        pattern.search(_blank_comments(name, files.get(name, ""))) for name, pattern in CUDA.items()
    )
    return cuda and TORCH_REQUIREMENT.search(files.get(PYPROJECT, "")) is not None


def missing_submodules(files: Mapping[str, str], submodules: Sequence[str]) -> tuple[str, ...]:
    """Return the submodules whose path components all occur as words in a build file."""
    text = "\n".join(files.values())
    words = set(re.findall(r"[\w.-]+", text))
    return tuple(path for path in submodules if path in text or set(path.split("/")) <= words)


def _blank_comments(name: str, text: str) -> str:
    if name == PYPROJECT:
        return text
    return re.sub(r"#[^\n]*", lambda match: " " * len(match[0]), text)
