"""Explains errors in the code of a model that uses transformers."""

# A separate module: one package.
from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.audit.names.releases import Existence
from imgbuild.diagnose import attributes, calls, owners, python_reasons
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

TYPES = re.compile(r"(?:AttributeError|ImportError|TypeError|ModuleNotFoundError): ")


def model_code_reason(text: str, facts: LogFacts, caller: str) -> Reason | None:
    """Return the cause if a model's own code uses what the installed transformers lacks.

    `caller` is the package whose code raised the exception.
    """
    if caller != owners.MODEL_CODE or not TYPES.match(text):
        return None
    used = _used_name(text)
    if used is None:
        return None
    what, existence = used
    dated = existence if existence is not None and existence.spec else None
    version = facts.versions.get("transformers", "")
    shown = f"transformers {version}" if version else "transformers"
    change = dated.change_sentence(what) if dated else "it was written for a different version"
    pin = dated.requirement() if dated else ""
    return Reason(
        code="IMG905",
        cause=f"the model's own code (trust_remote_code) uses {what}, which does not fit the"
        f" installed {shown}: {change}",
        cure=f"install {pin or 'the transformers of transformers_version in its config.json'}, use"
        " a newer revision of the model's code, or load the class that transformers has for this"
        " model type (without trust_remote_code)",
        confidence="high" if dated else "medium",
    )


def _used_name(text: str) -> tuple[str, Existence | None] | None:
    """Return the name that the code uses, and the versions that have it.

    Return None if the message contains no name.
    """
    if match := calls.IMPORT.search(text):
        name, module = match["name"], match["module"]
        return f"{name} of {module}", releases.name_existence(module, name)
    if match := calls.ATTRIBUTE.search(text):
        owner = match["module"] or match["owner"] or match["bare"]
        if owner in attributes.BUILT_IN:
            return None
        return f"{owner}.{match['name']}", releases.member_existence(owner, match["name"])
    if match := calls.KEYWORD.search(text):
        return f"the argument {match['name']} of {match['callee'] or 'a function'}", None
    if match := python_reasons.POSITIONAL.search(text):
        return f"{match['callee']} without {match['names'].splitlines()[0]}", None
    return None
