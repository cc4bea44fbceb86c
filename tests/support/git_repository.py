"""Creates a git repository with chosen files, for tests of requirements from git."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "author",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "author",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "GIT_AUTHOR_DATE": "2025-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2025-01-01T00:00:00Z",
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
}
PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
dependencies = []

[tool.setuptools]
packages = ["{module}"]
"""


def project_files(name: str = "demo", version: str = "1.0") -> dict[str, str | bytes]:
    """The files of a pure package that setuptools builds."""
    module = name.replace("-", "_")
    pyproject = PROJECT.format(name=name, version=version, module=module)
    return {"pyproject.toml": pyproject, f"{module}/__init__.py": f"VERSION = {version!r}\n"}


class GitRepository:
    """A repository in `folder` with a work tree."""

    def __init__(self, folder: Path, *, form: str = "sha1") -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", f"--object-format={form}")

    @property
    def url(self) -> str:
        """The URL of the repository on this machine."""
        return f"git+file://{self.folder}"

    def git(self, *words: str, data: bytes | None = None) -> str:
        """The output of a git command in the folder."""
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=ENV, check=True, capture_output=True, input=data
        )
        return done.stdout.decode().strip()

    def commit(
        self,
        files: Mapping[str, str | bytes],
        *,
        links: Mapping[str, str] | None = None,
        tag: str = "",
    ) -> str:
        """Write files and links, and commit them. Returns the commit's ID."""
        for path, content in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        for path, target in (links or {}).items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).symlink_to(target)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        if tag:
            self.git("tag", "--annotate", "--message", tag, tag)
        return self.git("rev-parse", "HEAD")

    def dumb_files(self, prefix: str = "demo.git") -> dict[str, bytes]:
        """The files for a plain web server by path, after `git update-server-info`."""
        self.git("update-server-info")
        place = self.folder / ".git"
        return {
            f"{prefix}/{path.relative_to(place).as_posix()}": path.read_bytes()
            for path in place.rglob("*")
            if path.is_file()
        }
