"""Tests explanations of weights whose shape differs from the model."""

from __future__ import annotations

import io

from imgbuild.diagnose import shape_reasons
from imgbuild.diagnose.diagnosis import diagnose_log
from tests.support.rows import each_row


def mismatch(name: str, saved: str, model: str) -> str:
    return (
        "RuntimeError: Error(s) in loading state_dict for PumpModel:\n"
        f"\tsize mismatch for {name}: copying a param with shape torch.Size([{saved}]) from"
        f" checkpoint, the shape in current model is torch.Size([{model}])."
    )


@each_row(
    ("name", "saved", "model", "cause", "cure"),
    [
        ("model.embed_tokens.weight", "32002, 64", "32000, 64", "had 32002 tokens", "(32002)"),
        ("h.0.q.lora_A.default.weight", "32, 640", "16, 640", "another rank r", "own adapter_conf"),
        ("h.0.q.lora_B.default.weight", "640, 32", "640, 16", "another rank r", "own adapter_conf"),
        ("h.0.q.lora_A.default.weight", "8, 64", "8, 128", "another base model", "base_model_name"),
        ("h.0.q.lora_B.default.weight", "64, 8", "128, 8", "another base model", "base_model_name"),
        ("h.0.q.lora_B.default.weight", "2048, 16", "4096, 16", "another base", "base_model_name"),
        ("base.score.weight", "1, 512", "2, 512", "number of labels", "num_labels=1"),
        ("h.0.fc.weight", "4915200, 1", "2560, 3840", "quantized to 4 bits", "same form"),
        ("h.0.dense.weight", "1024, 64", "1024, 1024", "the factor 16", "parallel size"),
    ],
)
def test_difference_between_tensor_shapes_is_explained(
    name: str, saved: str, model: str, cause: str, cure: str
) -> None:
    finding = diagnose_log(io.BytesIO(mismatch(name, saved, model).encode()), "log").findings[0]
    assert finding.code == "IMG925"
    assert cause in finding.cause
    assert cure in finding.cure


def test_shape_mismatch_with_another_model_is_explained_by_a_rule() -> None:
    text = mismatch("h.0.fc.weight", "4096, 11008", "3584, 18944")
    assert shape_reasons.shape_reason(text) is None
    assert diagnose_log(io.BytesIO(text.encode()), "log").findings[0].code == "IMG734"
