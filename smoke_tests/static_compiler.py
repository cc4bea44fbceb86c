"""Compiles and runs a C program, a Python extension and, if g++ exists, a C++ program."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path

from smoke_support import expectation, finish, skip

PROGRAM = """\
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *work(void *given) { *(double *)given = sqrt(*(double *)given); return NULL; }
int main(int count, char **words) {
    double number = atof(words[1]);
    pthread_t thread;
    if (count != 2 || pthread_create(&thread, NULL, work, &number) != 0) return 1;
    pthread_join(thread, NULL);
    printf("%.0f\\n", number);
    return 0;
}
"""

PROGRAM_CXX = """\
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <vector>
int main(int, char **words) {
    std::vector<double> numbers{std::sqrt(std::atof(words[1]))};
    std::cout << numbers.back() << std::endl;
}
"""

EXTENSION = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *twice(PyObject *self, PyObject *number) { return PyNumber_Add(number, number); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "smoke_stub", NULL, -1, methods};
PyMODINIT_FUNC PyInit_smoke_stub(void) { return PyModule_Create(&module); }
"""


def program(compiler: str, name: str, text: str) -> list[str]:
    """Compile and run a program that computes the root of 1764."""
    source = Path(name)
    source.write_text(text)
    subprocess.run([compiler, "-O2", str(source), "-o", "./a.out", "-lm", "-lpthread"], check=True)
    output = subprocess.run(["./a.out", "1764"], capture_output=True, text=True, check=True).stdout
    return (
        []
        if output.strip() == "42"
        else [f"{compiler}: the root of 1764 was computed as {output!r}"]
    )


def extension(compiler: str) -> list[str]:
    """Compile an extension against the headers of this Python and call it."""
    source = Path("smoke_stub.c")
    source.write_text(EXTENSION)
    built = Path("smoke_stub" + str(sysconfig.get_config_var("EXT_SUFFIX"))).absolute()
    include = sysconfig.get_paths(scheme="posix_prefix")["include"]
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("smoke_stub", built)
    if spec is None or spec.loader is None:
        return [f"{built} is not an extension module"]
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [] if module.twice(21) == 42 else ["the compiled extension cannot add"]


def main() -> None:
    """Compile C as Triton does, and C++ as torch's inductor does for the CPU."""
    debian = expectation()["debian"]  # empty: the base is an image, whose packages are unknown
    if debian and "gcc" not in debian:
        skip("the lock has no gcc")
    compiler = os.environ.get("CC", "cc")
    problems = [*program(compiler, "program.c", PROGRAM), *extension(compiler)]
    if "g++" in debian:
        problems += program(os.environ.get("CXX", "c++"), "program.cc", PROGRAM_CXX)
    finish(problems, "compiled and run")


if __name__ == "__main__":
    main()
