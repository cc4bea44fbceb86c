"""Tests findings about keys of settings files that classes and programs do not accept."""

from __future__ import annotations

from tests.support.audited_code import PACKAGES, Findings, finding_places
from tests.support.rows import each_row

PARSER = """
class HfArgumentParser:
    def __init__(self, dataclass_types=None, **kwargs):
        self.types = dataclass_types

    def add_argument(self, *names):
        return names

    def parse_yaml_file(self, yaml_file, allow_extra_keys=False):
        return ()

    def parse_args_into_dataclasses(self, args=None, return_remaining_strings=False):
        return ()
"""
TRL_PARSER = """
from transformers.hf_argparser import HfArgumentParser
class TrlParser(HfArgumentParser):
    def parse_args_and_config(self, args=None, return_remaining_strings=False):
        return ()
"""
TRL = {
    **PACKAGES["trl==0.18"],
    "trl/scripts/__init__.py": "",
    "trl/scripts/utils.py": TRL_PARSER,
}
SET = {
    **PACKAGES,
    "trl==0.18": TRL,
    "transformers==5.0": {
        "transformers/__init__.py": "from .hf_argparser import HfArgumentParser\n",
        "transformers/hf_argparser.py": PARSER,
        "transformers/training_args.py": "",
    },
    "accelerate==1.0": {
        "accelerate/__init__.py": "",
        "accelerate/commands/launch.py": "",
    },
}
START = "import json, yaml\nfrom trl import SFTConfig\nfrom omegaconf import OmegaConf\n"
SETTINGS = "output_dir: out\nmax_seq_length: 8\n"
SECTION = "train:\n  output_dir: out\n  max_seq_length: 8\n"
CONFIG = "with open('a.yaml') as f:\n    c = yaml.safe_load(f)\n"


@each_row(
    ("code", "settings", "places"),
    [
        (CONFIG + "SFTConfig(**c)", SETTINGS, ["IMG409 2:1 max_length"]),
        (CONFIG + "SFTConfig(**c['train'])", SECTION, ["IMG409 3:3 max_length"]),
        (CONFIG + "SFTConfig(**c.get('train', {}))", SECTION, ["IMG409 3:3 max_length"]),
        ("c = OmegaConf.load('a.yaml')\nSFTConfig(**c.train)", SECTION,
         ["IMG409 3:3 max_length"]),
        (("def read(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\n"
         "SFTConfig(**read('a.yaml'))"), SETTINGS, ["IMG409 2:1 max_length"]),
        (CONFIG + "c.pop('max_seq_length')\nSFTConfig(**c)", SETTINGS, []),
        (CONFIG + "t = c['train']\ndel t['max_seq_length']\nSFTConfig(**t)", SECTION, []),
        (CONFIG + "t = c['train']\ndel t['max_seq_length']\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "c = {k: v for k, v in c.items()}\nSFTConfig(**c)", SETTINGS, []),
        (CONFIG + "change(c)\nSFTConfig(**c)", SETTINGS, []),
        (CONFIG + "c.get('train').pop('max_seq_length')\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "c.setdefault('train', {}).clear()\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "for s in c.values():\n    s.clear()\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "for k, s in c.items():\n    change(s)\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "change(*c.values())\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "for k, s in c.items():\n    print(k, s)\nSFTConfig(**c['train'])", SECTION,
         ["IMG409 3:3 max_length"]),
        (CONFIG + "c['train'] = change(c['train'])\nSFTConfig(**c['train'])", SECTION, []),
        (CONFIG + "c['train']['lr'] = 1\nSFTConfig(**c['train'])", SECTION,
         ["IMG409 3:3 max_length"]),
        (CONFIG + "change(config=c)\nSFTConfig(**c)", SETTINGS, []),
        (CONFIG + "try:\n    SFTConfig(**c)\nexcept TypeError:\n    pass", SETTINGS, []),
        (CONFIG + "if version() < '1':\n    SFTConfig(**c)", SETTINGS, []),
        (CONFIG + "dict(**c)", SETTINGS, []),
        (CONFIG.replace("a.yaml", "other.yaml") + "SFTConfig(**c)", SETTINGS, []),
    ],
)  # fmt: skip
def test_keys_of_a_loaded_file_are_compared_with_the_class_that_receives_them(
    audit: Findings, code: str, settings: str, places: list[str]
) -> None:
    findings = audit({"train.py": START + code + "\n", "a.yaml": settings}, SET)
    assert finding_places([each for each in findings if each.code != "IMG101"]) == places


PARSED = (
    "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n"
    "from trl.scripts.utils import TrlParser\nfrom trl import SFTConfig\n"
    "@dataclass\nclass Own:\n    data: str = ''\n"
)


@each_row(
    ("code", "places"),
    [
        ("p = HfArgumentParser((Own, SFTConfig))\na, b = p.parse_yaml_file('a.yaml')",
         ["IMG409 2:1 max_length"]),
        ("p = HfArgumentParser(SFTConfig)\n(a,) = p.parse_yaml_file('a.yaml', True)", []),
        (("p = HfArgumentParser(SFTConfig)\n(a,) = p.parse_yaml_file('a.yaml', "
         "allow_extra_keys=True)"), []),
        ("T = (Own, SFTConfig)\np = TrlParser(T)\na, b = p.parse_args_and_config()",
         ["IMG409 2:1 max_length"]),
        (("p = TrlParser((Own, SFTConfig))\na, b, c = p.parse_args_and_config("
         "return_remaining_strings=True)"), []),
        (("p = TrlParser((Own, SFTConfig))\np.add_argument('--x')\n"
         "a, b, c = p.parse_args_into_dataclasses()"), []),
        (("p = TrlParser((Own, SFTConfig))\na, b, c = "
          "p.parse_args_into_dataclasses(None, True)"), []),
        (("p = TrlParser((Own, SFTConfig))\na, b, c = "
          "p.parse_args_into_dataclasses(**options)"), []),
        ("p = TrlParser((Own, SFTConfig))\na, *b = p.parse_args_into_dataclasses()", []),
        ("p = TrlParser((Own, SFTConfig))\na, b, c = p.parse_args_into_dataclasses()",
         ["IMG111 9:11"]),
    ],
)  # fmt: skip
def test_parsers_are_compared_with_their_files_and_results(
    audit: Findings, code: str, places: list[str]
) -> None:
    files = {
        "train.py": PARSED + code + "\n",
        "a.yaml": SETTINGS + "env: {}\n",
        "run.sh": "python train.py --config a.yaml\n",
    }
    assert finding_places(audit(files, SET)) == places
