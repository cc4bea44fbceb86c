"""Tests the values, restrictions and errors of templates from a checkout."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from imgbuild.errors import InputError
from imgbuild.render import sandbox, templates
from imgbuild.render.apptainer import ApptainerDefinition
from imgbuild.render.dockerfile import DockerfileModel, create_dockerfile
from imgbuild.render.script import InstallScript
from imgbuild.slurm.array import ArrayTarget, JobArray
from imgbuild.slurm.jobs import JobScript
from tests.support import render_sample
from tests.support.rows import each_row


def rendered(folder: Path, text: str, name: str = "files.j2") -> str:
    """Render the Dockerfile of the sample with `text` in the project template `name`."""
    (folder / "templates").mkdir(exist_ok=True)
    (folder / "templates" / name).write_text(text, encoding="utf-8")
    matrix = render_sample.matrix()
    lock = render_sample.lock(matrix)
    rendering = create_dockerfile(lock, render_sample.invented_digests(lock), matrix)
    return templates.render_template("dockerfile.j2", rendering, images=folder)


ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ target.__class__.__base__.__subclasses__() }}",
    "{{ it.__class__.__init__.__globals__ }}",
    "{{ it.steps.__func__.__globals__ }}",
    "{{ files.steps.__globals__ }}",
    "{{ files.steps.__self__.__class__ }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ lipsum.__globals__ }}",
    "{{ joiner }}{{ namespace }}{{ range(3) }}{{ dict }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['__class__']|map('attr', '__class__')|list }}",
    "{{ [target]|map(attribute='__class__')|list|string }}",
    "{{ [target]|map(attribute='format')|first }}",
    "{{ '{0.__class__}'.format(target) }}",
    "{{ '{0.__class__}'.format_map({'0': target}) }}",
    "{{ '%s'|format(target) }}",
    "{{ ('%' ~ '1000000000d') % 1 }}",
    "{{ target|safe }}{{ summary|safe }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% for x in [1] %}{{ loop._iterable.__class__ }}{% endfor %}",
    "{{ (1).to_bytes.__self__.__class__ }}",
    "{{ target.encode() }}",
    "{{ stages.count(1) }}",
    "{{ labels.update({'a': 'b'}) }}",
    "{{ labels.__setitem__('a', 'b') }}",
    "{{ labels.clear() }}",
    "{% set ns = namespace(x='') %}",
    "{{ undefined_name_of_nothing }}",
    "{% include '../../matrix.yaml' %}",
    "{% include '/etc/passwd' %}",
    "{% include ['no.j2', '../x'] %}",
    "{% import '..\\\\x' as x %}",
    "{% extends '../x' %}",
)


@each_row("text", ESCAPES)
def test_template_cannot_access_python_or_disk(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        rendered(tmp_path, text)
    assert re.search(
        r"files\.j2:1: |tree\.j2|is not a relative path below|name of a template",
        caught.value.message,
    )


LONG = "{% set x = 'aaaaaab ' %}" + "{% set x = x ~ x %}" * 16
BOMBS = (
    "{{ 'a' * 10000000000 }}",
    "{{ [0] * 10000000000 }}",
    "{{ 2 ** 100000 ** 100000 }}",
    "{{ 'a'|center(10000000000) }}",
    "{{ 'a'|indent(10000000000) }}",
    "{{ 'a'.ljust(10000000000) }}",
    "{{ 'a'|replace('a', 'b' * 1000000) }}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 40 + "{{ x }}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 40 + "{{ x }}",
    "{% set x = 'aaaaaaaa' %}" + "{% set x = [x, x, x, x, x, x, x, x]|join(x) %}" * 12 + "{{ x }}",
    "{% set x %}aaaaaaaa{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "{% set x = 'a' %}" + "".join(f"{{% for a{n} in '{'a' * 50}' %}}" for n in range(9))
    + "{% set y = x %}" + "{% endfor %}" * 9,
    "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    "{% include 'files.j2' %}{% include 'files.j2' %}",
    "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{% for x in '" + "a" * 9000 + "' %}" + "b" * 90000 + "{% endfor %}",
    "{# " + "a" * 300000 + " #}",
    *(f"{LONG}{{% set y = [{', '.join([part] * 60)}] %}}" for part in (
        "x.split(' ')", "x.upper()", "x|upper", "x[1:]", "x|map('upper')|list|length",
        "'b b' in x", "x is in x", "x.rstrip('ab ')|length",
    )),
    f"{LONG.replace('b ', 'bb')}{{% set y = x|int(0, 16) // 3 %}}",
    *("{% set x = [1] %}{% set y = [1] %}"
      + "{% set x = [x, x] %}{% set y = [y, y] %}" * 40 + use
      for use in ("{{ x|string|word }}", "{{ x == y }}", "{{ [x]|select('eq', y)|first }}")),
    "{% set x = (1, 1) %}" + "{% set x = (x, x) %}" * 40 + "{% set y = {x: 1} %}",
    "{% macro m() %}{{ m(varargs, varargs) }}{% endmacro %}{{ m(1, 1) }}",
)  # fmt: skip


@each_row("text", BOMBS, ids=[text[:40] for text in BOMBS])
def test_template_has_memory_and_time_limits(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files\.j2"):
        rendered(tmp_path, text)


@each_row(
    "text",
    [
        "".join(f"{{% for x{n} in [1] %}}" for n in range(25)) + "{% endfor %}" * 25,
        "{% if true %}" * 120 + "{% endif %}" * 120,
        "{% macro m(a) %}{% endmacro %}{{ m(a=1, a=2) }}",
        "{{ 1e400|int }}",
        "{% set x = " + "[" * 300 + "]" * 300 + " %}",
        "{{ " + "+".join(["1"] * 5000) + " }}",
    ],
    ids=["loops", "conditions", "arguments", "infinity", "lists", "sum"],
)
def test_template_that_does_not_compile_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files\.j2|dockerfile\.j2"):
        rendered(tmp_path, text)


@pytest.mark.parametrize("link", ["file", "folder", "all"])
def test_template_that_is_a_link_is_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret.j2").write_text("secret\n")
    folder = tmp_path / "images"
    folder.mkdir()
    if link == "all":
        (folder / "templates").symlink_to("../elsewhere")
        name = "secret.j2"
    else:
        (folder / "templates").mkdir()
        name = "secret.j2" if link == "file" else "sub/secret.j2"
        where = "../../elsewhere/secret.j2" if link == "file" else "../../elsewhere"
        (folder / "templates" / name.partition("/")[0]).symlink_to(where)
    if link != "all":
        with pytest.raises(InputError, match="symbolic link, not a"):
            rendered(folder, f"{{% include '{name}' %}}")
        return
    matrix = render_sample.matrix()
    lock = render_sample.lock(matrix)
    rendering = create_dockerfile(lock, render_sample.invented_digests(lock), matrix)
    (tmp_path / "elsewhere/files.j2").write_text("{% include 'secret.j2' %}")
    with pytest.raises(InputError, match="symbolic link, not a"):
        templates.render_template("dockerfile.j2", rendering, images=folder)


def test_template_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    import os

    (tmp_path / "templates").mkdir()
    os.mkfifo(tmp_path / "templates/base.j2")
    with pytest.raises(InputError, match=r"base\.j2: it is a pipe, not a file"):
        rendered(tmp_path, "# mine\n")
    assert templates.project_templates(tmp_path) == ("base.j2", "files.j2")


def test_templates_cannot_call_methods_of_values(tmp_path: Path) -> None:
    """`place` is a Path of Python, whose methods can write files."""
    (tmp_path / "templates/slurm").mkdir(parents=True)
    order = JobArray(
        verb="build", name="x", folder=str(tmp_path), root="/", command=("true",), options=(),
        tasks=(ArrayTarget(target="small", digest=f"sha256:{'0' * 64}"),),
    )  # fmt: skip
    for text in ("{{ it.place.rmdir() }}", "{{ it.place }}", "{{ it.array.format() }}"):
        (tmp_path / "templates/slurm/array.j2").write_text(text)
        with pytest.raises(InputError, match=r"array\.j2:1: "):
            templates.render_template("slurm/array.j2", order, images=tmp_path)
    assert tmp_path.is_dir()


@each_row(
    ("text", "written"),
    [
        ("{{ target }}", "small"),
        ("{{ target.upper() }} {{ target | upper }}", "SMALL SMALL"),
        ("{% for name, value in labels.items() %}{{ name }}={{ value | value }}{% endfor %}",
         "dev.imgbuild.target=small"),
        ("{% macro m(x) %}RUN {{ x | word }}{% endmacro %}{{ m('a b') }}", "RUN 'a b'"),
        ("{% set x %}a {{ target }}{% endset %}{{ x }}", "a small"),
        ("{{ 'the image ' ~ target }}", "the image small"),
        ("{{ ('a' if target == 'small' else 'b') ~ (1 + 2) }}", "a3"),
        ("{% import 'mine.j2' as mine %}{{ mine.hi(target) }}", "hi small"),
        ("{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ ',' if not loop.last }}{% endfor %}",
         "a,b,a"),
        ("{{ stages | map(attribute='arch') | join(',') }}", "arm64,amd64"),
        ("{% for step in files.steps('/x') %}{{ step[:7] if loop.first }}{% endfor %}", "install"),
    ],
)  # fmt: skip
def test_templates_can_use_macros_loops_and_the_documented_filters(
    text: str, written: str, tmp_path: Path
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/mine.j2").write_text("{% macro hi(x) %}hi {{ x }}{% endmacro %}")
    assert written in rendered(tmp_path, text)


@each_row("text", ["{{ summary }}", "{{ 'x' ~ summary }}", "{{ cmd }}", "{{ it }}"])
def test_template_value_without_a_filter_is_refused_unless_it_is_a_plain_word(
    text: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"files\.j2:2: .*(is not a plain word|cannot be written)"):
        rendered(tmp_path, f"\n{text}\n")


def test_templates_that_differ_from_the_packaged_ones_are_project_templates(tmp_path: Path) -> None:
    folder = tmp_path / "templates/slurm"
    folder.mkdir(parents=True)
    (folder / "single.j2").write_bytes((templates.DATA / "slurm/single.j2").read_bytes())
    assert templates.project_templates(tmp_path) == ()
    (folder / "ray.j2").write_text("# mine\n")
    (folder.parent / "mine.j2").write_text("# mine\n")
    assert templates.project_templates(tmp_path) == ("mine.j2", "slurm/ray.j2")
    assert templates.project_templates(tmp_path / "none") == ()


@pytest.mark.timeout(60)
def test_template_search_follows_no_links_and_opens_only_files(
    tmp_path: Path,
) -> None:
    folder, tree = tmp_path / "templates", tmp_path / "tree"
    for each in (folder, tree):
        each.mkdir()
        (each / "base.j2").write_text("# mine\n")
    os.mkfifo(folder / "script.j2")
    (folder / "files.j2").symlink_to(os.devnull)
    (folder / "slurm").symlink_to(tree)
    assert templates.project_templates(tmp_path) == ("base.j2", "files.j2", "script.j2")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/templates").symlink_to(tree)
    assert templates.project_templates(tmp_path / "other") == ()


def test_documented_template_values_match_the_sandbox_values() -> None:
    page = (Path(__file__).parents[3] / "docs/dockerfiles.md").read_text(encoding="utf-8")
    rows = page.partition("<!-- values: ")[2].partition("\n\n`it`")[0].split("\n")
    cells = [row.split("|")[2] for row in rows if row.startswith("| `")]
    documented = [re.findall(r"`(\w+)`", cell) for cell in cells]
    steps, definition, script, job, order = documented
    assert steps == list(DockerfileModel.__struct_fields__)
    assert definition == ["stage", "all", *ApptainerDefinition.__struct_fields__]
    assert script == [*InstallScript.__struct_fields__, "stem"]
    assert job == list(JobScript.__struct_fields__)
    assert order == list(JobArray.__struct_fields__)


def test_documented_template_filters_match_the_sandbox_filters() -> None:
    page = (Path(__file__).parents[3] / "docs/dockerfiles.md").read_text(encoding="utf-8")
    table = page.partition("| filter | for |")[2].partition("\n\n")[0]
    rows = [row for row in table.split("\n") if row.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert documented == templates.quoting_filters("apptainer.j2").keys()
    others = re.findall(
        r"`(\w+)`", page.partition("Of Jinja's own there are")[2].partition("\n\n")[0]
    )
    assert {*others, "d", "count"} == {*sandbox.FILTERS, "batch", "list", "join"}
