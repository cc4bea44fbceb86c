"""Explains Python errors in calls between packages whose versions do not match.

The frames of the traceback show which package makes the call, and its line of code shows the other
package.
"""

from __future__ import annotations

import re

from imgbuild.audit.names import releases
from imgbuild.diagnose import requirements, undefined_names
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.literals import LinePattern

PASSED_ON = "(*args, **kwargs)"  # a line that calls what another package names
KEYWORD = LinePattern(
    r"(?:(?:\w{0,60}Error|Exception|raised|[Ff]ailed(?: to [\w ]{2,40})?): |"
    r"(?<![\w.])(?=[A-Za-z_][\w.]*\(\) got an))"
    r"(?:(?P<callee>[A-Za-z_][\w.<>]*)\(\) )?"
    r"[Gg]?o?t? ?(?:an )?[Uu]nexpected keyword argument '(?P<name>\w+)'"
)
FROM_FILE = re.compile(r"\b(?:config_)?cls\(\*\*(?:config|kwargs|data|values)")
IMPORT = re.compile(
    r"cannot import name ['\"](?P<name>\w+)['\"]\s{1,4}from (?:partially initialized module"
    r" )?['\"](?P<module>[\w.]+)(?:['\"]| \()"
    r"(?P<circular>.{0,80}circular import)?"
)
MODULE = re.compile(r"No module named ['\"]?(?P<module>[A-Za-z_][\w.]*)")
ATTRIBUTE = re.compile(
    r"(?:module '?(?P<module>[\w.]+)'?|(?:type object )?'(?P<owner>\w+)'(?: object)?|"
    r"(?P<bare>[A-Z]\w+)) has no attribute '?(?P<name>\w+)'?"
)
MEMBER = re.compile(r"^AttributeError: (?P<name>[A-Z][A-Z0-9_]{2,60})$")
NO_FILE_NAME = re.compile(
    r"from '(?P<module>\w+)(?P<below>\.[\w.]+)?' \(unknown location\)|"
    r"module '(?P<other>\w+)' has no attribute '__version__'"
)
OWN = re.compile(r"module '(?P<module>\w+\.[\w.]+)' has no attribute '(?P<name>\w+)'")
# Of a folder with sources instead of an installed package.
FROM_SOURCES = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<module>\w[\w.]*)' \((?P<file>/[^()\s]{1,300})\)"
)
# Packages that others need for a part of their names only.
OPTIONAL = re.compile(
    r"(?i)vllm|sglang|lmdeploy|deepspeed|megatron|flashinfer|xformers|bitsandbytes"
)
INSTALLED = re.compile(r"(?:site|dist)-packages/")
OWN_LAYER = re.compile(r"(?:Linear|MoE|Embedding|Head|Layer|Norm|Attention|MLP)$")
# Methods that transformers calls on a model.
OF_MODELS = re.compile(
    r"_(?!_)\w+|tie_weights|init_weights|prepare_inputs_for_generation|get_\w+_embeddings|"
    r"gradient_checkpointing_enable|resize_token_embeddings"
)
# A line that calls a method by its name, which another package gives.
BY_NAME = re.compile(r"func\(\*args|getattr\(\w+, \w*(?:method|name|func)\w*\)")
# Methods of texts only.
OF_TEXTS = re.compile(
    r"lower|upper|casefold|startswith|endswith|r?split|splitlines|[lr]?strip|removeprefix|removesuffix"
)
OF_TRANSFORMERS = re.compile(
    r"^[A-Z]\w+(?:Model|For(?:CausalLM|ConditionalGeneration|[A-Z]\w+Classification)|"
    r"Tokenizer(?:Fast)?|Processor(?:Fast)?)$"
)
LAYERS = re.compile(r"(?:Attention|DecoderLayer|EncoderLayer|MLP|RotaryEmbedding)$")  # of models
MODEL_CLASS = re.compile(r"(?:Model|For[A-Z]\w+)$")
# Their models are separate classes, although transformers has some of the same names.
OWN_MODELS = ("vllm", "sglang")


def overridden_method_reason(text: str, caller: str, code: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a package passes a keyword that a method of the program rejects."""
    match = KEYWORD.search(text)
    owner, _, method = (match["callee"] or "").rpartition(".") if match else ("", "", "")
    if owner.endswith(("Trainer", "Callback")) and not releases.name_owner(owner):
        caller = caller or "transformers"  # its Trainer calls the methods of subclasses
    if not caller:
        return None
    if (
        match is None
        or not owner
        or method == "__init__"
        or (MODEL_CLASS.search(owner) and OF_MODELS.fullmatch(method))
        or releases.argument_existence(owner, match["name"])
    ):
        return None
    package, name = releases.package_name(caller), match["name"]
    if PASSED_ON in code:
        return Reason(
            code="IMG904",
            cause=f"{owner}.{method} of the installed {package} or of its extension does not accept"
            f" the argument {name}, which the program or package that calls it through {package}"
            " passes: the caller was written for a different version",
            cure=f"if your own code passes {name}, remove it, or pass it as the documentation of"
            f" the installed {package} shows; otherwise install the {package} that the calling"
            f" package (the trainer) requires, or its release for the installed {package} (imgbuild"
            " resolve names both)",
        )
    owning = releases.name_owner(owner)
    if not owning and LAYERS.search(owner) and package not in OWN_MODELS:
        owning = "transformers"
    packing = ""
    if name in ("cu_seqlens", "max_seqlen"):
        packing = (
            "set flash_attention: true (attn_implementation='flash_attention_2'), which packed"
            " samples need, or sample_packing: false; else "
        )
    derived = owner.endswith(("Trainer", "Model", "Callback"))  # often classes of the program
    if owning not in ("", package) and not derived:
        return Reason(
            code="IMG904",
            cause=f"{owner}.{method} of the installed {owning} does not accept the argument {name},"
            f" which {package} passes: their versions are not compatible",
            cure=f"{packing}{requirements.update_cure(owning, caller, facts)}; or install the"
            f" {package} for the installed {owning} (imgbuild resolve {package} {owning})",
        )
    defined = f"self.{method}(" in code and not derived
    before = releases.load_name_table().passed.get(f"{method}.{name}", "")
    return Reason(
        code="IMG904",
        cause=f"{owner}.{method} does not accept the argument {name}, which the installed {package}"
        " passes to it" + f": a fault of this release if {owner} is a class of {package}" * defined,
        cure=f"{requirements.update_command(package)}; if {owner} is of your code, "
        * defined
        + f"add {name}=None (or **kwargs) to the parameters of {owner}.{method}, or install"
        f" {before or f'the version of {package} that {owner} was written for'}",
    )


def _function_keyword(text: str, caller: str, code: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a function of another package lacks an argument.

    The line of code contains the name of the function.
    """
    match = KEYWORD.search(text) if caller else None
    callee = re.escape(match["callee"] or " ") if match else ""
    called = re.search(rf"\b(\w+)\.(?:\w+\.)*{callee}\(", code) if match else None
    if match is None or (called is not None and called[1] == caller):
        return None
    package = (
        releases.package_name(called[1]) if called else releases.exporting_package(match["callee"])
    )
    if package == releases.package_name(caller) or (
        package not in releases.load_name_table().packages.split()
    ):
        return None
    user, name = releases.package_name(caller), match["name"]
    return Reason(
        code="IMG904",
        cause=_rejected_argument_cause(match["callee"], package, name, user),
        cure=requirements.update_cure(package, caller, facts),
    )


def passed_argument_reason(text: str, caller: str, above: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a class of `caller` rejects an argument that `above` passes.

    `caller` and `above` are packages. Only classes whose arguments no table lists are examined.
    """
    match = KEYWORD.search(text) if caller and above else None
    owner = (match["callee"] or "").removesuffix(".__init__") if match else ""
    if match is None or not owner[:1].isupper() or "." in owner:
        return None
    package, user = releases.package_name(caller), releases.package_name(above)
    if releases.name_owner(owner) not in ("", package) or releases.argument_existence(
        owner, match["name"]
    ):
        return None
    return Reason(
        code="IMG904",
        cause=f"{_rejected_argument_cause(owner, package, match['name'], user)}: {package} is older"
        f" than {user}"
        " expects, or dropped it",
        cure=requirements.update_cure(package, above, facts),
    )


def called_by_name_reason(
    text: str, code: str, caller: str, above: str, facts: LogFacts
) -> Reason | None:
    """Return the cause if an object lacks a method that `above` has `caller` call by name.

    `above` and `caller` are packages.
    """
    owner, name = _attribute(text) if caller and above and BY_NAME.search(code) else ("", "")
    if not owner[:1].isupper():
        return None
    package, user = releases.package_name(caller), releases.package_name(above)
    return Reason(
        code="IMG905",
        cause=f"{user} calls the method {name} through {package}, whose {owner} does not"
        f" have it: the class of {user} with this method is not in use, because {user} was written"
        f" for another {package}",
        cure=requirements.update_cure(package, above, facts),
    )


def other_package_reason(callee: str, name: str, caller: str, facts: LogFacts) -> Reason | None:
    """Return the reason if a package passes an unknown argument to a method of another's class."""
    existence = (
        releases.argument_existence(callee.partition(".")[0], name) if caller and callee else None
    )
    user = releases.package_name(caller)
    if existence is None or existence.package == user:
        return None
    package = existence.package
    return Reason(
        code="IMG904",
        cause=f"{_rejected_argument_cause(callee, package, name, user)}: {package} is older than"
        f" {user}"
        " expects, or much newer",
        cure=requirements.update_cure(package, caller, facts),
    )


def _rejected_argument_cause(callee: str, package: str, name: str, user: str) -> str:
    return (
        f"{callee} of the installed {package} does not accept the argument {name}, which {user}"
        " passes to it"
    )


def _member(text: str, caller: str, code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if an enumeration lacks a member."""
    match = MEMBER.match(text)
    used = re.search(rf"(\w+)\.{match['name']}\b", code) if match else None
    if match is None or used is None:
        return None
    user = releases.package_name(caller) or "the program"
    return Reason(
        code="IMG905",
        cause=f"the enumeration {used[1]} has no member {match['name']} in the installed version of"
        f" the package that defines it: {user} was written for another one",
        cure=f"install that package in the version that {user} requires (pip check, its"
        f" documentation, imgbuild resolve {user}), or a {user} for the installed one",
    )


def _replaced_package_reason(
    text: str, _caller: str, _code: str, _facts: LogFacts
) -> Reason | None:
    """Return the cause if a folder is imported instead of a package, and lacks its names."""
    match = NO_FILE_NAME.search(text)
    if match is None:
        return None
    top = (match["module"] or match["other"]).partition(".")[0]
    package = releases.package_name(top)
    if below := match["below"]:
        return Reason(
            code="IMG902",
            cause=f"{top}{below} is a folder without the files that a build of {package} adds: its"
            " sources were not built, or only in part",
            cure=f"install the wheel again: pip install --force-reinstall --no-deps {package}, and"
            f" run outside of a checkout of {package}; or build the checkout: pip install -e ."
            + (
                " (with VLLM_USE_PRECOMPILED=1 it takes the compiled parts of a wheel)"
                * (top == "vllm")
            ),
        )
    return Reason(
        code="IMG902",
        cause=f"a folder named {top} is imported instead of the package {package}: a checkout in"
        " the working directory, or files left by an uninstalled package",
        cure=f"python -c 'import {top}; print({top}.__path__)' shows the folder: run from another"
        f" folder (cd /), remove it, or install {package} (a checkout with pip install -e)",
    )


def sources_folder_reason(text: str) -> Reason | None:
    """Return the cause if a name is looked up in a source folder of a known package."""
    match = FROM_SOURCES.search(text)
    if match is None or INSTALLED.search(match["file"]):
        return None
    top = match["module"].partition(".")[0]
    folder, mark, _ = match["file"].partition(f"/{top}/")
    if not mark or not releases.name_owner(top):
        return None
    if match["file"].rpartition("/")[0].lower().replace("-", "_").count(top) == 1:  # no checkout
        return Reason(
            code="IMG902",
            cause=f"the folder {folder}/{top} of the project has the name of a package and is"
            f" imported instead of {releases.package_name(top)}: it has no {match['name']}",
            cure="rename the folder, or run the program from another folder (cd /; PYTHONPATH must"
            f" not contain {folder}); python -c 'import {top}; print({top}.__file__)' shows it",
        )
    return Reason(
        code="IMG902",
        cause=f"{top} is imported from the sources in {folder}, whose {match['module']} has no"
        f" {match['name']}: they were not built there, or are of another version than the code that"
        " imports it",
        cure=f"run from another folder (cd /), so that an installed {top} is imported, or check out"
        f" the release that the code requires in {folder} and build it there: pip install -e ."
        " --no-build-isolation",
    )


def _text_expected_reason(text: str, caller: str, _code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if a text method is called on an object that is not a text."""
    match = ATTRIBUTE.search(text) if "AttributeError" in text[:60] else None
    if match is None or match["module"] or not OF_TEXTS.fullmatch(match["name"]):
        return None
    full = re.search(rf"'([\w.]+)' object has no attribute '{match['name']}'", text)
    owner = full[1] if full else match["owner"] or match["bare"]
    if (owner.islower() and "." not in owner) or owner == "NoneType":
        return None
    user = releases.package_name(caller) or "the code"
    return Reason(
        code="IMG905",
        cause=f"an object ({owner}) is passed where {user} expects a text, such as a name or path:"
        f" it calls .{match['name']}() on it",
        cure="pass the name or path in its place (of a tokenizer or model x: its folder, or"
        " x.name_or_path; of a dtype or device: its name, such as 'bfloat16'), also in options that"
        f" another package hands over to {user}",
    )


def _model_method(text: str, caller: str, _code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if transformers passes a new argument to a model's own method."""
    match = KEYWORD.search(text) if caller in ("", "transformers") else None
    owner, _, method = (match["callee"] or "").rpartition(".") if match else ("", "", "")
    if match is None or not MODEL_CLASS.search(owner) or not OF_MODELS.fullmatch(method):
        return None
    if releases.name_owner(owner):
        return None
    return Reason(
        code="IMG905",
        cause=f"the code of the model ({owner}) was written for another transformers: the installed"
        f" one passes {match['name']} to {method}, which does not accept it",
        cure="install the transformers that the model's card or transformers_version in its"
        " config.json names (pip install 'transformers<5' if that is a 4.x), or get newer code of"
        " the model: its newest revision, or of the package that has the class (pip install -U vllm"
        " or sglang, if it is theirs)",
    )


def _attribute(text: str) -> tuple[str, str]:
    """Return the class and the attribute that an error reports as missing.

    Both are "" if the error reports no missing attribute.
    """
    match = ATTRIBUTE.search(text)
    return (match["owner"] or "", match["name"]) if match else ("", "")


def _compiled_module_absent(package: str, module: str) -> Reason:
    """Return the reason for an absent compiled module, which is named like its package."""
    return Reason(
        code="IMG903",
        cause=f"{package} is installed without its compiled module {module}, or with one for"
        " another Python or machine: PYTHONPATH, a copied environment or pip install --target mixes"
        " Pythons, or the installation was interrupted",
        cure=f"install it with the Python that runs this: python -m pip install --force-reinstall"
        f" --no-deps {package}; the folder of {package} must have a file of this Python"
        " (cpython-312: Python 3.12), and no PYTHONPATH to another environment",
    )


def _own_name(text: str, caller: str, _code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if a package lacks a name or module that it imports from itself.

    A release is consistent, so an optional package or a part of the installation must be missing.
    """
    match = IMPORT.search(text) or MODULE.search(text) or OWN.search(text)
    if match is None or "circular" in text[:400]:
        return None
    top, _, below = match["module"].partition(".")
    if below == "vllm_flash_attn":  # compiled with vllm
        return _unbuilt(releases.package_name(top), below, caller)
    # Only the package itself imports its private modules.
    own = re.search(r"(?:^|\.)_[a-z]", below) and match.re is not OWN
    caller = caller or (top if own else "")
    if top != caller:
        return None
    package, module = releases.package_name(caller), match["module"]
    name = match.groupdict().get("name")
    if match.re is MODULE and not below:
        return Reason(
            code="IMG903",
            cause=f"{package} is not installed in the Python that ran this: a file of its checkout"
            " was started by its path, or the launcher on PATH (torchrun, accelerate, ray) is of a"
            " different Python",
            cure=f"install the checkout into this environment (python -m pip install -e ., or"
            f" {package}), and start with its Python: python -m torch.distributed.run instead of"
            " torchrun (which -a torchrun shows the others)",
        )
    if not name and (unbuilt := re.search(r"\.(_[a-z]*version|_[A-Z]\w*|_custom\w*)$", module)):
        return _unbuilt(package, unbuilt[1], caller)
    if not name and module.rpartition(".")[2] == f"_{top}":
        return _compiled_module_absent(package, module)
    what = f"{name} of its module {module}" if name else f"its module {module}"
    if name and (part := OPTIONAL.search(name)) and (other := part[0].lower()) != top:
        return Reason(
            code="IMG902",
            cause=f"{package} does not define {what}, because {other} is not installed, cannot be"
            f" imported, or has a version that this {package} does not support",
            cure=f"run python -c 'import {other}' in this environment: install {other} or fix the"
            f" error that it shows ({requirements.update_command(package)} if the {other} is"
            " newer)",
        )
    return Reason(
        code="IMG902" if name else "IMG903",
        cause=f"{package} cannot import {what}: an optional package that it needs is absent or has"
        f" a version for which {package} omits it, or files of two versions of {package} are"
        " mixed",
        cure=f"reinstall it: pip install --force-reinstall --no-deps {package}, and restart the"
        " notebook's kernel, which keeps the modules from before an update; if that does not"
        f" help, import {module} alone to see which package it needs (python -c 'import {module}'),"
        f" and delete code that was generated for a different version (unsloth_compiled_cache)",
    )


def _unbuilt(package: str, part: str, caller: str) -> Reason:
    """Return the reason for a missing part that a package's build writes or compiles."""
    user = releases.package_name(caller)
    other = user and user != package
    return Reason(
        code="IMG903",
        cause=f"{package} lacks {part} or a name of it, which its build writes: sources of"
        f" {package} are imported that were not built, or not again after an update (a checkout, an"
        " archive without git metadata), or the installation is incomplete"
        + f", or {user} is for another {package}"
        * bool(other),
        cure=f"install a wheel: pip install --force-reinstall --no-deps {package}"
        f" (--only-binary {package}; choose another release if this one has no wheel), and"
        f" run outside of a checkout of {package}; or build the checkout again: pip install -e .",
    )


def _class_attribute(text: str, caller: str, code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if a package uses an attribute that an imported class lacks."""
    owner, name = _attribute(text) if caller and "AttributeError" in text[:60] else ("", "")
    if not owner[:1].isupper() or f"{owner}.{name}" not in code:
        return None
    package = releases.package_name(caller)
    known = releases.name_owner(owner) or requirements.used(package, releases.definers(owner))
    if known not in ("", package) or releases.member_existence(owner, name) is not None:
        return None
    return Reason(
        code="IMG905",
        cause=f"{package} uses {owner}.{name}, and {owner}, a class that it imports, has no {name}"
        f" in the installed version of the package that defines it: {package} was written for"
        " another version of that package",
        cure=f"{requirements.update_command(package)}; if that does not help, install the package"
        " that the"
        f" import of {owner} in this file names in the version that {package} requires (an older"
        " one, if it is newer than this release)",
    )


def _own_layer(text: str, caller: str, _code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if an inference engine uses an attribute that one of its layers lacks."""
    owner, name = _attribute(text) if caller in OWN_MODELS else ("", "")
    if not OWN_LAYER.search(owner) or releases.member_existence(owner, name):
        return None
    package = releases.package_name(caller)
    return Reason(
        code="IMG905",
        cause=f"{package} reads {owner}.{name}, which this layer does not have: this"
        f" release of {package} does not support the model, its quantization or an option with it",
        cure=f"pip install -U {package} (a newer release may support it), or use the model without"
        " quantization or in a different format (a different repository, --quantization), and omit"
        " options for LoRA, offloading or other kernels",
    )


def _generated_trainer_reason(owner: str, name: str, facts: LogFacts) -> Reason:
    """Return the reason for an attribute that a trainer generated by unsloth reads."""
    have = facts.versions.get("trl", "")
    return Reason(
        code="IMG905",
        cause=f"unsloth generated {owner} from another trl than the installed one"
        f"{have and f' ({have})'}: its code reads {name}, which this trl renamed or removed, or"
        " the cached file is from before an update",
        cure="pip install -U unsloth unsloth_zoo (both from the same time), delete"
        " unsloth_compiled_cache and restart, or install the trl in the range of this unsloth"
        " (imgbuild resolve unsloth unsloth-zoo trl)",
    )


def _unexpected_object_reason(text: str, caller: str, code: str, facts: LogFacts) -> Reason | None:
    """Return the cause if a package uses an attribute that an argument passed to it lacks."""
    owner, name = _attribute(text) if caller and "AttributeError" in text[:60] else ("", "")
    if owner.islower() or not owner or owner == "NoneType":
        return None
    package = releases.package_name(caller)
    of_engine = f"self.{name}" in code and package in OWN_MODELS
    existence = releases.member_existence(owner, name)
    if existence is not None and existence.package != package and not of_engine:
        return None
    if owner.endswith("Config") and package not in ("transformers", "peft"):
        return Reason(
            code="IMG905",
            cause=f"{package} reads {owner}.{name}, which the installed transformers or the model's"
            f" own code does not define: {package} was released for other versions of these",
            cure=(
                requirements.pin_cure("transformers", caller, facts)
                or "install the transformers"
                f" that this {package} requires (imgbuild resolve {package} transformers)"
            )
            + f", or a newer {package} for a newer transformers or model",
        )
    other = releases.name_owner(owner) or requirements.used(package, releases.definers(owner))
    if package not in OWN_MODELS and OF_TRANSFORMERS.search(owner):
        other = other or "transformers"
    if other and other != package:
        return Reason(
            code="IMG905",
            cause=f"{package} reads {owner}.{name}, which the installed {other} does not define:"
            f" {package} was written for another {other}",
            cure=requirements.update_cure(other, caller, facts),
        )
    if owner.startswith("Unsloth") and owner.endswith("Trainer"):
        return _generated_trainer_reason(owner, name, facts)
    if f"self.{name}" in code and owner.endswith("Trainer") and package != "transformers":
        pin = requirements.pin_cure("transformers", caller, facts)
        return Reason(
            code="IMG905",
            cause=f"{package} reads {owner}.{name}, which neither its own class nor the Trainer of"
            f" the installed transformers defines: this release of {package} has a fault, it and"
            " transformers are incompatible, or only an option sets the attribute",
            cure=f"{pin or f'install the transformers that {package} requires'}, or another release"
            f" of {package} (imgbuild resolve {package} transformers)",
        )
    if f"self.{name}" in code:
        return Reason(
            code="IMG905",
            cause=f"{owner} has no attribute {name}, which the code of {package} reads from `self`:"
            f" {owner} is a subclass that was written for another {package}, or this release has"
            " a fault",
            cure=f"use another release of {package} (its issues may name this attribute); if"
            f" {owner} belongs to your project, adapt it to the installed {package}",
        )
    return Reason(
        code="IMG905",
        cause=f"{package} uses {owner}.{name}, which this class does not have: {package} expects an"
        f" object of another class here, or {owner} was written for another version of {package}",
        cure=f"if your code passes the object, pass one of the class that {package} documents (a"
        f" plain model, not a wrapper); if an option selects {owner} (a mode, backend or engine),"
        f" select another one, or use the {package} that {owner} was written for, or a newer one",
    )


def _file_setting_reason(text: str, caller: str, code: str, _facts: LogFacts) -> Reason | None:
    """Return the cause if a file has a setting that the class which receives it lacks."""
    match, user = KEYWORD.search(text), releases.package_name(caller)
    if match is None or not user or FROM_FILE.search(code) is None:
        return None
    callee = (match["callee"] or "").removesuffix(".__init__").removesuffix("__init__")
    existence = releases.argument_existence(callee, match["name"]) if callee else None
    if existence is not None and existence.spec:
        return None
    return Reason(
        code="IMG904",
        cause=f"the file that {user} reads has the setting {match['name']}, which"
        f" {callee or 'this class'} of the installed {user} does not have: a newer {user} wrote the"
        " file, or it is for another program",
        cure=f"{requirements.update_command(user)}, or write the file again with the installed"
        f" {user}, or remove {match['name']} from it",
        confidence="high" if callee else "medium",
    )


FUNCTIONS = (
    _file_setting_reason,
    _member,
    _replaced_package_reason,
    _own_name,
    _text_expected_reason,
    _class_attribute,
    _own_layer,
    _unexpected_object_reason,
    _model_method,
    undefined_names.undefined_name_reason,
    _function_keyword,
)
