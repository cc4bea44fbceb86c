"""Tests which Python loads an extension module, according to its file name."""

from imgbuild.audit.packages.extensions import extension_modules, other_builds, python_for_extension
from tests.support.rows import each_row


@each_row(
    ("file", "python"),
    [
        ("a/_C.cpython-312-x86_64-linux-gnu.so", "3.12"),
        ("a/_C.cpython-310-aarch64-linux-gnu.so", "3.10"),
        ("a/_C.cpython-313t-x86_64-linux-gnu.so", "3.13"),
        ("a/_C.cpython-37m-x86_64-linux-gnu.so", "3.7"),
        ("a/_C.cpython-312.so", "3.12"),
        ("a/_C.abi3.so", ""),
        ("a/_C.so", ""),
        ("a.cpython-312/_C.so", ""),
        ("a/_C.cpython-312-x86_64-linux-gnu.so.txt", ""),
        ("a/libx.so.1", ""),
        ("a/b.py", ""),
    ],
)
def test_python_version_is_read_from_the_file_name_of_an_extension_module(file, python):
    assert python_for_extension(file) == python


def test_extension_modules_are_found_by_python_version():
    builds = [f"a/_C.cpython-{python}-x86_64-linux-gnu.so" for python in ("310", "39", "313")]
    files = ["a/__init__.py", *builds, "a/_D.abi3.so", "a/_E.so", "b-2/_F.cpython-310.so"]
    same = {"a": "a/__init__.py", "a._D": "a/_D.abi3.so", "a._E": "a/_E.so"}
    assert extension_modules(files, "3.11") == same
    assert extension_modules(files, "3.10") == {**same, "a._C": builds[0]}
    assert extension_modules(files, "3.13") == {**same, "a._C": builds[2]}
    assert other_builds(files, same) == {"a._C": ["3.9", "3.10", "3.13"]}
    assert other_builds(files, extension_modules(files, "3.10")) == {}
