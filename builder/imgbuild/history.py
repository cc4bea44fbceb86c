"""Locks as they stood at a git revision."""

from __future__ import annotations

from imgbuild import codec, run
from imgbuild.errors import InputError
from imgbuild.lock import Lock
from imgbuild.project import Project
from imgbuild.seal import Seal

REMEDY = "install git"


def sealed_at(project: Project, target: str, revision: str) -> tuple[Lock, Seal] | None:
    """Lock and seal of `target` at `revision`, None if it had none; InputError if it is unknown."""
    git = run.find("git", remedy=REMEDY)
    known = run.run(
        [git, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        cwd=project.root,
        check=False,
    )
    if known.status != 0:
        inside = run.run([git, "rev-parse", "--git-dir"], cwd=project.root, check=False)
        if inside.status != 0:
            message = f"{project.root} is in no git repository that can be read"
            said = inside.stderr.strip().splitlines()
            raise InputError(
                ": ".join((message, *said[:1])), hint="--diff needs a checkout with its history"
            )
        message = f"{revision} is no revision of the repository at {project.root}"
        raise InputError(message, hint="name a commit, a branch or a tag")
    files = []
    for name in ("lock.json", "digests.json"):
        place = f"{known.stdout.strip()}:./images/{target}/{name}"
        shown = run.run([git, "show", place], cwd=project.root, check=False)
        if shown.status != 0:
            return None
        files.append(shown.stdout.encode())
    lock, seal = files
    place, hint = f"{revision}:images/{target}", "name another revision"
    return (
        codec.decode(lock, Lock, file=f"{place}/lock.json", what="lock", hint=hint),
        codec.decode(seal, Seal, file=f"{place}/digests.json", what="seal", hint=hint),
    )
