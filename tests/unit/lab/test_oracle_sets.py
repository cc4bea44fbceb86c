"""Tests how lab/oracle_sets.py reads installed package sets."""

import pytest

import oracle_sets

pytestmark = pytest.mark.long  # lab/ is not part of the product


def _distribution(site, name, files, requires=()):
    info = site / f"{name}-1.0.dist-info"
    for each in files:
        path = site / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text("".join(f"{file_name},,\n" for file_name in files))


def test_modules_of_installed_package_are_listed(tmp_path):
    files = [
        *("one/__init__.py", "one/inner/__init__.py", "space/two/__init__.py", "space/two/x.py"),
        *("three.py", "four.cpython-311-x86_64-linux-gnu.so", "_private.py", "tests/__init__.py"),
        *("one.libs/libone.so", "data/values.txt"),
    ]
    _distribution(tmp_path, "Some_Name", files)
    expected = ("four", "one", "space.two", "three")
    assert oracle_sets.modules_to_import(tmp_path, "some-name") == expected
    assert oracle_sets.modules_to_import(tmp_path, "another") == ()


def test_unmet_requirements_of_an_installed_set_exclude_extras(tmp_path):
    requires = ["two>=2", "absent", "three>=1; extra == 'more'", "four; sys_platform == 'win32'"]
    _distribution(tmp_path, "one", (), [*requires, "elsewhere>=3"])
    _distribution(tmp_path, "two", ())
    conflicts = oracle_sets.metadata_conflicts(tmp_path, {"elsewhere": "3.1"})
    assert conflicts == ("one: absent", "one: two>=2")


def test_every_main_package_is_in_a_group_of_the_oracle():
    table = oracle_sets.load_table()
    missing = {name for group in table.groups for name in group.mains} - table.packages.keys()
    assert not missing


def test_names_are_read_only_if_the_required_package_is_installed():
    listed = oracle_sets.ListedPackage("1.0", ("one.name",), {"torch": ("one.model",)})
    assert listed.names_to_read({"one"}) == ("one.name",)
    assert listed.names_to_read({"one", "torch"}) == ("one.name", "one.model")
