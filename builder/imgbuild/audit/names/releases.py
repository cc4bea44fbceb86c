"""Finds the releases of a package that have an argument, a name, a module or a variable.

`tools/name_versions.py` generates the data in `data/diagnose/versions/` from published wheels. The
data list the names that exist in some, but not all, versions between `first` and `last`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imgbuild.system import files, yaml_data
from imgbuild.values import normalize_package

NameGroup = Mapping[str, str]  # versions → names, separated by spaces


class PackageNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The names that exist in some versions of a package from `first` to `last`."""

    package: str
    first: str
    last: str
    arguments: Mapping[str, NameGroup] = {}
    names: Mapping[str, NameGroup] = {}
    modules: NameGroup = {}
    members: Mapping[str, NameGroup] = {}
    environment: NameGroup = {}
    symbols: NameGroup = {}

    def look_up_versions(self, group: NameGroup, name: str) -> str | None:
        """Return the versions that have `name`, or None if the group does not contain it."""
        return next((spec for spec, names in group.items() if name in names.split()), None)

    def names_in_last_version(self, group: NameGroup) -> list[str]:
        """Return the names of a group that exist in the version `last`."""
        return [
            name
            for spec, names in group.items()
            if spec == "all" or "<" not in spec
            for name in names.split()
        ]

    def existence(self, spec: str, instead: str = "") -> Existence:
        """Return an `Existence` in the versions `spec`, with the replacement `instead`."""
        return Existence(
            package=self.package, spec=spec, first=self.first, last=self.last, instead=instead
        )


class Existence(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a `package` that have a name.

    `spec` is "" if no version from `first` to `last` has the name. `instead` replaces the name in
    the newest version, and is "" if unknown.
    """

    package: str
    spec: str
    first: str
    last: str
    instead: str = ""

    @property
    def removing_version(self) -> str:
        """The version that removed the name, or "" if no version removed it."""
        return self.spec.rpartition("<")[2] if "<" in self.spec else ""

    @property
    def adding_version(self) -> str:
        """The version that added the name, or "" if the first listed version has it."""
        return self.spec.partition(",")[0].removeprefix(">=") if ">=" in self.spec else ""

    def change_sentence(self, what: str) -> str:
        """Return a sentence that states when `what` was added or removed."""
        if not self.spec:
            text = f"no {self.package} from {self.first} to {self.last} has {what}"
        elif self.removing_version and self.adding_version:
            text = (
                f"{self.package} {self.adding_version} added {what}, and {self.removing_version}"
                " removed it"
            )
        elif self.removing_version:
            text = f"{self.package} {self.removing_version} removed {what}"
        else:
            text = f"{self.package} {self.adding_version} added {what}"
        if not self.instead:
            return text
        return f"{text}; {'its replacement' if self.spec else 'the nearest name'} is {self.instead}"

    def change(self, version: str) -> str:
        """Return the change that explains the missing name, such as "removed in 0.16.0".

        Returns "" if the change is unknown, or if `spec` contains the version.
        """
        if not self.spec or (version and self.allows_version(version)):
            return ""
        if self.adding_version and version and Version(version) < Version(self.adding_version):
            return f"added in {self.adding_version}"
        return (
            f"removed in {self.removing_version}"
            if self.removing_version
            else f"added in {self.adding_version}"
        )

    def requirement(self) -> str:
        """Return a requirement for a version that has the name, or "" if none has it."""
        return f"{self.package}{self.spec}" if self.spec else ""

    def covers_version(self, version: str) -> bool:
        """Return whether a version is between `first` and `last`."""
        return version in SpecifierSet(f">={self.first},<={self.last}", prereleases=True)

    def allows_version(self, version: str) -> bool:
        """Return whether a version has the name, according to `spec`."""
        return bool(self.spec) and version in SpecifierSet(self.spec, prereleases=True)


@lru_cache(maxsize=1)
def load_package_names() -> dict[str, PackageNames]:
    """Map the import name of each package to its names."""
    values = [
        yaml_data.load_yaml_data(path, PackageNames)
        for path in sorted(files.data("diagnose/versions").glob("*.yaml"))
    ]
    tops = {package: top for top, package in load_name_table().import_names.items()}
    return {tops.get(value.package, value.package.replace("-", "_")): value for value in values}


class InventedName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that exists in no release, as a pattern with cause and remedy."""

    pattern: str
    cause: str
    cure: str


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `data/diagnose/facts/names.yaml`, which describes the fields."""

    packages: str
    import_names: Mapping[str, str]
    extends: Mapping[str, str]
    bases: Mapping[str, str]
    wheel_libraries: Mapping[str, str]
    system_libraries: Mapping[str, str]
    companions: Mapping[str, str]
    functions: Mapping[str, str]
    passed: Mapping[str, str]
    invented: tuple[InventedName, ...]


@lru_cache(maxsize=1)
def load_name_table() -> Names:
    """Load the bundled table of names."""
    return yaml_data.load_yaml_data(files.data("diagnose/facts/names.yaml"), Names)


def argument_existence(callee: str, name: str) -> Existence | None:
    """Return the versions in which `callee` accepts the argument `name`.

    `callee` is, for example, `SFTTrainer` or `LLM.generate`. Returns None if no callable with this
    name is known.
    """
    callee = callee.removesuffix(".__init__")
    for package in load_package_names().values():
        group = package.arguments.get(callee)
        if group is None:
            continue
        for other in (
            package,
            load_package_names().get(load_name_table().extends.get(package.package, "")),
        ):
            if other is None:
                continue
            callees = [callee] if other is package else ["TrainingArguments"]
            for each in callees:
                at = other.arguments.get(each, {})
                spec = other.look_up_versions(at, name)
                if spec is not None:
                    instead = renamed_parameter(package.package, callee, name) or renamed_parameter(
                        other.package, each, name
                    )
                    return other.existence(spec, instead if "<" in spec else "")
        near = difflib.get_close_matches(name, package.names_in_last_version(group), 1, 0.75)
        return package.existence("", near[0] if near else "")
    return None


# Classes that store any keyword: the versions of their parameters are not those of attributes.
OPEN_CLASSES = ("PretrainedConfig", "PreTrainedConfig")


def member_existence(owner: str, name: str) -> Existence | None:
    """Return the versions in which the class `owner` has a method or field, or None if unknown."""
    above = next(
        (base for end, base in load_name_table().bases.items() if owner.endswith(end)), owner
    )
    for each in dict.fromkeys((owner, above)):
        for package in load_package_names().values():
            arguments = {} if each in OPEN_CLASSES else package.arguments.get(each, {})
            members = package.members.get(each, {})
            spec = package.look_up_versions(arguments, name)
            spec = spec or package.look_up_versions(members, name)
            if spec is not None:
                renamed = renamed_parameter(package.package, each, name) if "<" in spec else ""
                return package.existence(spec, renamed)
    return None


@lru_cache(maxsize=1)
def former_members() -> Mapping[str, Mapping[str, str]]:
    """Return package → class → methods of former releases, separated by spaces."""
    return yaml_data.load_yaml_data(
        files.data("audit/former_members.yaml"), dict[str, dict[str, str]]
    )


def name_existence(module: str, name: str) -> Existence | None:
    """Return the versions in which `from module import name` works, or None if unknown."""
    package = load_package_names().get(module.partition(".")[0])
    if package is None:
        return None
    spec = package.look_up_versions(package.names.get(module, {}), name)
    if spec is None:
        return None
    return package.existence(spec)


def experimental_module(package: str, name: str) -> tuple[str, Existence] | None:
    """Return the module below `package`.experimental to which the class `name` was moved.

    It is named like the class, without Trainer or Config: ORPOTrainer is in orpo, and NashMDConfig
    in nash_md. Returns None if no release has such a module.
    """
    stem = re.sub(r"(?:Trainer|Config)$", "", name)
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()
    stem = "ppo" if stem.endswith("WithValueHead") else snake
    module = f"{package}.experimental.{stem}"
    existence = exact_module_existence(module)
    return (module, existence) if existence is not None and existence.spec else None


def module_existence(module: str) -> Existence | None:
    """Return the versions that have a module, or None if they are unknown."""
    package = load_package_names().get(module.partition(".")[0])
    if package is None:
        return None
    for path in _parent_packages(module):
        spec = package.look_up_versions(package.modules, path)
        if spec is not None:
            return package.existence(spec)
    return None


def exact_module_existence(module: str) -> Existence | None:
    """Return the versions that have exactly this module, or None if all or no versions have it."""
    package = load_package_names().get(module.partition(".")[0])
    spec = package.look_up_versions(package.modules, module) if package is not None else None
    if package is None or spec is None:
        return None
    return package.existence(spec)


def variable_existence(name: str) -> Existence | None:
    """Return the versions that read an environment variable.

    Returns None if the package has no table of variables.
    """
    package = next(
        (
            each
            for each in load_package_names().values()
            if each.environment and name.startswith(f"{each.package.upper()}_")
        ),
        None,
    )
    if package is None:
        return None
    spec = package.look_up_versions(package.environment, name)
    if spec == "all":
        return None
    near: list[str] = []
    if spec is None:
        near = difflib.get_close_matches(
            name, package.names_in_last_version(package.environment), 1, 0.9
        )
    return package.existence(spec or "", near[0] if near else "")


def symbol_existence(name: str) -> Existence | None:
    """Return the versions of torch in which libc10 or libc10_cuda exports a symbol.

    Returns None if all versions export the symbol, or if another library does.
    """
    package = load_package_names().get("torch")
    spec = package.look_up_versions(package.symbols, name) if package is not None else None
    if package is None or spec is None:
        return None
    return Existence(package="torch", spec=spec, first=package.first, last=package.last)


def name_owner(name: str) -> str:
    """Return the package with this import name or this class.

    Returns "" if there is no such package, or if several packages define the class.
    """
    for package in load_package_names().values():
        if name in package.arguments or name in package.members:
            return package.package
    known = (
        name in load_name_table().import_names
        or normalize_package(name) in load_name_table().packages.split()
    )
    if known:
        return package_name(name)
    found = definers(name)
    return found[0] if len(found) == 1 else ""


def definers(name: str) -> tuple[str, ...]:
    """Return the packages that define a class."""
    return _classes().get(name, ())


def respelled_class(name: str, package: str) -> str:
    """Return the class of `package` whose name differs from `name` in case only, or ""."""
    same = _classes_in_lower_case().get(name.lower(), ())
    return next((each for each in same if each != name and package in definers(each)), "")


@lru_cache(maxsize=1)
def _classes_in_lower_case() -> Mapping[str, Sequence[str]]:
    spellings: dict[str, list[str]] = {}
    for name in _classes():
        spellings.setdefault(name.lower(), []).append(name)
    return spellings


@lru_cache(maxsize=1)
def _classes() -> Mapping[str, tuple[str, ...]]:
    """Map each class name to the packages that define it.

    `tools/class_names.py` writes the file with this data.
    """
    rows = yaml_data.load_yaml_data(files.data("diagnose/facts/classes.yaml"), dict[str, str])
    return {
        name: tuple(packages.split(","))
        for packages, names in rows.items()
        for name in names.split()
    }


@lru_cache(maxsize=256)
def accepting(name: str) -> Existence | None:
    """Return the versions in which the argument `name` is accepted.

    Returns None unless exactly one package is known to have a class or function with this argument.
    """
    found = {
        package.package: package.existence(spec)
        for package in load_package_names().values()
        for group in package.arguments.values()
        if (spec := package.look_up_versions(group, name)) is not None
    }
    return next(iter(found.values())) if len(found) == 1 else None


def exporting_package(name: str) -> str:
    """Return the package that exports a function, such as peft for get_peft_model, or ""."""
    functions = load_name_table().functions.items()
    return next((package for package, names in functions if name in names.split()), "")


def distribution_of_module(module: str) -> str:
    """Return the package to install for a module, possibly followed by installation notes."""
    names = load_name_table().import_names
    distributions = (names[path] for path in _parent_packages(module) if path in names)
    return next(distributions, normalize_package(module.partition(".")[0]))


def package_name(module: str) -> str:
    """Return the package that provides a module, without installation notes, or "" for ""."""
    return distribution_of_module(module).partition(" ")[0]


def _parent_packages(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


@lru_cache(maxsize=1)
def renamed_parameters() -> Mapping[str, Mapping[str, str]]:
    """Return package → old name → new name of parameters, the old as `NAME` or `CALLEE.NAME`."""
    return yaml_data.load_yaml_data(
        files.data("audit/renamed_parameters.yaml"), dict[str, dict[str, str]]
    )


def renamed_parameter(package: str, callee: str, parameter: str) -> str:
    """Return the name of a parameter in newer versions of `package`.

    `callee` is a class or function without its module. Returns "" if no new name is known.
    """
    table = renamed_parameters().get(package, {})
    return table.get(f"{callee}.{parameter}") or table.get(parameter, "")
