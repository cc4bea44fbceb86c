"""Explains why a state dict does not fit a model, from the missing and unexpected names."""

# A separate module: one kind of message.
from __future__ import annotations

import itertools
import re

from imgbuild.diagnose.finding import Reason

CODES = ("IMG734", "IMG1051")
MODEL = re.compile(r"Error\(s\) in loading state_dict for (?P<model>\w+)")
NAMES = r" key\(s\) in state_dict: (?P<names>\"[^\"]{1,300}\"(?:, {0,3}\"[^\"]{1,300}\")*)"
MISSING = re.compile("Missing" + NAMES)
UNEXPECTED = re.compile("Unexpected" + NAMES)
# What FSDP, activation checkpointing and torch.compile add to names, also within them.
WRAPPER = re.compile(
    r"\b(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_fpw_module|_orig_mod)\."
)
FLAT = re.compile(r"(?:^|\.)_?flat_(?:param|weights)\w*$")
BASE = re.compile(r"^base_model\.model\.|\.base_layer\.")  # of peft
MOST = 30  # names that are compared
# Keys below which checkpoints have the weights, next to other data.
OUTER = ("model", "state_dict", "model_state_dict", "module", "weights", "net", "app")


def state_dict_reason(text: str, code: str) -> Reason | None:
    """Return a reason if the names in the message show more than the rule `code`."""
    match = MODEL.search(text)
    if match is None:
        return None
    missing, unexpected = _names(MISSING, text), _names(UNEXPECTED, text)
    model = match["model"]
    if (flat := next(filter(FLAT.search, unexpected), "")) and not any(map(FLAT.search, missing)):
        return Reason(
            code="IMG734",
            cause=f"the checkpoint has parameters that FSDP flattened ({flat}): it fits only a"
            f" model that is wrapped in the same way, and {model} is not",
            cure="wrap the model as it was when the checkpoint was saved, load it within"
            " FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT) on as many ranks, and"
            " save a FULL_STATE_DICT, which any model can load",
            confidence="high",
        )
    if (reason := _adapter_reason(missing, unexpected, model)) is not None:
        return reason
    if outer := next((name for name in unexpected if name in OUTER), ""):
        return Reason(
            code="IMG734",
            cause=f"the loaded object has the weights of {model} below its key {outer}, and was"
            " passed to load_state_dict as a whole",
            cure=f"pass load_state_dict(checkpoint['{outer}']); if its names then lack"
            " _fsdp_wrapped_module, load it before the model is wrapped",
            confidence="high",
        )
    wrapped = next(filter(WRAPPER.search, missing), "")
    if wrapped and not any(map(WRAPPER.search, unexpected)):
        return Reason(
            code="IMG734",
            cause=f"{model} is wrapped (by FSDP, activation checkpointing or torch.compile: its"
            f" names are such as {wrapped}), and the loaded state dict has the names of the plain"
            " model",
            cure="load it before the model is wrapped, within FSDP.state_dict_type(model,"
            " StateDictType.FULL_STATE_DICT), or with set_model_state_dict of"
            " torch.distributed.checkpoint.state_dict, which translates the names",
            confidence="high",
        )
    if code == "IMG734" and missing and unexpected and "size mismatch" not in text:
        have, want = max(itertools.product(unexpected[:MOST], missing[:MOST]), key=_likeness)
        return Reason(
            code="IMG734",
            cause=f"the checkpoint names its weights differently than {model} ({have},"
            f" where the model has {want}): it is of another implementation, model or"
            " version",
            cure="load it with the class and the release that wrote it, or convert it (Megatron:"
            " --use-legacy-models or not, as when it was saved, or its checkpoint converter)",
            confidence="high",
        )
    return None


def _adapter_reason(missing: list[str], unexpected: list[str], model: str) -> Reason | None:
    """Return the cause if exactly the weights of the model below an adapter of peft are missing."""
    adapter_only = not unexpected and bool(missing) and all(map(BASE.search, missing))
    if not adapter_only or any("lora_" in name for name in missing):
        return None
    return Reason(
        code="IMG734",
        cause=f"the checkpoint has no weights of the base model ({missing[0]}): it was saved with"
        f" the adapter's weights alone, and is loaded as the whole {model}",
        cure="use a newer transformers, which resumes adapters under DeepSpeed and FSDP; load the"
        " base model, then the adapter (PeftModel.from_pretrained with is_trainable=True), or pass"
        " load_module_strict=False or strict=False",
        confidence="high",
    )


def _likeness(pair: tuple[str, str]) -> int:
    alike = itertools.takewhile(lambda two: two[0] == two[1], zip(*pair, strict=False))
    return sum(1 for _ in alike)


def _names(pattern: re.Pattern[str], text: str) -> list[str]:
    match = pattern.search(text)
    return re.findall(r'"([^"]+)"', match["names"]) if match else []
