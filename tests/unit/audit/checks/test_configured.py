"""Tests that missing classes in the default configuration of a Hydra program are reported."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import configured
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row

MAIN = """import hydra
@hydra.main(config_path="config", config_name="trainer")
def main(config):
    pass
"""


def _findings(tmp_path, target, *, group="optim"):
    files = {
        "train/__init__.py": "",
        "train/main.py": MAIN,
        "train/configs.py": "class Actor:\n    class Inner:\n        pass\n",
        "train/config/trainer.yaml": f"defaults:\n  - {group}: fsdp\n  - _self_\nepochs: 1\n",
        "train/config/optim/fsdp.yaml": f"lr: 1.0\ninner:\n  _target_: {target}\n",
        "train/config/other/fsdp.yaml": "lr: 1.0\n",
    }
    package_set = audited.package_set(tmp_path, {"train==1.0": files})
    entry = MainPathEntry(name="train.main.main", why="a test")
    rules = MainPathPolicy(walk=frozenset(["train"]), entries=(entry,))
    return list(configured.check_configured_targets(package_set, main_path(package_set, rules)))


@pytest.mark.parametrize("target", ["train.configs.Critic", "train.gone.actors.Actor"])
def test_configuration_that_refers_to_a_missing_class_is_a_warning(tmp_path, target):
    (finding,) = _findings(tmp_path, target)
    assert finding.severity is Severity.WARNING
    assert finding.where == "train 1.0 train/config/optim/fsdp.yaml:3"
    assert f"refers to {target} in the configuration trainer" in finding.message


@each_row(
    "target",
    [
        "train.configs.Actor",
        "train.configs.Actor.Inner",
        "elsewhere.Actor",
        "${oc.env:X}.Actor",
    ],
)
def test_configuration_that_refers_to_an_existing_or_unknown_class_is_not_reported(
    tmp_path, target
):
    assert not _findings(tmp_path, target)


def test_configuration_that_the_defaults_do_not_select_is_not_read(tmp_path):
    assert not _findings(tmp_path, "train.configs.Critic", group="other")
