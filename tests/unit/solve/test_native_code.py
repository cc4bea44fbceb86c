"""Tests detecting code that a package compiles, from its build files."""

from imgbuild.solve import native_code
from tests.support.rows import each_row


@each_row(
    ("name", "text", "words"),
    [
        ("setup.py", "import os\nCUDAExtension('a', [])", "CUDA code: setup.py:2 has CUDA"),
        ("setup.py", "sources=['a.cu']", "CUDA code: setup.py:1 has .cu'"),
        ("CMakeLists.txt", "project(a LANGUAGES CXX CUDA)", "CUDA code: CMakeLists.txt:1"),
        ("setup.py", "setup(ext_modules=[])", "extension module: setup.py:1 has ext_modules"),
        ("setup.py", "cythonize('a.pyx')", "extension module"),
        ("pyproject.toml", 'requires = ["scikit-build-core"]', "module: pyproject.toml:1"),
        ("pyproject.toml", 'requires = ["maturin>=1"]', "extension module"),
    ],
)  # fmt: skip
def test_compiled_code_in_an_sdist_is_reported_with_location(name, text, words):
    assert words in str(native_code.first_sign({name: text}))


@each_row(
    ("name", "text"),
    [
        ("setup.py", "setup(name='a')  # ext_modules and CUDAExtension are elsewhere"),
        ("pyproject.toml", 'requires = ["setuptools", "wheel"]'),
        ("pyproject.toml", 'dependencies = ["cmake-format"]'),
        ("setup.cfg", "ext_modules"),
    ],
)
def test_pure_packages_have_no_compiled_code(name, text):
    assert native_code.first_sign({name: text}) is None


def test_sdist_with_a_cuda_extension_is_not_built():
    setup = {"setup.py": "nvcc = find('nvcc')"}
    pyproject = '[build-system]\nrequires = [\n  "cmake>=3",\n  "torch==2.8.0",\n]\n'
    assert native_code.surely_cuda({**setup, "pyproject.toml": pyproject})
    assert not native_code.surely_cuda({**setup, "pyproject.toml": pyproject.replace("torch", "x")})
    assert not native_code.surely_cuda({"pyproject.toml": pyproject})


def test_missing_submodule_is_detected_by_its_full_path():
    text = {"setup.py": "Path('csrc') / 'cutlass' / 'include'"}
    assert native_code.missing_submodules(text, ["csrc/cutlass", "docs/theme"]) == ("csrc/cutlass",)
