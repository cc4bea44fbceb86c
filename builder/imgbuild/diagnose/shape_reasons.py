"""Explains weights whose shape differs from the shape in the model.

`data/diagnose/facts/shapes.yaml` contains the causes and cures.
"""

# A separate module: shapes.
from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from imgbuild.diagnose import rules
from imgbuild.diagnose.finding import Reason
from imgbuild.system import files, yaml_data

CODE = "IMG925"
SHAPE = r"(?:torch\.)?Size\(\[(?P<{}>[\d, ]{{0,60}})\]\)"
COPIED = re.compile(
    r"size mismatch for (?P<name>[\w.\-]{1,200}): copying a param with shape "
    + SHAPE.format("saved")
    + r" from checkpoint, the shape in current model is "
    + SHAPE.format("model")
)
VOCABULARY = re.compile(r"embed_tokens|lm_head|word_embeddings|wte|embed_out|output_layer|tok_emb")
HEADS = re.compile(r"\bscore\b|classifier|v_head|value_head|summary")
LARGEST_RANK = 1024
LORA_B = re.compile(r"lora_(?:embedding_)?B\b")
MOST_PARTS = 64


class ShapeKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reason why two shapes differ, and the cure."""

    cause: str
    cure: str


@lru_cache(maxsize=1)
def load_shape_kinds() -> Mapping[str, ShapeKind]:
    """Load the types of differences by name."""
    return yaml_data.load_yaml_data(files.data("diagnose/facts/shapes.yaml"), dict[str, ShapeKind])


def shape_reason(text: str) -> Reason | None:
    """Return the cause for the first weight with another shape in the checkpoint than in the model.

    Return None for other texts.
    """
    match = COPIED.search(text)
    if match is None:
        return None
    name, saved, model = match["name"], _sizes(match["saved"]), _sizes(match["model"])
    if not saved or not model or 0 in saved or 0 in model:  # ZeRO-3's empty weights have a rule
        return None
    if not (kind := _kind(name, saved, model)):
        return None
    groups = {"saved": str(saved[0]), "model": str(model[0]), "factor": str(_factor(saved, model))}
    why = load_shape_kinds()[kind]
    return Reason(
        code=CODE,
        cause=f"{name} has the shape {_shown_sizes(saved)} in the checkpoint and"
        f" {_shown_sizes(model)} in the"
        f" model: {rules.fill_placeholders(why.cause, groups)}",
        cure=rules.fill_placeholders(why.cure, groups),
        confidence="high",
        source="rule",
    )


def _kind(name: str, saved: tuple[int, ...], model: tuple[int, ...]) -> str:
    """Return the name of the type of difference, or "" if no type explains it."""
    if "lora_" in name:
        rank = -1 if LORA_B.search(name) else 0  # its dimension
        return "rank" if saved[rank] != model[rank] <= LARGEST_RANK else "base"
    if VOCABULARY.search(name) and saved[1:] == model[1:]:
        return "vocabulary"
    if HEADS.search(name):
        return "labels"
    if len(saved) > 1 < len(model) and (1 in saved[1:]) != (1 in model[1:]):
        return "packed"
    return "parts" if _factor(saved, model) > 1 else ""


def _factor(saved: tuple[int, ...], model: tuple[int, ...]) -> int:
    """Return the power of two by which exactly one dimension differs.

    Return 0 if there is no such dimension.
    """
    if len(saved) != len(model):
        return 0
    pairs = [sorted(pair) for pair in zip(saved, model, strict=True) if pair[0] != pair[1]]
    if len(pairs) != 1 or pairs[0][1] % pairs[0][0]:
        return 0
    factor = pairs[0][1] // pairs[0][0]
    return factor if factor & (factor - 1) == 0 and factor <= MOST_PARTS else 0


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.replace(" ", "").split(",") if size)


def _shown_sizes(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
