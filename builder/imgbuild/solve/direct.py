"""Resolves requirements of a project that specify a URL or a path.

`NAME @ https://….whl` and wheels given by path become files of an index named "url". `NAME @
git+https://…@REV` becomes an sdist of an index named "git", from which a wheel is built. The lock
contains the URL with the commit, and the hash of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from imgbuild.cache.context import Context
from imgbuild.cache.download import download_unlocked
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError, NoSolution
from imgbuild.index.candidates import wheel_platform_and_python
from imgbuild.index.pages import IndexFile
from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress, WheelAddress
from imgbuild.lock.model import EditablePackage, LockedProject
from imgbuild.lock.resolution import BuiltWheel
from imgbuild.matrix.model import Sdist
from imgbuild.project.model import DeclaredRequirement
from imgbuild.solve import git_tree, native_code
from imgbuild.solve.git_tree import GitTree
from imgbuild.values import Arch, normalize_package, sha256
from imgbuild.wheel import editable as wheel
from imgbuild.wheel.local_version import local_version_label
from imgbuild.wheel.tags import WheelTags

REASON = "required by the project as a git repository"
HASH_ALGORITHM = "sha256"


class DirectPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is required by URL: its only file, and the URL for the lock.

    For a git repository, `file` is an sdist, `tree` the git hash of the folder, and `env` the
    variables of the build. `version` is "" until a build has determined it.
    """

    package: str
    version: str
    file: IndexFile
    source: str
    tree: str = ""
    env: Mapping[str, str] = {}
    signs: str | None = None

    @property
    def is_git(self) -> bool:
        """True if the package is built from a git repository."""
        return bool(self.tree)

    @property
    def sdist(self) -> Sdist:
        """The build options for the sdist."""
        return Sdist(reason=REASON, env=dict(self.env))


Direct = Mapping[str, DirectPackage]
NO_DIRECT: Direct = {}


def sdist_options(direct: Direct, listed: Mapping[str, Sdist]) -> dict[str, Sdist]:
    """Return the build options of git repositories in `direct` and of packages in `listed`.

    `listed` contains the build options in the matrix. If both contain a package, the variables and
    requirements in the matrix are added.
    """
    built = {package: item.sdist for package, item in direct.items() if item.is_git}
    both = built.keys() & listed.keys()
    merged = {
        package: msgspec.structs.replace(
            listed[package], env={**built[package].env, **listed[package].env}
        )
        for package in both
    }
    return {**listed, **built, **merged}


def files_by_package(direct: Direct) -> dict[str, tuple[IndexFile, ...]]:
    """Map each package to its only file, for `Indexes`."""
    return {package: (item.file,) for package, item in direct.items()}


def applying_requirements(
    declared: Iterable[DeclaredRequirement], markers: Mapping[str, str]
) -> tuple[DeclaredRequirement, ...]:
    """Return the requirements and bounds that apply to a machine with `markers`."""
    return tuple(each for each in declared if each.applies_to(markers))


def resolver_lines(declared: Iterable[DeclaredRequirement], direct: Direct) -> tuple[str, ...]:
    """Return requirement lines for the resolver, with extras but without markers and URLs."""
    return tuple(
        _line(each.parsed_requirement, direct) for each in declared if each.kind == "requirement"
    )


def _line(requirement: Requirement, direct: Direct) -> str:
    package = normalize_package(requirement.name)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    bounds = [str(requirement.specifier)] if requirement.specifier else []
    if package in direct:
        bounds.insert(0, f"=={direct[package].version}")
    return f"{package}{extras}{','.join(bounds)}"


def look_up_requirements(
    declared: Sequence[DeclaredRequirement], tags: WheelTags, context: Context, folder: Path | None
) -> dict[str, DirectPackage]:
    """Resolve the requirements with URLs that apply to a machine with `tags`.

    `folder` is the project's folder. Raises InputError for an unusable URL, NoSolution for an
    incompatible wheel or a repository that requires a compiler, and FetchFailed if a server does
    not respond.
    """
    direct: dict[str, DirectPackage] = {}
    sources: dict[str, str] = {}
    for each in declared:
        address = _address(each, folder)
        if address is None:
            continue
        before = sources.setdefault(each.package, str(address))
        if before != str(address):
            message = f"{each.place}: {each.package} has two URLs: {before} and {address}"
            raise InputError(message, hint="remove one of them")
        if each.package not in direct:
            direct[each.package] = (
                _git_package(each, address, context)
                if isinstance(address, GitAddress)
                else _wheel(each, address, tags, context, folder)
            )
    return direct


def create_editable(package: str, item: EditablePackage, store: Store) -> DirectPackage:
    """Write an editable wheel for one of the project's packages to `store`."""
    name, data = editable_wheel(package, item)
    digest = sha256(data)
    path = store.add_bytes(data, digest)
    file = IndexFile(name=name, url=path.as_uri(), sha256=digest, size=len(data), editable=True)
    return DirectPackage(package=package, version=item.version, file=file, source="")


def editable_wheel(package: str, item: EditablePackage) -> tuple[str, bytes]:
    """Return the file name and bytes of an editable wheel for one of the project's packages."""
    data = wheel.create_editable_wheel(
        package,
        item.version,
        roots=item.roots,
        scripts=item.scripts,
        requires=item.requires,
        python=item.python,
    )
    return wheel.file_name(package, item.version), data


def _address(
    declared: DeclaredRequirement, folder: Path | None
) -> WheelAddress | GitAddress | None:
    """Return None for a requirement without a URL. Raises InputError if the URL is unusable."""
    text = declared.path or declared.parsed_requirement.url
    if not text:
        return None
    try:
        if declared.path or urlsplit(text).scheme in ("file", ""):
            return _file_address(text, folder)
        return addresses.parse_address(text)
    except ValueError as error:
        message = f"{declared.place}: {declared.package} @ {addresses.strip_secrets(text)}: {error}"
        raise InputError(message, hint=_FORMS) from None


_FORMS = "NAME @ https://HOST/FILE.whl, NAME @ git+https://HOST/PATH@REV, or a path of the project"


def _file_address(text: str, folder: Path | None) -> WheelAddress:
    """Parse the path or `file:` URL of a file of the project. Raises ValueError for other URLs."""
    parts = urlsplit(text)
    path = Path(unquote(parts.path) if parts.scheme == "file" else text)
    if folder is None:
        message = "a path is only valid in a project"
        raise ValueError(message)
    place = Path(os.path.normpath(folder / path))
    if path.suffix != ".whl":
        message = "is not a wheel (.whl)"
        raise ValueError(message)
    if not place.resolve().is_relative_to(folder.resolve()):
        message = "is outside the project folder: copy it into the project"
        raise ValueError(message)
    if not place.is_file():
        message = "no such file"
        raise ValueError(message)
    return WheelAddress(place=place.relative_to(os.path.normpath(folder)).as_posix())


def wheel_url(address: WheelAddress, folder: Path | None) -> str:
    """Return the URL of a wheel.

    Raises InputError for a relative path if the project folder is unknown.
    """
    if not address.is_path:
        return address.place
    if folder is None:
        message = f"the project folder of {address.place} is unknown"
        raise InputError(message, hint="run the command in the project's folder")
    return (folder.absolute() / address.place).as_uri()


def _wheel(
    declared: DeclaredRequirement,
    address: WheelAddress,
    tags: WheelTags,
    context: Context,
    folder: Path | None,
) -> DirectPackage:
    package, place = declared.package, f"{declared.place}: {declared.package}"
    try:
        name, version, _, _ = parse_wheel_filename(address.name)
    except ValueError as error:
        message = f"{place} @ {address}: {address.name} is not a wheel file name: {error}"
        raise InputError(message, hint="use a URL that ends with the wheel's file name") from error
    if name != package:
        message = f"{place} @ {address}: the wheel contains the package {name}"
        raise InputError(message, hint=f"write {name} @ {address}")
    if not declared.parsed_requirement.specifier.contains(version, prereleases=True):
        message = f"{place}{declared.parsed_requirement.specifier}: the wheel has version {version}"
        raise InputError(message, hint="remove the version: the URL determines it")
    if not tags.is_compatible(address.name):
        message = f"{address.name} is incompatible with this target"
        reasons = (
            f"the wheel requires {wheel_platform_and_python(address.name)}",
            f"the target has Python {tags.python} and glibc {tags.glibc} on {tags.arch.wheel}",
        )
        hint = "use the wheel for this target, or add a marker to the line"
        raise NoSolution(message, reasons=reasons, hint=hint)
    url = wheel_url(address, folder)
    sha256, size = _hash_and_size(declared, address, url, context)
    file = IndexFile(name=address.name, url=url, sha256=sha256, size=size)
    return DirectPackage(package=package, version=str(version), file=file, source=str(address))


def _hash_and_size(
    declared: DeclaredRequirement, address: WheelAddress, url: str, context: Context
) -> tuple[str, int | None]:
    hashes = {text.lower() for text in (*declared.hashes, *address.hashes)}
    digests = {text.partition(":")[2] for text in hashes if text.startswith(f"{HASH_ALGORITHM}:")}
    if hashes and not digests:
        message = f"{declared.place}: {declared.package} has no {HASH_ALGORITHM} hash"
        raise InputError(message, hint=f"append #{HASH_ALGORITHM}=… to its URL")
    if len(digests) == 1 and not address.is_path:
        digest = digests.pop()  # checked when it is downloaded
        path = context.store.file(digest)
        return digest, path.stat().st_size if path is not None else None
    locked = download_unlocked(url, address.name, context)
    if digests and locked.sha256 not in digests:
        message = (
            f"{address}: the file has sha256 {locked.sha256}, but {declared.place} has"
            f" {', '.join(sorted(digests))}"
        )
        raise IntegrityError(message, hint="the file was replaced; check its origin")
    return locked.sha256, locked.size


def _git_package(
    declared: DeclaredRequirement, address: GitAddress, context: Context
) -> DirectPackage:
    package = declared.package
    commit = git_tree.resolve_revision(address, context)
    tree = git_tree.fetch_tree(commit, context)
    commit = msgspec.structs.replace(commit, rev=tree.commit)
    texts = git_tree.build_texts(tree, context.store, str(commit))
    _refuse_native_code(package, commit, tree, texts, context)
    return DirectPackage(
        package=package,
        version="",
        file=IndexFile(
            name=f"{package.replace('-', '_')}-{tree.commit}.tar.gz",
            url=str(commit),
            sha256=tree.sha256,
            size=tree.size,
        ),
        source=str(commit),
        tree=tree.tree,
        env=git_tree.version_variables(commit, texts, context),
        signs=native_code.first_sign(texts),
    )


def _refuse_native_code(
    package: str,
    address: GitAddress,
    tree: GitTree,
    texts: Mapping[str, str],
    context: Context,
) -> None:
    if not texts:
        message = f"{address}: the folder has no pyproject.toml and no setup.py"
        raise InputError(message, hint="append the folder of the package: #subdirectory=")
    if native_code.surely_cuda(texts):
        message = f"{package} cannot be built from {address}"
        reasons = (native_code.first_sign(texts) or "it compiles CUDA code",)
        raise NoSolution(message, reasons=reasons, hint=native_code.WHEEL_BY_URL)
    missing = native_code.missing_submodules(texts, tree.submodules)
    if missing:
        message = f"{package} cannot be built from {address}"
        reasons = (
            f"its build files use the submodules {', '.join(missing)}, which are not fetched",
        )
        raise NoSolution(message, reasons=reasons, hint="use the URL of a wheel")
    if tree.submodules:
        names = ", ".join(tree.submodules)
        context.reporter.info(f"{address}: submodules are excluded: {names}")


def determine_version(
    item: DirectPackage, build: Callable[[str, IndexFile], BuiltWheel]
) -> DirectPackage:
    """Build `item` to determine its version.

    Raises NoSolution, with the sources that would be compiled, if the result is not a pure wheel.
    """
    if not item.is_git:
        return item
    try:
        built = build(item.package, item.file)
    except NoSolution as error:
        reasons = (*((item.signs,) if item.signs else ()), *error.reasons)
        hint = native_code.WHEEL_BY_URL if item.signs else error.hint
        message = f"{error.message} ({item.source})"
        raise NoSolution(message, reasons=reasons, hint=hint) from error
    file = msgspec.structs.replace(item.file, name=built.sdist.file)
    return msgspec.structs.replace(item, version=built.version, file=file)


def compiled_notes(direct: Direct) -> tuple[str, ...]:
    """Return a note for each wheel whose name contains the torch version it is compiled for."""
    return tuple(
        f"{item.file.name} is compiled for torch {tag.torch}, according to its name"
        for item in direct.values()
        if (tag := local_version_label(item.version)).torch
    )


def refuse_published(direct: Direct, published: Mapping[str, str], target: str) -> None:
    """Raise InputError if the published target contains a package in `direct`."""
    for package, item in direct.items():
        if package in published:
            what = f"{package} @ {item.source}" if item.source else f"the project's own {package}"
            message = (
                f"{what}: {target} has {package} {published[package]}, which an extension cannot"
                " change"
            )
            raise InputError(
                message, hint="remove the requirement, or use `like:` instead of `extends:`"
            )


def locked_project(direct: Mapping[Arch, Direct]) -> LockedProject:
    """Return the URLs and git trees for the lock.

    Raises InputError if a URL differs between architectures.
    """
    merged: dict[str, DirectPackage] = {}
    for arch, packages in direct.items():
        for package, item in packages.items():
            if merged.setdefault(package, item).source != item.source:
                message = f"the URL of {package} differs on {arch}: {item.source}"
                raise InputError(message, hint="lock one architecture: arch: [x86_64]")
    return LockedProject(
        sources={package: item.source for package, item in sorted(merged.items()) if item.source},
        trees={package: item.tree for package, item in sorted(merged.items()) if item.is_git},
    )


def files_from_lock(
    sources: Mapping[str, str],
    locked: Iterable[tuple[str, IndexFile]],
    folder: Path | None,
) -> dict[str, tuple[IndexFile, ...]]:
    """Map each package to its files, for `Indexes`.

    `locked` contains packages with their files in the lock. Files given by path are omitted if the
    project folder is unknown.
    """
    direct: dict[str, dict[str, IndexFile]] = {package: {} for package in sources}
    for package, file in locked:
        address = addresses.parse_address(sources[package]) if package in sources else None
        if isinstance(address, GitAddress):
            direct[package][file.name] = msgspec.structs.replace(file, url=str(address))
        elif address is not None and (folder is not None or not address.is_path):
            url = wheel_url(address, folder)
            direct[package][file.name] = msgspec.structs.replace(file, url=url)
    return {package: tuple(named.values()) for package, named in direct.items() if named}
