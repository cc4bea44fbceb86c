"""Reads the requirements of package releases, and messages that state them.

`tools/requirement_versions.py` writes `data/diagnose/facts/requirements.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from packaging.version import Version

from imgbuild.audit.names import releases
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.diagnose.literals import LinePattern
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import is_within
from imgbuild.values import normalize_package

CODE = "IMG705"
NAME = r"[`'\"]?(?P<name>[A-Za-z][\w.-]{1,40}?)[`'\"]?"
NUMBER = r"v?(?P<version>\d+(?:\.\d+){1,3}(?:\.?(?:post|rc|dev)\d+)?)"
INSTALLED = r"v?(?P<have>\d+(?:\.\d+){1,3}[\w.+]*)"
# Statements of packages about the versions of others, in words: a bound and what is installed.
STATED = tuple(
    LinePattern(pattern, re.IGNORECASE)
    for pattern in (
        # tokenizers>=0.21 is required for a normal functioning …, but found tokenizers==0.20.3
        (
            r"(?P<name>[\w.-]{2,40}?)(?P<spec>[<>=!~][<>=!~\d.,\w]*) is required for a normal"
            r" functioning of this module, but found [\w.-]{2,40}==(?P<have>[\w.]*\w)"
        ),
        # The 'transformers<=4.48.3,>=4.41' distribution was not found and is required by …
        (
            r"The '(?P<name>[\w.-]{2,40}?)(?P<spec>[<>=!~][<>=!~\d.,*\w]*)' distribution was not"
            r" found and is required by"
        ),
        # Numba needs NumPy 2.2 or less. Got NumPy 2.3.
        (
            rf"(?:needs|requires) {NAME} (?:version )?{NUMBER} or (?P<bound>less|lower|older|"
            rf"earlier|below|greater|newer|higher|later|above|up)\b(?:.{{0,60}}?"
            rf"(?:got|found|have|installed|is)\W{{1,3}}(?:[\w-]+ )?(?:version )?{INSTALLED})?"
        ),
        # X is installed with version 0.3.1, which is less than the minimum required version 0.4.1
        (
            rf"{NAME} is installed with version {INSTALLED}.{{0,40}}?(?P<bound>less|lower|older|"
            rf"greater|newer|higher) than the (?:minimum |maximum )?(?:required|supported) version"
            rf" {NUMBER}"
        ),
        # flashinfer with minimum required version 0.2.5 is not installed
        (
            rf"{NAME} with (?P<bound>minimum|maximum) required version {NUMBER} is not installed"
            rf"(?:.{{0,40}}?(?:got|found|have)\W{{1,3}}{INSTALLED})?"
        ),
        # requires accelerate version >= 1.1.0 but 0.9 is installed
        (
            rf"(?:needs|requires|require) {NAME}(?: version)? ?(?P<sign>>=|<=|==|~=|>|<) ?{NUMBER}"
            rf"(?:.{{0,80}}?(?:got|found|have|version is|but)\W{{1,3}}(?:[\w-]+ )?(?:version )?"
            rf"{INSTALLED})?"
        ),
        # vllm version 0.8.5 not supported. Currently supported versions are 0.5.4, 0.6.3
        (
            rf"{NAME} version {INSTALLED} (?:is )?not supported\. (?:Currently )?supported versions"
            rf" are (?:[\w.]+, )*v?(?P<newest>\d+(?:\.\d+){{1,3}})"
        ),
        # The version of PEFT you are using is not compatible, please use a version … than 0.5.0
        (
            rf"version of {NAME} (?:that )?(?:you are using|you have|(?:is )?installed)"
            rf" .{{0,80}}?"
            rf"(?P<bound>greater|newer|higher|later|at least|lower|older|less|below) than {NUMBER}"
        ),
        # please upgrade `demo` package to at least 0.1.8
        (
            rf"(?:upgrade|update) (?:the |your )?{NAME} (?:package |library |version )?to"
            rf" (?P<bound>at least|version)? ?(?:v|>= ?)?{NUMBER}"
        ),
        # torch version must be at least 2.6.0, but found 2.5.1
        (
            rf"{NAME} (?:version )?(?:must|should|needs to|has to) be (?P<bound>at least|at most)"
            rf" {NUMBER}(?:.{{0,60}}?(?:got|found|have|is)\W{{1,3}}(?:[\w-]+ )?(?:version )?"
            rf"{INSTALLED})?"
        ),
    )
)
# Others depend on their exact version.
BASES = ("torch", "numpy", "triton")
# Packages that programs use directly, so that their version is not that of an engine.
MAIN = (
    "transformers",
    "vllm",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "ray",
    "sglang",
    "pydantic",
)
GROWING = ("typing-extensions", "openai", "packaging", "filelock")
UPPER = ("less", "lower", "older", "earlier", "below", "at most", "maximum")
NO_PACKAGES = frozenset(("python", "cuda", "version", "the", "driver", "gcc", "glibc", "gpu"))


@lru_cache(maxsize=1)
def load_requirements() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Load the specifiers by package, required package and range of the package's versions."""
    path = files.data("diagnose/facts/requirements.yaml")
    return yaml_data.load_yaml_data(path, dict[str, dict[str, dict[str, str]]])


def _ranges(user: str, package: str) -> Mapping[str, str]:
    """Map each range of `user` versions to the specifier that they require of `package`."""
    return load_requirements().get(normalize_package(user), {}).get(normalize_package(package), {})


def required_specifier(user: str, package: str, version: str) -> str:
    """Return the specifier that `version` of `user` requires of `package`, or "" if unknown."""
    rows = _ranges(user, package)
    return next((spec for span, spec in rows.items() if is_within(version, span)), "")


def used(user: str, packages: Sequence[str]) -> str:
    """Return the first of `packages` that `user` requires, or "" if it requires none of them."""
    names = load_requirements().get(normalize_package(user), {})
    return next((package for package in packages if normalize_package(package) in names), "")


def newest_specifier(user: str, package: str) -> str:
    """Return the specifier that the newest listed release of `user` requires of `package`.

    Return "" if the release does not require it.
    """
    rows = _ranges(user, package)
    last = [*rows.items()][-1] if rows else ("<", "")
    return "" if "<" in last[0] else last[1]


def pin_cure(package: str, caller: str, facts: LogFacts, failing: str = "") -> str:
    """Return a cure that makes `package` and its user `caller` compatible, or "" if unknown.

    A cure whose pin of `package` allows the version `failing` is none.
    """
    user = releases.package_name(caller)
    if not user or user == package:
        return ""
    version = facts.versions.get(user, "")
    if version and (spec := required_specifier(user, package, version)):
        if failing and is_within(failing, spec):
            return ""
        return f"pip install '{package}{spec}', which {user} {version} requires"
    have = facts.versions.get(normalize_package(package), "")
    if have and (span := accepting_versions(user, package, have)):
        return (
            f"pip install '{user}{span}', which allows {package} {have}, or keep {user} and install"
            f" the {package} that pip check names for {user}"
        )
    spec = newest_specifier(user, package)
    if not spec or package in BASES or (failing and is_within(failing, spec)):
        return ""
    return (
        f"pip install -U {user} '{package}{spec}' (the newest {user} and what it requires), or keep"
        f" {user} and install the {package} that pip check names for {user} (imgbuild resolve"
        f" {user} {package})"
    )


def update_cure(package: str, caller: str, facts: LogFacts) -> str:
    """Return the cure if `caller` and `package` are incompatible.

    It is unknown which of the two packages is too old.
    """
    caller = caller or facts.user_of(package)
    if pin := pin_cure(package, caller, facts):
        return pin
    source = releases.distribution_of_module(package.replace("-", "_"))
    if " (" in source:  # on no index
        user = releases.package_name(caller) or "the calling package"
        return (
            f"install {source} at the commit that {user} names, not the package {package} of the"
            f" index, or uninstall it if {user} uses it only where it is installed"
        )
    user, have = releases.package_name(caller), facts.versions.get(normalize_package(package), "")
    if user and user != package and package == "torch":
        return (
            f"pip install -U torch {user} if nothing else pins torch, or keep torch {have}".rstrip()
            + f" and install a {user} from the same date (pip index versions {user}; imgbuild"
            f" resolve {user} torch)"
        )
    if user and user != package and package in BASES:
        return (
            f"update {user} for the installed {package}: pip install -U {user}"
            f" '{package}=={have or '(its version)'}'"
        )
    if user and user != package:
        return (
            f"update both: pip install -U {user} {package}; if another package pins one of them,"
            f" imgbuild resolve {user} {package} finds versions that fit"
        )
    if apart := _apart_cure(package):
        return apart
    users = [name for name, names in load_requirements().items() if package in names]
    if users and not user and package not in (*BASES, *MAIN):
        spec = newest_specifier(users[0], package)
        return (
            f"{' and '.join(users[:3])} require a release of {package}: pip check names the one for"
            f" the installed {users[0]} (imgbuild resolve {users[0]} {package}); or update both:"
            f" pip install -U {users[0]} '{package}{spec}'"
        )
    return (
        f"install the {package} that the program's README or requirements name, or that was the"
        f" newest when it was written: pip install '{package}==VERSION' (pip index versions"
        f" {package} lists them); if a package uses it (the last file above the error in the"
        f" traceback), update both: pip install -U {package} PACKAGE"
    )


def _apart_cure(package: str) -> str:
    """Return the cure for a package whose version others do not require, or "" for others."""
    if " (" in package:  # on no index
        return f"install the {package} at the commit that the calling package's build names"
    if package in GROWING:
        return f"pip install -U {package}: its releases only add names, so the installed one is old"
    twin = _twin(package)
    return twin and f"update both, which are released together: pip install -U {package} {twin}"


def update_command(package: str) -> str:
    """Return the command that updates `package`.

    A package that is released together with it is also updated.
    """
    return f"pip install -U {package} {_twin(package)}".rstrip()


def _twin(package: str) -> str:
    """Return the package that is released together with `package`, such as unsloth_zoo.

    Return "" if there is none.
    """
    twin = releases.load_name_table().companions.get(package, "").partition(",")[0]
    return twin if package.partition("-")[0] == re.split("[-_]", twin)[0] else ""


def requirement_reason(text: str, caller: str = "", above: str = "") -> Reason | None:
    """Return the cause for a message that states the required version of a package.

    `caller` is the import name of the package that raised the exception, and `above` of the one
    that called it.
    """
    for pattern in STATED:
        match = pattern.search(text)
        if match is None or normalize_package(match["name"]) in NO_PACKAGES:
            continue
        groups = match.groupdict()
        bound = (groups.get("bound") or "").lower()
        sign = groups.get("sign") or ("<=" if bound in UPPER else ">=")
        if "is installed with version" in match[0]:  # the bound is that of the installed one
            sign = "<=" if bound in ("greater", "newer", "higher") else ">="
        name = normalize_package(match["name"])
        version = groups.get("newest") or groups.get("version")
        sign = "==" if groups.get("newest") else sign
        spec = groups.get("spec") or f"{sign}{version}"
        if sign == "<=":  # "2.2 or less" allows 2.2.6
            release = Version(match["version"]).release
            spec = f"<{'.'.join(map(str, (*release[:-1], release[-1] + 1)))}"
        installed = (groups.get("have") or "").rstrip(".")
        have = f", and {name} {installed} is installed" if installed else ""
        user = releases.distribution_of_module(caller) if caller else "a package"
        if user == name:  # its function checks a version for another program
            user = releases.distribution_of_module(above) if above else "the calling program"
        checker = "the package that checks it" if user == "a package" else user
        return Reason(
            code=CODE,
            cause=f"{user} needs {name}{spec}{have}",
            cure=f"pip install '{name}{spec}' if the other packages allow it (imgbuild resolve"
            f" {name}), or a release of {checker} for the installed {name}",
            confidence="high" if have else "medium",
        )
    return None


def accepting_versions(user: str, package: str, have: str) -> str:
    """Return the newest range of `user` versions that allow the version `have` of `package`.

    Return "" if there is none.
    """
    rows = _ranges(user, package)
    newest_first = reversed([*rows.items()])
    return next((span for span, spec in newest_first if is_within(have, spec)), "")
