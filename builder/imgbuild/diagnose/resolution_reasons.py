"""Explains why uv or pip finds no solution.

The explanation lists dependencies. The cause is the package whose requirements exclude each other,
or whose required version is on no index.
"""

# A separate module: an explanation in prose.
from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from imgbuild.audit.binaries import gpus
from imgbuild.diagnose import machines, requirements
from imgbuild.diagnose.facts import LogFacts
from imgbuild.diagnose.finding import Reason
from imgbuild.system import files, yaml_data
from imgbuild.system.syntax import is_within, parse_version

SPEC = r"(?:[<>=!~]{1,3}[\w.+*-]{1,60})(?:, ?[<>=!~]{1,3}[\w.+*-]{1,60})*"
REQUIREMENT = rf"[A-Za-z][\w.-]{{0,80}}(?:\[[\w,.-]{{1,60}}\])?(?:{SPEC})?"
EXPLAINS = re.compile(
    r"No solution found when resolving|The conflict is caused by|[Bb]ecause .{3,200}(?:depends? on|"
    r"you require|requires|there (?:is|are) no|only .{3,80} available|has no wheels)"
)
SPLIT = re.compile(r"for split \(([^()]{3,300}(?:\([^()]{0,200}\))?[^()]{0,200})\)")
MARKERS = re.compile(r"\{[^{}]{0,200}\}")
CONCLUSION = re.compile(r",? (?:we can conclude|it follows) that .{3,400}?(?=And because|$)")
DEPENDS = re.compile(
    rf"(?P<by>your project|{REQUIREMENT}(?: \d[\w.+]{{0,30}})?) (?:depends on|requires)"
    rf" (?P<on>{REQUIREMENT})"
    rf"(?: and (?P<also>{REQUIREMENT})(?=,| we| And|$))?"
)
REQUIRED = re.compile(
    rf"(?:you require|The user requested(?: \(constraint\))?) (?P<on>{REQUIREMENT})"
    rf"(?: and (?P<also>{REQUIREMENT})(?=,| we| And|$))?"
)
NO_WHEEL = re.compile(
    rf"(?P<wheel>{REQUIREMENT}) (?:has|is unusable because) no (?:usable )?wheels"
    r"(?: (?:are available )?with a matching"
    r" (?P<tag>[Pp]latform|Python ABI|Python version|[\w ]{3,40}?)"
    r"(?: tag)?(?: \(e\.g\., `?(?P<have>[^`)]{3,80})`?\)|(?=[ ,])))?"
)
ABSENT = re.compile(
    rf"there (?:is|are) no versions? of (?P<none>{REQUIREMENT})|"
    rf"only (?:the following versions of )?(?P<only>{REQUIREMENT})"
    rf"(?: (?:is|are) available(?:: (?P<list>[^,]{{3,200}}))?)|"
    rf"{NO_WHEEL.pattern}|"
    rf"(?P<lost>{REQUIREMENT}) (?:was not found in (?:the package registry|the provided)|"
    r"which doesn't match any versions)"
)
# pip's: a requirement on a repository, with the version that it has.
FROM_SOURCE = re.compile(
    r"(depends on [A-Za-z][\w.-]{0,80}) (\d[\w.+]{0,40})(?: \(from [^()]{3,200}\))?"
)
TORCH_INDEX = re.compile(r"download\.pytorch\.org/whl/(?:\w+/)?(cpu|cu\d{2,3})\b")
PYTHON = re.compile(
    r"(?P<by>[A-Za-z][\w.<>=!~,+-]{1,80}) depends on Python ?"
    r"(?P<need>[<>=!~][\w.,<>=!~* ]{1,40}\w)|"
    r"requested Python version \((?P<have>[^)]{3,60})\)"
)

UNMET = re.compile(
    r"(?:ERROR: |pip check\W{1,3})?(?P<by>[\w.-]{1,80}) (?P<version>\d[\w.+]{0,40})"
    r" (?:requires|has requirement) (?P<need>[\w.-]{1,80}(?:\[[\w,-]{1,60}\])?"
    r"(?:[<>=!~][^,;\s]{1,40}(?:,[<>=!~][^,;\s]{1,40}){0,6})?)"
    r"(?:; [^,]{1,80})?, (?:but you(?:'ll)? have (?P<have>[\w.-]{1,80} [\w.+]{0,59}\w)"
    r"(?: which is incompatible|\.?$)|which is not installed)"
)
VLLM_WHEELS = (
    "; on x86_64 vllm 0.12.0 to 0.19.1 needs glibc 2.31 (manylinux_2_31), 0.20 2.35, 0.22.0 and"
    " newer 2.28; on arm64 it has wheels from 0.10.2 on"
)
OF_WHEELS = "2.28"  # glibc
MOST_UNMET = 8
SYSTEM = " for this Python, glibc and architecture"
# Builds on PyTorch's index, by the local part of the version.
OF_TORCH = re.compile(r"^(?:torch|torchvision|torchaudio|xformers)\b.{0,40}\+(cpu|cu\d{2,3})$")
# Poetry writes `name (>=1,<2)` and `name (1.2)`.
POETRYS = re.compile(
    r"(?P<name>[A-Za-z][\w.-]{0,80}) \((?P<spec>[<>=!~^]{0,2}\d[\w.*+]{0,30}"
    r"(?:,[<>=!~]{1,2}\d[\w.*+]{0,30}){0,6})\)"
)

# pip writes `name<1.0 and >=0.14.1`.
SECOND = re.compile(r"([<>=!~]=?[\w.*+]{1,40}) and ([<>=!~]=?\d)")

UNAVAILABLE = re.compile(
    r"(?:satisfies the requirement|distribution found for|满足要求|找不到符合)"
    r" (?P<package>[A-Za-z][\w.-]*)(?P<spec>[<>=!~]=?\d[\w.,<>=!~*]*)"
)


NOT_LISTED = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"Could not find a version that satisfies the requirement (?P<req>\S+(?: \S+?)?)"
            r"(?: \(from (?!versions:)(?P<by>[^()]{1,120})\))?"
            r" \(from versions: (?P<have>[^)]{1,4000})\)?"
        ),
        r"无法找到满足要求 (?P<req>\S+) 的版本 ?\(.{0,8}版本. ?(?P<have>[^)]{1,4000})\)?",
        r"Could not find a version that satisfies the requirement (?P<req>\S+)(?P<have>)$",
        r"No matching distribution found for (?P<req>\S+)(?P<have>)",
        r"找不到符合 (?P<req>\S+) 的发行版(?P<have>)",
    )
)


class _ListedVersions(msgspec.Struct, frozen=True):
    """The system to which the newest or oldest listed version of a package belongs."""

    newest: Mapping[str, str]
    oldest: Mapping[str, str]


class _Listed(msgspec.Struct, frozen=True):
    """The versions that pip lists next to a required one.

    `by` is the package that requires it, and `glibc` that of the system, which may be arm64.
    """

    name: str
    required: str
    by: str
    below: Version | None
    above: Version | None
    glibc: str
    arm: bool


class _PackageConstraint(msgspec.Struct, frozen=True):
    """A requirement of `by` on a package. `by` is "" for an index, and "you" for the project."""

    by: str
    on: str


def resolution_reason(text: str, facts: LogFacts) -> Reason | None:
    """Return the cause in the explanation `text`, whose lines are joined.

    Return None for other texts.
    """
    if facts.ignored and (match := UNAVAILABLE.search(text)):
        return _other_python(match["package"], match["spec"], facts)
    if (missing := unlisted_reason(text, facts.glibc, arm=facts.arm)) is not None:
        return missing
    if not EXPLAINS.search(text):
        return None
    plain = re.sub(r"\s+", " ", MARKERS.sub("", text))
    plain = SECOND.sub(r"\1,\2", POETRYS.sub(_pip_requirement, plain))
    plain = FROM_SOURCE.sub(r"\1==\2", plain)
    constraints = _constraints(plain)
    python = _python(plain)
    if python is not None:
        return python
    clash = _find_clash(constraints)
    if clash is None:
        return _only_needed(plain, constraints) or _without_clash(plain)
    first, second = clash
    split = SPLIT.search(text)
    if not second.by:
        system = facts.platform or ("Linux on arm64" if facts.arm else "this system")
        there = second.on.replace("for this system", f"for {system}")
        absent = _absent_version_reason(first, there, split[1] if split else "")
        return _with_index(absent, _name(first.on), first.on, facts.index)
    cause = f"{_needs(first)}, and {_needs(second)}"
    mine = next((each for each in clash if each.by == "you"), None)
    other = first if mine is second else second
    names = " ".join(dict.fromkeys(_name(each.by) for each in clash if each.by != "you"))
    if mine is not None:
        cure = f"change the requirement {mine.on}, or use another version of {_name(other.by)}"
        cure += _fitting_versions(_name(other.by), mine.on)
        names = f"{shlex.quote(mine.on)} {names}"
    else:
        cure = f"use another version of {_name(first.by)} or of {_name(second.by)}"
    return _resolution_reason(cause, f"{cure}: imgbuild resolve {names} finds compatible versions")


def _with_index(reason: Reason, package: str, requirement: str, index: str) -> Reason:
    """Return the reason for an absent version if a command adds an index, which uv reads first."""
    build = TORCH_INDEX.search(index)
    version = requirement.partition("==")[2]
    if not index or not version or "+" in version:
        return reason
    if build is not None and package in ("torch", "torchvision", "torchaudio"):
        cause = f"{reason.cause}; {index} has builds with a local version, such as +{build[1]}"
        cure = f"require {package}=={version}+{build[1]} (or use a newer uv), and if there is none,"
        return msgspec.structs.replace(reason, cause=cause, cure=f"{cure} {reason.cure}")
    return msgspec.structs.replace(
        reason,
        cause=f"{reason.cause}; uv reads a package only from the first index that has it, here"
        f" possibly {index}",
        cure=f"omit {index}, or pass --index-strategy unsafe-best-match; else {reason.cure}",
    )


def _only_needed(plain: str, constraints: dict[str, list[_PackageConstraint]]) -> Reason | None:
    """Return the reason if pip lists releases of one package, which all need another one.

    pip does so if no version of that one can be installed.
    """
    if "conflict is caused by" not in plain or len(constraints) != 1:
        return None
    needs = next(iter(constraints.values()))
    users = {_name(each.by) for each in needs}
    if len(needs) < 2 or len(users) != 1 or "you" in users or len({e.on for e in needs}) != 1:
        return None
    user, needed = users.pop(), needs[0].on
    return _resolution_reason(
        f"all releases of {user} in the required range need {needed}, which no index has for this"
        " Python and system",
        f"use a release of {user} without it, or of the package that requires {user}; or install"
        f" {needed} first from its repository (pip download --no-deps {needed} shows whether the"
        " index has it)",
    )


def _without_clash(plain: str) -> Reason | None:
    """Return the reason for an explanation in which no two requirements exclude each other."""
    match = re.search(r"[Bb]ecause (.{10,300}?)(?:,? we can conclude|$)", plain)
    if match is None:
        return None
    if (wheel := NO_WHEEL.search(plain)) is not None:
        return _no_wheel(wheel["wheel"], wheel["tag"] or "", wheel["have"] or "")
    return _resolution_reason(
        match[1].rstrip(", "),
        "change one of these requirements; imgbuild resolve finds compatible versions",
        certain=False,
    )


def _no_wheel(requirement: str, tag: str, have: str) -> Reason:
    """Return the reason for a version without a suitable wheel.

    `tag` is the part that does not match, and `have` describes this system.
    """
    name = _name(requirement)
    python = "Python" in tag or tag == "ABI" or have.startswith("cp3")
    what = "this Python" if python else f"this platform ({have})" if have else "this platform"
    return _resolution_reason(
        f"{requirement} has no wheels for {what}", _other_system(name, have, python=python)
    )


def _other_system(name: str, have: str, *, python: bool) -> str:
    """Return the cure for a package without wheels for this Python or platform."""
    if python:
        return (
            "use a different Python (uv venv --python 3.11, or 3.12), for which it has wheels, or a"
            f" newer {name} (from another index, if this one ended with old versions)"
        )
    if have.startswith("win"):
        return f"use Linux or WSL 2: {name} has no wheels for Windows; or a version without it"
    if have.startswith("macosx"):
        return f"use Linux: {name} has no wheels for this macOS; or an older version that has them"
    cure = (
        "use a Python (uv venv --python 3.12), base image or architecture for which it has wheels,"
        " or a different version"
    )
    return cure + VLLM_WHEELS if name == "vllm" else cure


def _fitting_versions(user: str, requirement: str) -> str:
    """Return the versions of `user` that allow an exact requirement, in parentheses.

    Return "" if they are unknown.
    """
    name, exact, version = requirement.partition("==")
    span = (
        requirements.accepting_versions(user, name.strip(), version.partition("+")[0])
        if exact
        else ""
    )
    return f" ('{user}{span}' allows {name}=={version})" if span else ""


def _pip_requirement(match: re.Match[str]) -> str:
    """Convert a requirement of Poetry to pip's form."""
    spec = match["spec"].replace("^", ">=")
    return match["name"] + (f"=={spec}" if spec[0].isdigit() else spec)


def unlisted_reason(text: str, glibc: str = "", *, arm: bool = False) -> Reason | None:
    """Return the cause if pip finds no matching version, based on the versions that it lists.

    `glibc` is that of the system, or "", and `arm` whether it is arm64.
    """
    match = next((match for form in NOT_LISTED if (match := form.search(text))), None)
    if match is None:
        return None
    required, name = match["req"], _name(match["req"])
    versions = [each.strip() for each in match["have"].split(",") if each.strip()]
    exact = re.search(r"==(\d[\w.]*)", required)
    cause = f"the index has no {required}"
    system = SYSTEM
    cure = (
        f"use one of the versions that pip lists (pip index versions {name}), a different Python,"
        " or the index that has the version (+cuXXX builds: --extra-index-url"
        " https://download.pytorch.org/whl/cuXXX)"
    )
    try:
        number = Version(exact[1]) if exact else None
        listed = sorted(map(Version, versions))
    except ValueError:
        number, listed = None, []
    if number is not None and listed:
        below = next((each for each in reversed(listed) if each < number), None)
        above = next((each for each in listed if each > number), None)
        by = (match.groupdict().get("by") or "").partition("->")[0]
        explained = _listed_reason(_Listed(name, required, by, below, above, glibc, arm))
        system, cure = explained or (system, cure)
    cause += system
    return Reason(code="IMG617", cause=cause, cure=cure, source="rule", priority=41)


def _listed_reason(listed: _Listed) -> tuple[str, str] | None:
    """Return the rest of the cause and the cure, from the versions that pip lists."""
    name, required, below, above = listed.name, listed.required, listed.below, listed.above
    systems = _systems().get(name, _ListedVersions({}, {}))
    if below is not None:
        system = systems.newest.get(str(below), "")
        if not systems.newest and gpus.is_older(listed.glibc, OF_WHEELS):
            system = f"a glibc ({listed.glibc}) older than that of most wheels"
        known = max(map(Version, systems.newest), default=None)
        newer = f"{machines.NEWER_GLIBC} for {required}"
        span = f"{name}<={below}" + f" or {name}>={above}" * (above is not None)
        if above is not None and "glibc" not in system:
            return None
        if "glibc" in system:
            gap = f", and from {above} on" if above is not None else ""
            return (
                f"{SYSTEM}: pip finds {name} up to {below}{gap} only, so this is {system}",
                f"use {newer}, or require {span}",
            )
        if not system and known is None and listed.arm:
            cure = f"build {required} from its source (git clone; a devel image), use an x86_64"
            cure += f" machine, or require {span}"
            only = f"{SYSTEM}: pip finds {name} up to {below} only"
            return f"{only}, so {required} has no wheel for Linux on arm64", cure
        if not system and (known is not None or listed.by):
            user = re.split(r"[<>=!~ ]", listed.by)[0]
            older = f"an older {user}, which takes {name}<={below}" if user else f"require {span}"
            needs = f", and {listed.by} needs a newer one" if user else ""
            cure = f"use an index that has {required} (pip config list shows the one in use), or"
            return (
                f": pip finds {name} up to {below} only{needs}: the index or mirror is behind",
                f"{cure} {older}",
            )
        return (
            (
                f"{SYSTEM}: pip finds {name} up to {below} only, so this is"
                f" {system or 'an older Python, glibc or system, or an index that is behind'}"
            ),
            (
                f"use Python 3.10 to 3.13 on Linux (an image of imgbuild, or uv venv --python 3.12)"
                f" for {required}, or require {span}"
            ),
        )
    system = systems.oldest.get(str(above), "a newer Python, or another architecture")
    cure = f"use an older Python (uv venv --python 3.11; an image of imgbuild) for {required}"
    if system == "arm64":
        cure = f"build {required} from source"
    return (
        f"{SYSTEM}: pip finds {name} from {above} on only, so this is {system}",
        f"{cure}, or require {name}>={above}",
    )


@lru_cache(maxsize=1)
def _systems() -> Mapping[str, _ListedVersions]:
    return yaml_data.load_yaml_data(
        files.data("diagnose/facts/listed.yaml"), dict[str, _ListedVersions]
    )


def installed_conflict_reason(text: str, texts: Iterable[str]) -> Reason | None:
    """Return the cause if pip reports installed versions that another package excludes.

    `texts` are all lines. The package with the most unmet requirements must be installed again.
    """
    if not UNMET.match(text):
        return None
    rows = [match for match in map(UNMET.match, texts) if match]
    by = Counter((row["by"], row["version"]) for row in rows)
    name, version = by.most_common(1)[0][0]
    unmet = [row for row in rows if (row["by"], row["version"]) == (name, version)][:MOST_UNMET]
    needs = ", ".join(row["need"] for row in unmet)
    have = ", ".join(row["have"] for row in unmet if row["have"]) or "no such package"
    others = ", ".join(other for other, _ in by if other != name)
    release = f"{name}=={version.partition('+')[0]}"
    pins = " ".join(f"'{each}'" for each in (release, *(row["need"] for row in unmet)))
    return Reason(
        code="IMG615",
        cause=f"{name} {version} needs {needs}, and pip has installed {have}"
        + (f"; {others} also reject installed versions" if others else ""),
        cure=f"install them in one command: pip install {pins} …; if another package needs"
        f" {have.partition(',')[0]}, use a release of {name} for it"
        f" (imgbuild resolve {name} …) or a second environment",
        source="rule",
        priority=44,
        failed=True,
    )


def _other_python(package: str, requirement: str, facts: LogFacts) -> Reason | None:
    """Return the reason if pip omits all required versions because they require another Python."""
    try:
        required = SpecifierSet(requirement)
    except InvalidSpecifier:
        return None
    omitted = {parse_version(each): spec for each, spec in facts.ignored.items()}
    omitted.pop(None, None)
    version = max(required.filter(filter(None, omitted), prereleases=True), default=None)
    if version is None:
        return None
    spec = omitted[version]
    python = f"Python {facts.python}" if facts.python else "this Python"
    return Reason(
        code="IMG607",
        cause=f"{package} {version} requires Python {spec}, and pip runs with {python}",
        cure=f"use a Python in {spec} (a container of imgbuild, or uv venv --python 3.12), or a"
        f" version of {package} for {python}",
        confidence="high",
    )


def _resolution_reason(what: str, cure: str, *, certain: bool = True) -> Reason:
    return Reason(
        code="IMG910",
        cause=f"the requirements have no solution: {what}",
        cure=cure,
        confidence="high" if certain else "medium",
    )


def _needs(each: _PackageConstraint) -> str:
    return f"you require {each.on}" if each.by == "you" else f"{each.by} needs {each.on}"


def _name(requirement: str) -> str:
    """Return the package of a requirement."""
    match = re.match(r"[A-Za-z][\w.-]*", requirement)
    return match[0].rstrip("-.") if match else requirement


def _absent_version_reason(needed: _PackageConstraint, there: str, split: str) -> Reason:
    """Return the reason if none of the command's indexes has a version.

    `there` describes the versions on the index. `split` is the environment for which uv solves, or
    "" if uv solves for all environments.
    """
    cause = f"{_needs(needed)}, and {there}" + (f" (for {split})" if split else "")
    tagged = re.search(r"\+|dev", needed.on)
    cure = "use a version that the index has"
    if "wheels" in there:
        system = re.search(r"(?:win|macosx)_?\w+", there)
        cure = _other_system(_name(there), system[0] if system else "", python="Python" in there)
    elif local := OF_TORCH.search(needed.on):
        cure = (
            f"let uv use PyTorch's index: uv pip install --torch-backend={local[1]} … (pip:"
            f" --extra-index-url https://download.pytorch.org/whl/{local[1]}), or require the"
            f" version without +{local[1]}"
        )
    elif tagged:
        cure += f", a release of {_name(needed.by if needed.by != 'you' else needed.on)} in place"
        cure += " of a nightly build, or add the index with these builds (--extra-index-url,"
        cure += " --index-strategy unsafe-best-match)"
    elif re.search(r"\d(?:a|b|rc)\d", needed.on):
        cause += "; it is a pre-release, which is used only where it is allowed"
        cure = f"allow the pre-release: --prerelease=allow, or require {needed.on} yourself"
    else:
        cure += f", another version of {_name(needed.by)}," if needed.by != "you" else ","
        cure += " or an index that is more complete"
    if split:
        cure += "; or omit that environment: environments in [tool.uv], or a marker"
    return _resolution_reason(cause, cure)


def _constraints(text: str) -> dict[str, list[_PackageConstraint]]:
    """Return the constraints on each package, in the order of the text."""
    constraints: dict[str, list[_PackageConstraint]] = {}
    for each in sorted(_iterate_statements(CONCLUSION.sub(". ", text)), key=lambda pair: pair[0]):
        _, constraint, package = each
        rows = constraints.setdefault(package.lower().replace("_", "-"), [])
        if constraint not in rows:
            rows.append(constraint)
    return constraints


def _iterate_statements(text: str) -> Iterator[tuple[int, _PackageConstraint, str]]:
    """Yield place, constraint and package of each statement."""
    for pattern in (DEPENDS, REQUIRED):
        for match in pattern.finditer(text):
            by = match.groupdict().get("by") or "you"
            by = "you" if by == "your project" else by.removeprefix("cause: ")
            for on in (each.rstrip(".") for each in (match["on"], match["also"]) if each):
                yield match.start(), _PackageConstraint(by, on), _name(on)
    for match in ABSENT.finditer(text):
        on = (match["none"] or match["only"] or match["wheel"] or match["lost"]).rstrip(".")
        there = f"no index has {on}"
        if match["only"]:
            there = f"the index has {match['list'] or on} only"
        elif match["wheel"]:
            tag = f" for {match['have']} ({match['tag']})" if match["have"] else " for this system"
            if match["tag"] and not match["have"]:
                tag = f" for this {match['tag'].replace('ABI', 'version (ABI)')}"
            there = f"{on} has no wheels{tag}"
        yield match.start(), _PackageConstraint("", there), _name(on)


def _find_clash(
    constraints: dict[str, list[_PackageConstraint]],
) -> tuple[_PackageConstraint, _PackageConstraint] | None:
    """Return two constraints on one package that exclude each other.

    The second may be the constraint of an index.
    """
    for rows in constraints.values():
        needs = [row for row in rows if row.by]
        there = [row for row in rows if not row.by]
        free = not re.search(r"[<>=!~]", needs[0].on) if needs else False
        if free and there and there[0].on.endswith(" only") and len(constraints) > 1:
            continue  # a requirement on the only version
        if needs and there:
            return needs[0], next((row for row in there if "wheels" in row.on), there[0])
    for rows in constraints.values():
        needs = [row for row in rows if row.by and re.search(r"[<>=!~]", row.on)]
        by = {row.by: row for row in reversed(needs)}
        pairs = [
            pair
            for pair in itertools.combinations(reversed(by.values()), 2)
            if pair[0].on != pair[1].on
        ]
        if pairs:
            return next((pair for pair in pairs if not _may_agree(*pair)), pairs[0])
    return None


def _may_agree(first: _PackageConstraint, second: _PackageConstraint) -> bool:
    """Whether a version that one of two requirements on a package names satisfies both."""
    specs = [re.search(SPEC, each.on) for each in (first, second)]
    named = [version for spec in specs if spec for version in re.findall(r"\d[\w.]*", spec[0])]
    return any(all(spec and is_within(version, spec[0]) for spec in specs) for version in named)


def _python(text: str) -> Reason | None:
    """Return the reason if a package does not support the required Python."""
    needs = have = by = ""
    for match in PYTHON.finditer(text):
        needs, by = match["need"] or needs, match["by"] or by
        have = match["have"] or have
    if not (needs and have):
        return None
    return _resolution_reason(
        f"{by} needs Python {needs}, and the Python of this project is {have}",
        f"raise requires-python (or pass --python) to one that {by} supports, or use another"
        f" version of {_name(by)}",
    )
