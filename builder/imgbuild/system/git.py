"""Runs git read-only in a repository of another author: no hook or filter of it runs.

Only commands that read objects: those that read files of the checkout, such as `git diff` and
`git status`, would run the filters that its configuration names. `clone` fetches a repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from imgbuild.errors import FetchFailed
from imgbuild.system import process

Reading = Literal[
    "cat-file", "grep", "log", "ls-files", "ls-tree", "remote", "rev-list", "rev-parse"
]
# Options that keep a command from running programs that attributes and configuration name.
OPTIONS: dict[str, tuple[str, ...]] = {
    "grep": ("--no-textconv",),
    "log": ("--no-ext-diff", "--no-textconv"),
}


LIMIT = 120.0  # seconds; a pipe in place of a repository's file would be waited for without end


def run(folder: Path, command: Reading, *words: str) -> process.Result:
    """Run `git COMMAND WORDS` in `folder`; any status is returned.

    ToolMissing without git, WorkFailed if it is not done after LIMIT.
    """
    program = process.find("git", remedy="install git")
    full = [program, "-c", "core.fsmonitor=false", command, *OPTIONS.get(command, ()), *words]
    return process.run(full, cwd=folder, check=False, limit=LIMIT)


CLONE_LIMIT = 900.0  # seconds
# There is no prompt for a password. Source: git(1), git-config(1) of 2.39.
UNATTENDED = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
}
# The user's own configuration is for the transport: a filter in it, such as that of git-lfs, would
# run where files are written.
WITHOUT_FILTERS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


def clone(url: str, revision: str, place: Path) -> str:
    """Write the files of a commit of the repository `url` into the new folder `place`.

    `revision` is a branch, a tag or a commit; empty for the default branch. The commit, in hex.
    No hook, filter or configuration of the repository is run, and submodules are not fetched.
    FetchFailed if git cannot fetch it.
    """
    program = process.find("git", remedy="install git")
    place.mkdir(parents=True)
    scheme = url.partition("://")[0]
    transport = {**UNATTENDED, "GIT_ALLOW_PROTOCOL": scheme}
    if "GIT_SSH_COMMAND" not in os.environ:
        transport["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"

    def _run(*words: str, env: dict[str, str]) -> process.Result:
        return process.run([program, *words], env=env, cwd=place, check=False, limit=CLONE_LIMIT)

    def _fetch(*words: str) -> process.Result:
        checked = ("-c", "fetch.fsckObjects=true")
        return _run(*checked, "fetch", "--quiet", "--no-recurse-submodules", *words, env=transport)

    _require(_run("init", "--quiet", "--template=", env=WITHOUT_FILTERS), url, revision)
    done = _fetch("--depth", "1", "--no-tags", url, revision or "HEAD")
    target = "FETCH_HEAD"
    if done.status != 0 and re.fullmatch(r"[0-9a-f]{4,40}", revision):
        # A server may have a commit only as part of a branch, or know it by its full name only.
        done = _fetch("--tags", url, "+refs/heads/*:refs/remotes/origin/*")
        target = revision
    _require(done, url, revision)
    commit = _run("rev-parse", "--verify", f"{target}^{{commit}}", env=WITHOUT_FILTERS)
    _require(commit, url, revision)
    name = commit.stdout.strip()
    _require(_run("checkout", "--quiet", "--detach", name, env=WITHOUT_FILTERS), url, revision)
    return name


def _require(done: process.Result, url: str, revision: str) -> None:
    if done.status != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        reason = lines[-1] if lines else f"git ended with status {done.status}"
        message = f"git cannot fetch {revision or 'HEAD'} of {url}: {reason}"
        raise FetchFailed(message, hint="check the address, the revision and your access to it")
