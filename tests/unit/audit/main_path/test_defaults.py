"""Tests findings about code that runs with the default configuration of an entry point."""

from __future__ import annotations

import pytest

from imgbuild.audit.checks import imports
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.main_path.policy import MainPathEntry, MainPathPolicy
from imgbuild.report import Severity
from tests.support import audited
from tests.support.rows import each_row

MAIN = """
import hydra
import ray
from train.actors import Runner

@ray.remote
class Current:
    def run(self, config):
        {body}

def start(config, runner_class):
    if not ray.is_initialized():
        ray.init()
    runner = runner_class.options(num_cpus=1).remote()
    ray.get(runner.run.remote(config))

@hydra.main(config_path="config", config_name="trainer", version_base=None)
def main(config):
    if config.trainer.current{test}:
        start(config, runner_class=Current)
    else:
        from train.old import Old
        start(config, Old)
"""
OLD = "import ray\n@ray.remote\nclass Old:\n    def run(self, config):\n        import queue_old\n"
YAML = """
defaults:
  - model_engine: dp
  - actor@actor: ${{model_engine}}_actor
  - _self_
trainer:
  current: {current}
  mode: sync
"""


def _missing(tmp_path, *, current="true", test="", body="import queue_new", more=None):
    files = {
        "train/__init__.py": "",
        "train/actors.py": "class Runner:\n    pass\n",
        "train/old.py": OLD,
        "train/main.py": MAIN.format(body=body, test=test),
        "train/config/trainer.yaml": YAML.format(current=current),
        "train/config/model_engine/dp.yaml": "name: dp\n",
        "train/config/actor/dp_actor.yaml": "strategy: fsdp\nbackend: null\n",
        # A group of this name is no copy of a package.
        "train/config/queue_new/queue_new.yaml": "enable: false\n",
        **(more or {}),
    }
    packages = {
        "train==1.0": files,
        "ray==2.0": {"ray/__init__.py": "def remote(x):\n    return x\n"},
        "hydra-core==1.3": {"hydra/__init__.py": "def main(**settings):\n    pass\n"},
    }
    package_set = audited.package_set(tmp_path, packages)
    entry = MainPathEntry(name="train.main.main", why="a test", also=("train.main.Current",))
    rules = MainPathPolicy(walk=frozenset(["train"]), entries=(entry,))
    findings = imports.check_imports(package_set, main_path(package_set, rules))
    return {
        finding.evidence.subject: finding.severity
        for finding in findings
        if finding.evidence is not None
    }


def test_package_required_by_default_configuration_is_an_error(tmp_path):
    assert _missing(tmp_path) == {"queue_new": Severity.ERROR}


@pytest.mark.parametrize("test", [" is True", " and config.trainer.mode == 'sync'"])
def test_conditions_are_evaluated_with_the_default_configuration(tmp_path, test):
    assert _missing(tmp_path, test=test) == {"queue_new": Severity.ERROR}


def test_branch_that_runs_by_default_requires_its_packages(tmp_path):
    assert _missing(tmp_path, current="false") == {"queue_old": Severity.ERROR}


def test_unknown_condition_on_configuration_causes_no_error(tmp_path):
    assert _missing(tmp_path, test=" and ray.is_initialized()") == {}


def test_class_wrapped_by_ray_remote_is_followed_on_the_main_path(tmp_path):
    main = (
        MAIN.replace("@ray.remote\nclass", "class")
        .replace(
            "    runner = runner_class.options(num_cpus=1).remote()",
            "    if runner_class is None:\n        runner_class = ray.remote(num_cpus=1)(Current)\n"
            "    runner = runner_class.remote()",
        )
        .replace("def start(config, runner_class)", "def start(config, runner_class=None)")
    )
    main = main.replace("start(config, runner_class=Current)", "start(config)")
    more = {"train/main.py": main.format(body="import queue_new", test="")}
    assert _missing(tmp_path, more=more) == {"queue_new": Severity.ERROR}


def test_configuration_values_are_followed_into_called_functions(tmp_path):
    main = MAIN.replace(
        "    if config.trainer", "    config = adapted(config)\n    if config.trainer"
    )
    main += "\n\ndef adapted(config):\n    config.trainer.mode = 'new'\n    return config\n"
    more = {"train/main.py": main.format(body="import queue_new", test="")}
    assert _missing(tmp_path, more=more) == {"queue_new": Severity.ERROR}


def test_module_imported_by_default_requires_its_packages(tmp_path):
    more = {"train/new.py": "import queue_new\n"}
    body = "from train import new"
    assert _missing(tmp_path, body=body, more=more) == {"queue_new": Severity.ERROR}


@each_row(
    "text",
    ["defaults:\n", "defaults: 3\n", "defaults: [{}, null]\n", "day: 2026-13-45\n", "x: 0x_\n"],
)
def test_invalid_hydra_configuration_has_no_findings(tmp_path, text):
    assert _missing(tmp_path, more={"train/config/trainer.yaml": text}) == {}


@each_row(
    ("condition", "subject"),
    [
        ("config.actor.strategy == 'fsdp'", "queue_new"),
        ("config.actor.strategy in {'fsdp', 'fsdp2'}", "queue_new"),
        ("config.actor.get('strategy', '') == 'fsdp'", "queue_new"),
        ("config['actor']['strategy'] == 'fsdp'", "queue_new"),
        ("OmegaConf.select(config, 'actor.strategy') is not None", "queue_new"),
        ("OmegaConf.select(config.actor, 'gone') is not None", ""),
        ("config.actor.strategy == 'megatron'", ""),
        ("config.actor.backend is not None", ""),
        ("config.actor.backend", ""),
    ],
)
def test_hydra_configuration_groups_determine_values(tmp_path, condition, subject):
    body = f"if {condition}:\n            import queue_new"
    missing = _missing(tmp_path, body=body)
    assert missing == ({subject: Severity.ERROR} if subject else {})


REPLACED = (
    "if config.unknown():\n            config['trainer']['current'] = False\n"
    "        if config.trainer.current:\n            import queue_new"
)
TRIED = "try:\n            import queue_new\n        {}"


@each_row(
    ("body", "is_needed"),
    [
        (TRIED.format("except ImportError:\n            pass"), False),
        (TRIED.format("finally:\n            pass"), True),
        (TRIED.format("except ImportError as error:\n            raise OSError from error"), True),
        ("if config.unknown():\n            return\n        import queue_new", False),
        ("for x in config.items:\n            import queue_new", False),
        ("config.x = False\n        if config.x:\n            import queue_new", False),
        (REPLACED, False),
    ],
)
def test_statements_that_may_not_run_require_no_packages(tmp_path, body, is_needed):
    assert _missing(tmp_path, body=body) == ({"queue_new": Severity.ERROR} if is_needed else {})


@pytest.mark.parametrize(
    ("default", "more", "is_needed"),
    [
        ("True", "", True),
        ("False", "", False),
        ("True", "    def __post_init__(self):\n        self.fast = self.size > 1\n", False),
    ],
)
def test_dataclass_defaults_determine_configuration_values(tmp_path, default, more, is_needed):
    files = {
        "train/__init__.py": "",
        "train/config.py": "from dataclasses import dataclass, field\n"
        "@dataclass\nclass Base:\n    fast: bool = False\n"
        f"@dataclass\nclass Config(Base):\n    fast: bool = field(default={default})\n{more}",
        "train/trainer.py": "from train.config import Config\n"
        "class Trainer:\n    def __init__(self, model, args: Config | None = None):\n"
        "        self.args = args\n        if self.args.fast:\n            import queue_new\n",
    }
    package_set = audited.package_set(tmp_path, {"train==1.0": files})
    entry = MainPathEntry(name="train.trainer.Trainer", why="a test")
    rules = MainPathPolicy(walk=frozenset(["train"]), entries=(entry,))
    findings = imports.check_imports(package_set, main_path(package_set, rules))
    assert [finding.severity for finding in findings] == [Severity.ERROR] * is_needed
