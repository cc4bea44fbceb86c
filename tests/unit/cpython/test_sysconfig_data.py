"""Tests the values that are replaced in both forms of `_sysconfigdata_*.py`."""

from __future__ import annotations

import pytest

from imgbuild.cpython import sysconfig_data
from tests.support.rows import each_row


def adapted(source: str) -> dict[str, object]:
    values, built_at = sysconfig_data.read_sysconfig(source.encode())
    namespace: dict[str, dict[str, object]] = {}
    exec(sysconfig_data.encode_sysconfig(values, built_at, "/opt/python"), namespace)
    return namespace["build_time_vars"]


def test_relocatable_sysconfig_data_uses_folder_expressions():
    source = (
        "from pathlib import Path\n"
        "installed_base = str(Path(__file__).resolve().parent.parent.parent)\n"
        "build_time_vars = {\n"
        "    'BINDIR': f'{installed_base}/bin',\n"
        "    'LDSHARED': f'clang -shared -L{installed_base}/lib',\n"
        "    'MULTIARCH': 'x86_64-linux-gnu',\n"
        "    'OFFSET': -1,\n"
        "    'prefix': f'{installed_base}',\n"
        "}\n"
    )
    assert adapted(source) == {
        "BINDIR": "/opt/python/bin",
        "LDSHARED": "cc -shared -L/opt/python/lib",
        "MULTIARCH": "x86_64-linux-gnu",
        "OFFSET": -1,
        "prefix": "/opt/python",
    }


def test_sysconfig_folder_is_replaced_only_at_the_start_of_a_path():
    source = (
        "build_time_vars = {'prefix': '/install', 'A': '/install', 'B': '/installed /x/install',\n"
        " 'C': \"'--prefix=/install' -Wl,-rpath,/install/lib\", 'INSTALL': '/usr/bin/install -c'}"
    )
    assert adapted(source) == {
        "A": "/opt/python",
        "B": "/installed /x/install",
        "C": "'--prefix=/opt/python' -Wl,-rpath,/opt/python/lib",
        "INSTALL": "/usr/bin/install -c",
        "prefix": "/opt/python",
    }


@each_row(
    ("name", "value", "now"),
    [
        ("CC", "x86_64-linux-gnu-gcc -pthread", "cc -pthread"),
        ("CC", "/usr/bin/aarch64-linux-gnu-gcc-12", "cc"),
        ("CXX", "clang++-18", "c++"),
        ("LDSHARED", "musl-clang -shared -fuse-ld=lld", "cc -shared"),
        ("AR", "gcc-ar", "ar"),
        ("RANLIB", "/tools/bin/llvm-ranlib", "ranlib"),
        ("PY_CFLAGS", "-g  -O2", "-g  -O2"),
        ("CONFIGURE_CFLAGS_NODIST", "-flto -g -fprofile-instr-use=a.profdata", "-g"),
        ("CONFIG_ARGS", "'CC=clang' -flto=thin", "'CC=clang' -flto=thin"),
    ],
)
def test_compilers_and_flags_in_sysconfig_data_are_replaced(name, value, now):
    source = f"build_time_vars = {{'prefix': '/install', {name!r}: {value!r}}}"
    assert adapted(source)[name] == now


@each_row(
    ("source", "what"),
    [
        ("x = 1", "assigns no dictionary"),
        ("build_time_vars = dict(a=1)", "assigns no dictionary"),
        ("build_time_vars = {1: 'x'}", "a key"),
        ("build_time_vars = {**x}", "a key"),
        ("build_time_vars = {'A': [1]}", "the value of A is neither text nor number"),
        ("build_time_vars = {'A': open('/etc/passwd').read()}", "neither text nor number"),
        ("build_time_vars = {'A': f'{exit()}'}", "an expression other than installed_base"),
        ("build_time_vars = {'A': f'{installed_base:>5}'}", "an expression other"),
    ],
)
def test_modules_without_sysconfig_data_are_refused(source, what):
    with pytest.raises(ValueError, match=what):
        sysconfig_data.read_sysconfig(source.encode())
