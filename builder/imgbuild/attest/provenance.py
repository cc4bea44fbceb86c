"""Creates provenance: in-toto statements (SLSA 1) about inputs, commit, builder and CI run.

Provenance contains the image's digest, the request (target, architectures, lock, matrix), every
input file, and the builder. Without a timestamp, the same lock, commit and run yield the same
bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

import imgbuild
from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.sbom import document, purl
from imgbuild.attest.sbom.document import ComponentKind, Sbom
from imgbuild.attest.sbom.packages import SbomPackages
from imgbuild.errors import ToolMissing
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.system import git
from imgbuild.values import Arch, Digest, Sha256, digest_of, sha256

BUILD_TYPE = "https://imgbuild.dev/build/v1"  # docs/registry.md describes its parameters
LOCAL_BUILDER = "https://imgbuild.dev/builder/local"  # the builder on a user's machine
VERSION = "imgbuild"
SCP = re.compile(r"(?:[^@/:]+@)?([^@/:]+):(?!/)(.+)")  # git@host:owner/name.git


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A git commit. `uri` is "" if the repository has no public URL."""

    id: str
    uri: str = ""


class BuildDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Data about a build that is not in the lock or the digests.

    `lock` and `matrix` are digests. `matrix` is None for a lock without a project. `commit` is None
    if the project is not in a checkout, or if the lock or the matrix has uncommitted changes.
    """

    lock: Sha256
    matrix: Sha256 | None = None
    builder: str = LOCAL_BUILDER
    version: str = imgbuild.__version__
    invocation: str = ""
    commit: Commit | None = None


class ComparableFields(msgspec.Struct, frozen=True):
    """The fields that are equal in equivalent statements. CI run and commit may differ."""

    subjects: tuple[Digest, ...]
    lock: Sha256
    builder: str
    version: str


def build_details(
    project: Project, target: str, environ: Mapping[str, str] | None = None
) -> BuildDetails:
    """Determine the builder and the commit of a build of `target` on this machine."""
    environment = os.environ if environ is None else environ
    lock = lock_file.lock_path(project.images, target)
    return BuildDetails(
        lock=sha256(lock.read_bytes()),
        matrix=sha256(project.matrix.read_bytes()),
        builder=builder_id(environment),
        invocation=_github_run_url(environment),
        commit=_commit(
            project, (lock, image_digests.digests_path(project.images, target)), environment
        ),
    )


def lock_build_details(lock: Sha256) -> BuildDetails:
    """Return the build details of a lock without a project. `lock` is its sha256."""
    return BuildDetails(
        lock=lock, builder=builder_id(os.environ), invocation=_github_run_url(os.environ)
    )


def builder_id(environ: Mapping[str, str]) -> str:
    """Return the ID of the builder: the running GitHub workflow, or else `LOCAL_BUILDER`."""
    if environ.get("GITHUB_ACTIONS") == "true" and environ.get("GITHUB_WORKFLOW_REF"):
        return f"{_server(environ)}/{environ['GITHUB_WORKFLOW_REF']}"
    return LOCAL_BUILDER


def create_statement(
    lock: Lock, target_digests: TargetDigests, arches: Sequence[Arch], circumstances: BuildDetails
) -> bytes:
    """Create the statement about the image of `lock` on `arches`."""
    documents = image_digests.image_manifests(lock, target_digests, arches)
    manifests = {arch: digest_of(data) for arch, data in documents.items()}
    top = image_digests.top_digest(documents)
    subjects = [_subject(lock.target, top)]
    if top not in manifests.values():
        subjects += [
            _subject(f"{lock.target}/{arch}", digest) for arch, digest in manifests.items()
        ]
    parameters = {"lock": {"sha256": circumstances.lock}}
    if circumstances.matrix is not None:
        parameters["matrix"] = {"sha256": circumstances.matrix}
    metadata = {"invocationId": circumstances.invocation} if circumstances.invocation else {}
    run_details: dict[str, Any] = {
        "builder": {"id": circumstances.builder, "version": {VERSION: circumstances.version}}
    }
    if metadata:
        run_details["metadata"] = metadata
    if byproducts := list(_byproducts(lock, tuple(manifests))):
        run_details["byproducts"] = byproducts
    return codec.encode_compact(
        {
            "_type": in_toto.STATEMENT,
            "subject": subjects,
            "predicateType": in_toto.PROVENANCE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "target": lock.target,
                        "arch": list(manifests),
                        **parameters,
                    },
                    "resolvedDependencies": [
                        *_project_dependencies(circumstances),
                        *_distinct_inputs(lock, target_digests, tuple(manifests)),
                    ],
                },
                "runDetails": run_details,
            },
        }
    )


def comparable_fields(data: bytes) -> ComparableFields | None:
    """Return the comparable fields of a statement by this module, or None for other data."""
    try:
        decoded = msgspec.json.decode(data)
        definition = decoded["predicate"]["buildDefinition"]
        if decoded["predicateType"] != in_toto.PROVENANCE or definition["buildType"] != BUILD_TYPE:
            return None
        builder = decoded["predicate"]["runDetails"]["builder"]
        return ComparableFields(
            subjects=tuple(
                sorted(f"sha256:{subject['digest']['sha256']}" for subject in decoded["subject"])
            ),
            lock=definition["externalParameters"]["lock"]["sha256"],
            builder=builder["id"],
            version=builder["version"][VERSION],
        )
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


def _subject(name: str, digest: Digest) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}


def _project_dependencies(circumstances: BuildDetails) -> Iterator[dict[str, Any]]:
    yield {"name": "lock.json", "digest": {"sha256": circumstances.lock}}
    if circumstances.matrix is not None:
        yield {"name": "matrix.yaml", "digest": {"sha256": circumstances.matrix}}
    commit = circumstances.commit
    if commit is not None:
        place = {"uri": commit.uri} if commit.uri else {}
        yield {"name": "repository", **place, "digest": {"gitCommit": commit.id}}


def _distinct_inputs(
    lock: Lock, target_digests: TargetDigests, arches: Sequence[Arch]
) -> Iterator[dict[str, Any]]:
    seen: set[Sha256] = set()
    for arch in arches:
        sbom: Sbom = document.create_sbom(lock, target_digests, arch, SbomPackages())
        for part in sbom.components:
            given = part.id not in sbom.build_inputs and part.kind not in (
                ComponentKind.LAYER,
                ComponentKind.SYSTEM,
            )
            if given and part.sha256 not in seen:
                seen.add(part.sha256)
                place = {"uri": part.purl} if part.purl else {}
                yield {"name": part.file or part.name, **place, "digest": {"sha256": part.sha256}}


def _byproducts(lock: Lock, arches: Sequence[Arch]) -> Iterator[dict[str, Any]]:
    builds = {built.wheel.sha256: built for arch in arches for built in lock.arch[arch].built}
    for key, built in sorted(builds.items()):
        name = purl.pypi_purl(built.package, built.version, built.wheel.file)
        yield {"name": built.wheel.file, "uri": name, "digest": {"sha256": key}}


def _github_run_url(environ: Mapping[str, str]) -> str:
    repository, number = environ.get("GITHUB_REPOSITORY"), environ.get("GITHUB_RUN_ID")
    if environ.get("GITHUB_ACTIONS") != "true" or not repository or not number:
        return ""
    attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
    return f"{_server(environ)}/{repository}/actions/runs/{number}/attempts/{attempt}"


def _server(environ: Mapping[str, str]) -> str:
    return environ.get("GITHUB_SERVER_URL", "https://github.com")


def _commit(project: Project, files: Sequence[Path], environ: Mapping[str, str]) -> Commit | None:
    """Return the checked-out commit, or None if matrix, lock or digests have changed."""
    paths = (project.matrix, *files)
    names = [f"HEAD:./{os.path.relpath(path, project.root)}" for path in paths]
    try:
        ids = git.run_git(project.root, "rev-parse", "HEAD", *names)
    except ToolMissing:
        return None
    head, *blobs = ids.stdout.split() or [""]
    if ids.status or blobs != [_blob_id(path.read_bytes(), len(head)) for path in paths]:
        return None
    if environ.get("GITHUB_ACTIONS") == "true" and environ.get("GITHUB_REPOSITORY"):
        place = f"{_server(environ)}/{environ['GITHUB_REPOSITORY']}"
    else:
        remote = git.run_git(project.root, "remote", "get-url", "origin")
        place = remote.stdout.strip() if remote.status == 0 else ""
    return Commit(id=head, uri=public_url(place))


def _blob_id(content: bytes, digits: int) -> str:
    """Return the git object ID of a file, as SHA-1 (40 `digits`) or SHA-256."""
    algorithm = hashlib.sha256 if digits == 64 else hashlib.sha1
    return algorithm(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def public_url(remote: str) -> str:
    """Return the URL of a git remote without credentials, or "" for a local folder."""
    if "://" not in remote and (scp := SCP.fullmatch(remote)):
        return f"git+ssh://{scp[1]}/{scp[2]}"
    parts = urlsplit(remote)
    if parts.scheme not in ("https", "http", "ssh", "git") or not parts.hostname:
        return ""
    port = f":{parts.port}" if parts.port else ""
    return f"git+{parts.scheme}://{parts.hostname}{port}{parts.path}"
