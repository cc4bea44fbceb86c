"""Finds or builds the image of a target, and runs the command of `imgbuild run` in it.

Modules that build or convert images are imported only when needed, because `imgbuild run` otherwise
takes three times as long to start.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.container import arguments, engine, path_variables, run_in_image
from imgbuild.container.arguments import EngineCommand
from imgbuild.container.engine import EngineKind
from imgbuild.container.request import ContainerRequest, Mount
from imgbuild.container.run_in_image import CommandConfig, CommandResult
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.lock.lock_file import Lock
from imgbuild.matrix.select import Selected
from imgbuild.oci import archive, layout
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.session import Session, find_built_layout
from imgbuild.plan import image_digests
from imgbuild.plan.current import read_current
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.plan.plan import create_plan
from imgbuild.system.console import console
from imgbuild.values import Arch


class LockAndDigests(msgspec.Struct, frozen=True):
    """A lock and its digests."""

    lock: Lock
    target_digests: TargetDigests


# Subfolders of the image's cache folder.
BELOW_CACHE = ("PYTHONPYCACHEPREFIX", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


class RunTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target to run: the image in the layout `place`, or the lock if the image must be built.

    `layout` is None if the image is not built, or does not match the lock.
    """

    name: str
    place: Path
    layout: Layout | None
    locked: LockAndDigests | None

    @property
    def arches(self) -> tuple[Arch, ...]:
        """The architectures of the lock or, without a lock, of the layout."""
        if self.locked is not None:
            return tuple(self.locked.target_digests.arch)
        return tuple(self.layout.images) if self.layout is not None else ()

    def built(self, arch: Arch) -> Layout | None:
        """Return the layout, or None if it does not contain an image for `arch`."""
        return self.layout if self.layout is not None and arch in self.layout.images else None

    def config(self, arch: Arch) -> CommandConfig:
        """Return the configuration for commands in the image for `arch`, even if it is missing."""
        built_layout = self.built(arch)
        if built_layout is not None or self.locked is None:
            return run_in_image.command_config(built_layout or layout.read_layout(self.place), arch)
        planned_config = create_plan(self.locked.lock, arch).config
        return CommandConfig(
            planned_config.env,
            planned_config.entrypoint,
            planned_config.cmd,
            planned_config.workdir,
            planned_config.user,
            planned_config.labels,
        )


def find_run_target(session: Session, name: str, folder: Path | None) -> RunTarget:
    """Find the image of `name` in the layout `folder`, or in the default layout.

    If the lock is out of date or missing, an existing image is used unchanged. Raises LockStale if
    the image is also missing.
    """
    if folder is not None:
        built = find_built_layout(session, name, folder)
        return RunTarget(name=name, place=folder, layout=built, locked=None)
    place = session.project.output(name)
    try:
        lock, target_digests = read_current(session.project, session.matrix, name)
    except ImgbuildError as error:
        if not place.exists():
            raise
        console.detail(f"{error.message}; using the existing image")
        return RunTarget(name=name, place=place, layout=layout.read_layout(place), locked=None)
    digests = [target_digests.digest, *(image.manifest for image in target_digests.arch.values())]
    current = any(layout.has_complete_image(place, digest) for digest in digests)
    return RunTarget(
        name=name,
        place=place,
        layout=layout.read_layout(place) if current else None,
        locked=LockAndDigests(lock, target_digests),
    )


def build_if_missing(session: Session, target: RunTarget, arch: Arch) -> Layout:
    """Return the layout with the image for `arch`, and build a missing or outdated image."""
    there = target.built(arch)
    if there is not None or target.locked is None:
        return there or find_built_layout(session, target.name, target.place)
    from imgbuild.pipeline.build import build_all

    lock, target_digests = target.locked.lock, target.locked.target_digests
    state = "out of date" if target.place.exists() else "not built"
    size = download_size(lock, target_digests, arch, Store.open(reporter=console))
    console.info(
        f"building {target.name}, which is {state}; "
        f"{f'{size / 1e6:,.0f} MB to download' if size else 'nothing to download'}"
    )
    item = Selected(name=target.name, target=session.matrix.targets[target.name], arches=(arch,))
    build_all(session, [item], None)
    return find_built_layout(session, target.name, None)


def download_size(lock: Lock, target_digests: TargetDigests, arch: Arch, store: Store) -> int:
    """Return the number of bytes to download for a build on `arch`."""
    from imgbuild.assemble.mirror_items import collect_inputs, missing_inputs
    from imgbuild.cache.transfer import partial_bytes

    layer_records = image_digests.layer_records(target_digests)
    needed = {
        file.sha256
        for layer in create_plan(lock, arch).layers
        if store.blob(layer_records[layer.id].digest) is None
        for file in layer.recipe.inputs
    }
    items = [item for item in collect_inputs(lock, arch) if item.sha256 in needed]
    missing = {item.sha256: item.size for item in missing_inputs(items, store)}
    return max(sum(missing.values()) - partial_bytes(store, missing), 0)


def run_target(
    session: Session,
    target: RunTarget,
    arch: Arch,
    request: ContainerRequest,
    *,
    through: str | None,
    capture: bool,
    kernel_cache: bool,
) -> CommandResult:
    """Run the command of `request` in the image, which is built and loaded if it is missing.

    If `kernel_cache` is set, compiled kernels are cached for later runs.
    """
    store = Store.open(reporter=console)
    if through == "apptainer":
        image = _current_sif(session, target, arch)
        if kernel_cache:
            request = _mount_kernel_cache(target, arch, request, store, make=True)
        _report_ignored(request, through)
        return run_in_image.run_sif(image, request, capture=capture)
    chosen = run_in_image.choose_engine(through, reporter=console)
    if chosen is not None and not engine.is_local(chosen):
        console.warn(
            f"{chosen.kind} runs on another machine, so mounts refer to folders on that machine"
        )
    layout_built = build_if_missing(
        session, target, arch
    )  # before the folder is made: this prunes the cache
    if kernel_cache and (chosen is None or engine.is_local(chosen)):
        request = _mount_kernel_cache(target, arch, request, store, make=True)
    _report_ignored(request, chosen.kind if chosen is not None else "root")
    return run_in_image.run_in_image(
        layout_built,
        arch,
        target.name,
        request,
        container_engine=chosen,
        store=store,
        capture=capture,
        reporter=console,
    )


def _mount_kernel_cache(
    target: RunTarget, arch: Arch, request: ContainerRequest, store: Store, *, make: bool
) -> ContainerRequest:
    """Mount the kernel cache at the cache path of the image, and return the changed request.

    Nothing is mounted if the path has another mount, if neither the lock nor the image sets the
    path, or if the command runs as another user. If `make` is set, a missing folder is created.
    Otherwise, a missing folder is reported.
    """
    if request.user is not None:
        return request
    there = target.built(arch)
    if target.locked is not None:
        place = target.locked.lock.settings.cache
        manifest = target.locked.target_digests.arch[arch].manifest
    elif there is not None:  # of `--layout`, whose environment has a folder below it
        variables = run_in_image.image_environment(run_in_image.command_config(there, arch))
        parents = {posixpath.dirname(variables.get(name, "")) for name in BELOW_CACHE}
        place = parents.pop() if len(parents) == 1 else ""
        manifest = there.image(arch).manifest.digest
    else:
        return request
    taken = any(mount.target == place for mount in request.mounts)
    if taken or not place.startswith("/") or not place.strip("/"):
        return request
    folder = store.kernel_folder(manifest, make=make)
    if not folder.exists():
        console.info(f"to create the folder for the kernel cache first, run: mkdir -p {folder}")
    mount = Mount(source=folder, target=place)
    return msgspec.structs.replace(request, mounts=(*request.mounts, mount))


def engine_command(
    target: RunTarget,
    arch: Arch,
    request: ContainerRequest,
    *,
    through: str | None,
    kernel_cache: bool,
) -> EngineCommand:
    """Return the command line for an engine.

    The engine is `through`, or else the running engine or Docker. Raises InputError for a root
    folder, because a root folder needs more than one command.
    """
    if through == "root":
        message = (
            "--dry-run --through root is not supported, because unpacking the layers and "
            "running the command in namespaces takes more than one command"
        )
        hint = "omit --dry-run, or specify --through docker, podman or apptainer"
        raise InputError(message, hint=hint)
    if kernel_cache:
        request = _mount_kernel_cache(target, arch, request, Store.open(), make=False)
    if through == "apptainer":
        _report_ignored(request, through)
        if not _sif_path(target).exists():
            console.info(
                f"to create the image first, run: imgbuild build {target.name} --format sif"
            )
        return arguments.apptainer_command(request, "apptainer", _sif_path(target))
    chosen = engine.find_engine(through, reporter=console)
    kind: EngineKind = (
        chosen.kind if chosen is not None else "podman" if through == "podman" else "docker"
    )
    if chosen is None and through is None:
        console.info(
            "no engine is running; without --dry-run, imgbuild uses a root folder (--through root)"
        )
    _report_ignored(request, kind)
    rootless = chosen is not None and chosen.rootless
    reference = archive.complete_reference(target.name)
    if chosen is None or engine.inspect_image(chosen, reference) is None:
        steps = [*(() if target.layout else ("build",)), "load"]
        first = "; ".join(f"imgbuild {step} {target.name}" for step in steps)
        console.info(f"the image for {kind} is missing; to create it, run: {first}")
    return run_in_image.engine_command(kind, kind, request, reference, rootless=rootless)


def _report_ignored(request: ContainerRequest, through: str) -> None:
    lines: Sequence[str] = arguments.ignored_options(request, through)
    seen = path_variables.apptainer_folders() if through == "apptainer" else ()
    seen = (*seen, *(mount.target for mount in request.mounts))
    for line in (*lines, *path_variables.unmounted_paths(request.all_variables(), seen)):
        console.warn(line)


def _sif_path(target: RunTarget) -> Path:
    return target.place.with_name(f"{target.place.name}.sif").absolute()


def _current_sif(session: Session, target: RunTarget, arch: Arch) -> Path:
    from imgbuild.sif import convert, files

    source, path = build_if_missing(session, target, arch), _sif_path(target)
    if path.is_file() and files.config_digest(path) == source.image(arch).config.digest:
        return path
    lock = convert.find_lock_of_target(
        session.project.images, target.name, source, arch, reporter=console
    )
    options = convert.ConvertOptions(processors=session.options.jobs)
    with console.step(f"creating {path.name} for Apptainer"):
        convert.convert_image(source, arch, path, options, lock=lock, reporter=console)
    return path
