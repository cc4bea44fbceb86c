"""Renders PEP 751's pylock.toml for pip and uv.

The file is never committed, because it contains host names. If the version of a package depends on
the architecture, the package has several entries, each with a marker for an architecture.
"""

# A separate module: an output format.
from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import imgbuild
from imgbuild.errors import InputError
from imgbuild.lock.addresses import GIT_INDEX, GitAddress, parse_address
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import BuiltWheel, LockedFile, Wheel
from imgbuild.render.addresses import Addresses
from imgbuild.system import quoting
from imgbuild.values import Arch

EntriesByVersion = dict[tuple[str, str], dict[Arch, Wheel | BuiltWheel]]


def pylock_text(lock: Lock, arches: Sequence[Arch], addresses: Addresses) -> str:
    """Return the text of `pylock.toml` for `lock` on `arches`."""
    entries: EntriesByVersion = {}
    for arch in arches:
        resolution = lock.arch[arch]
        items: list[Wheel | BuiltWheel] = [*resolution.wheels, *resolution.built]
        for item in items:
            entries.setdefault((item.package, item.version), {})[arch] = item
    python = lock.base.python
    target = quoting.comment_line(lock.target)
    lines = [
        f"# The packages of {target}: `imgbuild render {target} --format pylock`.",
        'lock-version = "1.0"',
        f"created-by = {_string(f'imgbuild {imgbuild.__version__}')}",
        f"requires-python = {_string(f'=={python}.*')}",
        f"environments = [{', '.join(_string(_marker([arch])) for arch in arches)}]",
    ]
    sources = lock.project.sources if lock.project is not None else {}
    for key in sorted(entries):
        if any(item.index == GIT_INDEX for item in entries[key].values()):
            lines += _repository(key[0], sources.get(key[0], ""))
        else:
            lines += _package(key, entries[key], set(arches), addresses)
    return "\n".join(lines) + "\n"


def _repository(package: str, source: str) -> list[str]:
    """Return the entry of a package from a git repository, which has no version (PEP 751)."""
    address = parse_address(source)
    if not isinstance(address, GitAddress):
        message = f"{package}: the URL in the lock is not the URL of a git repository: {source}"
        raise InputError(message, hint="run imgbuild lock again")
    folder = f", subdirectory = {_string(address.subdirectory)}" if address.subdirectory else ""
    tree = f'type = "git", url = {_string(address.url)}, commit-id = {_string(address.rev)}'
    return ["", "[[packages]]", f"name = {_string(package)}", f"vcs = {{{tree}{folder}}}"]


def _package(
    key: tuple[str, str],
    items: dict[Arch, Wheel | BuiltWheel],
    arches: set[Arch],
    addresses: Addresses,
) -> list[str]:
    package, version = key
    built = [item for item in items.values() if isinstance(item, BuiltWheel)]
    words = " ".join(
        f"{quoting.comment_line(key)}={quoting.quote_word(text)}"
        for wheel in built[:1]
        for key, text in wheel.env.items()
    )
    lines = ["", "[[packages]]", f"name = {_string(package)}", f"version = {_string(version)}"]
    if built:
        lines.insert(1, f"# Built from its sdist on installing{words and ', with '}{words}.")
    if set(items) != arches:
        lines.append(f"marker = {_string(_marker(sorted(items)))}")
    wheels = {item.sha256: item for item in items.values() if isinstance(item, Wheel)}
    sdists = {item.sdist.sha256: item.sdist for item in built}
    lines += [f"sdist = {_file(package, sdist, addresses)}" for sdist in sdists.values()]
    if wheels:
        rows = [f"  {_file(package, wheels[sha], addresses)}," for sha in sorted(wheels)]
        lines += ["wheels = [", *rows, "]"]
    return lines


def _file(package: str, locked: LockedFile, addresses: Addresses) -> str:
    url = addresses(package, locked)
    return (
        f"{{name = {_string(locked.file)}, url = {_string(url)}, size = {locked.size},"
        f" hashes = {{sha256 = {_string(locked.sha256)}}}}}"
    )


def _marker(arches: Iterable[Arch]) -> str:
    machines = " or ".join(f"platform_machine == '{arch.wheel}'" for arch in arches)
    return f"sys_platform == 'linux' and ({machines})"


def _string(text: str) -> str:
    """Format a TOML string as JSON, which has the same escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
