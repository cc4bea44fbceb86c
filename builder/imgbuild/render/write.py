"""Renders locks for `imgbuild render` in all formats.

The inputs are locks and digests. Files are written next to the lock, to a folder, or to stdout.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild import codec
from imgbuild.container import settings
from imgbuild.container.settings import StartOptions
from imgbuild.errors import ImgbuildError, InputError, LockStale
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file, requirements
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.project_paths import Project
from imgbuild.plan import image_digests
from imgbuild.registry.image_reference import parse_repository
from imgbuild.render import (
    apptainer,
    bake,
    committed,
    compose,
    kubernetes,
    online,
    pylock,
    script,
    skypilot,
    templates,
)
from imgbuild.render.addresses import Addresses, address_lookup
from imgbuild.render.dockerfile import DockerfileModel, create_dockerfile
from imgbuild.system import boundary, quoting
from imgbuild.system.folder import OpenFolder
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch

ChosenLock = tuple[Lock, Sequence[Arch]]
LOCAL_FORMATS = ("compose", "devcontainer")  # these run an image of this machine, too
CONTAINERS = (*LOCAL_FORMATS, "k8s-job", "jobset", "kuberay", "skypilot")


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The output format. For a Dockerfile, whether and from where inputs are downloaded.

    `container` applies to the formats in `CONTAINERS`.
    """

    form: str = "dockerfile"
    online: bool = False
    registry: str | None = None
    container: StartOptions = StartOptions()


class RenderedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a target by file name. `place` is the output path, or None."""

    target: str
    form: str
    files: dict[str, str]
    place: Path | None = None

    @property
    def text(self) -> str:
        """All texts, as printed to stdout."""
        return "".join(self.files.values()).removesuffix("\n")


def write_committed(
    project: Project, matrix: Matrix, chosen: Iterable[Lock], reporter: Reporter = SILENT_REPORTER
) -> list[RenderedTarget]:
    """Write Dockerfiles next to their locks, and the bake file of all targets."""
    rendered, ready = [], {}
    for lock in chosen:
        ready[lock.target] = document = _dockerfile(project, matrix, lock)
        files = committed.rendered_files(project, matrix, lock, document)
        committed.write_rendered(project, lock.target, files)
        rendered.append(
            RenderedTarget(
                target=lock.target,
                form="dockerfile",
                files={name: data.decode() for name, data in files.items()},
                place=project.images / lock.target / committed.DOCKERFILE,
            )
        )
    _keep_bake(project, matrix, ready, reporter)
    return rendered


def keep_new(
    project: Project, matrix: Matrix, names: Iterable[str], reporter: Reporter = SILENT_REPORTER
) -> None:
    """Write the Dockerfiles of newly locked targets, or report why they cannot be written.

    If no Dockerfile can be written, rendered files of an earlier lock are removed.
    """
    ready = {}
    for name in names:
        lock = lock_file.read_lock(project.images, name)
        try:
            ready[name] = document = _dockerfile(project, matrix, lock)
            committed.write_rendered(
                project, name, committed.rendered_files(project, matrix, lock, document)
            )
        except InputError as error:
            committed.write_rendered(project, name, {})
            reason = error.message.removeprefix(f"{name}: ")
            reporter.info(f"{name}: the Dockerfile was not written: {reason}; {error.hint}")
    _keep_bake(project, matrix, ready, reporter)


def check_committed(
    project: Project, matrix: Matrix, chosen: Iterable[Lock], reporter: Reporter = SILENT_REPORTER
) -> None:
    """Raise LockStale with all files that do not match their locks."""
    reasons, ready = [], {}
    for lock in chosen:
        ready[lock.target] = document = _dockerfile(project, matrix, lock)
        files = committed.rendered_files(project, matrix, lock, document)
        reasons += committed.stale_files(project, lock.target, files)
    path = project.folder / bake.FILE
    expected = _bake_bytes(project, matrix, ready, reporter)
    if (boundary.read_regular_file(path) if path.is_file() else None) != expected:
        reasons.append(f"{path} does not match the locks")
    if reasons:
        message = "\n  ".join(("rendered files are out of date:", *reasons))
        raise LockStale(message, hint="run imgbuild render --all")


def render_locks(
    project: Project, matrix: Matrix, chosen: Sequence[ChosenLock], options: RenderOptions
) -> list[RenderedTarget]:
    """Render each lock in the requested format, or all locks as one bake file."""
    if options.form == "bake":
        dockerfiles = [_dockerfile(project, matrix, lock, arches) for lock, arches in chosen]
        text = codec.encode(bake.bake_document(dockerfiles)).decode()
        return [RenderedTarget(target="", form=options.form, files={bake.FILE: text})]
    return [
        RenderedTarget(
            target=lock.target,
            form=options.form,
            files=_texts(project, matrix, choice, options),
        )
        for choice in chosen
        for lock in (choice[0],)
    ]


def write_to_output(rendered: Sequence[RenderedTarget], output: Path) -> list[RenderedTarget]:
    """Write the rendered texts to `output`, which is a file for one text, or else a folder."""
    left = []
    for rendering in rendered:
        if len(rendered) == 1 and len(rendering.files) == 1:
            place, files = output, {output: next(iter(rendering.files.values()))}
        elif len(rendering.files) == 1:
            (name,) = rendering.files
            place, files = output / name, {output / name: rendering.files[name]}
        else:
            place = output if len(rendered) == 1 else output / rendering.target
            files = {place / name: text for name, text in rendering.files.items()}
        _write_files(files)
        left.append(msgspec.structs.replace(rendering, place=place))
    return left


def _write_files(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            codec.write_bytes(path, text.encode())
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise InputError(message, hint="choose another path with --output") from error


def _texts(
    project: Project, matrix: Matrix, chosen: ChosenLock, options: RenderOptions
) -> dict[str, str]:
    lock, arches = chosen
    name, images = lock.target, project.images
    match options.form:
        case form if form in CONTAINERS:
            return _container(project, matrix, chosen, options)
        case "requirements":
            return {
                f"{_name(chosen)}.txt": requirements.requirements_text(lock, _single_arch(chosen))
            }
        case "apptainer":
            dockerfile, stem = _dockerfile(project, matrix, lock), _name(chosen)
            return {
                f"{stem}.def": apptainer.definition_text(
                    dockerfile, _single_arch(chosen), stem, images
                )
            }
        case "pylock":
            where = _addresses(matrix, chosen)
            return {
                f"pylock.{templates.target_slug(name)}.toml": pylock.pylock_text(
                    lock, arches, where
                )
            }
        case "script":
            target_digests = image_digests.read_digests(images, lock)
            where = address_lookup(lock, matrix, HttpClient())
            built = script.create_script(lock, target_digests, _single_arch(chosen), where)
            stem = _name(chosen)
            return {f"{stem}.sh": script.script_text(built, stem, images)}
        case _:
            return _context(project, matrix, chosen, options)


def _container(
    project: Project, matrix: Matrix, chosen: ChosenLock, options: RenderOptions
) -> dict[str, str]:
    """Render the container in a format such as Compose. The image is specified by digest.

    For Compose and dev containers, the image can also be loaded with `imgbuild load`. Raises
    InputError without a registry, unless the image is local.
    """
    lock, arches = chosen
    digests = image_digests.read_digests(project.images, lock)
    whole = set(arches) == set(lock.arch)
    digest = digests.digest if whole else digests.arch[arches[0]].manifest
    if len(arches) > 1 and not whole:
        message = f"{lock.target}: {' and '.join(arches)} do not have a common digest"
        raise InputError(
            message,
            hint="specify one architecture with --arch, or omit --arch to select all architectures",
        )
    registry = options.registry or matrix.registry
    if registry:
        image = f"{parse_repository(registry)}@{digest}"
    elif options.form in LOCAL_FORMATS:
        image = f"{lock.target}:latest"
    else:
        message = f"--format {options.form}: the image must be in a registry"
        raise InputError(message, hint="specify the registry with --registry HOST/REPOSITORY")
    container = settings.container_settings(lock, arches, image, digest, options.container)
    comment = f"{lock.target}; made by: {_command(lock.target, arches, options, whole=whole)}"
    match options.form:
        case "compose":
            return {"compose.yaml": compose.compose_text(container, comment)}
        case "devcontainer":
            return {"devcontainer.json": compose.devcontainer_text(container)}
        case "k8s-job":
            return {f"{lock.target}-job.yaml": kubernetes.job_manifest(container, comment)}
        case "jobset":
            return {f"{lock.target}-jobset.yaml": kubernetes.jobset_manifest(container, comment)}
        case "kuberay":
            return {f"{lock.target}-rayjob.yaml": kubernetes.rayjob_manifest(container, comment)}
        case _:
            return {f"{lock.target}-sky.yaml": skypilot.task_text(container, comment)}


def _command(target: str, arches: Sequence[Arch], options: RenderOptions, *, whole: bool) -> str:
    start = options.container
    words = ["imgbuild", "render", target, "--format", options.form]
    words += [] if whole else ["--arch", arches[0]]
    words += ["--registry", options.registry] if options.registry else []
    words += ["--gpus", start.gpus] if start.gpus else []
    words += ["--gpu", start.gpu] if start.gpu else []
    words += ["--nodes", str(start.nodes)] if start.nodes > 1 else []
    words += ["--shared", str(start.shared)] if start.shared else []
    words += [word for port in start.ports for word in ("--port", str(port))]
    words += [word for name in start.env for word in ("--env", name)]
    words += ["--rdma", start.rdma] if start.rdma else []
    words += ["--", *start.command] if start.command else []
    return quoting.comment_line(shlex.join(words))


def _context(
    project: Project, matrix: Matrix, chosen: ChosenLock, options: RenderOptions
) -> dict[str, str]:
    lock, arches = chosen
    dockerfile = msgspec.structs.replace(_dockerfile(project, matrix, lock, arches), kept=False)
    files = {
        **committed.copied_files(lock, arches, matrix),
        **{
            requirements.file_name(arch): requirements.requirements_text(lock, arch).encode()
            for arch in arches
        },
    }
    if options.online:
        reference = online.base_reference(dockerfile, lock, options.registry or matrix.registry)
        dockerfile = online.online_dockerfile(
            dockerfile, lock, reference, _addresses(matrix, chosen)
        )
        files |= online.build_files(lock, arches)
    text = templates.render_template("dockerfile.j2", dockerfile, images=project.images)
    return {
        committed.DOCKERFILE: text,
        **{name: data.decode() for name, data in sorted(files.items())},
    }


def _addresses(matrix: Matrix, chosen: ChosenLock) -> Addresses:
    lock, arches = chosen
    packages = {package for arch in arches for package in lock.arch[arch].versions}
    return address_lookup(lock, matrix, HttpClient(), packages)


def _dockerfile(
    project: Project, matrix: Matrix, lock: Lock, arches: Sequence[Arch] | None = None
) -> DockerfileModel:
    return create_dockerfile(lock, image_digests.read_digests(project.images, lock), matrix, arches)


def _keep_bake(
    project: Project, matrix: Matrix, ready: Mapping[str, DockerfileModel], reporter: Reporter
) -> None:
    path = project.folder / bake.FILE
    data = _bake_bytes(project, matrix, ready, reporter)
    if data is None:
        with OpenFolder.open(project.folder) as folder:
            folder.remove(bake.FILE)
    else:
        codec.write_bytes(path, data)


def _bake_bytes(
    project: Project, matrix: Matrix, ready: Mapping[str, DockerfileModel], reporter: Reporter
) -> bytes | None:
    dockerfiles = []
    for name in project.locked_targets():
        try:
            document = ready.get(name)
            if document is None:
                lock = lock_file.read_lock(project.images, name)
                document = _dockerfile(project, matrix, lock)
            dockerfiles.append(document)
        except ImgbuildError as error:
            reporter.detail(f"{name} is omitted from {bake.FILE}: {error.message}")
    return codec.encode(bake.bake_document(dockerfiles)) if dockerfiles else None


def _name(chosen: ChosenLock) -> str:
    """Return the file name, with the architecture if the target has several."""
    lock = chosen[0]
    return lock.target if len(lock.arch) == 1 else f"{lock.target}-{_single_arch(chosen)}"


def _single_arch(chosen: ChosenLock) -> Arch:
    lock, arches = chosen
    if len(arches) == 1:
        return arches[0]
    message = (
        f"{lock.target} has {' and '.join(arches)}, but this format supports only one architecture"
    )
    raise InputError(message, hint=f"add --arch {arches[0]}")
