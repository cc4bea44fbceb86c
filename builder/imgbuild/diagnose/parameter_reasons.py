"""Explains unexpected arguments by the releases that accept them."""

# A separate module: by a table.
from __future__ import annotations

import re

from imgbuild.audit.names import parameters, releases
from imgbuild.diagnose import calls
from imgbuild.diagnose.existence import existence_reason
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason

# A model's class, whose methods transformers calls.
OF_MODEL = re.compile(r"^[A-Z]\w*(?:Model|For(?!mer)[A-Z]\w+)\.forward$")
TYPICAL = (
    "LlamaForCausalLM.forward",
    "LlamaModel.forward",
    "LlavaForConditionalGeneration.forward",
)


def parameter_reason(text: str, caller: str, above: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a release of a package lacks the argument that a caller passes.

    `caller` is the import name of the package that failed, and `above` that of its caller.
    """
    match = calls.KEYWORD.search(text)
    callee = match["callee"] if match else ""
    if match is None or not callee or releases.argument_existence(callee, match["name"]):
        return None
    name = match["name"]
    function = callee.removeprefix("__main__.")
    if "." not in function and function[:1].isupper():
        function += ".__init__"
    if caller in calls.OWN_MODELS and OF_MODEL.match(function):
        return None  # a model of the engine, whose class has the name of one of transformers
    found = parameters.accepting_releases(function, name)
    near = (*map(releases.package_name, (caller, above)), *facts.versions, *found)
    package = next((each for each in near if each in found), "")
    if not package:
        return _own_model_reason(function, name)
    shown = function.removesuffix(".__init__")
    user = caller if releases.package_name(caller) != package else above
    return existence_reason(
        found[package], f"the argument {name} of {shown}", f"remove {name}", "IMG904", facts,
        user if releases.package_name(user) != package else "",
    )  # fmt: skip


def _own_model_reason(function: str, name: str) -> Reason | None:
    """Return the cause if transformers passes a new argument to a model of another project."""
    if not OF_MODEL.match(function) or parameters.is_listed(
        "transformers", function.partition(".")[0]
    ):
        return None
    for typical in TYPICAL:
        existence = parameters.accepting_releases(typical, name).get("transformers")
        if existence is not None and existence.adding_version:
            return Reason(
                code="IMG904",
                cause=f"transformers passes {name} to {function}, code that is not its own (of a"
                " project, or loaded with the model): that was written for transformers before"
                f" {existence.adding_version}, and the installed one is newer",
                cure=f"pip install 'transformers<{existence.adding_version}', or the version that"
                f" the project requires; or add **kwargs to the parameters of {function}",
            )
    return None
