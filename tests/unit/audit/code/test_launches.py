"""Tests findings about launchers: GPUs of Slurm, DeepSpeed files and Hydra configurations."""

from __future__ import annotations

import pytest

from imgbuild.audit.code.launches import SlurmGpus, requested_gpus
from imgbuild.report import Severity
from tests.support import audited
from tests.support.audited_code import Findings, finding_places
from tests.support.rows import each_row
from tests.unit.audit.code.test_scripts import PACKAGES as SCRIPTED

ZERO = """
class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    stage: int = 0
    overlap_comm: bool = True
    allgather_bucket_size: int = 5
    prefetch_bucket_size: int = Field(5, alias="stage3_prefetch_bucket_size")
    offload_param: object = None
"""
OFFLOAD = """
class Base(DeepSpeedConfigModel):
    device: str = "none"

class DeepSpeedZeroOffloadParamConfig(Base):
    pin_memory: bool = False
"""
FILLED = """
def fill(config):
    config.fill_only("zero_optimization.stage3_prefetch_bucket_size", 1)
    config.fill_match("gradient_clipping", 1)
"""
LOADS = """
def from_pretrained(name, device_map=None):
    raise ValueError("DeepSpeed Zero-3 is not compatible with passing a `device_map`.")
"""
PACKAGES: dict[str, audited.Files] = {
    "deepspeed==0.17.6": {
        "deepspeed/__init__.py": "",
        "deepspeed/runtime/zero/config.py": ZERO,
        "deepspeed/runtime/zero/offload_config.py": OFFLOAD,
    },
    "transformers==4.57.1": {
        "transformers/__init__.py": "from .modeling_utils import from_pretrained\n",
        "transformers/modeling_utils.py": LOADS,
        "transformers/integrations/deepspeed.py": FILLED,
    },
}
JOB = "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\n"


@each_row(
    ("lines", "expected"),
    [
        (["--gpus-per-node=8"], SlurmGpus(8, 1, 1)),
        (["--nodes=2", "--gpus-per-node h100:4"], SlurmGpus(4, 2, 2)),
        (["--gres=gpu:a100:2", "-N 3"], SlurmGpus(2, 3, 1)),
        (["--gres=gpu"], SlurmGpus(1, 1, 1)),
        (["-N 2", "-G 8"], SlurmGpus(4, 2, 2)),
        (["--gpus-per-task=2", "--ntasks-per-node=2"], SlurmGpus(4, 1, 1)),
        (["--gres=disk:5", "--time=01:00:00"], None),
        (["--gpus-per-node=$N"], None),
    ],
)
def test_gpus_that_a_slurm_script_requests_are_read(
    lines: list[str], expected: SlurmGpus | None
) -> None:
    assert requested_gpus("".join(f"#SBATCH {line}\n" for line in lines)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun torchrun --nproc_per_node 8 train.py", ["IMG306 4:32"]),
        ("torchrun --nproc-per-node=8 train.py", ["IMG306 4:10"]),
        ("torchrun --nproc-per-node=4 train.py --nproc-per-node=8", []),
        ("torchrun --nproc-per-node=$N train.py", []),
        ("torchrun --nproc-per-node=gpu train.py", []),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", []),
        ("accelerate launch --num_processes 8 train.py", ["IMG306 4:35"]),
        ("accelerate launch --config_file configs/many.yaml train.py", ["IMG306 4:12"]),
        ("accelerate config", []),
        ("python train.py --num-processes 9", []),
    ],
)
def test_process_count_of_a_launcher_is_compared_with_the_requested_gpus(
    audit: Findings, line: str, expected: list[str]
) -> None:
    many = "distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\n"
    findings = audit({"job.sh": f"{JOB}{line}\n", "configs/many.yaml": many}, PACKAGES)
    assert [each for each in finding_places(findings) if "IMG305" not in each] == expected


STAGE3 = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
SCRIPT = "from transformers import from_pretrained\nfrom_pretrained('m', device_map={})\n"


@pytest.mark.parametrize(
    ("line", "value", "expected"),
    [
        ("accelerate launch --config_file z3.yaml train.py", "'auto'", ["IMG407 2:33"]),
        ("deepspeed train.py --deepspeed ds.json", "{'': 0}", ["IMG407 2:33"]),
        ("accelerate launch --config_file z3.yaml train.py", "None", []),
        ("accelerate launch --config_file z3.yaml train.py", "chosen()", []),
        ("accelerate launch --config_file z3.yaml other.py", "'auto'", []),
        ("accelerate launch train.py", "'auto'", []),
    ],
)
def test_options_rejected_by_zero_stage_3_are_reported(
    audit: Findings, line: str, value: str, expected: list[str]
) -> None:
    files = {
        "run.sh": f"{line}\n",
        "z3.yaml": STAGE3,
        "ds.json": '{"zero_optimization": {"stage": 3}}',
        "train.py": "def chosen():\n    return {}\n" * (value == "chosen()") + SCRIPT.format(value),
    }
    findings = [each for each in audit(files, PACKAGES) if each.code == "IMG407"]
    assert finding_places(findings) == expected


def test_keys_of_a_deepspeed_file_are_compared_with_the_deepspeed_classes(audit: Findings) -> None:
    ds = (
        '{"gradient_clipping": "auto",\n "zero_optimization": {"stage": 3,\n'
        '  "overlap_com": true,\n  "stage3_prefetch_bucket_size": "auto",\n'
        '  "allgather_bucket_size": "auto",\n'
        '  "offload_param": {"device": "cpu", "pin_memry": true}}}\n'
    )
    findings = audit({"ds.json": ds}, PACKAGES)
    assert finding_places(findings) == [
        "IMG404 3:4 overlap_comm",
        "IMG405 5:4",
        "IMG404 6:39 pin_memory",
    ]
    assert [each.severity for each in findings][1] is Severity.WARNING


def test_misspelt_deepspeed_settings_at_the_top_level_are_warnings(audit: Findings) -> None:
    names = {"deepspeed/runtime/constants.py": 'A = "zero_optimization"\nB = "gradient_clipping"\n'}
    packages = {**PACKAGES, "deepspeed==0.17.6": {**PACKAGES["deepspeed==0.17.6"], **names}}
    ds = '{"zero_optimizaton": {}, "gradient_clipping": 1, "gradient_clippin": 1, "own_key": 1}'
    findings = audit({"ds.json": ds}, packages)
    assert finding_places(findings) == [
        "IMG406 1:3 zero_optimization",
        "IMG406 1:51 gradient_clipping",
    ]
    assert {each.severity for each in findings} == {Severity.WARNING}


MINE = """\
defaults:
  - ppo_trainer
  - _self_
trainer:
  epoch: 4
  extra:
    x: 1
actor_rollout_ref:
  rollout:
    gpu_memory_utilisation: 0.6
mine:
  weight: 1
"""


def test_user_configuration_is_compared_with_the_configuration_of_the_package(
    audit: Findings,
) -> None:
    findings = audit({"conf/mine.yaml": MINE}, SCRIPTED)
    assert finding_places(findings) == [
        "IMG406 5:3 trainer.epochs",
        "IMG406 10:5 actor_rollout_ref.rollout.gpu_memory_utilization",
    ]
    assert {each.severity for each in findings} == {Severity.WARNING}


def test_unknown_options_in_the_defaults_list_are_errors(audit: Findings) -> None:
    lists = (
        "  - rollout@actor_rollout_ref.rollout: sglan\n  - override rollout: mine\n  - rollout/x\n"
    )
    files = {
        "conf/mine.yaml": f"defaults:\n  - ppo_trainer\n{lists}  - _self_\n",
        "conf/rollout/mine.yaml": "name: mine\n",
    }
    findings = audit(files, SCRIPTED)
    assert [each.message.partition(" has no ")[2] for each in findings] == [
        "sglan in the group rollout",
        "x in the group rollout",
    ]
    assert {each.where.rpartition("/")[2] for each in findings} == {"mine.yaml:1:1"}


def test_overrides_of_a_user_configuration_are_checked(audit: Findings) -> None:
    run = "python -m verl.trainer.main_ppo --config-path=conf --config-name=mine"
    files = {
        "conf/mine.yaml": "defaults:\n  - ppo_trainer\n  - _self_\nmine:\n  weight: 1\n",
        "run.sh": f"{run} mine.weight=2 trainer.epochs=1 mine.weights=2\n",
    }
    assert finding_places(audit(files, SCRIPTED)) == ["IMG401 1:102 mine.weight"]


COMPOSED = """\
from hydra import compose, initialize_config_module

with initialize_config_module("verl.trainer.config"):
    config = compose(
        config_name="ppo_trainer",
        overrides=["trainer.epochs=2", f"trainer.epoch={N}", "+trainer.new=1", f"{KEY}=1"],
    )
"""


def test_overrides_in_python_code_are_checked(audit: Findings) -> None:
    code = f"N = 1\nKEY = 'a'\n{COMPOSED}"
    hydra: audited.Files = {"hydra/__init__.py": "def compose(*a, **k): ...\n"
                           "def initialize_config_module(*a, **k): ...\n"}  # fmt: skip
    findings = audit({"a.py": code}, {**SCRIPTED, "hydra-core==1.3": hydra})
    assert finding_places(findings) == ["IMG401 8:40 trainer.epochs"]
    other = code.replace("verl.trainer.config", "mine.config")
    assert audit({"a.py": other}, {**SCRIPTED, "hydra-core==1.3": hydra}) == []
