"""Tests reading setup.py without running it."""

from tests.support.rows import each_row
from tests.support.user_projects import (
    read_declarations,
    reported_problems,
    requirement_texts,
    unread_reasons,
)

HEAD = "import os\nfrom pathlib import Path\nfrom setuptools import find_packages, setup\n"
WAYS = {
    "function": (
        "def lines(path):\n    with open(path) as file:\n"
        "        return [line.strip() for line in file.readlines()]\n"
        "setup(name='x', install_requires=lines('reqs.txt'))\n"
    ),
    "with": (
        "with open('reqs.txt') as file:\n    found = file.read().splitlines()\n"
        "    needed = [line.strip() for line in found if line[0] != '#']\n"
        "setup(name='x', install_requires=needed)\n"
    ),
    "path": (
        "HERE = Path(__file__).resolve().parent\n"
        "setup(name='x', install_requires=(HERE / 'reqs.txt').read_text().splitlines())\n"
    ),
    "join": (
        "here = os.path.abspath(os.path.dirname(__file__))\n"
        "setup(name='x', install_requires=open(os.path.join(here, 'reqs.txt')).readlines())\n"
    ),
    "loop": (
        "def parse(extras):\n    needed, links = [], []\n    with open('./reqs.txt') as file:\n"
        "        for line in [each.strip() for each in file.readlines()]:\n"
        "            if line.startswith('--'):\n                links.append(line)\n"
        "            elif line:\n                needed.append(line)\n"
        "    return needed, links, extras\n"
        "needed, links, extras = parse({})\nsetup(name='x', install_requires=needed)\n"
    ),
    "default": (
        "def parse(name='reqs.txt', versions=True):\n    def inner():\n"
        "        for line in read_elsewhere(name):\n            yield line\n"
        "    return list(inner()), []\n"
        "if __name__ == '__main__':\n    needed, _ = parse('reqs.txt')\n"
        "    setup(name='x', install_requires=needed)\n"
    ),
    "main": (
        "def needed():\n    return open('reqs.txt').read().split('\\n')\n"
        "def main():\n    setup(name='x', install_requires=needed())\nmain()\n"
    ),
    "imported": (
        "from pip.req import parse_requirements\n"
        "setup(name='x', install_requires=[str(r.req) for r in parse_requirements('reqs.txt')])\n"
    ),
    "table": (
        "import re\nlisted = ['torch>=2', 'peft', 'ruff']\n"
        "table = {b: a for a, b in (re.findall(r'((\\w+).*)', x)[0] for x in listed)}\n"
        "def pick(*names):\n    return [table[name] for name in names]\n"
        "setup(name='x', install_requires=pick('torch', 'peft'))\n"
    ),
    "sum": (
        "base = ['torch>=2']\nbase += ['peft']\n"
        "setup(**dict(zip((), ())), name='x', install_requires=[*base])\n"
    ),
}


@each_row("way", WAYS)
def test_requirements_of_a_setup_script_are_found(tmp_path, way):
    result = read_declarations(
        tmp_path, {"setup.py": HEAD + WAYS[way], "reqs.txt": "torch>=2\npeft\n"}
    )
    assert requirement_texts(result) == ["torch>=2", "peft"]
    assert [each.name for each in result.packages] == ["x"]
    assert result.packages[0].requires == ("torch>=2", "peft")


@each_row(
    "value",
    [
        "compute()",
        "os.environ['X'].split()",
        "[name for name in os.listdir('.')]",
        "missing",
        "[*missing()]",
    ],
)
def test_values_that_only_a_run_of_the_setup_script_determines_are_reported(tmp_path, value):
    result = read_declarations(
        tmp_path, {"setup.py": f"{HEAD}setup(name='x', install_requires={value})\n"}
    )
    assert "build backend" in unread_reasons(result)["install_requires"]


def test_known_items_of_a_partly_computed_list_are_read(tmp_path):
    script = f"{HEAD}setup(name='x', install_requires=['torch', compute(), 'peft'])\n"
    result = read_declarations(tmp_path, {"setup.py": script})
    assert requirement_texts(result) == ["torch", "peft"]
    assert "build backend" in unread_reasons(result)["install_requires"]


def test_conditional_requirements_of_a_setup_script_are_ignored(tmp_path):
    script = "needed = ['torch']\nif os.name == 'nt':\n    needed.append('pywin')\n"
    script += "setup(name='x', install_requires=needed)\n"
    result = read_declarations(tmp_path, {"setup.py": HEAD + script})
    assert requirement_texts(result) == ["torch"]
    assert unread_reasons(result) == {"pywin (if os.name == 'nt')": "only conditionally"}


def test_version_layout_and_scripts_are_read_from_a_setup_script(tmp_path):
    script = (
        "version = open('src/x/VERSION').read().strip()\n"
        "setup(name='x', version=version, packages=find_packages('src'), package_dir={'': 'src'},\n"
        "      entry_points='[console_scripts]\\nx = x.cli:main [extra]\\n')\n"
    )
    files = {"setup.py": HEAD + script, "src/x/VERSION": "1.2\n"}
    (package,) = read_declarations(tmp_path, files).packages
    assert (package.version, package.roots, package.scripts) == (
        "1.2",
        ("src",),
        {"x": "x.cli:main"},
    )


def test_reading_of_a_recursive_setup_script_terminates(tmp_path):
    script = "def a():\n    return b()\ndef b():\n    return a()\n"
    script += "setup(name='x', install_requires=a())\n"
    assert "install_requires" in unread_reasons(
        read_declarations(tmp_path, {"setup.py": HEAD + script})
    )


@each_row(
    "growth",
    [
        "x = [*x, *x]\n" * 60,
        "x = [x, x]\n" * 60,
        "x = x + x\n" * 60,
        "def f():\n    return f() + f()\nx = f()\n",
    ],
)
def test_setup_script_with_an_endlessly_growing_list_is_refused(tmp_path, growth):
    script = f"{HEAD}x = ['torch']\n{growth}setup(name='x', install_requires=x)\n"
    assert "too large" in reported_problems(tmp_path, {"setup.py": script})[0].message
