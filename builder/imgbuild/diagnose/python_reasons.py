"""Explains Python errors by the names in the errors."""

from __future__ import annotations

import re

from imgbuild.audit.names import parameters, releases
from imgbuild.audit.names.releases import Existence
from imgbuild.diagnose import attributes, calls, flag_reasons, requirements, standard_reasons
from imgbuild.diagnose.existence import (
    defined_elsewhere_reason,
    existence_reason,
    is_in_log_version,
    moved_import,
)
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.rules import FindingConfidence
from imgbuild.values import normalize_package

# Methods of transformers' models, whose arguments change between releases.
FORWARD = re.compile(r"^[A-Z]\w*(?:Model|ForCausalLM|Attention|DecoderLayer|Generation)\.forward$")
VALIDATED = re.compile(
    r"validation errors? for (?P<callee>\w+)\s+(?P<name>\w+)\s+(?:Unexpected keyword argument|"
    r"Extra inputs are not permitted)"
)
PACKAGE_ABSENT = re.compile(
    r"PackageNotFoundError: (?:No package metadata was found for )?"
    r"(?:The '(?P<required>[\w.-]+?)(?:[<>=!~,][^']{0,60})?' distribution was not found|"
    r"(?P<module>[\w.-]+))"
)
POSITIONAL = re.compile(
    r"TypeError: (?P<callee>[\w.]+)\(\) missing \d+ required (?:positional|keyword-only)"
    r" arguments?: (?P<names>.*\w.*)"
)
COUNTED = re.compile(
    r"TypeError: (?P<callee>[\w.<>]+)\(\) takes (?:from \d+ to )?(?P<takes>\d+) positional"
    r" arguments? but (?P<given>\d+) (?:was|were) given"
)
HYDRA = re.compile(
    r"(?:Could not override '(?P<key>[\w.@+-]+)'|Key '(?P<struct>[\w.]+)' is not in struct|"
    r"Missing key (?P<missing>(?!in )[\w.]+))"
)
FULL_KEY = re.compile(r"full_key: (?P<key>[\w.\[\]-]{1,160})")
VERLS = ("actor_rollout_ref", "critic", "reward_model", "algorithm")
CLASS_CALL = re.compile(r"\b([A-Z]\w+)\(")
MODEL_TYPE = re.compile(
    r"model type [`'\"]?(?P<type>[\w.-]+)[`'\"]?,? but (?:your )?Transformers|"
    r"^KeyError: '(?P<key>[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*)'$"
)
ARCHITECTURE = re.compile(
    r"Model architectures \[['\"](?P<name>\w+)['\"].{0,200}\] are not supported"
)
# What replaces a variable.
OPTIONS = {
    "VLLM_ATTENTION_BACKEND": "attention_backend=…",
    "VLLM_WORKER_USE_RAY": "distributed_executor_backend=ray",
}
# Variables of plugins, and those that users' code may read.
OTHER_VARIABLES = re.compile(r"VLLM_(?!WORKER_USE_)")
SETS = re.compile(
    r"(?:(?:^|\s|;)(?:export|ENV|-e|--env|set|env)\s+|^\s*(?:-\s+(?:name:\s*)?)?['\"]?|"
    r"\benviron\[['\"])(?P<name>VLLM_[A-Z0-9_]+)(?:['\"]?\]?\s*[=:]|['\"]?$)|"
    r"(?:Unknown vLLM environment variable detected: |Using (?=VLLM_\w+ environment variable is"
    r" deprecated))(?P<unknown>VLLM_[A-Z0-9_]+)"
)


def python_reason(text: str, facts: LogFacts, caller: str = "", code: str = "") -> Reason | None:
    """Return the cause of an error, from the names in it.

    `caller` is the package that made the call, and `code` the line of the call.
    """
    if text.startswith("TypeError: __init__()") and (called := CLASS_CALL.findall(code)):
        # Python before 3.10 does not name the class: the innermost call of the line is it.
        text = text.replace("__init__()", f"{called[-1]}.__init__()", 1)
    if (overridden := calls.overridden_method_reason(text, caller, code, facts)) is not None:
        return overridden
    if (standard := standard_reasons.standard_reason(text, facts)) is not None:
        return standard
    if (architecture := _architecture(text, facts, caller, code)) is not None:
        return architecture
    for explain in calls.FUNCTIONS:
        if (unexpected := explain(text, caller, code, facts)) is not None:
            return unexpected
    for function in FUNCTIONS:
        answer = function(text, facts, caller)
        if answer is not None:
            return answer
    return None


def unknown_name_reason(text: str) -> Reason | None:
    """Return the cause for a line with a name that exists in no release."""
    for each in releases.load_name_table().invented:
        if re.search(each.pattern, text):
            return Reason(code="IMG919", cause=each.cause, cure=each.cure, confidence="high")
    return None


def variable_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause for a line that sets a variable which the package does not read."""
    match = SETS.search(text)
    name = (match["name"] or match["unknown"]) if match else ""
    existence = releases.variable_existence(name) if name else None
    if match is None or existence is None:
        return None
    version = facts.versions.get(existence.package, "")
    if version and existence.allows_version(version):
        return None
    if not existence.spec and not existence.instead and OTHER_VARIABLES.match(name):
        return None
    confidence: FindingConfidence = "medium" if version or not existence.spec else "low"
    cure = f"write {existence.instead}" if existence.instead else "remove it"
    if existence.removing_version:
        cure = f"remove it, or use {existence.requirement()}"
    if name in OPTIONS:
        cure = cure.replace("remove it", f"pass {OPTIONS[name]} instead", 1)
    return Reason(
        code="IMG920",
        cause=f"{name} has no effect: {existence.change_sentence(f'the variable {name}')}",
        cure=cure,
        confidence=confidence,
        role="symptom",
    )


def _keyword(text: str, facts: LogFacts, caller: str) -> Reason | None:
    match = calls.KEYWORD.search(text) or VALIDATED.search(text)
    if match is None:
        return None
    callee, name = (match["callee"] or "").removeprefix("__main__."), match["name"]
    plain = callee.removesuffix(".__init__")
    unnamed = plain in ("", "__init__")  # Python before 3.10 does not name the class
    existence = None if unnamed else releases.argument_existence(plain, name)
    if not plain or (unnamed and name.count("_") > 1):
        existence = _main_class_existence(name)
    if existence is None and unnamed:
        existence = _of_mentioned(name, facts)
    plain = "" if unnamed else plain
    what = f"the argument {name}" + f" of {plain}" * (not unnamed)
    if existence is None:
        target = plain or "the function called"
        if (other := calls.other_package_reason(plain, name, caller, facts)) is not None:
            return other
        of_model = FORWARD.search(plain) is not None
        cure = f"remove {name}, or install the version that the caller was written for"
        if package := releases.exporting_package(plain):
            return Reason(
                code="IMG904",
                cause=f"{plain} of the installed {package} does not accept the argument {name}:"
                f" this {package} is older than its caller expects, or has dropped it",
                cure=f"pip install -U {package} within what the caller allows"
                f" ({requirements.update_cure(package, caller, facts)}), or remove {name}",
            )
        if of_model and caller != "transformers":
            cure = (
                f"install the version of transformers that {caller or 'the calling code'} requires"
            )
            cure += f" (a newer one if that added {name}; imgbuild resolve transformers finds one)"
            cure += f", or remove {name}"
        return Reason(
            code="IMG904",
            cause=f"{target} does not accept the argument {name} in the installed"
            f" {'transformers' if of_model else 'version'}",
            cure=cure,
            confidence="medium" if plain else "low",
        )
    if not existence.spec and not existence.instead:
        return _unknown_argument_reason(existence, plain, name, facts, caller)
    remove, config = f"remove {name}", f"{plain.removesuffix('Trainer')}Config"
    if existence.package == "trl" and plain.endswith("Trainer") and existence.removing_version:
        remove = f"pass {name} in {config} (args={config}({name}=…)) instead of {plain}"
    return existence_reason(existence, what, remove, "IMG904", facts)


def _unknown_argument_reason(
    existence: Existence, callee: str, name: str, facts: LogFacts, caller: str
) -> Reason:
    """Return the reason for an argument whose addition or removal is unknown.

    No release between `first` and `last` added or removed the argument. Arguments that all these
    releases have are not in the table, and an older release may lack them.
    """
    package, version = existence.package, facts.versions.get(existence.package, "")
    span = f"from {existence.first} to {existence.last}"
    instead = releases.renamed_parameter(package, callee, name)
    if version and existence.covers_version(version):
        return Reason(
            code="IMG904",
            cause=f"no {package} {span} has the argument {name} of {callee} (the log shows"
            f" {package} {version})",
            cure=f"use {instead}"
            if instead
            else f"remove {name}; a fork or another package defines it",
        )
    shown = f"{package} {version}" if version else f"the installed {package}"
    user = releases.package_name(caller)
    if user and user != package:
        return Reason(
            code="IMG904",
            cause=f"{user} passes {name} to {callee}, which no {package} {span} added or removed: a"
            f" fault of this {user}, or an option of {user} that it hands over to {package}",
            cure=f"pip install -U {user}; or do not set {name} in the call of {user}; if {package}"
            f" is older than {existence.first}, also update {package}",
        )
    return Reason(
        code="IMG904",
        cause=f"{shown} does not accept the argument {name} of {callee}, which no release {span}"
        f" added or removed: {shown} is older than {existence.first}, or {name} is defined by a"
        " fork",
        cure=f"install {package}>={existence.first} if it is older, else remove {name}",
    )


def _of_mentioned(name: str, facts: LogFacts) -> Existence | None:
    """Return the versions in which a class of a package accepts the argument `name`.

    The log must show the version of the package.
    """
    existence = releases.accepting(name)
    known = existence is not None and existence.package in facts.versions
    return existence if known else None


def _main_class_existence(name: str) -> Existence | None:
    """Return the versions in which a main class of vLLM accepts the argument `name`.

    This is used for an error that names no callable.
    """
    for callee in ("SamplingParams", "EngineArgs", "LLM"):
        existence = releases.argument_existence(callee, name)
        if existence is not None and existence.spec:
            return existence
    return None


def _import_reason(text: str, facts: LogFacts, caller: str) -> Reason | None:
    match = calls.IMPORT.search(text)
    if match is None:
        return None
    name, module = match["name"], match["module"]
    if match["circular"] and name.startswith("_") and "-packages/" in text:
        package = releases.package_name(module)
        return Reason(
            code="IMG902",
            cause=f"{module} does not find its compiled module {name}: the wheel of {package} has"
            " it for another version of Python (the number in its file's name), or not at all",
            cure=f"ls the folder of {module} to see for which Python {name} was built"
            " (cpython-312: Python 3.12), and use that Python (uv venv --python 3.12); or install"
            f" another release: pip install -U --force-reinstall --no-deps {package}",
        )
    if match["circular"]:
        return Reason(
            code="IMG902",
            cause=f"importing {name} from {module} is circular: a file of the project is named"
            " like a package, or packages import each other",
            cure="rename files of the project that are named like a package"
            f" ({module.split('.')[0]}.py)",
        )
    if (released := _released_reason(module, name, facts, caller)) is not None:
        return released
    package = releases.distribution_of_module(module)
    if respelled := releases.respelled_class(name, package):
        return Reason(
            code="IMG902",
            cause=f"{package} has no {name}: the class is named {respelled} (only the case"
            " differs)",
            cure=f"import {respelled} instead of {name}, also in other files and in the"
            " configurations that name the class (tokenizer_class, architectures)",
            confidence="high",
        )
    if not caller and (sources := calls.sources_folder_reason(text)) is not None:
        return sources
    if "." not in module and (elsewhere := defined_elsewhere_reason(name, package)) is not None:
        return elsewhere
    package = module.partition(".")[0] if " " in package else package
    return Reason(
        code="IMG902",
        cause=f"the installed {package} has no {name} in {module}: what imports it was written for"
        f" a different version, or {package} omits it because an optional package is absent",
        cure=f"{requirements.update_cure(package, caller, facts)}; python -c 'import {module}'"
        " shows"
        " what is absent",
    )


def _released_reason(module: str, name: str, facts: LogFacts, caller: str) -> Reason | None:
    """Return the reason for a name or its module, of which releases differ in whether they have it.

    A release may have moved the name to the package above the module.
    """
    what, remove = f"{module}.{name}", f"do not import {name}"
    known = releases.name_existence(module, name)
    # The module is there, so its own versions do not explain the absent name.
    existence = known or releases.exact_module_existence(f"{module}.{name}")
    if existence is not None:
        remove = moved_import(module, name, remove)
        return existence_reason(existence, what, remove, "IMG902", facts, caller)
    parent = module.rpartition(".")[0]
    above = releases.name_existence(parent, name)
    if above is not None and above.removing_version and not is_in_log_version(above, facts):
        return existence_reason(above, f"{parent}.{name}", remove, "IMG902", facts, caller)
    if module.startswith("transformers") and (model := _model(name)) is not None:
        what = f"{name} with its model"
        return existence_reason(model, what, "use another model", "IMG902", facts, caller)
    return None


def _module(text: str, facts: LogFacts, caller: str) -> Reason | None:
    match = calls.MODULE.search(text) or PACKAGE_ABSENT.search(text)
    if match is None:
        return None
    module = (match["module"] or match.groupdict().get("required") or "").rstrip(".")
    existence = releases.exact_module_existence(
        module
    )  # Python names the first module that is absent
    if existence is not None:
        what = f"the module {module}"
        return existence_reason(existence, what, f"do not import {module}", "IMG903", facts, caller)
    top = module.partition(".")[0]
    package = releases.distribution_of_module(module)
    if match.re is PACKAGE_ABSENT and normalize_package(module) != package and " " not in package:
        user = releases.package_name(caller) or facts.user_of(package) or "the code"
        return Reason(
            code="IMG903",
            cause=f"{user} reads the metadata of a package {module}, and its name on the index is"
            f" {package}: {user} is older than that name, or {package} is not installed",
            cure=requirements.update_command(user)
            + f" if {package} is installed (pip show {package}), else pip install {package}"
            if user != "the code"
            else f"update the package that reads it if {package} is installed (pip show"
            f" {package}), else pip install {package}",
        )
    if "." in module and package == releases.distribution_of_module(top):
        return Reason(
            code="IMG903",
            cause=f"the installed {package} has no module {module}: the importing"
            " package was written for a different version of it",
            cure=requirements.update_cure(package, caller, facts),
        )
    if top.startswith("_") and not releases.name_owner(top):
        user = releases.package_name(caller)
        return Reason(
            code="IMG903",
            cause=f"{top} is absent, which by its name is a compiled part of"
            f" {user or 'the package that imports it'}: sources are imported in which it was not"
            " built, or its build is for a different Python",
            cure=f"run outside of the folder with the sources, so that the installed"
            f" {user or 'package'} is imported, and install its wheel for this Python; or build"
            " the sources (pip install -e . --no-build-isolation)",
        )
    cure = f"install {package}"
    if " " not in package:
        cure += f" into that environment (python -m pip install {package})"
    if not caller and not releases.name_owner(top):
        cure += f"; if {top} is a folder or file of the project, run from its folder, set"
        cure += " PYTHONPATH, or get the missing part of the repository (submodules)"
    return Reason(
        code="IMG903",
        cause=f"{module if package != releases.distribution_of_module(top) else top} is not"
        " installed in the"
        " Python that ran this",
        cure=cure,
        confidence="high",
    )


def _overridden_reason(callee: str) -> Reason | None:
    """Return the cause if transformers passes a new argument to a method of a derived trainer."""
    owner, _, method = callee.rpartition(".")
    passed = releases.load_name_table().passed.items()
    name, before = next(
        ((key, value) for key, value in passed if key.startswith(f"{method}.")), ("", "")
    )
    if not name or not owner.endswith("Trainer"):
        return None
    package = releases.name_owner(owner)
    version = before.rpartition("<")[2]
    return Reason(
        code="IMG915",
        cause=f"transformers {version} and newer pass {name.partition('.')[2]} to {callee}, and"
        f" this {package or 'class'} was written for an older transformers",
        cure=f"pip install -U {package}, or pip install '{before}'"
        if package
        else f"add {name.partition('.')[2]}=None to the parameters of {callee}, update the package"
        f" that defines it, or pip install '{before}'",
        confidence="high",
    )


def _positional_reason(text: str, facts: LogFacts, caller: str) -> Reason | None:
    if counted := COUNTED.search(text):
        if (overridden := _overridden_reason(counted["callee"])) is not None:
            return overridden
        package = releases.name_owner(counted["callee"].partition(".")[0])
        if package and caller and package != releases.package_name(caller):
            user = releases.package_name(caller)
            return Reason(
                code="IMG915",
                cause=f"{user} passes {counted['given']} arguments to {counted['callee']}, which"
                f" accepts {counted['takes']} in the installed {package}: it is older than this"
                f" {user} expects, or {user} is older than it",
                cure=f"pip install -U {package}, or install the {user} that {package} requires:"
                f" {requirements.update_cure(user, package.replace('-', '_'), facts)}",
            )
        return Reason(
            code="IMG915",
            cause=f"{counted['callee']} of the installed version accepts {counted['takes']}"
            f" arguments, and its caller passes {counted['given']}: caller and function are of"
            " versions that are not compatible",
            cure="install versions of both packages that were released for each other, or correct"
            " the call",
        )
    match = POSITIONAL.search(text)
    if match is None:
        return None
    callee, names = match["callee"], match["names"].strip()
    owner = callee.partition(".")[0]
    of_model = FORWARD.search(callee) or callee.endswith("RotaryEmbedding.forward")
    of_model = of_model and (caller or parameters.is_listed("transformers", owner))
    package = releases.name_owner(owner) or ("transformers" if of_model else "")
    added = releases.argument_existence(callee, re.findall(r"\w+", names)[0])
    if added is not None and added.adding_version and not is_in_log_version(added, facts):
        old = f"{added.package}<{added.adding_version}"
        return Reason(
            code="IMG915",
            cause=f"{added.package} {added.adding_version} added the required arguments of {callee}"
            f" that the caller does not pass ({names}): the caller was written for {old}",
            cure=f"pip install '{old}', or pass {names}, as the documentation of the installed"
            f" {added.package} shows",
            confidence="high",
        )
    if package:
        return Reason(
            code="IMG915",
            cause=f"{callee} of the installed {package} requires {names}, which its caller does not"
            f" pass: the caller was written for another {package}",
            cure=f"{requirements.update_cure(package, caller, facts)}, or pass it if the caller is"
            " your"
            " own code",
        )
    return Reason(
        code="IMG915",
        cause=f"{callee} of the installed version requires {names}, which the caller does not pass",
        cure="pass it, or install the version that the caller was written for",
    )


def _hydra(text: str, facts: LogFacts, caller: str) -> Reason | None:
    match = HYDRA.search(text)
    if match is None:
        return None
    key = match["key"] or match["struct"] or match["missing"]
    if full := FULL_KEY.search(text):
        key = full["key"]
    if match["struct"] and caller and caller != "hydra":
        user = releases.package_name(caller)
        return Reason(
            code="IMG918",
            cause=f"the code of {user} uses the key {key}, which the configuration that it was"
            " given does not have: the configuration is for a different version or a different"
            f" part of {user}",
            cure=f"start from the configuration files of the installed {user}, and add your"
            f" own settings (+{key}=…); if {user} itself sets the key, use another release, or"
            " omit the option that activates this code",
        )
    if key.startswith("hydra."):
        return Reason(
            code="IMG918",
            cause=f"the code reads Hydra's own setting {key}, which the installed hydra-core does"
            " not have, or does not have at that time",
            cure="install the hydra-core and omegaconf that the program's requirements name (pip"
            " install 'hydra-core==VERSION'); its configuration must not replace the group hydra",
        )
    of_verl = caller == "verl" or "verl" in facts.versions or key.partition(".")[0] in VERLS
    program = "verl" if of_verl else "the program"
    return Reason(
        code="IMG918",
        cause=f"the configuration of the installed version has no key {key}",
        cure=f"remove {key}, add it with +{key}=… if the code reads it (in a YAML file without the"
        f" plus), or use the version of {program} that the script was written for",
        confidence="high",
    )


def _snake_case(name: str) -> str:
    """Return the name of the module that contains a model's class."""
    kind = re.sub(r"For[A-Z]\w*$|(?:LMHead)?Model$|(?:Text|Vision)?Config$", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()


def _model(name: str) -> Existence | None:
    """Return the releases of transformers that have the model of a class.

    Return None if they are unknown, or if all releases have it.
    """
    if not name.endswith(("Config", "Model")) and "For" not in name:
        return None
    existence = releases.exact_module_existence(f"transformers.models.{_snake_case(name)}")
    return existence if existence is not None and existence.spec else None


def _architecture(text: str, facts: LogFacts, caller: str, code: str) -> Reason | None:
    """Return the cause for a model that transformers or vllm lacks, from their model modules."""
    if match := MODEL_TYPE.search(text):
        kind = match["type"] or match["key"]
        module = f"transformers.models.{kind.replace('-', '_')}"
        looked_up = caller == "transformers" and code.startswith("raise KeyError(key)")
        if match["key"] and not releases.exact_module_existence(module) and not looked_up:
            return None
        package, what = "transformers", f"the model type {kind}"
    elif match := ARCHITECTURE.search(text):
        module = f"vllm.model_executor.models.{_snake_case(match['name'])}"
        package, what = "vllm", f"the architecture {match['name']}"
        listed = releases.name_existence("vllm.model_executor.models", match["name"])
        if listed is not None and listed.spec:
            return existence_reason(listed, what, "use another model", "IMG902", facts)
    else:
        return None
    existence = releases.exact_module_existence(module)
    if existence is not None:
        return existence_reason(existence, what, "use another model", "IMG902", facts)
    shown = f"{package} {facts.versions[package]}" if package in facts.versions else package
    return Reason(
        code="IMG902",
        cause=f"the installed {shown} does not have {what}, because {package} is older than the"
        " model, or because the model's code comes with its weights",
        cure=f"install a newer {package} within what the other packages allow (imgbuild resolve"
        f" {package} …); if the model card requires it, pass trust_remote_code=True",
        confidence="high",
    )


FUNCTIONS = (
    *(_keyword, _import_reason, _module, attributes.attribute_reason),
    *(_positional_reason, flag_reasons.flag_reason),
    _hydra,
)
