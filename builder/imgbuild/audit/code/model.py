"""Defines the files of a user's code and the findings in them."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from imgbuild.report import Finding, Report, Severity

MOST_IN_FILE = 1000  # findings in a file, of each check, that are determined and shown


class CodeFinding(Finding, frozen=True, kw_only=True):
    """A finding in a user's file.

    `code` is the type of the finding (`data/audit/code_kinds.yaml`). `line` and `column` count from
    1. In a notebook, `line` counts within `cell`. In other files, `cell` is 0. `instead` is the
    current name. `since` is the version of the package that introduced the change, as far as locked
    targets show it. `targets` are the targets whose packages have the missing item.
    """

    code: str
    file: str
    line: int
    column: int = 1
    cell: int = 0
    instead: str = ""
    since: str = ""
    targets: tuple[str, ...] = ()


class CodeReport(Report, frozen=True, kw_only=True):
    """The findings in a user's code for a package set. `files` is the number of files read."""

    findings: tuple[CodeFinding, ...] = ()
    files: int = 0


class CodeText(msgspec.Struct, frozen=True, kw_only=True):
    """A user's file.

    `file` is the name in messages, and `root` the folder from which Python imports. For a notebook,
    `source` contains the cells as one module, without lines that are not Python. `cells` are the
    first lines of the cells in `source`, and `commands` contains the shell commands on the same
    lines as the notebook. `kind` is "python", "shell", "yaml", "json" or "dockerfile".
    `broken` is the reason why a notebook cannot be read.
    """

    file: str
    kind: str
    source: bytes
    commands: bytes = b""
    module: str = ""
    package: bool = False
    root: str = ""
    cells: tuple[int, ...] = ()
    broken: str = ""

    def place(self, line: int) -> tuple[int, int]:
        """Return the cell of a line of `source`, and the line within the cell.

        Cells count from 1. The cell is 0 if the file is not a notebook.
        """
        cell = bisect_right(self.cells, line)
        return cell, line - self.cells[cell - 1] + 1 if cell else line

    def finding(
        self,
        line: int,
        column: int,
        *,
        code: str,
        severity: Severity,
        message: str,
        instead: str = "",
        remedy: str = "",
    ) -> CodeFinding:
        """Return a finding at a line of `source`. The default remedy is to use `instead`."""
        cell, line = self.place(line)
        return CodeFinding(
            check="code",
            code=code,
            severity=severity,
            message=message,
            where=f"{self.file}:{f'cell {cell}:' if cell else ''}{line}:{column}",
            remedy=remedy or (f"use {instead}" if instead else ""),
            file=self.file,
            line=line,
            column=column,
            cell=cell,
            instead=instead,
        )


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """The Python files of a fork that replaces `package` in a package set.

    `version` is the version of the replaced package.
    """

    package: str
    version: str = "0"
    texts: tuple[CodeText, ...] = ()
