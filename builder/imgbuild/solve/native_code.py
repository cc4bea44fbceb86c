"""Whether a package compiles, by what its files say (separate: a table of signs)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SETUP, CMAKE, PYPROJECT = "setup.py", "CMakeLists.txt", "pyproject.toml"
CUDA = {
    SETUP: re.compile(r"\bCUDAExtension\b|\bnvcc\b|\bCUDA_HOME\b|\.cu[\"']"),
    CMAKE: re.compile(
        r"enable_language\s*\(\s*CUDA|project\s*\([^)]*\bCUDA\b|CUDAToolkit", re.IGNORECASE
    ),
}
NATIVE = {
    SETUP: re.compile(r"\bext_modules\b|\b\w*Extension\s*\(|\bcythonize\b|\bcffi_modules\b"),
    PYPROJECT: re.compile(
        r"[\"'](scikit[-_]build(?:[-_]core)?|cmake|meson[-_]python|maturin|setuptools[-_]rust"
        r"|cython|pybind11|nanobind)(?![\w-])",
        re.IGNORECASE,
    ),
    CMAKE: re.compile(r"\bproject\s*\(", re.IGNORECASE),
}
# Without it such a setup.py cannot be run at all.
SURELY_CUDA = re.compile(r"\bCUDAExtension\s*\(")
WITH_TORCH = re.compile(r"^requires\s*=\s*\[[^\]]*[\"']torch\b(?![\w-])", re.MULTILINE)
WHEEL_BY_URL = (
    "only pure Python is built from source: name a wheel of it for this Python, torch and CUDA"
    " (NAME @ https://…/NAME-….whl), a target that has it, or leave it out"
)


def signs(files: Mapping[str, str]) -> str | None:
    """What a package compiles, with the file and the word that says so; None if nothing does."""
    for table, what in ((CUDA, "compiles CUDA code"), (NATIVE, "compiles an extension module")):
        for name, pattern in table.items():
            match = pattern.search(_code(name, files.get(name, "")))
            if match is not None:
                line = files[name][: match.start()].count("\n") + 1
                word = " ".join(match[0].split())[:40]
                return f"it {what}: {name}:{line} has {word}"
    return None


def surely_cuda(files: Mapping[str, str]) -> bool:
    """Whether a build is not tried: it makes a CUDA extension, or compiles CUDA with torch."""
    if SURELY_CUDA.search(_code(SETUP, files.get(SETUP, ""))) is not None:
        return True
    cuda = any(pattern.search(_code(name, files.get(name, ""))) for name, pattern in CUDA.items())
    return cuda and WITH_TORCH.search(files.get(PYPROJECT, "")) is not None


def missing_submodules(files: Mapping[str, str], submodules: Sequence[str]) -> tuple[str, ...]:
    """The submodules that a build file names: all parts of the path are words of it."""
    text = "\n".join(files.values())
    words = set(re.findall(r"[\w.-]+", text))
    return tuple(path for path in submodules if path in text or set(path.split("/")) <= words)


def _code(name: str, text: str) -> str:
    """`text` with the comments blanked out, each character at its place."""
    if name == PYPROJECT:
        return text
    return re.sub(r"#[^\n]*", lambda match: " " * len(match[0]), text)
