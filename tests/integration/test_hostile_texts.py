"""Tests that every renderer quotes arbitrary texts, even invalid values of a lock.

Rendered scripts run with programs that record their arguments, and no part of a text may be
executed. A parser of the format reads all other files.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from imgbuild import codec
from imgbuild.errors import ImgbuildError
from imgbuild.lock import lock_file, requirements
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix, Variable
from imgbuild.render import apptainer, bake, online, pylock, script, templates
from imgbuild.render.dockerfile import DockerfileModel, create_dockerfile
from imgbuild.slurm import jobs
from imgbuild.slurm.jobs import Allocation, Container, EnvVariable, ScriptKind
from imgbuild.system import quoting
from imgbuild.values import CONTROLS, Arch
from tests.support import needs, render_sample, samples
from tests.support.hostile_texts import BREAKS, PAYLOADS, RUN

NONE = Path("/nonexistent")
CONTROL = re.compile(rf"(?![\n\t])[{CONTROLS}]")
PROGRAMS = ("uv", "install", "mkdir", "ln", "find", "sed", "rm", "cp", "sha256sum", "python3.11",
            "bash", "getconf", "umask")  # fmt: skip


# The programs as functions that record their arguments: none of them runs.
PRELUDE = "".join(
    f'{name}() {{ printf "%s\\0" {name} "$@" >> "$RECORD"; printf "\\n\\0" >> "$RECORD"; }}\n'
    for name in PROGRAMS
)


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], list[list[str]]]:
    """A function that runs a script with recording programs and returns their arguments."""
    programs, record, canary = tmp_path / "bin", tmp_path / "record", tmp_path / "canary"
    programs.mkdir()
    (programs / "touch").symlink_to("/usr/bin/touch")
    env = {"PATH": str(programs), "CANARY": str(canary), "RECORD": str(record)}

    def _run(text: str) -> list[list[str]]:
        record.write_bytes(b"")
        command = ["/bin/bash", "-n"]
        checked = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, f"{checked.stderr}\n{text}"
        subprocess.run(
            ["/bin/bash", "-s", "--", "folder"], input=PRELUDE + text, text=True, cwd=tmp_path,
            env={**env, "HOME": str(tmp_path)}, capture_output=True, timeout=20, check=False,
        )  # fmt: skip
        assert not canary.exists(), text
        calls = record.read_text().split("\n\0")[:-1]
        return [call.split("\0")[:-1] for call in calls]

    return _run


def typed(text: str) -> tuple[Lock, Matrix]:
    """The sample lock with `text` in every value whose type allows it."""
    matrix = render_sample.matrix()
    lock = render_sample.lock(matrix)
    settings_ = msgspec.structs.replace(
        lock.settings,
        env={**lock.settings.env, "HOSTILE": text},
        labels={**lock.settings.labels, "org.example.hostile": text},
        cmd=("bash", text),
        entrypoint=(*lock.settings.entrypoint, text),
    )
    drop = msgspec.structs.replace(lock.drop[0], reason=f"a reason: {text}")
    arches = {
        arch: msgspec.structs.replace(
            resolution,
            built=tuple(
                msgspec.structs.replace(wheel, env={"X": text}) for wheel in resolution.built
            ),
        )
        for arch, resolution in lock.arch.items()
    }
    lock = msgspec.structs.replace(
        lock, settings=settings_, drop=(drop, *lock.drop[1:]), arch=arches
    )
    target = msgspec.structs.replace(
        matrix.targets["small"], summary=text,
        env={"HOSTILE": Variable(value=text, reason=f"a reason: {text}")},
    )  # fmt: skip
    return lock, msgspec.structs.replace(matrix, targets={"small": target})


def value(lock: Lock, matrix: Matrix) -> DockerfileModel:
    return create_dockerfile(lock, render_sample.invented_digests(lock), matrix)


def shell_script(lock: Lock, matrix: Matrix) -> str:
    build_script = script.create_script(
        lock, render_sample.invented_digests(lock), Arch.X86_64, render_sample.file_address
    )
    return script.script_text(build_script, "small", NONE)


def definition(lock: Lock, matrix: Matrix) -> str:
    return apptainer.definition_text(value(lock, matrix), Arch.X86_64, "small", NONE)


def steps(lock: Lock, matrix: Matrix) -> str:
    return templates.render_template("dockerfile.j2", value(lock, matrix), images=NONE)


def online_steps(lock: Lock, matrix: Matrix) -> str:
    context = online.online_dockerfile(value(lock, matrix), lock, "registry.example/x@sha256:0",
                         render_sample.file_address)  # fmt: skip
    return templates.render_template("dockerfile.j2", context, images=NONE)


JOB_PACKAGES = tuple(samples.wheel(name) for name in ("ray", "verl", "vllm"))


def job_script(kind: ScriptKind, lock: Lock, matrix: Matrix, *, pyxis: bool) -> str:
    arches = {
        arch: msgspec.structs.replace(each, wheels=(*each.wheels, *JOB_PACKAGES))
        for arch, each in lock.arch.items()
    }
    lock = msgspec.structs.replace(lock, arch=arches)
    made = jobs.create_job_script(
        lock, f"sha256:{'0' * 64}", kind,
        Allocation(nodes=1 if kind is ScriptKind.SINGLE else 2, gpus=1),
        Container(image="/bin/true", pyxis=pyxis),
        command=() if kind is ScriptKind.CHECK else ("true",),
        model="m" if kind is ScriptKind.TRL_SERVER else "",
    )  # fmt: skip
    return jobs.job_text(made, None)


def requirement_lines(lock: Lock, matrix: Matrix) -> str:
    return requirements.requirements_text(lock, Arch.X86_64)


def pylock_file(lock: Lock, matrix: Matrix) -> str:
    return pylock.pylock_text(lock, (Arch.X86_64,), render_sample.file_address)


def bake_file(lock: Lock, matrix: Matrix) -> str:
    return codec.encode(bake.bake_document([value(lock, matrix)])).decode()


# -- parsers


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, parsed with comments and continuations."""
    instruction_rows, line = [], ""
    for raw in text.split("\n"):
        if raw.lstrip().startswith("#") or (line and not raw.strip()):
            continue
        line += raw
        if re.search(r"\\[ \t]*$", line):
            line = re.sub(r"\\[ \t]*$", "", line)
            continue
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            instruction_rows.append((name, rest))
        line = ""
    assert not line
    return instruction_rows


def pairs(rest: str) -> dict[str, str]:
    """The values of ENV or LABEL: double-quoted, with a backslash before some characters."""
    values = {}
    for name, quoted, bare in re.findall(r'(\S+?)=(?:"((?:[^"\\]|\\.)*)"|(\S*))(?:\s+|$)', rest):
        values[name] = bare or re.sub(r"\\(.)", r"\1", quoted)
    return values


def sections(text: str) -> dict[str, list[str]]:
    """The sections of a definition file, which begin with % after optional spaces."""
    section_lines: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.split("\n"):
        if line.strip().startswith("%"):
            name = line.strip()
            assert name not in section_lines
            section_lines[name] = []
        else:
            section_lines[name].append(line)
    return section_lines


def commands(lines: list[str]) -> str:
    """The shell lines of a section or an instruction."""
    text = "\n".join(lines).replace("/run/installer/uv", "uv").replace("/imgbuild/uv ", "uv ")
    text = re.sub(r"--mount=\S+ ", "", text)
    return text.replace("/usr/bin/python", "python").replace(". /opt/imgbuild/environment.sh", ":")


def variables(text: str) -> str:
    """The file of environment variables that a script writes for a user to source."""
    return text.split("<<'END'\ncache=")[1].partition("\nEND\n")[0]


def check_definition(text: str, shell: Callable[[str], Any], lock: Lock) -> None:
    section_lines = sections(text)
    assert list(section_lines) == ["", "%files", "%post", "%environment", "%labels", "%runscript"]
    head = [line for line in section_lines[""] if line and not line.startswith("#")]
    assert head == ["Bootstrap: oci", "From: build/base/small"]
    assert "{{" not in text
    read = dict(
        line.strip().partition(" ")[::2] for line in section_lines["%labels"] if line.strip()
    )
    assert {name: text.strip() for name, text in read.items()} == {
        name: text.strip() for name, text in lock.settings.labels.items()
    }
    for name in ("%post", "%environment", "%runscript"):
        shell(commands(section_lines[name]))
    run = commands(section_lines["%runscript"]).replace("exec ", "install ")
    (call,) = shell(run.replace('"$@"', "").replace('[ "$#" -gt 0 ] ||', "true &&"))
    assert call[1:] == list(lock.settings.entrypoint)


def check_dockerfile(text: str, shell: Callable[[str], Any], lock: Lock) -> None:
    instruction_rows = instructions(text)
    env = next(rest for name, rest in instruction_rows if name == "ENV")
    assert pairs(env).get("HOSTILE") == lock.settings.env.get("HOSTILE")
    assert (
        pairs(next(rest for name, rest in instruction_rows if name == "LABEL"))
        == lock.settings.labels
    )
    for word, expected in (("CMD", lock.settings.cmd), ("ENTRYPOINT", lock.settings.entrypoint)):
        assert json.loads(next(rest for name, rest in instruction_rows if name == word)) == list(
            expected
        )
    shell(commands([rest for name, rest in instruction_rows if name == "RUN"]))
    assert {name for name, _ in instruction_rows} <= {
        "ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "LABEL", "USER", "ENTRYPOINT", "CMD", "ADD",
    }  # fmt: skip
    assert not text.startswith("# syntax")


def check_requirements(text: str, lock: Lock) -> None:
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    for line in lines:
        words = line.split(" ")
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for word in words[1:])
        assert Requirement(words[0]).name
    assert len(lines) == len(lock.arch[Arch.X86_64].versions)


def check(name: str, text: str, shell: Callable[[str], Any], lock: Lock) -> None:
    """Check `text` with a parser of its format."""
    assert not CONTROL.search(text)
    match name.split(maxsplit=1)[0]:
        case "definition":
            check_definition(text, shell, lock)
        case "steps" | "online_steps":
            check_dockerfile(text, shell, lock)
        case "shell_script":
            shell(text)
            (call,) = shell(variables(text).replace("unset", 'install "$HOSTILE" #'))
            assert call == ["install", lock.settings.env["HOSTILE"]]
        case "slurm":
            shell(text)
        case "requirement_lines":
            check_requirements(text, lock)
        case "pylock_file":
            lock_document = tomllib.loads(text)
            names = lock.arch[Arch.X86_64].versions.keys()
            assert {package["name"] for package in lock_document["packages"]} == names
            assert lock_document.keys() == {"lock-version", "created-by", "requires-python",
                                    "environments", "packages"}  # fmt: skip
        case "bake_file":
            assert len(json.loads(text)["target"]) == 1


RENDERERS: dict[str, Callable[[Lock, Matrix], str]] = {
    each.__name__: each
    for each in (shell_script, definition, steps, online_steps, requirement_lines, pylock_file,
                 bake_file)
}  # fmt: skip
RENDERERS |= {
    f"slurm {kind} {pyxis}": functools.partial(job_script, kind, pyxis=pyxis)
    for kind in ScriptKind
    for pyxis in (False, True)
}


@pytest.mark.parametrize("text", PAYLOADS)
def test_lock_texts_are_quoted(text: str, shell) -> None:
    lock, matrix = typed(text)
    assert lock_file.decode_lock(codec.encode(lock), "lock.json", hint="", remedy="") == lock
    for name, render in renderers(PAYLOADS.index(text)).items():
        try:
            rendering = render(lock, matrix)
        except ImgbuildError:
            if name == "definition" and "{{" in text:  # a label cannot hold it
                continue
            raise
        check(name, rendering, shell, lock)


@settings(max_examples=5 if needs.is_long_run() else 2, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(text=st.text(st.characters(codec="utf-8"), max_size=20)
       .filter(lambda text: not re.search(f"[{CONTROLS}]", text) and "{{" not in text))  # fmt: skip
def test_arbitrary_lock_texts_are_quoted(text: str, shell) -> None:
    lock, matrix = typed(text)
    for name, render in RENDERERS.items():
        check(name, render(lock, matrix), shell, lock)


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts in a struct, including keys of mappings."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from fields(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for number, (key, item) in enumerate(list(value.items())[:2]):
            yield (*path, (number, "key"))
            yield from fields(item, (*path, key))
    elif isinstance(value, tuple):
        for number, item in enumerate(value[:1]):
            yield from fields(item, (*path, number))


def with_text(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """`value` with `text` at `path`, without a type check."""
    if not path:
        return text
    first, *rest = path
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{first: with_text(getattr(value, first), tuple(rest), text)}
        )
    if isinstance(value, dict):
        if isinstance(first, tuple):
            return {text if number == first[0] else key: item
                    for number, (key, item) in enumerate(value.items())}  # fmt: skip
        return {**value, first: with_text(value[first], tuple(rest), text)}
    return tuple(with_text(item, tuple(rest), text) if number == first else item
                 for number, item in enumerate(value))  # fmt: skip


PATHS = [
    path
    for path in fields(render_sample.lock())
    if Arch.ARM64 not in path and path not in {("arch", (0, "key")), ("arch", (1, "key"))}
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_invalid_lock_texts_are_quoted_or_refused(path, shell) -> None:
    """A renderer may fail on a lock that no reader accepts, but must write nothing executable."""
    number, matrix = PATHS.index(path), render_sample.matrix()
    lines = f"x\n{RUN}\n%setup\n{RUN}\n"
    texts = (BREAKS[number % len(BREAKS)], "%setup", PAYLOADS[number % 10], lines)
    for text in texts if needs.is_long_run() else texts[number % 4 :: 4]:
        lock = with_text(render_sample.lock(), path, text)
        for name, render in renderers(number).items():
            try:
                rendering = render(lock, matrix)
            except (ImgbuildError, ValueError, LookupError):
                continue
            if rendering != usual(name):
                check_bypassed(name, rendering, shell)


def renderers(number: int) -> dict[str, Callable[[Lock, Matrix], str]]:
    """The renderers to test: without long tests, only a third of the job scripts."""
    return {
        name: render
        for position, (name, render) in enumerate(RENDERERS.items())
        if needs.is_long_run() or not name.startswith("slurm ") or (position + number) % 3 == 0
    }


@functools.cache
def usual(name: str) -> str:
    """The original text in the sample."""
    return RENDERERS[name](render_sample.lock(), render_sample.matrix())


def check_bypassed(name: str, text: str, shell: Callable[[str], Any]) -> None:
    assert not CONTROL.search(text)
    match name.split(maxsplit=1)[0]:
        case "definition":
            section_lines = sections(text)
            assert list(section_lines) == [
                "",
                "%files",
                "%post",
                "%environment",
                "%labels",
                "%runscript",
            ]
            shell(commands(section_lines["%post"]))
            shell(commands(section_lines["%environment"]))
        case "steps" | "online_steps":
            shell(commands([rest for word, rest in instructions(text) if word == "RUN"]))
            assert not {word for word, _ in instructions(text)} & {"touch", "%setup", "END"}
        case "shell_script" | "slurm":
            shell(text)
            shell(variables(text) if name == "shell_script" else "")
        case "requirement_lines":
            for line in text.split("\n"):
                assert line.startswith("#") or not line or Requirement(line.partition(" ")[0]).name
        case "pylock_file":
            assert "x" not in tomllib.loads(text)
        case "bake_file":
            json.loads(text)


@pytest.mark.parametrize("text", [*PAYLOADS, *BREAKS])
def test_user_arguments_are_quoted_in_job(text: str, shell) -> None:
    lock = render_sample.lock()
    allocation = Allocation(more=("--comment=x",))
    container = Container(image=f"/images/{text.strip()}", words=(text,))
    try:
        job_script = jobs.create_job_script(
            lock, f"sha256:{'0' * 64}", ScriptKind.SINGLE, allocation, container,
            command=("train", text), environment=(EnvVariable("WORD", text),),
        )  # fmt: skip
        written = jobs.job_text(job_script, None)
    except ImgbuildError:
        assert "\r" in text
        return
    shell(written)
    _, call = written.split("\nstep -- ")
    assert shlex.split(call.rpartition(" &\nwait")[0]) == ["train", text]


def test_argument_in_a_sbatch_line_stays_one_argument() -> None:
    for text in ("--comment=a b", "--comment=a#b", "--constraint='x|y'", 'a"b', "a\\b", "--x=é"):
        assert shlex.split(quoting.sbatch_word(text), comments=True) == [text]
