"""Explains attributes that a module or an object does not have."""

from __future__ import annotations

import re

from imgbuild.audit.names import parameters, releases
from imgbuild.diagnose import calls, requirements, shadowed
from imgbuild.diagnose.existence import existence_reason, is_in_log_version, moved_import
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

BUILT_IN = ("NoneType", "str", "list", "dict", "int", "tuple", "float", "function")
FAILURE = re.compile(r"^[A-Z]\w*(?:Error|Exception)$")
CODE = "IMG905"


def attribute_reason(text: str, facts: LogFacts, caller: str) -> Reason | None:
    """Return the cause of an AttributeError.

    `caller` is the import name of the package whose code reads the attribute. Return None for other
    errors, and for attributes of Python's built-in types.
    """
    if not text.startswith("AttributeError") and "AttributeError" not in text[:60]:
        return None
    match = calls.ATTRIBUTE.search(text)
    if match is None:
        return None
    name, module = match["name"], match["module"]
    owner = match["owner"] or match["bare"] or ""
    if owner in BUILT_IN:
        return None
    if module:
        return _module_reason(module, name, facts, caller)
    existence, what = releases.member_existence(owner, name), f"{owner}.{name}"
    if existence is None and (existence := releases.member_existence(f"Async{owner}", name)):
        what = f"Async{owner}.{name}, which {owner} has in no release"
    if existence is not None and existence.spec and not is_in_log_version(existence, facts):
        return existence_reason(existence, what, f"do not use {name}", CODE, facts)
    fields = parameters.accepting_releases(f"{owner}.__init__", name)
    field = next(iter(fields.values()), None)
    if field is not None and len(fields) == 1 and not is_in_log_version(field, facts):
        return existence_reason(field, f"{owner}.{name}", f"do not use {name}", CODE, facts, caller)
    return _class_reason(owner, name, facts, caller)


def _module_reason(module: str, name: str, facts: LogFacts, caller: str) -> Reason:
    """Return the reason for a module without an attribute."""
    existence = releases.name_existence(module, name) or releases.module_existence(
        f"{module}.{name}"
    )
    if existence is not None:
        remove = moved_import(module, name, f"do not use {name}")
        return existence_reason(existence, f"{module}.{name}", remove, CODE, facts)
    if (replaced := shadowed.replaced_module_reason(module, name)) is not None:
        return replaced
    package = releases.distribution_of_module(module)
    cause = f"the installed {package} has no {name} in {module}: the code was written for a"
    cure = requirements.update_cure(package, caller, facts)
    if "." in module:
        return Reason(code=CODE, cause=f"{cause} different version", cure=cure)
    return Reason(
        code=CODE,
        cause=f"{cause} different version, or a file or folder named {module} is imported instead"
        f" of {package}",
        cure=f"python -c 'import {module}; print({module}.__file__)' shows what is imported: rename"
        f" it, or {cure}",
    )


def _class_reason(owner: str, name: str, facts: LogFacts, caller: str) -> Reason:
    """Return the reason for an object of class `owner` without an attribute."""
    package = releases.name_owner(owner)
    if owner.endswith("TrainingArguments") and caller in ("", "trl"):
        return Reason(
            code=CODE,
            cause=f"{owner} is passed to a trainer that reads its own setting {name} from args: the"
            " trainers of trl need their own class of arguments, such as SFTConfig, DPOConfig,"
            f" GRPOConfig or RewardConfig, which has {name}",
            cure=f"replace {owner}(…) with the configuration named like the trainer (DPOTrainer:"
            f" args=DPOConfig(…)), or install the trl that the script was written for",
        )
    if package:
        return Reason(
            code=CODE,
            cause=f"{owner}, a class of {package}, has no {name} in the installed version: the"
            f" code that uses it was written for another {package}",
            cure=requirements.update_cure(package, caller, facts),
        )
    if FAILURE.search(owner):
        return Reason(
            code=CODE,
            cause=f"a call failed with {owner}, and the code uses this exception object as the"
            f" result: it reads .{name} of it",
            cure=f"look for the {owner} earlier in the log, or print the object before .{name} is"
            " read: its message names the failure; a newer release of the caller may raise it",
        )
    if owner.endswith("Config"):
        return _configuration_reason(owner, name, facts.versions.get("transformers", ""))
    if owner.endswith("Trainer"):
        return Reason(
            code=CODE,
            cause=f"the Trainer of trl or transformers from which {owner} is derived does not set"
            f" {name} in the installed version: {owner} was written for another one",
            cure="install the trl and transformers that the project's requirements name (pip"
            f" install 'trl==VERSION' 'transformers==VERSION'), or set self.{name} in"
            f" {owner}.__init__",
        )
    return Reason(
        code=CODE,
        cause=f"{owner} has no attribute {name} in the installed version: the code was written for"
        " a different version",
        cure="install the version of the package that defines it that the code was written for, or"
        " change the code",
    )


def _configuration_reason(owner: str, name: str, version: str) -> Reason:
    """Return the reason for a model configuration without a field.

    `version` is the version of transformers.
    """
    major = version.partition(".")[0]
    older = f" (pip install 'transformers<{major}')" if major in ("4", "5") else ""
    return Reason(
        code=CODE,
        cause=f"{owner} does not define {name}: this configuration and the code that reads it are"
        " of different versions, or the model's own code was written for another transformers than"
        f" the installed one{version and f' ({version})'}",
        cure="install the transformers that transformers_version in the model's config.json or its"
        f" card names{older}, or newer code of the model",
    )
