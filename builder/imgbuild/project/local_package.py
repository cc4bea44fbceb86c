"""Reads the metadata of installable folders without running the build backend."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from imgbuild.project import layouts, poetry, pyproject, requirement_lines, setup_script
from imgbuild.project.model import FilePlace, LocalPackage
from imgbuild.project.project_files import SourceProblem, line_of, relative_path
from imgbuild.project.reading import LocalRequest, ProjectReading
from imgbuild.project.requirement_lines import LineScope
from imgbuild.project.setup_script import FoundPackages, RequirementFile, ScriptText, SetupScript
from imgbuild.project.uv_settings import UvSettings
from imgbuild.values import normalize_package

DEPENDENCIES = ("dependencies", "install_requires")
OPTIONAL_KEYS = ("optional-dependencies", "extras_require")
SETUP_KEYS = ("install_requires", "extras_require")
BACKEND_REASON = "computed by the build backend, which `imgbuild lock` runs in the sandbox"


class PackageMetadata(msgspec.Struct, kw_only=True):
    """The metadata in the files of a folder, and the places of requirements.

    `dynamic` lists fields that only the build backend can compute.
    """

    file: str
    name: str = ""
    version: str | None = None
    requires: list[tuple[str | RequirementFile, FilePlace]] = []
    extras: dict[str, list[tuple[str | RequirementFile, FilePlace]]] = {}
    requires_python: str = ""
    scripts: dict[str, str] = {}
    dynamic: list[str] = []
    package_dir: str = ""
    where: str = ""


def describe_package(reading: ProjectReading, folder: str) -> LocalPackage | None:
    """Return the package in `folder`, or None if the folder has no package metadata."""
    file = relative_path(folder, "pyproject.toml")
    document = _document(reading, file) or {}
    configured = "build-system" in document or bool(
        layouts.find_table(document, "tool", "setuptools")
    )
    backend = configured or reading.sources.exists(relative_path(folder, "setup.py"))
    if isinstance(document.get("project"), dict):
        metadata = _standard_metadata(reading, file, document, folder)
    elif poetry.poetry_table(document):
        metadata = _poetry_metadata(reading, file, document)
    else:
        legacy = read_legacy(reading, folder)
        if legacy is None:
            return None
        metadata, backend = legacy, True
    return LocalPackage(
        name=metadata.name or "",
        folder=folder,
        place=FilePlace(file=metadata.file),
        version=metadata.version,
        roots=layouts.module_roots(reading.sources, folder, document, metadata.name,
                            package_dir=metadata.package_dir, where=metadata.where),
        scripts=metadata.scripts,
        requires=_texts(reading, metadata.requires),
        requires_python=metadata.requires_python,
        backend=backend,
        dynamic=_dynamic_fields(metadata),
    )  # fmt: skip


def _dynamic_fields(metadata: PackageMetadata) -> tuple[str, ...]:
    lacking = {
        "name": not metadata.name,
        "version": metadata.version is None,
        "dependencies": not set(metadata.dynamic).isdisjoint(DEPENDENCIES),
        "optional-dependencies": not set(metadata.dynamic).isdisjoint(OPTIONAL_KEYS),
    }
    return tuple(field for field, value in lacking.items() if value)


def _texts(
    reading: ProjectReading, items: Iterable[tuple[str | RequirementFile, FilePlace]]
) -> tuple[str, ...]:
    """Return the texts of requirements, with files replaced by the requirements in them."""
    texts: list[str] = []
    for item, place in items:
        if isinstance(item, str):
            texts.append(item)
            continue
        child = ProjectReading(reading.sources)
        requirement_lines.read_nested_file(child, item.name, ".", place, LineScope())
        texts += [each.text for each in child.requirements if each.kind == "requirement"]
    return tuple(texts)


def _document(reading: ProjectReading, file: str) -> dict[str, Any] | None:
    return reading.read_toml(file) if reading.sources.exists(file) else None


def _standard_metadata(
    reading: ProjectReading, file: str, document: dict[str, Any], folder: str
) -> PackageMetadata:
    tables = pyproject.ProjectTables(reading, file, document)
    project = tables.project
    dynamic = project.get("dynamic")
    names = [str(name) for name in dynamic] if isinstance(dynamic, list) else []
    version = project.get("version")
    if version is None:
        version = layouts.file_version(reading.sources, folder, document)
    scripts = project.get("scripts")
    requires = [(text, tables.place(text, "dependencies")) for text in tables.dependencies]
    static = {"version"} if version is not None else set()
    static |= layouts.find_table(document, "tool", "setuptools", "dynamic").keys()
    if layouts.find_table(document, "tool", "hatch", "metadata", "hooks", "requirements_txt"):
        static.add("optional-dependencies")
    if "dependencies" in names:
        child = ProjectReading(reading.sources)
        pyproject.add_dynamic_requirements(child, tables, ())
        add_dynamic(child, folder, document)
        requires += [(each.text, each.place) for each in child.requirements]
        static |= {"dependencies"} if child.requirements else set()
    return PackageMetadata(
        file=file,
        name=str(project.get("name", "")),
        version=None if version is None else str(version),
        requires=list(requires),
        extras={
            name: [(text, tables.place(text)) for text in texts]
            for name, texts in tables.extras.items()
        },
        requires_python=str(project.get("requires-python", "")),
        scripts={str(key): str(value) for key, value in scripts.items()}
        if isinstance(scripts, dict)
        else {},
        dynamic=[name for name in names if name not in static],
    )


def _poetry_metadata(
    reading: ProjectReading, file: str, document: dict[str, Any]
) -> PackageMetadata:
    table = poetry.poetry_table(document)
    scripts = table.get("scripts")
    version = table.get("version")
    child = ProjectReading(reading.sources)
    poetry.read_poetry(child, file, document, take=True)
    return PackageMetadata(
        file=file,
        requires=[(each.text, each.place) for each in child.requirements],
        name=str(table.get("name", "")),
        version=str(version) if version is not None else None,
        scripts={
            str(key): str(value)
            for key, value in (scripts.items() if isinstance(scripts, dict) else ())
            if isinstance(value, str)
        },
    )


def read_legacy(reading: ProjectReading, folder: str) -> PackageMetadata | None:
    """Read setup.cfg and setup.py. Return None if neither file describes a package."""
    configured = _setup_cfg(reading, relative_path(folder, "setup.cfg"))
    script = _setup_py(reading, relative_path(folder, "setup.py"))
    if configured is None or script is None:
        return configured or script
    # setup.cfg takes precedence if both have a value: setuptools reads it last.
    script.name = configured.name or script.name
    script.version = configured.version or script.version
    script.requires = configured.requires or script.requires
    script.extras = {**script.extras, **configured.extras}
    script.requires_python = configured.requires_python or script.requires_python
    script.scripts = {**script.scripts, **configured.scripts}
    script.package_dir = configured.package_dir or script.package_dir
    script.where = configured.where or script.where
    values = {"install_requires": script.requires, "version": script.version}
    names = [*script.dynamic, *configured.dynamic]
    script.dynamic = [name for name in names if not values.get(name)]
    return script


def _setup_cfg(reading: ProjectReading, file: str) -> PackageMetadata | None:
    text = reading.text(file) if reading.sources.exists(file) else None
    if text is None:
        return None
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        reading.add_problem(FilePlace(file=file), f"not valid: {str(error).splitlines()[0]}",
                        expected="sections and keys that configparser can read")  # fmt: skip
        return None
    if parser.has_section("easy_install"):
        place = FilePlace(file=file, line=line_of(text, "[easy_install]"))
        reading.add_unread(place, "[easy_install]", "settings of an obsolete tool")
    if not (parser.has_section("options") or parser.has_option("metadata", "name")):
        return None
    values = PackageMetadata(file=file)
    values.name = parser.get("metadata", "name", fallback="")
    written = parser.get("metadata", "version", fallback="")
    directories = parser.get("options", "package_dir", fallback="")
    match = re.search(r"^\s*=\s*(\S+)", directories, re.MULTILINE)
    values.package_dir = match[1] if match else ""
    values.where = parser.get("options.packages.find", "where", fallback="")
    folder = file.rpartition("/")[0] or "."
    base = values.package_dir or values.where
    values.version = layouts.configured_version(reading.sources, folder, written, base)
    if written and values.version is None:
        values.dynamic = ["version"]
    values.requires = _lines(parser.get("options", "install_requires", fallback=""), file, text)
    values.requires_python = parser.get("options", "python_requires", fallback="")
    if parser.has_section("options.extras_require"):
        values.extras = {
            normalize_package(name): _lines(value, file, text)
            for name, value in parser.items("options.extras_require")
        }
    scripts = parser.get("options.entry_points", "console_scripts", fallback="")
    lines = [line.partition("=") for line in scripts.splitlines() if "=" in line]
    values.scripts = {name.strip(): target.strip() for name, _, target in lines}
    return values


def _lines(value: str, file: str, text: str) -> list[tuple[str | RequirementFile, FilePlace]]:
    if value.strip().startswith("file:"):
        names = value.strip().removeprefix("file:").split(",")
        folder = file.rpartition("/")[0] or "."
        place = FilePlace(file=file, line=line_of(text, value.strip()))
        return [(RequirementFile(relative_path(folder, name.strip())), place) for name in names]
    lines = [line.strip() for part in value.splitlines() for line in [part.partition(" #")[0]]]
    return [
        (line, FilePlace(file=file, line=line_of(text, line)))
        for line in lines
        if line and not line.startswith("#")
    ]


def _setup_py(reading: ProjectReading, file: str) -> PackageMetadata | None:
    text = reading.text(file) if reading.sources.exists(file) else None
    if text is None:
        return None
    try:
        script = SetupScript(reading.sources, file)
        metadata = _script_metadata(script, file)
    except SyntaxError as error:
        reading.add_problem(
            FilePlace(file=file, line=error.lineno or 0), f"not Python: {error.msg}"
        )
        return None
    except (ValueError, RecursionError, MemoryError):
        reading.add_problem(FilePlace(file=file), "is too large, or nested too deeply")
        return None
    if not script.line:
        reading.add_unread(FilePlace(file=file), "setup.py", "does not call setup()")
        return PackageMetadata(file=file, dynamic=["install_requires"])
    for text_value in script.conditional:
        reading.add_unread(
            FilePlace(file=file, line=text_value.line), text_value.value, "only conditionally"
        )
    return metadata


def _script_metadata(script: SetupScript, file: str) -> PackageMetadata:
    arguments = script.arguments
    values = PackageMetadata(file=file)
    place = FilePlace(file=file, line=script.line)

    def _text(key: str) -> str:
        value = arguments.get(key)
        if isinstance(value, ScriptText):
            return value.value
        if key in arguments:
            values.dynamic.append(key)
        return ""

    values.name = _text("name")
    version = arguments.get("version")
    if isinstance(version, RequirementFile):
        values.version = layouts.version_line(script.sources, version.name)
        values.dynamic += [] if values.version else ["version"]
    else:
        values.version = _text("version") or None
    values.requires_python = _text("python_requires")
    if script.incomplete:  # setup(**computed)
        values.dynamic += [key for key in SETUP_KEYS if key not in arguments]
    values.requires = _requirements(values, "install_requires", arguments, place)
    extras = arguments.get("extras_require", {})
    if isinstance(extras, dict):
        values.extras = {
            normalize_package(name): _requirements(values, f"extras_require[{name}]",
                                           {f"extras_require[{name}]": value}, place)
            for name, value in extras.items()
        }  # fmt: skip
    else:
        values.dynamic.append("extras_require")
    values.scripts = dict(setup_script.entry_points(arguments.get("entry_points")))
    directories = arguments.get("package_dir")
    base = directories.get("") if isinstance(directories, dict) else None
    values.package_dir = base.value if isinstance(base, ScriptText) else ""
    packages = arguments.get("packages")
    values.where = packages.where if isinstance(packages, FoundPackages) else ""
    return values


def _requirements(
    values: PackageMetadata, key: str, arguments: dict[str, Any], place: FilePlace
) -> list[tuple[str | RequirementFile, FilePlace]]:
    """Return the requirements in an argument of `setup()`, or record `key` as dynamic."""
    if key not in arguments:
        return []
    items = setup_script.flatten_items(arguments[key], unknown=True)
    result: list[tuple[str | RequirementFile, FilePlace]] = []
    for item in items:
        if isinstance(item, ScriptText):
            lines = [line.strip() for line in item.value.splitlines()]
            result += [(line, FilePlace(file=place.file, line=item.line)) for line in lines if line]
        elif isinstance(item, RequirementFile):
            result.append((item, place))
        elif key not in values.dynamic:
            values.dynamic.append(key)
    return result


def add_local_package(reading: ProjectReading, request: LocalRequest) -> None:
    """Add a requested folder of the project, its package, and the requirements of the package."""
    package = next((each for each in reading.packages if each.folder == request.folder), None)
    if package is None:
        try:
            package = describe_package(reading, request.folder)
        except SourceProblem as error:
            reading.problems.append(error.problem)
            return
        if package is not None:
            reading.packages.append(package)
    name = request.name or (package.name if package else "")
    if package is None or not name:
        reason = "has no pyproject.toml, setup.py or setup.cfg with a package name"
        reading.add_unread(request.place, request.folder, reason)
        return
    if request.folder != ".":
        extras = f"[{','.join(request.extras)}]" if request.extras else ""
        reading.add_requirement(
            f"{name}{extras}",
            request.place,
            no_deps=request.no_deps,
            marker=request.marker,
            path=request.folder,
        )
    if not request.no_deps:
        add_requirements(reading, package, request.extras)


def add_requirements(reading: ProjectReading, package: LocalPackage, extras: Sequence[str]) -> None:
    """Add the requirements of `package` and of its `extras`."""
    if package.requires_python:
        reading.add_python(package.requires_python, package.place)
    file = relative_path(package.folder, "pyproject.toml")
    document = _document(reading, file) or {}
    if isinstance(document.get("project"), dict):
        tables = pyproject.ProjectTables(reading, file, document)
        settings = UvSettings(reading, file, document)
        names = [normalize_package(extra) for extra in extras]
        for name in names:
            if name not in tables.extras:
                reading.add_unread(package.place, f"{package.name}[{name}]", "no such extra")
        settings.extras = frozenset(names)
        pyproject.add_requirements(tables, settings, [n for n in names if n in tables.extras], ())
        settings.finish_indexes()
        return
    if poetry.poetry_table(document):
        poetry.read_poetry(reading, file, document, take=True)
        return
    legacy = read_legacy(reading, package.folder)
    if legacy is not None:
        add_legacy(reading, legacy, extras)


def add_dynamic(reading: ProjectReading, folder: str, document: dict[str, Any]) -> None:
    """Add the values in setup.py of the fields that `[project]` declares dynamic."""
    project = document.get("project")
    dynamic = project.get("dynamic") if isinstance(project, dict) else None
    names = [str(name) for name in dynamic] if isinstance(dynamic, list) else []
    table = layouts.find_table(document, "tool", "setuptools", "dynamic")
    hook = layouts.find_table(document, "tool", "hatch", "metadata", "hooks")
    fields = [f for f in ("dependencies", "optional-dependencies") if f in names and f not in table]
    if not fields or hook:
        return
    legacy = read_legacy(reading, folder)
    if legacy is None:
        place = FilePlace(file=relative_path(folder, "pyproject.toml"))
        reading.add_unread(place, ", ".join(fields), f"dynamic: {BACKEND_REASON}")
        return
    if "dependencies" not in fields:
        legacy.requires = []
    extras = {normalize_package(extra) for extra in reading.extras} & set(legacy.extras)
    add_legacy(reading, legacy, sorted(extras))


def add_legacy(reading: ProjectReading, metadata: PackageMetadata, extras: Iterable[str]) -> None:
    """Add the requirements in setup.cfg and setup.py."""
    reading.available_extras |= metadata.extras.keys()
    items = list(metadata.requires)
    for extra in map(normalize_package, extras):
        items += metadata.extras.get(extra, [])
    for item, place in items:
        if isinstance(item, RequirementFile):
            requirement_lines.read_nested_file(reading, item.name, ".", place, LineScope())
        else:
            requirement_lines.read_line(reading, item, place, LineScope())
    for field in metadata.dynamic:
        if "require" in field:
            reading.add_unread(
                FilePlace(file=metadata.file), field, f"computed by the script: {BACKEND_REASON}"
            )


def add_package_metadata(reading: ProjectReading, folder: str) -> None:
    """Add the package of a folder, if there is one, without its requirements."""
    try:
        package = describe_package(reading, folder)
    except SourceProblem as error:
        reading.problems.append(error.problem)
        return
    if package is not None and all(each.folder != folder for each in reading.packages):
        reading.packages.append(package)
