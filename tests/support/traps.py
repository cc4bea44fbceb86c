"""Creates programs, modules and settings that write a flag when they are used."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = (
    *("python", "python3", "python3.11", "pip3", "uv", "git", "env", "sh", "true", "keyring"),
    *("docker", "docker-buildx", "docker-credential-trap", "podman", "buildah", "skopeo"),
    *("apptainer", "singularity", "enroot", "unshare"),
    *("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo"),
    *("tar", "gzip", "igzip", "mksquashfs", "cosign", "gpg", "gpgv", "apt-get", "ldconfig"),
    *("newuidmap", "newgidmap", "nvidia-smi", "uname", "less", "editor", "ssh"),
)
MODULES = (
    *("pickle", "multiprocessing", "struct", "queue", "threading", "json", "runpy", "signal"),
    *("sitecustomize", "usercustomize", "msgspec", "yaml", "typing"),
)
PACKAGES = ("imgbuild", "pip", "encodings", "concurrent", "importlib")
GIT_NAMES = ("user.name=somebody", "user.email=somebody@example.org", "commit.gpgSign=false")


class Traps:
    """Traps that write flags to `flags` or to the folder $TRAP_FLAGS."""

    def __init__(self, flags: Path) -> None:
        self.flags = flags
        flags.mkdir(parents=True)

    def triggered(self, *folders: Path) -> dict[str, str]:
        """The flags in `flags` and `folders`, by name, with the calls."""
        paths = [path for folder in (self.flags, *folders) for path in sorted(folder.iterdir())]
        return {path.name: path.read_text() for path in paths}

    def script(self, path: Path, name: str = "") -> Path:
        """Write a program to `path` that writes a flag and fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        flag = f"${{TRAP_FLAGS:-{self.flags}}}/{name or f'program {path.name}'}"
        path.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\necho "$0 $*" >>"{flag}"\nexit 97\n')
        path.chmod(0o755)
        return path

    def module(self, path: Path) -> None:
        """Write a module to `path` that writes a flag, and ends its process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = f"os.environ.get('TRAP_FLAGS', {str(self.flags)!r})"
        name = f"module {path.parent.name} {path.name}"
        path.write_text(f"import os\nopen({flags} + '/{name}', 'a').close()\nos._exit(96)\n")

    def plant(self, folder: Path) -> None:
        """Create programs, modules and settings of tools in `folder`."""
        for name in PROGRAMS:
            self.script(folder / name)
        for name in MODULES:
            self.module(folder / f"{name}.py")
        for name in PACKAGES:
            self.module(folder / name / "__init__.py")
            self.module(folder / name / "__main__.py")
        self.script(folder / ".venv/bin/python", "program of .venv")
        self.script(folder / ".venv/bin/python3", "program of .venv")
        (folder / ".venv/pyvenv.cfg").write_text(
            "home = .venv/bin\ninclude-system-site-packages = true\nversion = 3.11.7\n"
        )
        self.settings(folder)

    def settings(self, folder: Path) -> None:
        """Write settings that make uv and pip use an index that does not respond."""
        index = "http://127.0.0.1:9/simple"
        (folder / "uv.toml").write_text(f'index-url = "{index}"\n')
        (folder / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
        (folder / "setup.cfg").write_text(f"[easy_install]\nindex_url = {index}\n")
        (folder / ".python-version").write_text("3.6\n")
        (folder / ".env").write_text(f"UV_DEFAULT_INDEX={index}\nDOCKER_HOST=tcp://127.0.0.1:9\n")
        (folder / "compose.yaml").write_text("services: {trap: {image: trap, build: .}}\n")

    def repository(self, folder: Path, files: Iterable[str]) -> None:
        """Make `folder` a checkout with `files` committed and traps in the configuration."""
        git(folder, "init", "--quiet", "--initial-branch=main")
        (folder / ".gitattributes").write_text("* filter=trap diff=trap\n")
        for number in range(2):
            git(folder, "add", "--force", ".gitattributes", *files)
            git(folder, "commit", "--quiet", "--allow-empty", f"--message={number}")
        self._sign(folder)
        self.configure(folder / ".git/config")
        self.script(folder / ".git/hooks/post-index-change", "git hook")
        (folder / ".git/info/attributes").write_text("* filter=trap diff=trap\n")
        for name in files:  # so that git has to read the files
            os.utime(folder / name, (1_600_000_000, 1_600_000_000))

    def _sign(self, folder: Path) -> None:
        """Replace the last commit with a signed one, for which `git log` may start gpg."""
        head, _, text = git(folder, "cat-file", "commit", "HEAD").partition("\n\n")
        mark = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
        commit = git(folder, "hash-object", "-t", "commit", "-w", "--stdin",
                   stdin=f"{head}\n{mark}\n\n{text}")  # fmt: skip
        git(folder, "update-ref", "HEAD", commit.strip())

    def configure(self, config: Path) -> None:
        """Add settings with a trap for each kind of command to a configuration of git."""
        program = self.script(self.flags.parent / "trap", "git configuration")
        with config.open("a") as file:
            file.write(f"""
[core]
  fsmonitor = {program} fsmonitor
  sshCommand = {program} ssh
  pager = {program} pager
  editor = {program} editor
  askPass = {program}
  alternateRefsCommand = {program} refs
[pager]
  log = {program} pager
[filter "trap"]
  clean = {program} clean
  smudge = {program} smudge
  required = true
[diff]
  external = {program} external
[diff "trap"]
  command = {program} command
  textconv = {program} textconv
[log]
  showSignature = true
[gpg]
  program = {program}
[credential]
  helper = !{program} credential
[protocol "ext"]
  allow = always
[remote "origin"]
  url = ext::{program} transport
  fetch = +refs/heads/*:refs/remotes/origin/*
  promisor = true
""")

    def bare(self, folder: Path) -> None:
        """Make `folder` a bare repository that is also its own checkout, without a `.git`."""
        for name in ("objects", "refs"):
            (folder / name).mkdir()
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "config").write_text(
            f"[core]\n  repositoryformatversion = 0\n  bare = false\n  worktree = {folder}\n"
        )
        self.configure(folder / "config")


def git(folder: Path, *words: str, stdin: str | None = None) -> str:
    """The output of a git command."""
    options = [word for name in GIT_NAMES for word in ("-c", name)]
    done = subprocess.run(
        ["git", *options, *words], cwd=folder, input=stdin, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout
