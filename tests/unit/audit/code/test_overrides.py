"""Tests the keys that are suggested for Hydra overrides of missing keys."""

from __future__ import annotations

import pytest

from imgbuild.audit.code.overrides import nearest_key

TREE = {
    "critic": {
        "model": {"config_path": "${model.path}", "enable": True},
        "fsdp": {"offload": False},
    },
    "actor": {"fsdp_config": {"offload": False}, "clip_ratio_high": 0.2},
    "reward": {"enable": False, "reward_manager": "naive"},
}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("actor.clip_ratio_hi", "actor.clip_ratio_high"),
        ("critic.model.fsdp_config.offload", "critic.fsdp.offload"),
        ("critic.modl.enable", "critic.model.enable"),
        ("reward.overlong_buffer.enable", ""),
        ("reward.reward_managr.buffer.length", ""),
    ],
    ids=[
        "similar name in the section",
        "same name in the same part of the configuration",
        "similar name of a section",
        "a name that depends on its section",
        "no key below a value",
    ],
)
def test_nearest_override_key_exists_in_configuration(key: str, nearest: str) -> None:
    assert nearest_key(TREE, key) == nearest
