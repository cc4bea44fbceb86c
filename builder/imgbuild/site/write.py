"""Writes a site to a folder, and replaces the site from an earlier run.

The folder is written under a temporary name next to the output, and then renamed. It replaces only
a folder with exactly the files of an earlier run, as listed in the file MARKER.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from imgbuild import codec
from imgbuild.attest.sbom import cyclonedx, document
from imgbuild.attest.sbom.packages import SbomPackages
from imgbuild.errors import InputError
from imgbuild.site import browser_data, failures, history, pages
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.history import SiteHistory
from imgbuild.site.model import SiteCatalogue, SiteTarget
from imgbuild.system import files
from imgbuild.system.amounts import join_first
from imgbuild.system.folder import OpenFolder, remove_folder
from imgbuild.values import Bytes

MARKER = "imgbuild-site.json"
NO_JEKYLL = ".nojekyll"  # GitHub Pages serves the files as they are
ADVISORIES = "advisories.json"
# These do not count towards the size of pages.
DOCUMENTS = ("locks/", "sbom/", history.FILE, ADVISORIES, failures.TEXT_FILE)
OTHER_FOLDER_REMEDY = "specify another folder with --output, or move the contents elsewhere"


class WrittenSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site, with its folder, the numbers of pages and targets, and the size in bytes."""

    output: Path
    pages: int
    targets: int
    bytes: Bytes
    largest: Bytes


class _SiteMarker(msgspec.Struct, frozen=True):
    """The file MARKER, which lists all files in the folder by relative path."""

    site: Literal[1]
    files: tuple[str, ...]


def write_site(
    sources: SiteSources,
    site: SiteCatalogue,
    collected: SiteHistory,
    output: Path,
    *,
    documents: bool,
) -> WrittenSite:
    """Write `site` to `output`, including locks and SBOMs if `documents` is set.

    Raises InputError if `output` exists and is neither empty nor an earlier site.
    """
    contents: dict[str, bytes] = {}
    if documents:
        site, contents = _add_documents(sources, site)
    contents |= pages.site_pages(site, collected)
    contents |= browser_data.data_scripts(sources, site)
    contents[failures.SCRIPT] = failures.failures_script()
    contents[failures.TEXT_FILE] = failures.failures_text()
    contents[history.FILE] = codec.encode(collected)
    if reports := tuple(report for target in site.targets for report in target.advisories):
        contents[ADVISORIES] = codec.encode(reports)
    contents[NO_JEKYLL] = b""
    with files.plain_errors(output, hint=files.OUTPUT_HINT):
        _replace_site(output, contents)
    counted = {name: data for name, data in contents.items() if not name.startswith(DOCUMENTS)}
    return WrittenSite(
        output=output,
        pages=sum(name.endswith(".html") for name in contents),
        targets=len(site.targets),
        bytes=sum(map(len, counted.values())),
        largest=max(len(data) for name, data in counted.items() if name.endswith(".html")),
    )


def _add_documents(
    sources: SiteSources, site: SiteCatalogue
) -> tuple[SiteCatalogue, dict[str, bytes]]:
    """Add links to locks and SBOMs to the catalogue. Returns the catalogue and the linked files."""
    contents: dict[str, bytes] = {}
    recorded = SbomPackages(packages=dict(sources.records))
    targets = []
    for target in site.targets:
        documents = dict(_documents(target, recorded))
        contents |= documents
        links = tuple((_document_label(name), f"../{name}") for name in documents)
        targets.append(msgspec.structs.replace(target, documents=links))
    return msgspec.structs.replace(site, targets=tuple(targets)), contents


def _documents(target: SiteTarget, recorded: SbomPackages) -> Iterator[tuple[str, bytes]]:
    if target.lock is None or target.digests is None:
        return
    yield f"locks/{target.name}.json", codec.encode(target.lock)
    for arch in sorted(target.lock.arch, reverse=True):
        sbom = document.create_sbom(target.lock, target.digests, arch, recorded)
        yield f"sbom/{target.name}-{arch}.cdx.json", cyclonedx.cyclonedx_document(sbom)


def _document_label(name: str) -> str:
    if name.startswith("locks/"):
        return "lock"
    return f"SBOM {name.removesuffix('.cdx.json').rpartition('-')[2]} (CycloneDX)"


def require_replaceable(output: Path) -> None:
    """Raise InputError if `output` exists and is neither empty nor an unchanged earlier site."""
    try:
        with OpenFolder.open(output.parent) as above:
            _require_replaceable(above, output)
    except FileNotFoundError:
        return


def _require_replaceable(above: OpenFolder, output: Path) -> None:
    if above.status(output.name) is None:
        return
    with above.folder(output.name) as folder:
        if not folder.names():
            return
        if folder.require_file(MARKER) is None:
            message = f"{output} was not written by imgbuild: it has no {MARKER}"
            raise InputError(message, hint=OTHER_FOLDER_REMEDY)
        marker = codec.decode(
            folder.read(MARKER),
            _SiteMarker,
            file=f"{output}/{MARKER}",
            what="list",
            hint=OTHER_FOLDER_REMEDY,
        )
        foreign = sorted({*folder.file_paths()} - {*marker.files, MARKER})
    if foreign:
        message = f"{output} contains files that imgbuild did not write: {join_first(foreign, 5)}"
        raise InputError(message, hint=OTHER_FOLDER_REMEDY)


def _replace_site(output: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files to a new folder and rename it to `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    marker = codec.encode(_SiteMarker(site=1, files=tuple(sorted(contents))))
    temporary = f".{output.name}.{secrets.token_hex(8)}.tmp"
    former = f".{output.name}.{secrets.token_hex(8)}.old"
    with OpenFolder.open(output.parent) as above:
        _require_replaceable(above, output)
        try:
            with above.folder(temporary, make=True) as folder:
                for name, data in {**contents, MARKER: marker}.items():
                    _write_file(folder, name, data)
            _swap_folders(above, output.name, temporary, former)
        finally:
            for name in (temporary, former):
                with contextlib.suppress(FileNotFoundError):
                    remove_folder(name, above.descriptor)


def _write_file(folder: OpenFolder, name: str, data: bytes) -> None:
    place, _, last = name.rpartition("/")
    if not place:
        with folder.new_file(last) as file:
            file.write(data)
        return
    with folder.folder(place, make=True) as below:
        _write_file(below, last, data)


def _swap_folders(above: OpenFolder, name: str, temporary: str, former: str) -> None:
    """Rename the folder `temporary` to `name`, and an existing `name` to `former`."""
    if above.status(name) is None:
        above.rename_folder(temporary, name)
        return
    above.rename_folder(name, former)
    try:
        above.rename_folder(temporary, name)
    except BaseException:
        above.rename_folder(former, name)
        raise
