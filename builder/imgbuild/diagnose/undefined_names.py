"""Explains names of packages that code uses and that are not defined there."""

# A separate module: one kind of exception.
from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.diagnose import requirements
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

UNDEFINED = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
NEAR = re.compile(r"Did you mean: '(\w+)'")
# Packages that define classes for those of Transformer Engine, if it can be imported.
WRAPPING = ("megatron", "nemo", "mbridge", "mindspeed")
TE_CLASS = re.compile(r"[T]E[A-Z][a-z]")
ALIASES = {
    "bnb": "bitsandbytes",
    "np": "numpy",
    "pd": "pandas",
    "nn": "torch",
    "F": "torch",
    "plt": "matplotlib",
}


def undefined_name_reason(text: str, caller: str, _code: str, facts: LogFacts) -> Reason | None:
    """Return the cause of an undefined name.

    The name is that of a known package, or a known package defines it.
    """
    match = UNDEFINED.search(text)
    if match is None:
        return None
    name = match["name"]
    if TE_CLASS.match(name) and caller in WRAPPING:
        return _wrapped_class_reason(name, releases.package_name(caller))
    package = ALIASES.get(name, "") or releases.name_owner(name) or _package_by_class_name(name)
    if not package:
        return None
    user = releases.package_name(caller)
    near = NEAR.search(text)
    if user and user != package and near and near[1][:1].isupper():
        return Reason(
            code="IMG902",
            cause=f"the code of {user} uses {name} of {package}, which a different release"
            f" of {package} calls {near[1]}: {user} does not support the installed {package}",
            cure=requirements.update_cure(package, caller, facts),
        )
    existence = releases.name_existence(package.replace("-", "_"), name)
    if user and user != package and existence is not None and existence.adding_version:
        return Reason(
            code="IMG902",
            cause=f"{user} uses {name} of {package}, which is older than that or not installed:"
            f" {existence.change_sentence(name)}",
            cure=f"pip install '{existence.requirement()}'",
            confidence="high",
        )
    what = package if name == package.replace("-", "_") else f"{name} (of {package})"
    if user and user != package:
        return Reason(
            code="IMG902",
            cause=f"{user} imports {what} only if {package} is installed and new enough: it is"
            " absent, too old for this release or broken in this environment",
            cure=f"pip install -U {package} in this environment (imgbuild resolve {user} {package}"
            f" finds versions that fit), and run python -c 'import {package.replace('-', '_')}' to"
            " see its error",
        )
    return Reason(
        code="IMG902",
        cause=f"{what} is not imported: the import is missing, or it failed in a try block because"
        f" {package} is not installed or cannot be imported",
        cure=f"run python -c 'import {package.replace('-', '_')}' in this environment: install"
        f" {package} or fix the error that it shows; if it works, add the import",
    )


def _wrapped_class_reason(name: str, user: str) -> Reason:
    """Return the reason for a class that `user` defines only with Transformer Engine."""
    return Reason(
        code="IMG902",
        cause=f"{user} defines {name} only if transformer-engine can be imported: it is absent,"
        " broken or too old in this environment",
        cure="run python -c 'import transformer_engine.pytorch' to see its error, pip install"
        " --no-build-isolation 'transformer-engine[pytorch]' for this torch, or select layers"
        " without it (Megatron: --transformer-impl local)",
        confidence="high",
    )


def _package_by_class_name(name: str) -> str:
    """Return the package whose name starts the name of a class, such as peft for PeftModel.

    Return "" if there is no such package.
    """
    packages = releases.load_name_table().packages.split()
    plain = ((each, each.replace("-", "")) for each in packages if len(each) > 3)
    return next(
        (each for each, text in plain if name[:1].isupper() and name.lower().startswith(text)), ""
    )
