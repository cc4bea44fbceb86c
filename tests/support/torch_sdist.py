"""Provides the files of an sdist whose build records the torch that is installed with it."""

_BACKEND = """\
import importlib.metadata
import zipfile

INFO = "Metadata-Version: 2.1\\nName: kernels\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"


def build_wheel(folder, settings=None, metadata=None):
    torch = importlib.metadata.version("torch")
    files = {"kernels.py": f"TORCH = {torch!r}\\n", "kernels-1.0.dist-info/METADATA": INFO,
             "kernels-1.0.dist-info/WHEEL": WHEEL}
    files["kernels-1.0.dist-info/RECORD"] = "".join(f"{name},,\\n" for name in files)
    with zipfile.ZipFile(f"{folder}/kernels-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return "kernels-1.0-py3-none-any.whl"
"""
_TABLE = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
FILES = {"backend.py": _BACKEND.encode(), "pyproject.toml": _TABLE.encode()}
