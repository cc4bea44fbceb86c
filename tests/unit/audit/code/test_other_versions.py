"""Tests findings about keywords, methods and names that exist only in other versions."""

from __future__ import annotations

from pathlib import Path

from imgbuild.audit.code import check, other_sets
from imgbuild.audit.code.code_files import find_files
from imgbuild.audit.code.other_sets import OtherSet
from imgbuild.cache.store import Store
from imgbuild.report import ConflictRelation, Evidence
from tests.support import audited
from tests.support.audited_code import audit_files, finding_places
from tests.support.rows import each_row

PASSED_ON = {
    "def make(out, **extra):\n    extra.pop('mine', 1)\n    return SFTConfig(out, **extra)\n"
    "make('x', evaluation_strategy='no', mine=1)\n": ["IMG102 5:11 eval_strategy"],
    "class Mine(SFTTrainer):\n    def compute_loss(self, *given, **more):\n        pass\n"
    "Mine('m', args=None, tokenizer=None)\n": ["IMG102 5:22 processing_class"],
    "class Mine(SFTTrainer):\n    def __init__(self, *given, reward=None, **more):\n"
    "        super().__init__(*given, **more)\n"
    "Mine('m', reward=1, tokenizer=None)\n": ["IMG102 5:21 processing_class"],
    "class Mine(SFTTrainer):\n    def __init__(self, model, tokenizer):\n"
    "        super().__init__(model, processing_class=tokenizer)\n"
    "Mine('m', tokenizer=None)\nMine('m', wrong=1)\n": [],
    "def make(out, **extra):\n    print(extra)\n    return SFTConfig(out, **extra)\n"
    "make('x', evaluation_strategy='no')\n": [],
    "@dataclass\nclass Mine(SFTConfig):\n    reward: int = 0\n"
    "Mine('x', reward=1, evaluation_strategy='no')\n": ["IMG102 5:21 eval_strategy"],
}


@each_row("script, expected", PASSED_ON.items())
def test_keyword_arguments_are_followed_through_user_functions_and_classes(
    tmp_path: Path, script: str, expected: list[str]
) -> None:
    start = "from dataclasses import dataclass; from trl import SFTConfig, SFTTrainer\n"
    assert finding_places(audit_files(tmp_path, {"train.py": start + script})) == expected


RAY_PACKAGES: dict[str, audited.Files] = {
    "ray==2.60": {
        "ray/__init__.py": "from ray._private.worker import remote\n",
        "ray/_private/__init__.py": "",
        "ray/_private/worker.py": "def remote(*args, **kwargs):\n    return args or kwargs\n",
        "ray/_common/__init__.py": "",
        "ray/_common/ray_option_utils.py": "_options = {'num_gpus': 1, 'name': 2}\n"
        "options = {**_options}\n",
    }
}


def test_options_of_ray_remote_are_compared_with_the_ray_version(tmp_path: Path) -> None:
    script = (
        "import ray\n@ray.remote(num_gpu=1)\ndef f(): ...\n@ray.remote\nclass A: ...\n"
        "A.options(num_gpus=1, names='x').remote()\nray.remote(A).options(num_gpu=1)\n"
        "f.options(name='x')\nA.other(num_gpu=1)\n"
    )
    assert finding_places(audit_files(tmp_path, {"run.py": script}, RAY_PACKAGES)) == [
        "IMG102 2:13 num_gpus",
        "IMG102 6:23 name",
        "IMG102 7:23 num_gpus",
    ]


def test_suggestion_for_a_mistyped_keyword_is_chosen_from_all_versions(tmp_path: Path) -> None:
    old, new = (
        audited.package_set(
            tmp_path / name, {f"trl=={name}": {"trl.py": f"def make(max_completion_length{more}):\n"
            "    return 1\n"}}
        )
        for name, more in (("0.18", "=1, max_prompt_length=1"), ("1.12", "=1"))
    )  # fmt: skip
    evidence = Evidence(
        package="", version="", file="x.py", line=1, relation=ConflictRelation.KEYWORD, other="trl",
        other_version="1.12", subject="trl.make(max_prompt_len)",
    )  # fmt: skip
    others = [OtherSet("old", {"trl": "0.18"}, lambda: old)]
    nearest = other_sets.find_replacement(new, evidence, others)
    assert (nearest.instead, nearest.having, nearest.targets) == (
        *("max_prompt_length", "0.18"),
        ("old",),
    )
    assert other_sets.find_replacement(new, evidence, []).instead == "max_completion_length"


MANY: dict[str, audited.Files] = {
    "datasets==5.2": {
        "datasets.py": "from typing import Union\n\n"
        "class One:\n    def map(self, f, num_proc=1): ...\n    def shard(self, n): ...\n\n"
        "class Two:\n    def map(self, f, batch=1): ...\n    def shard(self, n, more=1): ...\n\n"
        "def load(path) -> Union[One, 'Two']: ...\n"
    }
}


def test_keywords_that_no_possible_class_of_the_object_accepts_are_reported(tmp_path: Path) -> None:
    script = (
        "from datasets import load\nds = load('x')\nds.map(len, num_procs=1)\n"
        "ds.map(len, num_proc=1)\nds.shard(1, more=1)\nload('x').shard(1, others=1)\n"
    )
    assert finding_places(audit_files(tmp_path, {"run.py": script}, MANY)) == [
        "IMG102 3:13 num_proc",
        "IMG102 6:20",
    ]


def test_functions_that_replace_removed_names_of_a_package_are_reported(tmp_path: Path) -> None:
    old, new = (
        audited.package_set(
            tmp_path / version,
            {f"vllm=={version}": {"vllm/__init__.py": "", "vllm/worker.py": f"class W:\n{body}"}},
        )
        for version, body in (
            ("0.8", "    def load(self): ...\n    def run(self): ...\ndef gone(): ...\n"),
            ("0.26", "    def run(self): ...\n"),
        )
    )
    path = tmp_path / "code" / "patch.py"
    path.parent.mkdir()
    path.write_text(
        "import vllm.worker\nfrom vllm.worker import W\ndef f(self): ...\nmodel = W()\n"
        "W.load = f\nW.run = f\nW.mine = f\nvllm.worker.W.load = f  # new\n"
        'setattr(W, "load", f)\nmodel.load = f\nW.load = None\nvllm.worker.gone = f\n',
        encoding="utf-8",
    )
    others = [OtherSet("old", {"vllm": "0.8"}, lambda: old)]
    store = Store.open(tmp_path / "cache")
    shown_findings = check.check_code(new, find_files([path]), store, others).findings
    assert [(each.code, each.line, each.column) for each in shown_findings] == [
        ("IMG108", 5, 1),
        ("IMG108", 8, 1),
        ("IMG108", 9, 9),
        ("IMG104", 10, 1),
    ]
    assert shown_findings[0].remedy == "vllm 0.8 has it (target old)"


CONFIG = (
    "from dataclasses import dataclass, fields\n@dataclass\nclass Base:\n    out: str = ''\n"
    "    def __post_init__(self):\n        for old, new in (('fp16', 'bf16'), ('a', 'b')):\n"
    "            setattr(self, old, getattr(self, new))\n"
    "        for field in fields(self):\n            setattr(self, field.name, 1)\n"
    "        self.seed = 1\n@dataclass\nclass SFTConfig(Base):\n    max_length: int = 1\n"
)
ANY_NAME = CONFIG.replace("setattr(self, field.name, 1)", "self.__dict__.update(more)")
INSTANCES = {
    # reads: fields, attributes of methods, computed ones, missing ones
    "c = SFTConfig()\nc.out, c.seed, c.fp16, c.max_seq_length": ["IMG104 3:24 max_length"],
    "def f(c: SFTConfig):\n    return c.max_seq_length": ["IMG104 3:12 max_length"],
    "c = SFTConfig()\nif flag: c = other()\nc.max_seq_length": [],
    "c = SFTConfig()\nif hasattr(c, 'max_seq_length'): c.max_seq_length": [],
    "c = SFTConfig()\nsetattr(c, 'more', 1)\nc.more": [],
    "c = SFTConfig()\nvars(c)['more'] = 1\nc.more": [],
    "c = SFTConfig()\nc.__dict__.update(more=1)\nc.more": [],
    "c = SFTConfig()\nobject.__setattr__(c, 'more', 1)\nc.more": [],
    "c = SFTConfig()\nif 'max_seq_length' in dir(c): c.max_seq_length": [],
    "c = SFTConfig()\nSFTConfig.more = 1\nc.more": [],
    "c = SFTConfig()\nc.__class__ = Other\nc.more": [],
    "c = SFTConfig()\ndef f():\n    global c\n    c = Other()\nf()\nc.more": [],
    "def f():\n    c = SFTConfig()\n    def g():\n        nonlocal c\n        c = Other()\n"
    "    g()\n    c.more": [],
    "c = SFTConfig()\nother.__dict__, c.out\nc.more": ["IMG104 4:1"],
    "c = SFTConfig()\nwith pytest.raises(AttributeError):\n    c.more": [],
    # assignments: of names that another version has
    "c = SFTConfig()\nc.max_seq_length = 1\nc.max_seq_length\nc.mine = 1\nc.out = 2": [
        "IMG104 3:1 max_length"
    ],
    # a name of the user's own, in a subclass or assigned by a function
    "class Mine(SFTConfig):\n    more: int = 1\ndef f(c: SFTConfig):\n    return c.more": [],
    "def add(c):\n    c.more = 1\nc = SFTConfig()\nadd(c)\nc.more": [],
}


@each_row("script, expected", INSTANCES.items())
def test_attributes_of_instances_are_compared_with_their_classes(
    tmp_path: Path, script: str, expected: list[str]
) -> None:
    names = {"trl==1.12": {"trl/__init__.py": CONFIG}}
    code = {"train.py": f"from trl import SFTConfig\n{script}\n"}
    assert finding_places(audit_files(tmp_path, code, names)) == expected
    names = {"trl==1.12": {"trl/__init__.py": ANY_NAME}}
    assert finding_places(audit_files(tmp_path / "any", code, names)) == []


ASSIGNMENTS = (
    *("c.prepared = 1", "c.prepared += 1", "c.prepared: int = 1", "c.prepared, b = 1, 2"),
    *("[b, c.prepared] = 1, 2", "for c.prepared in a: ...", "with a as c.prepared: ..."),
    *("c.prepared = c.b = 1", "c.prepared //= 1", "setattr(c, 'prepared', 1)", "del c.prepared"),
    "c.self.prepared = 1",
)
READS = ("c.prepared == 1", "self.prepared = 1", "c.prepared()", "f(c.prepared)", "prepared = 1")


@each_row("statement", (*ASSIGNMENTS, *READS))
def test_attributes_that_a_package_assigns_to_instances_are_not_reported(
    tmp_path: Path, statement: str
) -> None:
    more = f"def prepare(self, c: SFTConfig):\n    {statement}\n"
    names = {"trl==1.12": {"trl/__init__.py": CONFIG, "trl/more.py": more}}
    code = {"train.py": "from trl import SFTConfig\nc = SFTConfig()\nc.prepared\nc.absent\n"}
    expected = ["IMG104 3:1", "IMG104 4:1"] if statement in READS else ["IMG104 4:1"]
    assert finding_places(audit_files(tmp_path, code, names)) == expected


def test_long_line_of_a_package_is_searched_once_for_an_assignment(tmp_path: Path) -> None:
    more = f"# SFTConfig {'setattr(' * 200_000} absent\n"
    names = {"trl==1.12": {"trl/__init__.py": CONFIG, "trl/more.py": more}}
    code = {"train.py": "from trl import SFTConfig\nc = SFTConfig()\nc.absent\n"}
    assert finding_places(audit_files(tmp_path, code, names)) == ["IMG104 3:1"]


def test_former_names_of_required_parameters_can_be_passed(tmp_path: Path) -> None:
    source = (
        "from .deprecation import deprecate_kwarg\n"
        "@deprecate_kwarg('past', '5.40', new_name='cache')\ndef mask(config, cache): ...\n"
    )
    names = {
        "transformers==5.24": {
            "transformers/__init__.py": source,
            "transformers/deprecation.py": "def deprecate_kwarg(old, version, new_name): ...\n",
        }
    }
    script = "from transformers import mask\nmask(config=1, past=2)\nmask(past=2)\n"
    assert finding_places(audit_files(tmp_path, {"run.py": script}, names)) == ["IMG103 3:1"]
