"""Tests findings about environment variables, command lines and overrides in a user's scripts."""

from __future__ import annotations

import json

import pytest

from imgbuild.audit.code.model import MOST_IN_FILE, CodeText
from imgbuild.audit.code.notebooks import notebook_module
from imgbuild.audit.code.reading import text_digest
from imgbuild.report import Severity
from tests.support import audited
from tests.support.audited_code import Findings, finding_places
from tests.support.rows import each_row

ARGUMENTS = """
from typing import Literal
from vllm.config.cache import CacheDType

class EngineArgs:
    model: str = "m"
    kv_cache_dtype: CacheDType | None = None
    runner: Literal["auto", "pooling"] = "auto"
    tokenizer_mode: Literal["auto", "slow"] | str = "auto"
    tensor_parallel_size: int = 1

def add(parser):
    parser.add_argument("--dtype", choices=["auto", "half"])
    parser.add_argument("--enable-lora", action="store_true")
"""
SERVE = """
def subparser_init(subparsers):
    return subparsers.add_parser("serve", help="serve a model")
"""
CUDA = """
def backend(selected):
    return selected in (_Backend.FLASH_ATTN, _Backend.FLASHINFER)
"""
ENVS = 'import os\nBACKEND = os.getenv("VLLM_ATTENTION_BACKEND")\nV1 = os.getenv("VLLM_USE_V1")\n'
ENVS += 'PORT = bool(int(os.getenv("VLLM_PORT", "0")))\nIDLE = float(os.environ.get("VLLM_IDLE"))\n'
ENVS += 'NCCL = [os.getenv("NCCL_DEBUG"), os.getenv("NCCL_MAX_NCHANNELS")]\n'
MAIN = """
import hydra

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    pass
"""
TRAINER = """
defaults:
  - rollout@actor_rollout_ref.rollout: vllm
  - _self_
trainer:
  epochs: 3
  resume: false
  extra: null
"""
PACKAGES: dict[str, audited.Files] = {
    "vllm==0.8.5": {
        "vllm/__init__.py": "",
        "vllm/envs.py": ENVS,
        "vllm/platforms/__init__.py": "",
        "vllm/platforms/cuda.py": CUDA,
        "vllm/engine/arg_utils.py": ARGUMENTS,
        "vllm/config/cache.py": "from typing import Literal\nCacheDType = Literal['auto', 'fp8']\n",
        "vllm/entrypoints/openai/api_server.py": "",
        "vllm/entrypoints/cli/serve.py": SERVE,
    },
    "verl==0.6": {
        "verl/__init__.py": "",
        "verl/trainer/__init__.py": "",
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/config/ppo_trainer.yaml": TRAINER,
        "verl/trainer/config/rollout/vllm.yaml": "name: vllm\ngpu_memory_utilization: 0.5\n",
    },
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export VLLM_ATTENTON_BACKEND=FLASHINFER", "IMG201 1:8 VLLM_ATTENTION_BACKEND"),
        ("VLLM_GONE=1 python train.py", "IMG201 1:1"),
        ("export NCCL_DEBG=INFO NCCL_MAX_CHANELS=1", "IMG201 1:8 NCCL_DEBUG"),
        ("docker run -e VLLM_USE_V2=1 image", "IMG201 1:15 VLLM_USE_V1"),
        ("export VLLM_ATTENTION_BACKEND=TORCH_SDPA", "IMG202 1:8"),
        ("export VLLM_PORT=yes VLLM_IDLE=0.5", "IMG202 1:8"),
        ("export VLLM_PORT=1 VLLM_IDLE=soon", "IMG202 1:20"),
        ("vllm serve m --tensor-paralel-size 2", "IMG301 1:14 --tensor-parallel-size"),
        ("vllm serve m \\\n  --enable_lorra", "IMG301 2:3 --enable_lora"),
        ("vllm srve m", "IMG302 1:6 serve"),
        ("vllm serve m --dtype bfloat17", "IMG303 1:22 one of auto, half"),
        ("vllm serve m --kv-cache-dtype fp9", "IMG303 1:31 one of auto, fp8"),
        ("vllm serve m --runner=generate", "IMG303 1:14 one of auto, pooling"),
        ("srun bash -c 'vllm serve m --nothing'", "IMG301 1:14"),
        ("srun -N 1 --gpus=4 vllm server m", "IMG302 1:25 serve"),
        ("timeout 60 mpirun -np 2 vllm srve m", "IMG302 1:30 serve"),
        ("apptainer exec --nv vllm.sif vllm srve m", "IMG302 1:35 serve"),
        ("imgbuild run cu124-vllm -- vllm srve m", "IMG302 1:33 serve"),
        ("srun vllm launch m --dtype auto", "IMG302 1:11"),
        ("python3 -m vllm.entrypoints.openai.api_servr",
         "IMG304 1:12 vllm.entrypoints.openai.api_server"),
        ("python -m verl.trainer.main_ppo actor_rollout_ref.rollout.nme=x",
         "IMG401 1:33 actor_rollout_ref.rollout.name"),
        ("python -m verl.trainer.main_ppo trainer.epochs=many", "IMG402 1:33"),
        ("python -m verl.trainer.main_ppo +trainer.epochs=2", "IMG403 1:33 trainer.epochs"),
        ("python -m verl.trainer.main_ppo rollout@actor_rollout_ref.rollout=vlm",
         "IMG408 1:33 rollout@actor_rollout_ref.rollout=vllm"),
    ],
)  # fmt: skip
def test_variables_and_commands_in_scripts_are_compared_with_package_source(
    audit: Findings, line: str, expected: str
) -> None:
    assert finding_places(audit({"run.sh": f"{line}\n"}, PACKAGES)) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "export VLLM_ATTENTION_BACKEND=$BACKEND VLLM_USE_V1=1 MY_VLLM_X=1",
        "export VLLM_MINE=1; echo $VLLM_MINE",
        "vllm serve m --tensor-parallel 2 --no-enable-lora --tensor_parallel_size=2 $MORE",
        "vllm serve m --dtype $TYPE --tokenizer-mode mine --runner=pooling",
        "srun --job-name vllm server.sh",
        "srun -J vllm ./server",
        "srun echo vllm server",
        "docker run --name vllm server",
        "srun vllm other m",
        "export NCCL_MIN_CHANNELS=1 NCCL_P2P_LEVEL=2 NCCL_BUFFSIZE=1",
        "pip install vllm --upgrade-strategy eager",
        "cd vllm --nothing",
        "cat <<END\nvllm serve m --nothing\nEND",
        "# vllm serve m --nothing",
        (
            "python -m verl.trainer.main_ppo trainer.epochs=2 trainer.resume=True +trainer.new=1 "
            "trainer.extra.x=1 trainer.epochs=${N} rollout=vllm hydra.run.dir=x ++trainer.epochs=1"
        ),
        "python -m verl.trainer.main_ppo --config-path=/mine --config-name=x trainer.nothing=1",
        "python train.py --nothing",
        "python -m mine.module --nothing",
    ],
)
def test_command_options_that_may_exist_are_not_reported(audit: Findings, line: str) -> None:
    assert audit({"run.sh": f"{line}\n"}, PACKAGES) == []


OVERRIDES = "python -m verl.trainer.main_ppo"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"A='trainer.epochs=1 trainer.epoch=2'\n{OVERRIDES} $A", "IMG401 1:1 trainer.epochs"),
        (f'export A="trainer.epoch=2"\n{OVERRIDES} ${{A}}', "IMG401 1:8 trainer.epochs"),
        (f'args=(\n  trainer.epochs=1 # one\n  trainer.epoch=$N)\n{OVERRIDES} "${{args[@]}}"',
         "IMG401 3:3 trainer.epochs"),
        (f"a=()\na+=(trainer.epoch=1)\n{OVERRIDES} ${{a[@]}}", "IMG401 2:5 trainer.epochs"),
        ("RUN='vllm serve'\n$RUN m --nothing", "IMG301 2:8"),
        (f"ARGS=trainer.epoch=1\nARGS=trainer.epochs=1\n{OVERRIDES} $ARGS", None),
        (f"ARGS=trainer.epoch=1\nread ARGS\n{OVERRIDES} $ARGS", None),
        (f"for A in x y; do {OVERRIDES} $A; done\nA=trainer.epoch=1", None),
        (f'ARGS="trainer.epoch=1 x"\n{OVERRIDES} "$ARGS" $MORE', None),
        (f"ARGS=trainer.epoch=1 other\n{OVERRIDES} $ARGS", None),
    ],
)  # fmt: skip
def test_shell_variables_that_contain_options_are_expanded(
    audit: Findings, script: str, expected: str | None
) -> None:
    assert finding_places(audit({"run.sh": f"{script}\n"}, PACKAGES)) == (
        [expected] if expected else []
    )


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("a.py", 'import subprocess\nsubprocess.run(["vllm", "serve", m, "--nothing"])\n',
         "IMG301 2:37"),
        ("a.py", 'import subprocess\ncmd = ["vllm", "srve", m]\nsubprocess.Popen(cmd)\n',
         "IMG302 2:16 serve"),
        ("a.py", 'import subprocess\ncmd = ["ray", "vllm", "srve"]\nprint(cmd)\n', None),
        ("a.py", 'import os\nos.system(f"cd {x} && vllm serve {m} --nothing")\n', "IMG301 2:11"),
        ("a.yaml", 'services:\n  a:\n    command: [vllm, serve, m,\n      "--nothing"]\n',
         "IMG301 4:7"),
        ("a.yaml", "command: [bash, -c, 'vllm srve m']\n", "IMG302 1:6 serve"),
        ("a.yaml", "command: [vllm, serve]\nargs:\n- m\n- --nothing\n", "IMG301 4:3"),
        ("a.yaml", "run: |\n  export A=1\n  vllm srve m\n", "IMG302 3:6 serve"),
        ("a.yaml", "parameters: [vllm, srve, m]\nargs: [vllm, srve]\n", None),
        ("Dockerfile", 'FROM x\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--nothing"]\n',
         "IMG301 3:1"),
        ("Dockerfile", "FROM x\nRUN --mount=type=cache a && \\\n# c\n vllm srve m\n",
         "IMG302 4:7 serve"),
        ("Dockerfile", "FROM x\nLABEL vllm srve\nCMD $X\n", None),
    ],
)  # fmt: skip
def test_commands_in_python_yaml_and_docker_files_are_checked(
    audit: Findings, file: str, source: str, expected: str | None
) -> None:
    assert finding_places(audit({file: source}, PACKAGES)) == ([expected] if expected else [])


@each_row(
    ("command", "expected"),
    [
        ("vllm serve --config conf/v.yaml", ["IMG301 1:21 tensor_parallel_size", "IMG303 1:21"]),
        ("vllm serve m --config=conf/v.yaml", ["IMG301 1:14 tensor_parallel_size", "IMG303 1:14"]),
        ("vllm serve m --model conf/v.yaml", []),
        ("vllm serve m --config other/v.yaml", []),
        ("vllm serve m --config $DIR/v.yaml", []),
        ("vllm serve m --config bad.yaml", []),
    ],
)
def test_options_in_a_file_of_a_command_are_checked(
    audit: Findings, command: str, expected: list[str]
) -> None:
    settings = "model: m\ntensor-paralel-size: 2\nenable-lora: true\ndtype: bf\n"
    files = {"run.sh": f"{command}\n", "conf/v.yaml": settings, "bad.yaml": "a: [\n"}
    findings = list(audit(files, PACKAGES))
    places = [place.partition(" one of")[0] for place in finding_places(findings)]
    assert places == expected
    if findings:
        assert "--tensor-paralel-size, which " in findings[0].message
        assert findings[0].message.endswith("conf/v.yaml:2 sets")


WITHOUT_VERL = {name: files for name, files in PACKAGES.items() if not name.startswith("verl")}


def test_command_of_a_missing_package_is_a_warning(audit: Findings) -> None:
    script = (
        "deepspeed train.py\nif true; then python -m sglang.launch_server; fi\ncd deepspeed\n"
        "python3 -m verl.trainer.main_ppo a.b=1\n"
    )
    findings = audit({"run.sh": script}, WITHOUT_VERL)
    assert finding_places(findings) == ["IMG305 1:1", "IMG305 2:25", "IMG305 4:12"]
    assert {each.severity for each in findings} == {Severity.WARNING}


def test_module_of_the_users_own_checkout_is_not_a_missing_package(audit: Findings) -> None:
    files = {"verl/__init__.py": "", "run.sh": "python3 -m verl.trainer.main_ppo a.b=1\n"}
    assert list(audit(files, WITHOUT_VERL)) == []


@each_row("line", ["vllm serve m --gone-{}", "export VLLM_GONE_{}=1"])
def test_findings_of_a_file_are_limited(audit: Findings, line: str) -> None:
    script = "".join(f"{line.format(number)}\n" for number in range(MOST_IN_FILE + 9))
    assert len(list(audit({"run.sh": script}, PACKAGES))) == MOST_IN_FILE


def test_findings_of_a_python_file_are_limited(audit: Findings) -> None:
    source = "import trl\n" + "trl.gone()\n" * (MOST_IN_FILE + 9)
    assert len(list(audit({"train.py": source}))) == MOST_IN_FILE


def test_commands_in_notebooks_are_reported_with_their_cell(audit: Findings) -> None:
    cells = ["import os\n!vllm serve m \\\n  --nothing", "%%bash\nvllm srve m", "!ls\n%time x = 1"]
    cells.append("%env VLLM_USE_V2=a b\n%set_env VLLM_USE_V3 1")
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    findings = audit({"a.ipynb": json.dumps({"cells": code})}, PACKAGES)
    assert finding_places(findings) == [
        "IMG301 3:3",
        "IMG302 2:6 serve",
        "IMG201 1:6 VLLM_USE_V1",
        "IMG201 2:10 VLLM_USE_V1",
    ]
    assert [each.cell for each in findings] == [1, 2, 4, 4]


def test_statements_after_time_magics_are_read() -> None:
    cell = {"cell_type": "code", "source": "!ls\n%time x = 1\n%time !ls\n%timeit -n 3 f()"}
    module, _, _ = notebook_module(json.dumps({"cells": [cell]}).encode())
    assert module == b"pass\npass; x = 1\npass\npass"


def test_notebook_is_checked_again_if_only_its_commands_change() -> None:
    first, second = (
        text_digest(CodeText(file="a.ipynb", kind="python", source=b"\n", commands=commands))
        for commands in (b"vllm serve m", b"vllm serve n")
    )
    assert first != second


def test_environment_variables_in_python_yaml_and_docker_files_are_checked(audit: Findings) -> None:
    findings = audit(
        {
            "a.py": "import os\nos.environ['VLLM_GONE'] = '1'\n"
            "os.environ['VLLM_READ'] = '1'\nprint(os.environ['VLLM_READ'])\n",
            "b.yaml": "env:\n  VLLM_USE_V2: 1\n  - name: VLLM_GONE2\n",
            "Dockerfile": "FROM x\nARG VLLM_REPO=1\nENV VLLM_USE_V3=1\n",
        },
        PACKAGES,
    )
    assert [(each.file.rpartition("/")[2], each.line) for each in findings] == [
        ("Dockerfile", 3),
        ("a.py", 2),
        ("b.yaml", 2),
        ("b.yaml", 3),
    ]


SETTINGS = """
from dataclasses import dataclass


@dataclass
class BaseConfig:
    compute_environment: str
    distributed_type: str
    num_processes: int

    @classmethod
    def from_yaml_file(cls, path):
        raise ValueError(f"The config file at {path} had unknown keys")
"""
ACCELERATE: dict[str, audited.Files] = {
    "accelerate==1.8": {
        "accelerate/__init__.py": "",
        "accelerate/commands/__init__.py": "",
        "accelerate/commands/config/__init__.py": "",
        "accelerate/commands/config/config_args.py": SETTINGS,
    }
}


def test_accelerate_and_deepspeed_files_are_checked(
    audit: Findings,
) -> None:
    files = {
        "a.yaml": "compute_environment: x\ndistributed_type: NO\nnum_proceses: 2\n"
        "num_processes: many\ndeepspeed_config:\n  zero_stage: 4\n",
        "b.json": '{"zero_optimization":\n {"stage": 5},\n "fp16": {"enabled": true},\n'
        ' "bf16": {"enabled": true}}\n',
        "c.json": '{"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}\n',
        "d.yaml": "num_proceses: 2\n",
    }
    findings = audit(files, ACCELERATE)
    assert finding_places(findings) == [
        "IMG404 3:1 num_processes",
        "IMG405 4:1",
        "IMG404 5:1",
        "IMG405 6:3",
        "IMG405 2:4",
        "IMG405 4:3",
    ]


def test_invalid_accelerate_values_are_reported(audit: Findings) -> None:
    kinds = (
        "class BaseEnum:\n    pass\n\n\n"
        "class DistributedType(str, BaseEnum):\n    NO = 'NO'\n    FSDP = 'FSDP'\n\n\n"
        "class PrecisionType(str, BaseEnum):\n    NO = 'no'\n    BF16 = 'bf16'\n"
    )
    utilities = {"accelerate/utils/__init__.py": "", "accelerate/utils/dataclasses.py": kinds}
    packages = {"accelerate==1.8": {**ACCELERATE["accelerate==1.8"], **utilities}}
    start = "compute_environment: LOCAL_MACHINE\n"
    files = {
        "a.yaml": f"{start}distributed_type: FSPD\nmixed_precision: bfloat16\n",
        "b.yaml": f"{start}distributed_type: FSDP\nmixed_precision: bf16\n",
        "c.yaml": f"{start}distributed_type: 'NO'\nmixed_precision: no\n",
    }
    findings = [each for each in audit(files, packages) if each.code == "IMG405"]
    assert finding_places(findings) == ["IMG405 2:1 FSDP", "IMG405 3:1 bf16"]


def test_finding_names_the_release_that_removed_an_option(audit: Findings) -> None:
    files = {
        "vllm/__init__.py": "",
        "vllm/envs.py": 'import os\nV1 = os.getenv("VLLM_USE_V1")\n',
        "vllm/engine/arg_utils.py": ARGUMENTS + "class ModelConfig:\n    hidden_layers: int = 1\n",
        "vllm/entrypoints/cli/serve.py": SERVE,
    }
    script = "vllm serve m --swap-space 4 --hidden-layers 2\nexport VLLM_ATTENTION_BACKEND=A\n"
    findings = audit({"run.sh": script}, {"vllm==0.33.0": files})
    assert [each.message for each in findings] == [
        "vllm 0.33.0 has no option --swap-space (removed in 0.18.0)",
        "vllm 0.33.0 has no option --hidden-layers",
        "sets VLLM_ATTENTION_BACKEND, which vllm 0.33.0 does not read (removed in 0.15.0)",
    ]


def test_finding_names_the_release_that_added_an_argument(audit: Findings) -> None:
    trl: audited.Files = {
        "trl/__init__.py": "class SFTTrainer:\n"
        "    def __init__(self, model, processing_class=None):\n        pass\n"
    }
    code = "from trl import SFTTrainer\nSFTTrainer('m', tokenizer=None)\n"
    (finding,) = audit({"a.py": code}, {"trl==0.18.2": trl})
    assert finding.since == "0.16.0"
    assert finding.remedy.endswith("install trl<0.16.0")


def test_options_are_unknown_without_the_package_that_defines_more_of_them(audit: Findings) -> None:
    files: audited.Files = {
        "llamafactory/__init__.py": "",
        "llamafactory/cli.py": "COMMAND = 'train'\n",
        "llamafactory/hparams/finetuning_args.py": "class FinetuningArguments:\n    stage: str\n",
    }
    fields = "class TrainingArguments:\n    output_dir: str\n"
    scripts = {"run.sh": "llamafactory-cli train --stage sft --output_dir o --absent 1\n"}
    alone = {"llamafactory==0.9.5": files}
    assert audit(scripts, alone) == []
    both = {**alone, "transformers==5.6": {"transformers/training_args.py": fields}}
    assert finding_places(audit(scripts, both)) == ["IMG301 1:51"]


def test_option_of_another_command_is_reported(audit: Findings) -> None:
    files: audited.Files = {
        "trl/__init__.py": "",
        "trl/cli/main.py": 'COMMANDS = ["dpo", "grpo", "env"]\n',
        "trl/scripts/dpo.py": 'dataclass_types = (DPOConfig, ModelConfig)\nEXTRA = "--extra"\n',
        "trl/scripts/grpo.py": "dataclass_types = (GRPOConfig, ModelConfig)\n",
        "trl/trainer/base_config.py": "class BaseConfig:\n    learning_rate: float = 0\n",
        "trl/trainer/dpo_config.py": "class DPOConfig(BaseConfig):\n    beta: float = 0\n",
        "trl/trainer/grpo_config.py": "class GRPOConfig(BaseConfig):\n    temperature: int = 0\n",
        "trl/trainer/model_config.py": "class ModelConfig:\n    dtype: str = ''\n",
    }
    more: dict[str, audited.Files] = {
        "transformers==5.0": {"transformers/training_args.py": ""},
        "accelerate==1.0": {"accelerate/commands/launch.py": ""},
    }
    script = (
        "trl dpo --learning_rate 1 --beta 1 --dtype a --extra --temperature 1\n"
        "trl grpo --learning_rate 1 --temperature 1 --no-beta --extra\n"
        "trl env --beta 1 --temperature 1\n"
    )
    found = audit({"a.sh": script}, {"trl==1.0": files, **more})
    assert [(each.line, each.message) for each in found] == [
        (1, "trl 1.0 has no option --temperature (other commands have it)"),
        (2, "trl 1.0 has no option --no-beta"),
    ]


def test_commands_behind_launchers_are_checked(audit: Findings) -> None:
    packages: dict[str, audited.Files] = {
        **PACKAGES,
        "torch==2.11.0": {
            "torch/distributed/run.py": 'parser.add_argument("--nnodes", type=str)\n'
            'parser.add_argument("--standalone", action="store_true")\n'
        },
        "ray==2.60": {"ray/__init__.py": "", "ray/scripts/scripts.py": 'NAMES = ["job", "--x"]\n'},
    }
    script = """torchrun --nnodes=$N --standalone --absent -m verl.trainer.main_sft a.b=1
torchrun --nnodes $N --absent -m verl.trainer.main_sft
torchrun --standalone $FILE --absent -m mine.module
torchrun --nnodes $N train.py -m verl.trainer.main_sft
args=(trainer.epochs=2 trainer.epoch=3)
ray job submit --x -- python3 -m verl.trainer.main_ppo "${args[@]}"
ray job submit --x -- python3 train.py trainer.epoch=3
"""
    found = audit({"run.sh": script}, packages)
    assert [(each.line, each.code) for each in found] == [
        (1, "IMG301"),
        (1, "IMG304"),
        (2, "IMG301"),
        (2, "IMG304"),
        (5, "IMG401"),
    ]


def test_fields_with_metadata_are_options(audit: Findings) -> None:
    fields = """from sglang.srt.arg_groups.arg_utils import A
class Schedule:
    mem_fraction: A[float, "share of the memory"] = 0.8
class Other:
    inner: float = 0.8
"""
    files: audited.Files = {
        "sglang/__init__.py": "",
        "sglang/launch_server.py": "",
        "sglang/srt/arg_groups/arg_utils.py": "from typing import Annotated\nA = Annotated\n",
        "sglang/srt/arg_groups/fields.py": fields,
        "sglang/srt/server_args.py": 'parser.add_argument("--config")\n',
    }
    script = "python -m sglang.launch_server --mem-fraction 0.9 --inner 1\n"
    found = audit({"run.sh": script}, {"sglang==0.5.23": files})
    assert [each.message for each in found] == ["sglang 0.5.23 has no option --inner"]


HEREDOCS = """#!/bin/bash
#SBATCH --gpus=8
echo $((1 << SHIFT))
cat <<< "$HOME"
srun python3 -u - "$1" <<'EOF'
from trl import SFTConfig
SFTConfig("out", eval_strateg="no")
EOF
cat > train.py <<END
from trl import load
load("$MODEL", revisio=$REVISION)
load("$MODEL", revisio="main")  # noqa: IMG102
END
\tpython <<-EOF
\tif True:
\t  import trl; trl.Gone
\tEOF
python - <<EOF
print(broken
EOF
cat > notes.txt <<EOF
import nothing_of_the_kind
EOF
python train.py <<EOF
import input_of_the_script
EOF
ray submt
"""


def test_python_code_in_here_documents_is_checked(audit: Findings) -> None:
    findings = audit({"job.sh": HEREDOCS})
    assert [(each.code, each.line, each.column) for each in findings] == [
        ("IMG102", 7, 18),
        ("IMG102", 11, 16),
        ("IMG101", 16, 15),
        ("IMG305", 27, 1),
    ]


def test_shift_in_an_arithmetic_command_starts_no_here_document(audit: Findings) -> None:
    (finding,) = audit({"job.sh": "((SIZE = 1 << SHIFT))\nray submt\n"})
    assert (finding.code, finding.line) == ("IMG305", 2)


def test_script_with_a_here_document_does_not_hide_a_module_of_its_name(audit: Findings) -> None:
    files = {
        "train.sh": "python - <<EOF\nimport trl\nEOF\n",
        "train.py": "X = 1\n",
        "run.py": "from train import Y\n",
        "other.sh": "python - <<EOF\nfrom train import Y\nEOF\n",
    }
    assert audit(files) == []


def test_variables_that_a_script_with_a_here_document_reads_are_known(audit: Findings) -> None:
    script = "export VLLM_OWN=1\necho $VLLM_OWN\n"
    heredoc = "python - <<'EOF'\nimport vllm\nEOF\n"
    packages = {"vllm": {"vllm/__init__.py": "", "vllm/envs.py": "VLLM_PORT = 1\n"}}
    assert audit({"run.sh": script}, packages) == audit({"run.sh": script + heredoc}, packages)
