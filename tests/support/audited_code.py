"""Provides a small package set with a trainer, and audits a user's files against these packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from imgbuild.audit.code.check import check_code
from imgbuild.audit.code.code_files import find_files
from imgbuild.audit.code.model import CodeFinding
from imgbuild.cache.store import Store
from imgbuild.report import Severity
from tests.support import audited

BASE = """
from dataclasses import dataclass


@dataclass
class TrainingArguments:
    output_dir: str
    eval_strategy: str = "no"


class Trainer:
    def __init__(self, model, args=None, *, processing_class=None, **kwargs):
        self.model = model

    def train(self, resume=False):
        return resume

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        return self.compute_loss(model, inputs, num_items_in_batch=3)


def is_flash_available():
    return False
"""
TRAINER = """
from dataclasses import dataclass
from base import Trainer, TrainingArguments


@dataclass
class SFTConfig(TrainingArguments):
    max_length: int = 1024


class SFTTrainer(Trainer):
    def __init__(self, model, args=None, processing_class=None):
        super().__init__(model, args, processing_class=processing_class)


def load(path, *, revision="main"):
    return path
"""
VERSION = "class Version:\n    def __init__(self, version):\n        self.version = version\n"
PACKAGES: dict[str, audited.Files] = {
    "packaging==24.0": {"packaging/__init__.py": "", "packaging/version.py": VERSION},
    "base==4.0": {"base.py": BASE},
    "trl==0.18": {"trl/__init__.py": "from .trainer import *\nfrom .trainer import load\n",
                  "trl/trainer.py": TRAINER},
}  # fmt: skip
Findings = Callable[..., list[CodeFinding]]


def audit_files(
    folder: Path, files: Mapping[str, str], packages: Mapping[str, audited.Files] | None = None
) -> list[CodeFinding]:
    """The findings in a user's `files` with a set of `packages`."""
    code = folder / "code"
    for name, content in files.items():
        path = code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    package_set = audited.package_set(folder, packages or PACKAGES)
    every = check_code(package_set, find_files([code]), Store.open(folder / "cache"))
    return [each for each in every.findings if each.severity is not Severity.NOTE]


def finding_places(findings: list[CodeFinding]) -> list[str]:
    """The code, place and suggested name of each finding."""
    return [
        " ".join(filter(None, (each.code, f"{each.line}:{each.column}", each.instead)))
        for each in findings
    ]
