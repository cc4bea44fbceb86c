"""Checks values of options that require a package, such as flash_attention_2.

Conditions are not evaluated, so each finding is a warning.
"""

# A separate module: one check.
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from imgbuild.audit.code.model import CodeFinding, CodeText
from imgbuild.audit.code.option_settings import (
    OptionPackages,
    OptionUse,
    file_options,
    load_options,
)
from imgbuild.audit.code.sources import PackageSources
from imgbuild.audit.code.summaries import Summary
from imgbuild.report import Severity

CODE = "IMG110"


def check_option_packages(
    sources: PackageSources, texts: Sequence[CodeText], summaries: Mapping[str, Summary]
) -> Iterator[CodeFinding]:
    """Yield findings for values that require packages missing from the package set."""
    lacking = {
        key: option
        for key, option in load_options().items()
        if all(sources.lacks_package(package) for package in option.packages)
    }
    for text in texts:
        summary = summaries.get(text.file)
        for use in summary.options if summary is not None else file_options(text):
            option = lacking.get((use.name, use.value))
            if option is not None:
                yield _finding(text, use, option)


def _finding(text: CodeText, use: OptionUse, option: OptionPackages) -> CodeFinding:
    package = option.packages[0]
    add = f"add {package}"
    return text.finding(
        use.line,
        use.column,
        code=CODE,
        severity=Severity.WARNING,
        message=f"{use.name}={use.value} requires {package}, which is not in this package set",
        remedy=f"use {use.name}={option.instead}, or {add}" if option.instead else add,
    )
