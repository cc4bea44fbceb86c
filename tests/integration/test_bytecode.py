"""Bytecode is compiled in an image, and a variant that is locked with it loads it from there."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from imgbuild.cache.store import Store
from imgbuild.container import run_in_image
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.container.root_folder import root_folder
from imgbuild.errors import InputError
from imgbuild.oci import layout
from imgbuild.precompile import bytecode
from imgbuild.values import Arch, sha256
from tests.support import dockerfile_project, needs, smoke_environment
from tests.support.sample_project import TARGET, Project

VERB = ("precompile", "bytecode")

pytestmark = [pytest.mark.engine, pytest.mark.network]
VARIANT = f"{TARGET}-fast"
SITE = "opt/venv/lib/python3.11/site-packages"
WHERE = "/opt/venv/bytecode"
CHECKED = 3  # the flags of PEP 552: a hash of the source, which is looked at
LOOK = """\
import sys, helper, json, thewheel
print(sys.pycache_prefix, sys.flags.optimize, helper.VALUE)
for module in (helper, json, thewheel):
    print(module.__spec__.cached)
"""


@pytest.fixture(scope="module", name="sample")
def _sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, dict[str, Any]]]:
    """A project with a target and its variant, both built, and what was said of the wheel."""
    needs.user_namespaces()
    with dockerfile_project.project(tmp_path_factory.mktemp("bytecode") / "project") as project:
        project.run("build", TARGET)
        done = project.run(*VERB, TARGET, "--json")
        assert f"{TARGET}: compiling" in done.stderr
        _, _, row = done.stderr.partition("to use it, add to matrix.yaml:\n")
        add(project, yaml.safe_load(row))
        project.run("lock", VARIANT)
        project.run("build", VARIANT)
        yield project, json.loads(done.stdout)


def add(project: Project, row: dict[str, Any]) -> None:
    """Add a variant to the matrix as it was shown, and the folder in which wheels are brought."""
    path = project.folder / "matrix.yaml"
    matrix = yaml.safe_load(path.read_text())
    matrix["indexes"]["wheels"] = {"url": "file:wheels", "upload_times": "none", "flat": True}
    assert list(row) == [VARIANT]
    matrix["targets"][VARIANT] = {**matrix["targets"][TARGET], **row[VARIANT]}
    path.write_text(json.dumps(matrix, default=str))  # which is YAML, without aliases


def inside(project: Project, *command: str) -> dict[str, Any]:
    """What a command in the variant's image said; it must end well."""
    done = project.run("run", VARIANT, "--through", "root", "--json", "--", *command)
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["status"] == 0, said
    return said


def test_the_wheel_is_locked_like_any_other(sample):
    project, made = sample
    assert re.fullmatch(r"0\+b[0-9a-f]{12}", made["version"])
    assert made["file"] == f"imgbuild_bytecode-{made['version']}-cp311-none-any.whl"
    assert (made["left_out"], made["differs"]) == ([], [])
    assert made["modules"] > 500  # those of the standard library too
    locked = project.read(f"{VARIANT}/lock.json")
    (wheel,) = [
        each for each in locked["arch"]["x86_64"]["wheels"] if each["package"] == bytecode.PACKAGE
    ]
    assert (wheel["sha256"], wheel["index"]) == (made["sha256"], "wheels")
    assert locked["settings"]["env"]["PYTHONPYCACHEPREFIX"] == WHERE


def test_modules_are_loaded_from_the_wheel_and_none_is_compiled(sample):
    project, _ = sample
    said = inside(project, "python", "-c", LOOK)["stdout"].splitlines()
    assert said == [
        f"{WHERE} 0 42",
        f"{WHERE}/{SITE}/helper.cpython-311.pyc",
        f"{WHERE}/usr/lib/python3.11/json/__init__.cpython-311.pyc",
        f"{WHERE}/{SITE}/thewheel/__init__.cpython-311.pyc",
    ]
    result = inside(project, "python", "-v", "-c", "import json, thewheel")["stderr"]
    # Python says so of each module from a source: with .py where it had to compile.
    loaded = re.findall(r"# code object from '?([^'\n]+)", result)
    assert f"{WHERE}/{SITE}/helper.cpython-311.pyc" in loaded
    assert f"{WHERE}/usr/lib/python3.11/json/decoder.cpython-311.pyc" in loaded
    assert [path for path in loaded if not path.startswith(f"{WHERE}/")] == []
    assert "# wrote" not in result


def test_a_source_that_changed_is_not_served_stale(sample, tmp_path):
    project, _ = sample
    built = layout.read(project.folder / "build" / VARIANT)
    with root_folder(built, Arch.X86_64, Store.open()) as root:
        pyc = (root.path / WHERE.strip("/") / SITE / "helper.cpython-311.pyc").read_bytes()
        assert int.from_bytes(pyc[4:8], "little") == CHECKED
        source = root.path / SITE / "helper.py"
        result, text = source.stat(), source.read_text()
        changed = tmp_path / "helper.py"
        changed.write_text(text.replace("42", "43"))
        shutil.copystat(source, changed)  # as large and as old as before
        assert (changed.stat().st_size, changed.stat().st_mtime) == (
            result.st_size,
            result.st_mtime,
        )
        done = run_in_image.run_in_root(
            root,
            run_in_image.running(built, Arch.X86_64),
            ContainerRequest(
                command=("python", "-v", "-c", LOOK),
                mounts=(Mount(source=changed, target=f"/{SITE}/helper.py"),),
                network=False,
            ),
        )
    assert done.stdout.splitlines()[0] == f"{WHERE} 0 43", done.stderr
    assert f"{WHERE}/{SITE}/thewheel/__init__.cpython-311.pyc matches" in done.stderr
    assert f"{WHERE}/{SITE}/helper.cpython-311.pyc matches" not in done.stderr


@pytest.mark.long
def test_a_second_run_gives_the_same_bytes(sample, tmp_path):
    project, made = sample
    again = json.loads(project.run(*VERB, TARGET, "-o", str(tmp_path), "--json").stdout)
    assert again == made
    assert sha256((tmp_path / made["file"]).read_bytes()) == made["sha256"]
    # Of the variant's own image too: bytecode is not made of bytecode.
    of_variant = project.run(*VERB, VARIANT, "-o", str(tmp_path), "--json")
    assert json.loads(of_variant.stdout)["sha256"] == made["sha256"]


def test_what_an_import_loads_can_be_taken_alone(sample, tmp_path):
    project, made = sample
    words = ("--module", "thewheel", "--module", "json.tool", "--output", str(tmp_path))
    few = json.loads(project.run(*VERB, TARGET, *words, "--arch", "x86_64", "--json").stdout)
    assert few["imports"] == ["thewheel", "json.tool"]
    assert few["modules"] < 150 < made["modules"]
    with zipfile.ZipFile(tmp_path / few["file"]) as archive:
        names = {name.partition("/data/bytecode/")[2] for name in archive.namelist()}
    assert {
        f"{SITE}/helper.cpython-311.pyc",
        f"{SITE}/thewheel/__init__.cpython-311.pyc",
        "usr/lib/python3.11/json/tool.cpython-311.pyc",
    } <= names
    assert f"{SITE}/tools/__init__.cpython-311.pyc" not in names


def test_a_module_that_cannot_be_imported_is_told_in_pythons_words(sample, tmp_path):
    project, _ = sample
    words = ("--module", "thewheel.nothing", "--output", str(tmp_path / "out"))
    done = project.run(*VERB, TARGET, *words, status=1)
    assert f"{TARGET}: cannot import thewheel.nothing" in done.stderr
    assert "ModuleNotFoundError: No module named 'thewheel.nothing'" in done.stderr
    assert f"hint: look into the image: imgbuild run {TARGET} -- sh" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_audit_has_nothing_to_say(sample):
    project, _ = sample
    done = project.run("audit", VARIANT)
    assert done.stdout == f"{VARIANT} x86_64: 0 errors, 0 warnings, 0 notes\n"
    project.run("lock", "--check", VARIANT)


def test_the_smoke_tests_know_that_nobody_writes_it(sample):
    """What fails is what fails in the target too: its torch is none."""
    project, _ = sample
    found = {}
    for target in (TARGET, VARIANT):
        words = ("--tier", "static", "--through", "root", "--json")
        (report,) = json.loads(project.run("smoke", target, *words, status=1).stdout)
        found[target] = {case["name"]: case["outcome"] for case in report["cases"]}
    assert found[VARIANT] == found[TARGET]
    assert {found[VARIANT][name] for name in ("system", "files", "versions")} == {"passed"}


def test_docker_makes_the_same_files(sample):
    needs.buildx()
    project, _ = sample
    project.run("render", VARIANT)
    project.run("build", VARIANT, "--builder", "docker")
    pair = ("--builders", "embedded,docker")
    compared = json.loads(project.run("diff", VARIANT, *pair, "--json").stdout)[0]["comparison"]
    assert compared["equal"], compared


def test_what_does_not_compile_is_left_out_and_said(tmp_path):
    """Templates and Python 2; and an image that the lock is not of."""
    needs.user_namespaces()
    (tmp_path / "wheels").mkdir()
    template, old = b"import {{ name }}\n", b"print 'hello'\n"
    files = {"gamma/__init__.py": b"", "gamma/template.py": template, "gamma/old.py": old}
    wheels = [
        *smoke_environment.good(tmp_path / "wheels"),
        smoke_environment.make_wheel(tmp_path / "wheels", "gamma", "1.0", files),
    ]
    built, lock = (
        smoke_environment.make_layout(tmp_path, wheels),
        smoke_environment.make_lock_of(wheels),
    )
    store, out = Store.open(tmp_path / "cache"), tmp_path / "out"
    made = bytecode.compile_twice(lock, built, Arch.X86_64, [], store=store, out=out)
    left = {each.path: each.reason for each in made.left_out}
    assert {f"/{SITE}/gamma/template.py", f"/{SITE}/gamma/old.py"} <= left.keys()
    assert left[f"/{SITE}/gamma/old.py"].startswith("SyntaxError: Missing parentheses")
    with zipfile.ZipFile(out / made.file) as archive:
        names = {Path(name).name for name in archive.namelist() if f"{SITE}/gamma" in name}
    assert names == {"__init__.cpython-311.pyc"}
    with pytest.raises(InputError, match=r"the lock of small has no arm64, only x86_64"):
        bytecode.compile_twice(lock, built, Arch.ARM64, [], store=store, out=out)
