"""Tests comparing code with the tables of releases, for packages that were not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.audit.code.model import CodeText
from imgbuild.audit.code.reading import CodeFacts
from imgbuild.audit.code.release_names import ReleaseCheck, check_release_names
from imgbuild.cache.store import Store


def check(tmp_path: Path, source: str, **versions: str) -> ReleaseCheck:
    text = CodeText(file="train.py", kind="python", source=source.encode(), module="train")
    facts = CodeFacts([text], Store.open(tmp_path / "cache"))
    return check_release_names([text], facts, versions, versions)


@pytest.mark.parametrize(
    ("source", "version", "message"),
    [
        ("from trl import GRPOConfig\nGRPOConfig(vllm_mode='colocate')", "0.17.0",
         "train.py:2:1 passes vllm_mode= to trl.GRPOConfig, which trl 0.17.0 does not accept"),
        ("import trl\ntrl.GRPOConfig(vllm_mode='colocate')", "0.17.0",
         "train.py:2:1 passes vllm_mode= to trl.GRPOConfig, which trl 0.17.0 does not accept"),
        ("from trl import GRPOConfig\nGRPOConfig(vllm_mode='colocate')", "0.18.2", ""),
        ("from trl import TextEnvironment", "0.24.0",
         "train.py:1:1 imports TextEnvironment from trl, but trl 0.24.0 does not define it"),
        ("from trl import TextEnvironment", "0.18.2", ""),
        ("from trl.environment import base_environment", "0.24.0",
         "train.py:1:1 imports trl.environment, which trl 0.24.0 does not have"),
    ],
)  # fmt: skip
def test_uses_are_compared_with_the_releases_that_have_them(
    tmp_path: Path, source: str, version: str, message: str
) -> None:
    checked = check(tmp_path, source, trl=version)
    assert [f"{each.where} {each.message}" for each in checked.findings] == [message] * bool(
        message
    )
    assert checked.compared == {"trl"}


@pytest.mark.parametrize(
    ("source", "compared"),
    [
        ("import wandb", {"wandb"}),
        ("from wandb import init", set()),
        ("from peft import LoraConfig", {"peft"}),
        ("from trl.trainer.other import name", set()),
    ],
)
def test_only_imports_that_tables_cover_are_compared(
    tmp_path: Path, source: str, compared: set[str]
) -> None:
    versions = {"wandb": "0.22.2", "peft": "0.21.2", "trl": "0.18.2"}
    root = source.split()[1].partition(".")[0]
    assert check(tmp_path, source, **{root: versions[root]}).compared == compared


def test_version_newer_than_the_table_is_not_compared(tmp_path: Path) -> None:
    checked = check(tmp_path, "from trl import TextEnvironment", trl="99.0")
    assert (checked.findings, checked.compared) == ((), frozenset())


def test_class_with_arguments_of_a_base_class_of_another_package(tmp_path: Path) -> None:
    source = "from trl import SFTConfig\nSFTConfig(evaluation_strategy='no')"
    checked = check(tmp_path, source, trl="0.18.2", transformers="4.52.4")
    assert [each.message for each in checked.findings] == [
        "passes evaluation_strategy= to trl.SFTConfig, which transformers 4.52.4 does not accept"
    ]


def test_finding_under_a_condition_is_a_warning(tmp_path: Path) -> None:
    source = "try:\n    from trl import TextEnvironment\nexcept ImportError:\n    pass"
    (finding,) = check(tmp_path, source, trl="0.24.0").findings
    assert finding.severity == "warning"
