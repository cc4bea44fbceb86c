#!/usr/bin/env python3
"""Generates docs/reference and docs/images from the code, the locks and the test records.

tools/reference.py            write the pages
    tools/reference.py --check    exit with status 5 if the pages are out of date

The pages are generated from the help of the command line, the JSON Schemas, the classes of errors
and images/TARGET, and are the same on every machine and terminal. docs/images contains the output
of `imgbuild show TARGET --guide` for each recommended target.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from imgbuild.audit.code import kinds
from imgbuild.ci import settings
from imgbuild.cli._app import app
from imgbuild.cli._help import parameter_help as text_of
from imgbuild.cli._help import value_metavar
from imgbuild.cli.show import target_guide
from imgbuild.diagnose import codes, rules
from imgbuild.errors import ImgbuildError
from imgbuild.matrix import schema
from imgbuild.matrix.select import select_targets
from imgbuild.pipeline.session import open_session
from imgbuild.show import guide
from imgbuild.site import limits
from imgbuild.smoke import records
from imgbuild.smoke.records import RecordedRun

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import architecture  # noqa: E402

DOCS = ROOT / "docs"
STALE = 5  # the exit status that imgbuild itself has for it
GENERATED_NOTE = "<!-- Made by tools/reference.py; edit the code and run it. -->\n"
TYPE_NAMES = {"string": "text", "integer": "number", "boolean": "true or false", "null": "null"}


def page_folders() -> dict[str, dict[str, str]]:
    """Return the pages of each folder in docs, by name."""
    return {"reference": reference_pages(), "images": guide_pages()}


def guide_pages() -> dict[str, str]:
    """Return the guides of the recommended targets, by name in docs/images."""
    session = open_session(ROOT / "matrix.yaml")
    chosen = select_targets(session.matrix, [], everything=True, arches=[])
    return {
        f"{item.name}.md": "\n".join(
            [GENERATED_NOTE, *guide.guide_lines(target_guide(session, item)), ""]
        )
        for item in chosen
        if item.target.recommended
    }


def reference_pages() -> dict[str, str]:
    """Return the pages, by name in docs/reference."""
    return {
        "cli.md": cli_page(),
        "matrix.md": file_page("matrix.yaml", schema.matrix_schema(), MATRIX),
        "extension.md": file_page(
            "matrix.yaml of an extension", schema.extension_schema(), EXTENSION
        ),
        "ci.md": file_page("ci.yaml", ci_schema(), CI),
        "errors.md": errors_page(),
        "failures.md": failures_page(),
        "findings.md": findings_page(),
        "limits.md": f"{GENERATED_NOTE}\n# Known limits\n\n{limits.limit_texts()}",
        "modules.md": f"{GENERATED_NOTE}\n# Modules\n\n{MODULES}\n{architecture.module_index()}",
        "test-runs.md": test_runs(),
    }


MODULES = """\
Every module of `builder/imgbuild/`: the first line of its docstring, and its public functions and
classes. A folder imports only from lower levels ([architecture](../../ARCHITECTURE.md)).
"""


MATRIX = """\
The reviewed file of versions. Editors can complete it with its JSON Schema,
[matrix.schema.json](../../matrix.schema.json). `imgbuild list` reads it and reports all problems
with file, line and key. The reasons for all choices are in
[matrix.yaml](../../matrix.yaml) itself."""
EXTENSION = """\
The `matrix.yaml` of a repository that extends published targets ([how to](../extend.md)).
Editors can complete it with its JSON Schema, which `imgbuild init` writes next to it."""
CI = """\
The settings of `imgbuild ci` for images and machines ([how to](../ci.md)). The file is next to
`matrix.yaml`; the defaults are in
[data/ci.yaml](../../builder/imgbuild/data/ci.yaml)."""


# --- verbs ---------------------------------------------------------------------------------------


def visible_verbs(of: Any, above: str = "imgbuild") -> Iterator[tuple[str, Any]]:
    """Yield the visible verbs and subcommands by full name, in the order of the help."""
    for name, command in of.commands.items():
        if command.hidden:
            continue
        yield f"{above} {name}", command
        if hasattr(command, "commands"):
            yield from visible_verbs(command, f"{above} {name}")


def cli_page() -> str:
    """Return the page about verbs, with a list by help panel and a section for each verb."""
    program = typer.main.get_command(app)
    commands = list(visible_verbs(program))
    parts = [GENERATED_NOTE, "# Commands\n", f"{program.help}\n", COMMON, *_contents(commands)]
    parts += [verb_section(name, command) for name, command in commands]
    return "\n".join(parts)


COMMON = """\
Every command accepts `--json` (print only the result, as JSON, to stdout), `--quiet` (print only
warnings and errors), `--verbose` and `--help`, which are not listed below. Exit statuses are those
of the [errors](errors.md), except that `imgbuild run` exits with the status of its command.

`--output` is the path of the result, and is checked before the work begins. By default, images and
wheels are written to a folder that the command names (`build/TARGET`, `wheels`), Dockerfiles of
`render` next to their locks in `images/TARGET`, and other texts to stdout.

The examples are not run, because most need an image, a registry or hours.
`tests/unit/cli/test_verbs.py` parses each of them.
"""
EXAMPLE = "<!-- not run: read by the command line itself in tests/unit/cli/test_verbs.py -->"
SHARED = {"--json", "--quiet", "--verbose", "--help"}


def _contents(commands: Sequence[tuple[str, Any]]) -> Iterator[str]:
    panels: dict[str, list[str]] = {}
    for name, command in commands:
        if name.count(" ") == 1:
            link = f"[{name.split()[1]}](#{name.replace(' ', '-')})"
            panels.setdefault(command.rich_help_panel or "Others", []).append(link)
    yield from markdown_table(
        ("", "verbs"), [(panel, ", ".join(links)) for panel, links in panels.items()]
    )


def verb_section(name: str, command: Any) -> str:
    """Return the section of a verb with description, usage, arguments and options."""
    lines = [f"## {name}\n", f"{help_markdown(command.help or '')}\n"]
    if hasattr(command, "commands"):
        rest = ", ".join(f"`{name} {each}`" for each in command.commands)
        return "\n".join([*lines, f"Verbs: {rest}.\n"])
    given = [each for each in command.params if not each.hidden]
    arguments = [each for each in given if each.opts and not each.opts[0].startswith("-")]
    options = [each for each in given if each not in arguments and not SHARED & set(each.opts)]
    words = [name, *(["[OPTIONS]"] if given != arguments else []), *map(value_metavar, arguments)]
    lines.append(f"```text\n{' '.join(words)}\n```\n")
    if arguments:
        rows = [(f"`{value_metavar(each)}`", text_of(each)) for each in arguments]
        lines += markdown_table(("argument", "is"), rows)
    if options:
        lines += markdown_table(
            ("option", "does"), [(option_flags(each), text_of(each)) for each in options]
        )
    return "\n".join(lines)


def help_markdown(text: str) -> str:
    """Convert help to Markdown. Text indented by four spaces becomes a code block."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        code = line.startswith("    ")
        if code and lines and lines[-1] == "```":
            lines[-1] = line[4:]
            lines.append("```")
        elif code:
            lines += [EXAMPLE, "```bash", line[4:], "```"]
        elif line or lines[-1:] != [""]:
            lines.append(line)
    joined = "\n".join(lines).strip()
    # Examples with an empty line between them are one block.
    return joined.replace(f"```\n\n{EXAMPLE}\n```bash\n", "")


def option_flags(option: Any) -> str:
    """Return the names of an option: the long name first, and the negated name after a slash."""
    value = value_metavar(option)
    names = sorted(option.opts, key=lambda name: -len(name))
    words = [f"`{names[0]} {value}`" if value else f"`{names[0]}`", *(f"`{n}`" for n in names[1:])]
    return " / ".join([", ".join(words), *(f"`{name}`" for name in option.secondary_opts)])


# --- files ---------------------------------------------------------------------------------------


def ci_schema() -> dict[str, Any]:
    """Return the JSON Schema of ci.yaml, with its root definition inlined."""
    (root,), definitions = msgspec.json.schema_components(
        (settings.CiFile,), ref_template="#/$defs/{name}"
    )
    top = definitions.pop(root["$ref"].rsplit("/", 1)[1])
    return {**top, "$defs": definitions}


def file_page(title: str, schema: Mapping[str, Any], head: str) -> str:
    """Return the page about a file: its top-level keys, and the keys of each definition.

    Definitions are in the order of use.
    """
    definitions = schema["$defs"]
    parts = [GENERATED_NOTE, f"# {title}\n", f"{head}\n", *key_table(schema, definitions)]
    for name in _used_definitions(schema, definitions):
        part = definitions[name]
        if "properties" in part:
            parts += [f"## {name}\n", f"{part.get('description', '')}\n"]
            parts += key_table(part, definitions)
    return "\n".join(parts)


def _used_definitions(part: object, definitions: Mapping[str, Any]) -> list[str]:
    """Return the names of the definitions that `part` uses, in the order of use."""
    used_names: dict[str, None] = {}

    def _collect_definitions(node: object) -> None:
        if isinstance(node, list):
            for item in node:
                _collect_definitions(item)
        elif isinstance(node, dict):
            name = str(node.get("$ref", "")).rsplit("/", 1)[-1]
            if name and name not in used_names:
                used_names[name] = None
                _collect_definitions(definitions[name])
            for key, item in node.items():
                if key != "$defs":
                    _collect_definitions(item)

    _collect_definitions(part)
    return list(used_names)


def key_table(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """Return a table of keys, with type, description, and whether each key is required."""
    required = part.get("required", ())
    rows = [
        (
            f"`{key}`",
            type_text(node, definitions),
            _default(node, needed=key in required),
            key_description(node, definitions),
        )
        for key, node in part["properties"].items()
    ]
    return markdown_table(("key", "value", "if omitted", "says"), rows)


def type_text(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the type of a value as text, with links to parts of the file."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        if "enum" in definitions[name]:
            return _alternatives(definitions[name]["enum"])
        return f"[{name}](#{name.lower()})"
    if "const" in node or "enum" in node:
        return _alternatives(node.get("enum", [node.get("const")]))
    if "anyOf" in node:
        choices = [each for each in node["anyOf"] if each.get("type") != "null"]
        return " or ".join(type_text(each, definitions) for each in choices)
    if node.get("type") == "array":
        return f"list of {type_text(node['items'], definitions)}"
    if node.get("type") == "object":
        return f"map to {type_text(node['additionalProperties'], definitions)}"
    return "day" if node.get("format") == "date" else TYPE_NAMES[node["type"]]


def _alternatives(values: Sequence[object]) -> str:
    return " or ".join(f"`{value}`" for value in values)


def _default(node: Mapping[str, Any], *, needed: bool) -> str:
    if needed:
        return "an error"
    default = node.get("default")
    if default in (None, [], {}, ""):
        return ""  # no page exists
    plain = default if isinstance(default, str) else msgspec.json.encode(default).decode()
    return f"`{plain}`"


def key_description(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the description of a key, or of the parts of its value."""
    if "description" in node:
        return str(node["description"])
    if "$ref" in node:
        return key_description(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    if "const" in node:
        return "kind of this entry"
    inner = [node.get("items"), node.get("additionalProperties"), *node.get("anyOf", ())]
    return next((each["description"] for each in inner if each and "description" in each), "")


# --- errors --------------------------------------------------------------------------------------


def errors_page() -> str:
    """Return the page about the classes of errors, sorted by exit status."""
    kinds = sorted(ImgbuildError.__subclasses__(), key=lambda error_class: error_class.exit_code)
    rows = [
        (str(error_class.exit_code), f"`{error_class.__name__}`", first_sentences(error_class))
        for error_class in kinds
    ]
    statuses = markdown_table(
        ("status", "`error` in `--json`", "means"), [("0", "", "Done."), *rows]
    )
    return "\n".join([GENERATED_NOTE, "# Errors and exit statuses\n", ERRORS, *statuses, SEVERAL])


ERRORS = """\
Errors are printed on stderr: `error:` with file, place and value, a line `because` for each reason,
and `hint:` with the remedy. A problem in a YAML file is followed by the line, with carets under
the place. With `--json`, errors are printed on stdout as
`{"error", "message", "hint", "exit_code", …}`.
"""
SEVERAL = """\
If targets fail, the other targets are still processed. The exit status is the status of the errors
if they all have the same status, and otherwise 1.
"""


def failures_page() -> str:
    """Return the page about failures that `imgbuild diagnose` detects, by code."""
    lines = [GENERATED_NOTE, "# Failures in logs\n", FAILURES]
    for rule in sorted(rules.load_rules(), key=lambda rule: rule.code):
        lines += [
            f"## {rule.code}: {rule.title}\n",
            f"Cause: {codes.fill_placeholders(rule.cause)}.\n",
        ]
        lines.append(f"Cure: {codes.fill_placeholders(rule.cure)}.\n")
    for code, failure in sorted(rules.derived_kinds().items()):
        lines += [f"## {code}: {failure.title}\n", f"{failure.text.strip()}\n"]
    return "\n".join(lines).rstrip() + "\n"


FAILURES = """\
The failures that `imgbuild diagnose` detects, by code. `imgbuild explain CODE` also prints an
example. Words in capitals are placeholders for text from the log. Each rule is a file in
[data/diagnose](../../builder/imgbuild/data/diagnose) with patterns, cause, fix, and a short log.
Codes from IMG901 on are derived from facts, such as the versions in which a name exists.
"""


def findings_page() -> str:
    """Return the page about findings of `imgbuild audit --code`, by code."""
    lines = [GENERATED_NOTE, "# Findings in code\n", FINDINGS]
    for code, kind in kinds.load_finding_kinds().items():
        lines += [f"## {code}: {kind.title}\n", f"{kind.text.strip()}\n"]
        lines += [f"Cure: {kind.cure.strip()}\n"] if kind.cure else []
    return "\n".join(lines).rstrip() + "\n"


FINDINGS = """\
The findings of `imgbuild audit --code` ([how to audit your code](../howto/audit-code.md)), by code.
`imgbuild explain CODE` also prints an example.
"""


def first_sentences(of: type) -> str:
    """Return the first sentence or sentences of a docstring, as one line."""
    return " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())


# --- test runs -----------------------------------------------------------------------------------


def test_runs() -> str:
    """Return all recorded runs of smoke tests, in a table for each target."""
    parts = [GENERATED_NOTE, "# Recorded runs of the smoke tests\n", TEST_RUNS]
    for path in sorted((ROOT / "images").glob(f"*/{records.FILE}")):
        target = path.parent.name
        runs = records.read_records(path.parents[1], target).runs
        parts += [f"## {target}\n", *markdown_table(TEST_RUN, [_test_run(run) for run in runs])]
    return "\n".join(parts)


TEST_RUNS = """\
All passed and failed runs in `images/TARGET/smoke.json`, sorted by date
([test records](../test-records.md)). `config` is the start of the configuration digest. Runs with
another configuration do not count for the current image. `cases` lists the numbers of passed,
failed and skipped cases. The driver is listed for runs on a GPU.
"""
TEST_RUN = (
    "date",
    "config",
    "arch",
    "tier",
    "result",
    "cases",
    "seconds",
    "ran in",
    "GPUs, driver",
    "first failure",
)


def _test_run(run: RecordedRun) -> tuple[str, ...]:
    failure = f"{run.first.case}: {run.first.message}" if run.first else ""
    return (
        run.started[:10],
        run.config.removeprefix("sha256:")[:12],
        run.arch,
        run.tier,
        run.result,
        f"{run.passed}, {run.failed}, {run.skipped}",
        f"{run.seconds:.0f}",
        run.through,
        ", ".join(part for part in (run.gpus, run.driver) if part),
        failure.replace("<", "&lt;"),
    )


# --- Markdown ------------------------------------------------------------------------------------


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table followed by an empty line. Bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    table_rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    ]
    return [*table_rows, ""]


def main(words: Sequence[str] | None = None) -> int:
    """Write or compare the pages. Returns 0 if they are up to date."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description="\n".join(lines), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only compare the pages; exit with status 5 if they are out of date",
    )
    check = parser.parse_args(words).check
    stale = []
    for folder, page_texts in page_folders().items():
        there = {path.name for path in (DOCS / folder).glob("*")}
        stale += [f"{folder}/{name}" for name in sorted(there - page_texts.keys())]
        for name, text in page_texts.items():
            path = DOCS / folder / name
            if path.exists() and path.read_text(encoding="utf-8") == text:
                continue
            stale.append(f"{folder}/{name}")
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(path.relative_to(ROOT))
    if check and stale:
        print(f"stale: {', '.join(stale)}; run tools/reference.py", file=sys.stderr)
        return STALE
    return 0


if __name__ == "__main__":
    sys.exit(main())
