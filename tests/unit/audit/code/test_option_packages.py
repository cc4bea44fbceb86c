"""Tests findings about values of options that require a package missing from the package set."""

from __future__ import annotations

import pytest

from imgbuild.audit.code.option_settings import load_options
from tests.support import audited
from tests.support.audited_code import Findings, finding_places

PACKAGES: dict[str, audited.Files] = {
    "transformers==4.51.3": {"transformers/__init__.py": "", "transformers/utils.py": ""}
}
KERNELS: dict[str, audited.Files] = {**PACKAGES, "kernels==0.9": {"kernels/__init__.py": ""}}


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("a.py", 'load(attn_implementation="flash_attention_2")', "IMG110 1:26"),
        ("a.py", 'more = {"optim": "paged_adamw_8bit"}', "IMG110 1:18"),
        ("a.py", "args.load_in_4bit = True", "IMG110 1:21"),
        ("a.py", "class C:\n    report_to: str = 'wandb'", "IMG110 2:22"),
        ("a.sh", "python a.py --report_to wandb", "IMG110 1:13"),
        ("a.sh", "python a.py --load-in-4bit --lr 1", "IMG110 1:13"),
        ("a.sh", "python a.py +model.attn_implementation=flash_attention_2", "IMG110 1:13"),
        ("a.yaml", "model:\n  attn_implementation: flash_attention_2\n", "IMG110 2:3"),
        ("a.json", '{\n  "use_vllm": true\n}', "IMG110 2:4"),
    ],
)
def test_value_that_requires_a_missing_package_is_reported(
    audit: Findings, file: str, source: str, expected: str
) -> None:
    (finding,) = audit({file: f"{source}\n"}, PACKAGES)
    assert finding_places([finding]) == [expected]
    assert "requires" in finding.message


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("a.py", 'load(attn_implementation="sdpa", load_in_4bit=False)'),
        ("a.py", '"flash_attention_2"  # attn_implementation="flash_attention_2"'),
        ("a.py", "load(attn_implementation=flash_attention_2)"),
        ("a.sh", "echo flash_attention_2; python a.py --load_in_4bit False --optim $OPTIM"),
        ("a.yaml", "# report_to: wandb\nreport_to: none\n"),
    ],
)
def test_values_that_require_no_package_are_not_reported(
    audit: Findings, file: str, source: str
) -> None:
    assert audit({file: f"{source}\n"}, PACKAGES) == []


def test_one_of_several_packages_is_sufficient(audit: Findings) -> None:
    code = {"a.py": 'load(attn_implementation="flash_attention_2")\n'}
    assert audit(code, KERNELS) == []


def test_replacement_value_requires_no_package() -> None:
    options = load_options()
    assert all((name, option.instead) not in options for (name, _), option in options.items())
