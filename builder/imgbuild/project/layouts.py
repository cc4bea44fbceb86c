"""Determines a package's modules and version as build backends do.

Sources: the documentation of setuptools (package discovery), Hatchling, Poetry, uv and Flit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from imgbuild.project.project_files import ProjectFiles, SourceProblem, relative_path
from imgbuild.system.syntax import parse_source


def module_roots(
    sources: ProjectFiles,
    folder: str,
    document: dict[str, Any],
    name: str,
    *,
    package_dir: str = "",
    where: str = "",
) -> tuple[str, ...]:
    """Return the folders, relative to the project, that an editable install adds to sys.path.

    `package_dir` and `where` are values from setup.cfg or setup.py.
    """
    chosen = [package_dir or where] if package_dir or where else _included_patterns(document)
    if not chosen:
        module = re.sub(r"[-.]+", "_", name).lower()
        backend = str(find_table(document, "build-system").get("build-backend", "setuptools"))
        inner = sources.names(relative_path(folder, "src"))
        in_src = module in (each.removesuffix(".py").lower() for each in inner)
        whole = "setuptools" in backend and _discovers_src(sources, folder, document)
        chosen = ["src"] if in_src or whole or backend.startswith("uv_build") else ["."]
    return tuple(dict.fromkeys(relative_path(folder, each) for each in chosen))


def _discovers_src(sources: ProjectFiles, folder: str, document: dict[str, Any]) -> bool:
    setuptools = find_table(document, "tool", "setuptools")
    named = "packages" in setuptools or "py-modules" in setuptools
    return not named and sources.is_folder(relative_path(folder, "src"))


def _included_patterns(document: dict[str, Any]) -> list[str]:
    setuptools = find_table(document, "tool", "setuptools")
    directory = find_table(setuptools, "package-dir").get("")
    if isinstance(directory, str):
        return [directory]
    where = find_table(setuptools, "packages", "find").get("where")
    if isinstance(where, list | str):
        return [str(each) for each in (where if isinstance(where, list) else [where])]
    hatch = find_table(document, "tool", "hatch", "build", "targets", "wheel")
    sources = hatch.get("sources")
    if isinstance(sources, list):
        return [str(each) for each in sources]
    packages = hatch.get("packages")
    if isinstance(packages, list) and packages:
        return [str(each).rpartition("/")[0] or "." for each in packages]
    listed = find_table(document, "tool", "poetry").get("packages")
    if isinstance(listed, list):
        return [str(each.get("from", ".")) for each in listed if isinstance(each, dict)]
    root = find_table(document, "tool", "uv", "build-backend").get("module-root")
    if isinstance(root, str):
        return [root or "."]
    pdm = find_table(document, "tool", "pdm", "build").get("package-dir")
    maturin = find_table(document, "tool", "maturin").get("python-source")
    return [each for each in (pdm, maturin) if isinstance(each, str)]


def file_version(sources: ProjectFiles, folder: str, document: dict[str, Any]) -> str | None:
    """Return the version that a file of the project contains as a literal, or None."""
    setuptools = find_table(document, "tool", "setuptools", "dynamic", "version")
    hatch = find_table(document, "tool", "hatch", "version")
    try:
        if isinstance(setuptools.get("attr"), str):
            module = setuptools["attr"].partition(".")[0]
            folders = module_roots(sources, folder, document, module)
            return _attribute(sources, folders, setuptools["attr"])
        if isinstance(setuptools.get("file"), str):
            return version_line(sources, relative_path(folder, setuptools["file"]))
        if isinstance(hatch.get("path"), str):
            return _assigned_text(sources, relative_path(folder, hatch["path"]), None)
    except (SourceProblem, SyntaxError, ValueError, RecursionError):
        return None
    return None


def version_line(sources: ProjectFiles, file: str) -> str | None:
    """Return the content of `file` if it is only a version, or else None."""
    text = sources.text(file).strip() if sources.exists(file) else ""
    return text if re.fullmatch(r"[\w.!+-]{1,64}", text) else None


def configured_version(sources: ProjectFiles, folder: str, written: str, base: str) -> str | None:
    """Return the version that `written` in setup.cfg specifies, or None.

    `written` is a version, `attr:` and a name in a module below `base`, or `file:` and a path.
    """
    kind, colon, value = written.partition(":")
    try:
        if colon and kind == "attr":
            return _attribute(sources, [relative_path(folder, base or ".")], value.strip())
        if colon and kind == "file":
            return version_line(sources, relative_path(folder, value.strip()))
    except (SourceProblem, SyntaxError, ValueError, RecursionError):
        return None
    return written or None


def _attribute(sources: ProjectFiles, folders: Iterable[str], attribute: str) -> str | None:
    module, _, name = attribute.rpartition(".")
    path = module.replace(".", "/")
    for folder in folders:
        for file in (f"{path}/__init__.py", f"{path}.py"):
            if sources.exists(relative_path(folder, file)):
                return _assigned_text(sources, relative_path(folder, file), name)
    return None


def _assigned_text(sources: ProjectFiles, file: str, name: str | None) -> str | None:
    """Return the string that module `file` assigns to `name`, by default a usual version name."""
    if not sources.exists(file):
        return None
    for node in parse_source(sources.text(file)).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        names = [name] if name else ["__version__", "VERSION", "version"]
        if set(targets) & set(names) and isinstance(node.value.value, str):
            return node.value.value
    return None


def find_table(document: object, *keys: str) -> dict[str, Any]:
    """Return the table at `keys`, or an empty table if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}
