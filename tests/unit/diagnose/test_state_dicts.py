"""Tests that names in a message of load_state_dict show why a state dict does not fit."""

from __future__ import annotations

import pytest

from imgbuild.diagnose.state_dicts import state_dict_reason


@pytest.mark.parametrize(
    ("missing", "unexpected", "cause"),
    [
        ("pump.bias", "_fsdp_wrapped_module._flat_param", "parameters that FSDP flattened"),
        ("pump.bias", "model", "has the weights of Fan below its key model"),
        ("_fsdp_wrapped_module.pump.bias", "", "the names of the plain model"),
        ("base_model.model.pump.base_layer.weight", "", "the adapter's weights alone"),
        ("layers.0.qkv.bias", "layers.0.linear_qkv.bias", "(layers.0.linear_qkv.bias, where"),
    ],
)
def test_cause_follows_from_the_names(missing: str, unexpected: str, cause: str) -> None:
    text = f'Error(s) in loading state_dict for Fan:\n\tMissing key(s) in state_dict: "{missing}". '
    if unexpected:
        text += f'\n\tUnexpected key(s) in state_dict: "{unexpected}". '
    reason = state_dict_reason(f"RuntimeError: {text}", "IMG734")
    assert reason is not None
    assert cause in reason.cause


def test_prefix_of_all_names_is_left_to_its_rule() -> None:
    text = (
        'Error(s) in loading state_dict for Fan:\n\tMissing key(s) in state_dict: "a.b". '
        '\n\tUnexpected key(s) in state_dict: "module.a.b". '
    )
    assert state_dict_reason(text, "IMG1051") is None
