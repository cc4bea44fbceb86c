"""Finds submodules in `.gitmodules` that were not fetched."""

from __future__ import annotations

from imgbuild.project.model import FilePlace, NotRead
from imgbuild.project.project_files import ProjectFiles, SourceProblem, relative_path

FILE = ".gitmodules"
SUBMODULES = "if this is a submodule, fetch it with `git submodule update --init`"


def missing_submodule_remedy(sources: ProjectFiles, path: str) -> str | None:
    """Return a command that fetches the missing submodule containing `path`, or None."""
    for each in missing_submodules(sources):
        if path == each.text or path.startswith(f"{each.text}/"):
            return f"fetch the submodule with `git submodule update --init {each.text}`"
    return None


def missing_submodules(sources: ProjectFiles) -> list[NotRead]:
    """Return the submodules whose folders are empty or missing."""
    if not sources.exists(FILE):
        return []
    try:
        text = sources.text(FILE)
    except SourceProblem:
        return []
    notes = []
    for number, line in enumerate(text.split("\n"), start=1):
        key, equals, value = line.partition("=")
        path = relative_path(".", value.strip())
        if equals and key.strip() == "path" and not sources.names(path):
            reason = "this submodule has not been fetched; run `git submodule update --init`"
            notes.append(NotRead(place=FilePlace(file=FILE, line=number), text=path, reason=reason))
    return notes
