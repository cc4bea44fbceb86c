"""Checks configuration files of accelerate and DeepSpeed."""

# A separate module: one check.
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.named_files import parse_settings
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.source.facts import ModuleFacts
from imgbuild.audit.source.text import string_value
from imgbuild.audit.source.tree import walk_tree
from imgbuild.errors import FetchFailed
from imgbuild.matrix.notes import nearest_choice
from imgbuild.report import Severity
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import valid_source

KEY, VALUE, UNREAD = "IMG404", "IMG405", "IMG406"
ARGUMENTS = "accelerate.commands.config.config_args"
ENUMERATIONS = "accelerate.utils.dataclasses"
_MARKS = frozenset(("distributed_type", "compute_environment"))  # of a file of accelerate
_REFUSAL_TEXT = b"unknown keys"  # in the source of versions that raise for them
_STAGES = (0, 1, 2, 3)
_DEEPSPEED_KEY = re.compile(rb'"(?:zero_optim\w*|train_micro_batch_size_per_gpu\w*)"')
_NAME = re.compile(rb"[\"']([a-z0-9_]+(?:\.[a-z0-9_]+)*)[\"']")
# Files of DeepSpeed with the names of all settings. It ignores other settings at the top level.
_SETTING_FILES = tuple(
    f"deepspeed/{folder}{file}.py"
    for folder in ("", "runtime/", "runtime/*/", "*/")
    for file in ("config", "constants")
)
_MISSPELT = 0.85  # similarity of a setting at the top level to one that DeepSpeed reads
_STAGE = f"valid ZeRO stages are {', '.join(map(str, _STAGES))}"

Problem = tuple[str, str, str, str]  # key, code, message, instead
_AUTO_VALUE = '"auto"'  # in messages about values that only the default replaces


def check_configurations(
    sources: PackageSources, texts: Sequence[CodeText]
) -> Iterator[CodeFinding]:
    """Yield the findings in accelerate and DeepSpeed files among `texts`."""
    for text in texts:
        content = _content(text)
        if isinstance(content, Mapping):
            for key, code, message, instead in _problems(sources, content):
                line, column = _place(text, key)
                yield text.finding(
                    line,
                    column,
                    code=code,
                    severity=Severity.WARNING
                    if code == UNREAD or _AUTO_VALUE in message
                    else Severity.ERROR,
                    message=message,
                    instead=instead,
                )


def _content(text: CodeText) -> Any:
    """Return the content of a file that may configure accelerate or DeepSpeed.

    Return None for other files.
    """
    if text.kind == "json":
        may_configure = _DEEPSPEED_KEY.search(text.source) is not None
    else:
        may_configure = text.kind == "yaml" and any(m.encode() in text.source for m in _MARKS)
    return parse_settings(text) if may_configure else None


def _problems(sources: PackageSources, content: Mapping[Any, Any]) -> Iterator[Problem]:
    if _MARKS & content.keys():
        yield from _accelerate_problems(sources, content)
    zero = content.get("zero_optimization", {})
    if isinstance(zero, Mapping) and not _MARKS & content.keys():
        yield from _deepspeed_problems(sources, content)
        stage = zero.get("stage", 0)
        if isinstance(stage, int) and stage not in _STAGES:
            yield "stage", VALUE, f"zero_optimization: stage {stage}: {_STAGE}", ""
        halves = [content.get(name) for name in ("fp16", "bf16")]
        if all(isinstance(each, Mapping) and each.get("enabled") is True for each in halves):
            yield "bf16", VALUE, "bf16 and fp16 are both enabled, which DeepSpeed rejects", ""


def _deepspeed_problems(sources: PackageSources, content: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield keys that no class of DeepSpeed defines, and "auto" values that are not replaced."""
    version = f"deepspeed {sources.package_set.version('deepspeed')}"
    for path, (file, name) in load_deepspeed_sections().items():
        section: Any = content
        for part in path.split("."):
            section = section.get(part) if isinstance(section, Mapping) else None
        fields = _model_fields(sources.files("deepspeed", [file]).get(file, b""), name)
        for key in section if isinstance(section, Mapping) and fields else ():
            if key not in fields:
                message = f"{version} has no setting {key} in {path} and rejects the file"
                yield str(key), KEY, message, nearest_choice(str(key), fields) or ""
    read = {
        text.decode()
        for source in sources.files("deepspeed", _SETTING_FILES).values()
        for text in _NAME.findall(source)
    }
    for key in map(str, content if read else ()):
        near = "" if key in read else nearest_choice(key, read) or ""
        if near and SequenceMatcher(None, key, near).ratio() >= _MISSPELT:
            yield key, UNREAD, f"{key} has no effect, because {version} does not read it", near
    filled = _filled_settings(sources)
    for path in _automatic_settings(content, "", set()) if filled else ():
        if path not in filled:
            message = f"{path}: neither transformers nor accelerate replaces {_AUTO_VALUE} here"
            yield path.rpartition(".")[2], VALUE, message, ""


@lru_cache(maxsize=1)
def load_deepspeed_sections() -> Mapping[str, tuple[str, str]]:
    """Map each section of a DeepSpeed configuration to the file and class that define its keys."""
    return yaml_data.load_yaml_data(
        files.data("audit/code_deepspeed.yaml"), dict[str, tuple[str, str]]
    )


def _model_fields(source: bytes, name: str) -> frozenset[str]:
    """Return the fields of a class and their aliases.

    The result is empty if the class is missing or has other bases.
    """
    tree = valid_source(source)
    if tree is None:
        return frozenset()
    classes = {node.name: node for node in walk_tree(tree) if isinstance(node, ast.ClassDef)}
    names: set[str] = set()
    while name in classes:
        node = classes[name]
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                names.add(item.target.id)
                calls = [each for each in [item.value] if isinstance(each, ast.Call)]
                names |= {
                    text
                    for call in calls
                    for each in call.keywords
                    if each.arg == "alias" and (text := string_value(each.value))
                }
        base = node.bases[0] if len(node.bases) == 1 else None
        name = base.id if isinstance(base, ast.Name) else ""
        if name == "DeepSpeedConfigModel":
            return frozenset(names)
    return frozenset()


def _filled_settings(sources: PackageSources) -> frozenset[str]:
    """Return the settings whose value "auto" transformers or accelerate replaces.

    The result is empty if these settings are unknown.
    """
    paths = {
        "transformers": ("transformers/integrations/deepspeed.py", "transformers/deepspeed.py"),
        "accelerate": ("accelerate/utils/dataclasses.py", "accelerate/accelerator.py"),
    }
    names: set[str] = set()
    for package, patterns in paths.items():
        for source in sources.files(package, patterns).values():
            names |= {text.decode() for text in _NAME.findall(source)}
    return frozenset(names)


def _automatic_settings(content: Any, prefix: str, seen: set[int]) -> Iterator[str]:
    """Yield the dotted paths of settings whose value is "auto"; aliases are visited once."""
    if not isinstance(content, Mapping) or id(content) in seen:
        return
    seen.add(id(content))
    for key, value in content.items():
        if value == "auto":
            yield f"{prefix}{key}"
        yield from _automatic_settings(value, f"{prefix}{key}.", seen)


def _accelerate_problems(sources: PackageSources, content: Mapping[Any, Any]) -> Iterator[Problem]:
    fields = _fields(sources)
    version = f"accelerate {sources.package_set.version('accelerate')}"
    for key in content if fields else ():
        if key not in fields:
            message = f"{version} has no setting {key} and rejects the file"
            yield str(key), KEY, message, nearest_choice(str(key), fields) or ""
    processes = content.get("num_processes")
    if processes is not None and (not isinstance(processes, int) or processes < -1):
        message = f"num_processes: {processes} is not a valid number of processes"
        yield "num_processes", VALUE, message, ""
    yield from _enumeration_problems(sources, content, version)
    deepspeed = content.get("deepspeed_config")
    stage = deepspeed.get("zero_stage") if isinstance(deepspeed, Mapping) else None
    if isinstance(stage, int) and stage not in _STAGES:
        yield "zero_stage", VALUE, f"deepspeed_config: zero_stage {stage}: {_STAGE}", ""


def _enumeration_problems(
    sources: PackageSources, content: Mapping[Any, Any], version: str
) -> Iterator[Problem]:
    """Yield values that accelerate's enumerations do not contain."""
    facts = sources.package_set.module(ENUMERATIONS)
    if not isinstance(facts, ModuleFacts) or content.get("compute_environment") != "LOCAL_MACHINE":
        return
    for key, name in (
        ("distributed_type", "DistributedType"),
        ("mixed_precision", "PrecisionType"),
    ):
        members = {
            field.name
            for each in facts.classes
            if each.name == name and each.bases
            for field in each.fields
        }
        value = content.get(key)
        if isinstance(value, str) and members and value.upper() not in members:
            message = f"{key}: {value} is not among the values of {version}"
            instead = nearest_choice(value.upper(), members) or ""
            yield key, VALUE, message, instead if key == "distributed_type" else instead.lower()


def _fields(sources: PackageSources) -> frozenset[str]:
    """Return the settings that a file can contain.

    The result is empty if they are unknown, or if other settings are ignored.
    """
    package_set = sources.package_set
    try:
        facts = package_set.module(ARGUMENTS)
        path = package_set.modules_of("accelerate").get(ARGUMENTS, "")
        source = package_set.read("accelerate", path) or b""
    except FetchFailed:
        return frozenset()
    if not isinstance(facts, ModuleFacts) or _REFUSAL_TEXT not in source:
        return frozenset()
    fields = {field.name for each in facts.classes for field in each.fields}
    # Old names of settings are removed first, by their names.
    return frozenset(fields | {name.decode() for name in re.findall(rb"[\"'](\w+)[\"']", source)})


def _place(text: CodeText, key: str) -> tuple[int, int]:
    """Return the line and column of a key, counted from 1."""
    pattern = re.compile(rf"(?:^\s*|[{{,]\s*)[\"']?({re.escape(key)})[\"']?\s*:", re.MULTILINE)
    source = text.source.decode(errors="replace")
    match = pattern.search(source)
    if match is None:
        return 1, 1
    start = source.rfind("\n", 0, match.start(1)) + 1
    return source.count("\n", 0, match.start(1)) + 1, match.start(1) - start + 1
