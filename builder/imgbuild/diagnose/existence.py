"""Explains a missing name by the releases that contain it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from imgbuild.audit.names import releases
from imgbuild.audit.names.releases import Existence
from imgbuild.diagnose import requirements
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

# Sentences of a note, in English or Chinese.
OWNER = re.compile(r"(?<!\w)[A-Z]\w{2,40}(?:Config|Trainer|Args|Params)(?!\w)")
LACKS = re.compile(
    r"没有|不支持|不接受|不存在|(?:移除|删除|去掉|取消)了?|has no\b|lacks\b|"
    r"(?:does(?: not|n't)|did(?: not|n't)) (?:have|accept|support|exist|know)\b|"
    r"\b(?:is|was|were) (?:not (?:supported|available|accepted)|gone|removed|dropped)\b"
)
ARGUMENT = re.compile(r"(?<![\w./-])(?:[a-z][^\W_]*+_\w++(?![./(])|[a-z]\w++(?= ?=[^=]))")
MOST_OWNERS = 8  # classes that a line may name
TRL_COMMAND = re.compile(
    r"\btrl: error: argument [\w ]{1,40}: invalid choice: '(?P<name>[\w-]{2,40})'"
)
UNUSED = "IMG847"
UNUSED_NAME = re.compile(r"['\"](?P<dashes>--)?(?P<name>[A-Za-z]\w{2,60})(?:=[^'\"]*)?['\"]")
# The classes whose fields are options of training scripts.
OF_TRAINERS = (
    *("TrainingArguments", "SFTConfig", "GRPOConfig", "DPOConfig", "RewardConfig", "KTOConfig"),
    *("RLOOConfig", "PPOConfig", "ModelConfig", "ScriptArguments"),
)


def is_in_log_version(existence: Existence, facts: LogFacts) -> bool:
    """Whether the version in the log has the name, so that another reason must be found."""
    version = facts.versions.get(existence.package, "")
    return bool(version) and existence.allows_version(version)


def moved_import(module: str, name: str, remove: str) -> str:
    """Return the import of a name that was moved to a package's experimental part, or `remove`."""
    moved = releases.experimental_module(module.partition(".")[0], name)
    return f"from {moved[0]} import {name} ({moved[1].requirement()})" if moved else remove


def _changed_argument(
    owners: Iterable[str], name: str, facts: LogFacts
) -> tuple[str, Existence] | None:
    """Return the first class of `owners` of which releases differ in whether it has an argument.

    Return None if the version in the log has the argument.
    """
    for owner in owners:
        existence = releases.argument_existence(owner, name)
        if existence is not None and existence.spec and not is_in_log_version(existence, facts):
            return owner, existence
    return None


def option_reason(
    shown: str, name: str, owners: Iterable[str], code: str, facts: LogFacts
) -> Reason | None:
    """Return the cause if releases differ in whether a class of `owners` has the option `name`."""
    changed = _changed_argument(owners, name, facts)
    if changed is None:
        return None
    _, existence = changed
    new = existence.instead
    if new and not new.startswith("enable_") and shown.startswith("--"):
        new = f"--{new}" if "_" in shown else f"--{new.replace('_', '-')}"
    existence = msgspec.structs.replace(existence, instead=new)
    return existence_reason(existence, f"the option {shown}", f"remove {shown}", code, facts)


def command_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause if releases of trl differ in whether they have a command."""
    match = TRL_COMMAND.search(text)
    name = match["name"] if match else ""
    existence = releases.exact_module_existence(f"trl.scripts.{name.replace('-', '_')}")
    if existence is None or not existence.spec or is_in_log_version(existence, facts):
        return None
    shown = f"trl {name}"
    return existence_reason(existence, f"the command {shown}", f"omit {shown}", "IMG912", facts)


def unused_arguments_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause for arguments or keys that the dataclasses of a script lack."""
    for match in UNUSED_NAME.finditer(text):
        shown, name = f"{match['dashes'] or ''}{match['name']}", match["name"]
        if (reason := option_reason(shown, name, OF_TRAINERS, UNUSED, facts)) is not None:
            return reason
    return None


def noted_argument_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause for a line that says in words that a class lacks an argument."""
    if LACKS.search(text) is None:
        return None
    owners = [*dict.fromkeys(OWNER.findall(text))][:MOST_OWNERS]
    if not owners:
        packages = (("trl", OF_TRAINERS), ("vllm", ("EngineArgs", "SamplingParams")))
        owners = [each for name, names in packages if name in text.lower() for each in names]
    for match in ARGUMENT.finditer(text):
        if (changed := _changed_argument(owners, match[0], facts)) is not None:
            owner, existence = changed
            what = f"the argument {match[0]} of {owner}"
            return existence_reason(existence, what, f"remove {match[0]}", "IMG904", facts)
    return None


def existence_reason(
    existence: Existence, what: str, remove: str, code: str, facts: LogFacts, caller: str = ""
) -> Reason:
    """Return the reason according to `existence`.

    The cure is a change of the code or a pin. `caller` is the package that uses the name. Users
    cannot change its code.
    """
    cures = []
    user = releases.package_name(caller)
    version = facts.versions.get(existence.package, "")
    if (
        version
        and existence.spec
        and existence.covers_version(version)
        and is_in_log_version(existence, facts)
    ):
        package = existence.package
        return Reason(
            code=code,
            cause=f"{existence.change_sentence(what)}, and the log shows {package} {version}, which"
            f" has it: another {package} is imported",
            cure=f"compare python -m pip show {package} with the folder that the program imports"
            " (print its __file__ and __version__): restart the notebook's kernel after an update,"
            f" and remove a second {package} (a checkout in the working directory, ~/.local,"
            " another environment on PATH)",
        )
    if user and user != existence.package:
        newer = not existence.spec or existence.removing_version
        cures.append(f"use {'a newer' if newer else 'an older'} {user}, which does not use it")
    elif _is_opposite(existence.instead, what):
        cures.append(f"{remove} ({existence.instead}, the opposite, is off by default)")
    elif existence.instead:
        cures.append(f"use {existence.instead}")
    elif not existence.spec or existence.removing_version:
        cures.append(remove)
    known = user in facts.versions or version
    if known and (pin := requirements.pin_cure(existence.package, caller, facts, version)):
        cures = [pin]
    elif existence.spec:
        added = user and not existence.removing_version
        span = requirements.newest_specifier(user, existence.package) if added else ""
        limit = f", in the range that this {user} requires (the newest: {span})" if span else ""
        cures.insert(0 if user else len(cures), f"install {existence.requirement()}{limit}")
    cause = existence.change_sentence(what)
    if version:
        cause += f" (the log shows {existence.package} {version})"
    return Reason(
        code=code,
        cause=cause,
        cure=", or ".join(cures),
        confidence="high" if existence.spec else "medium",
    )


def defined_elsewhere_reason(name: str, package: str) -> Reason | None:
    """Return the reason for a class that a package does not export, but that modules define."""
    definers = releases.definers(name)
    if not definers:
        return None
    cures = [
        f"from {each.replace('-', '_')} import {name} (the class of {each})"
        for each in definers
        if each != package
    ]
    if package in definers:
        folder = f"$(python -c 'import {package}; print({package}.__path__[0])')"
        find = f"grep -rn 'class {name}' {folder}"
        cures.insert(0, f"import it from the module of {package} that defines it: {find}")
    return Reason(
        code="IMG902",
        cause=f"{package} does not export {name}: it is a class of {' and of '.join(definers)}"
        + (", below its top module" if package in definers else ""),
        cure=", or ".join(cures),
    )


def _is_opposite(instead: str, what: str) -> bool:
    """Whether the name that replaces `what` enables what the old one disabled."""
    old = instead.replace("enable_", "disable_", 1)
    return instead.startswith("enable_") and old in what.replace("-", "_")
