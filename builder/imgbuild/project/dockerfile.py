"""Reads base images and installed packages from Dockerfiles."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import msgspec

from imgbuild.project import images
from imgbuild.project.commands import ShellScript, keep_last, substitute_variables
from imgbuild.project.model import DeclaredName, FilePlace
from imgbuild.project.reading import ProjectReading

HEREDOC = re.compile(r"<<-?\s*(?P<quote>[\"']?)(?P<word>[A-Za-z_]\w*)(?P=quote)")
FLAG = re.compile(r"--[\w-]+(?:=\S+)?\s+")


class Instruction(msgspec.Struct, frozen=True, kw_only=True):
    """A Dockerfile instruction. Lines count from 1. `body` is the text of its here-documents."""

    name: str
    value: str
    start: int
    end: int
    body: str = ""


class ImageStage(msgspec.Struct, frozen=True, kw_only=True):
    """A build stage. `base` is an image or a stage."""

    base: str
    name: str
    place: FilePlace
    instructions: tuple[Instruction, ...]


def read_file(reading: ProjectReading, name: str) -> None:
    """Read the last stage of the Dockerfile `name` and the stages on which it is based."""
    text = reading.text(name)
    if text is None:
        return
    arguments, stages = _stages(parse_instructions(text), name)
    if not stages:
        reading.add_problem(FilePlace(file=name), "has no FROM", expected="a Dockerfile")
        return
    chain = _chain(stages)
    for stage in stages:
        if stage not in chain and any(step.name == "RUN" for step in stage.instructions):
            reason = "this build stage is not part of the image"
            reading.add_unread(stage.place, f"FROM {stage.base} AS {stage.name}", reason)
    first = chain[0]
    reading.images.append(DeclaredName(name=first.base, place=first.place))
    images.read_image_tag(reading, first.base, first.place)
    variables: dict[str, str] = {}
    for stage in chain:
        script = ShellScript(reading, name, variables=variables)
        for step in stage.instructions:
            _step(script, step, arguments)
        variables = script.variables
    keep_last(reading, name)


def parse_instructions(text: str) -> list[Instruction]:
    """Return the instructions in order, without here-documents."""
    from dockerfile_parse import DockerfileParser

    plain, bodies = _replace_heredocs(text)
    parser = DockerfileParser(fileobj=io.BytesIO(plain.encode()), env_replace=False)
    steps: list[dict[str, Any]] = [s for s in parser.structure if s["instruction"] != "COMMENT"]
    result = []
    for step in steps:
        start, end = step["startline"] + 1, step["endline"] + 1
        body = "\n".join(bodies[line] for line in range(start, end + 1) if line in bodies)
        end += body.count("\n") + 1 if body else 0
        name, value = str(step["instruction"]).upper(), str(step["value"])
        result.append(Instruction(name=name, value=value, start=start, end=end, body=body))
    return result


def _replace_heredocs(text: str) -> tuple[str, dict[int, str]]:
    """Replace here-documents with comments. Return the text, and the here-documents by line."""
    lines = text.split("\n")
    bodies: dict[int, str] = {}
    at = 0
    while at < len(lines):
        words = [match["word"] for match in HEREDOC.finditer(lines[at])]
        if lines[at].lstrip().startswith("#") or not words:
            at += 1
            continue
        start = at
        for word in words:
            body = []
            while at + 1 < len(lines) and lines[at + 1].strip() != word:
                at += 1
                body.append(lines[at])
                lines[at] = "#"
            if at + 1 < len(lines):
                at += 1
                lines[at] = "#"
            bodies[start + 1] = "\n".join([*bodies.get(start + 1, "").split("\n"), *body])
        at += 1
    return "\n".join(lines), bodies


def _stages(steps: list[Instruction], file: str) -> tuple[dict[str, str], list[ImageStage]]:
    """Return the build arguments before the first FROM, and the stages."""
    arguments: dict[str, str] = {}
    stages: list[ImageStage] = []
    for step in steps:
        if step.name == "FROM":
            words = substitute_variables(FLAG.sub("", step.value), arguments).split()
            label = words[2] if len(words) > 2 and words[1].lower() == "as" else ""
            base = words[0].strip("\"'") if words else ""
            place = FilePlace(file=file, line=step.start)
            stages.append(ImageStage(base=base, name=label, place=place, instructions=()))
        elif not stages:
            if step.name == "ARG":
                arguments |= _assignments(step.value, arguments)
        else:
            last = stages[-1]
            stages[-1] = msgspec.structs.replace(last, instructions=(*last.instructions, step))
    return arguments, stages


def _chain(stages: list[ImageStage]) -> list[ImageStage]:
    """Return the last stage and the stages on which it is based, in build order."""
    chain = [stages[-1]]
    while True:
        before = stages[: stages.index(chain[0])]
        named = [
            each for each in before if each.name and each.name.lower() == chain[0].base.lower()
        ]
        if not named:
            return chain
        chain.insert(0, named[-1])


def _assignments(value: str, variables: dict[str, str]) -> dict[str, str]:
    """Return the variables of an ARG or ENV instruction.

    The old form `ENV NAME VALUE` is also accepted.
    """
    from dockerfile_parse.util import WordSplitter

    words = [word for word in WordSplitter(value).split() if word]
    if words and "=" not in words[0] and len(words) > 1:
        return {words[0]: substitute_variables(" ".join(words[1:]), variables)}
    values: dict[str, str] = {}
    for word in words:
        name, equals, text = str(word).partition("=")
        if equals:
            values[name] = substitute_variables(text, {**variables, **values})
    return values


def _step(script: ShellScript, step: Instruction, arguments: dict[str, str]) -> None:
    if step.name == "ENV":
        values = _assignments(step.value, script.variables)
        script.variables |= values
        script.settings(values, FilePlace(file=script.file, line=step.start))
    elif step.name == "ARG":
        values = _assignments(step.value, script.variables)
        name = step.value.strip()
        if not values and name in arguments:
            values = {name: arguments[name]}
        script.variables = {**values, **script.variables}
    elif step.name == "RUN":
        value = step.value.strip()
        while FLAG.match(value):
            value = FLAG.sub("", value, count=1)
        if value.startswith("["):
            value = _exec_form(value)
        if step.body:
            script.run(step.body, step.start, step.end)
            value = HEREDOC.sub("", value)
        script.run(value, step.start, step.end)
        script.folder = "."


def _exec_form(value: str) -> str:
    """Convert `RUN ["pip", "install", "x"]` to shell syntax."""
    import shlex

    try:
        words = json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return value
    return shlex.join(words)


def is_dockerfile(name: str) -> bool:
    """Return whether a file has the name of a Dockerfile."""
    file = name.rpartition("/")[2].lower()
    return bool(re.fullmatch(r"(dockerfile|containerfile)([._-].*)?|.+\.dockerfile", file))
