"""Creates the files that Apptainer expects in a SIF: environment, entry point, labels.

Apptainer clears the caller's environment, sources `env/*.sh` in the order of their names, applies
`--env` and APPTAINERENV_… after `99-base.sh`, and then restores the caller's variables that no file
has set. Therefore, the image's values take precedence, as in Docker, and a file can hide a variable
of the caller with an empty value.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from imgbuild import codec
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.tar import LayerMember, MemberKind, file_member, folder_member, link_member
from imgbuild.sif import container
from imgbuild.sif.image import SifSource
from imgbuild.values import Digest, digest_of

HOME = ".singularity.d"
LIBRARIES = f"/{HOME}/libs"  # --nv puts the driver's libraries there
LINKS = {
    ".exec": f"{HOME}/actions/exec",
    ".run": f"{HOME}/actions/run",
    ".shell": f"{HOME}/actions/shell",
    ".test": f"{HOME}/actions/test",
    "environment": f"{HOME}/env/90-environment.sh",
    "singularity": f"{HOME}/runscript",
}
# Apptainer mounts these; without an overlay on the read-only root they must exist.
FOLDERS = {
    "dev": 0o755, "home": 0o755, "proc": 0o755, "root": 0o700, "sys": 0o755, "tmp": 0o1777,
    "var/tmp": 0o1777,
}  # fmt: skip
FILES = ("etc/hosts", "etc/resolv.conf")

IMAGE_LABEL = "dev.imgbuild.image"
LOCK_LABEL = "dev.imgbuild.lock"
LOCK_OBJECT = "lock.json"
CONFIG_OBJECT = "oci-config.json"
INSPECT_OBJECT = "inspect-metadata.json"

# Setting one of these is an error in bash or in Apptainer's shell.
READONLY_VARIABLES = ("BASHOPTS", "BASH_VERSINFO", "EUID", "GID", "PPID", "SHELLOPTS", "UID")
# These would make the image's Python import the caller's packages.
UNWANTED_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE")
UNWANTED_SCRIPT = """\
#!/bin/sh
# The caller's own packages stay out; --env and APPTAINERENV_... bring one of these back.
"""
UNFIT_SCRIPT = """\
# What a read-only root and an unknown user leave unfit; the entry point does the same.
if [ -f /opt/imgbuild/environment.sh ]; then
  . /opt/imgbuild/environment.sh
fi
"""
LAST_SCRIPT = f"""\
#!/bin/sh
export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}{LIBRARIES}"
export PS1="${{PS1:-Apptainer> }}"
"""
# Current Apptainer has these actions built in; older versions run these scripts.
SOURCING_SCRIPT = f"""\
#!/bin/sh
for script in /{HOME}/env/*.sh; do
  if [ -f "$script" ]; then
    . "$script"
  fi
done
"""
ACTIONS = {
    "exec": 'exec "$@"\n',
    "run": f'exec /{HOME}/runscript "$@"\n',
    "shell": 'if [ -x /bin/bash ]; then\n  exec /bin/bash --norc "$@"\nfi\nexec /bin/sh "$@"\n',
    "start": f'exec /{HOME}/startscript "$@"\n',
    "test": 'echo "this image is tested by imgbuild smoke --through apptainer"\n',
}
START = "#!/bin/sh\n# An instance keeps running by itself: nothing is started in it.\n"


def sif_members(image: SifSource, tree: MergedTree) -> list[LayerMember]:
    """Return the members of a layer to add to the image with the files in `tree`."""
    additions = [
        folder_member(HOME),
        folder_member(f"{HOME}/env"),
        folder_member(f"{HOME}/actions"),
        folder_member(LIBRARIES[1:]),
    ]
    additions += [
        file_member(f"{HOME}/{name}", text, mode) for name, (text, mode) in _texts(image).items()
    ]
    additions += [
        file_member(f"{HOME}/actions/{name}", SOURCING_SCRIPT + text, 0o755)
        for name, text in ACTIONS.items()
    ]
    additions += [
        link_member(path, target) for path, target in LINKS.items() if _can_create_link(tree, path)
    ]
    additions += [
        folder_member(path, mode) for path, mode in FOLDERS.items() if tree.find_node(path) is None
    ]
    additions += [file_member(path, "") for path in FILES if tree.find_node(path) is None]
    return [*_missing_parents(additions, tree), *additions]


def sif_objects(image: SifSource) -> list[container.DataObject]:
    """Return the objects of the SIF: definition, `apptainer inspect` metadata, config and lock."""
    sif_objects = [
        container.DataObject(kind=container.DEFINITION, data=definition_text(image).encode()),
        container.DataObject(
            kind=container.JSON, name=INSPECT_OBJECT, data=_inspect_metadata(image)
        ),
        container.DataObject(kind=container.JSON, name=CONFIG_OBJECT, data=image.config),
    ]
    if image.lock:
        sif_objects.append(
            container.DataObject(kind=container.JSON, name=LOCK_OBJECT, data=image.lock)
        )
    return sif_objects


def config_digest(path: Path) -> Digest | None:
    """Return the digest of the image configuration in the SIF at `path`.

    Returns None if another tool created the SIF and it has no such digest. Raises InputError if the
    file is not a SIF.
    """
    contents = (each.data for each in container.read_objects(path) if each.name == CONFIG_OBJECT)
    return next((digest_of(data) for data in contents), None)


def sif_labels(image: SifSource) -> dict[str, str]:
    """Return the image's labels, and labels for the digests of the image and the lock."""
    digest_labels = {IMAGE_LABEL: image.digest}
    if image.lock:
        digest_labels[LOCK_LABEL] = digest_of(image.lock)
    return {**(image.settings.labels or {}), **digest_labels}


def definition_text(image: SifSource) -> str:
    """Return an Apptainer definition file that states the origin of the image.

    It contains the digest but no name, so that the SIF does not depend on the image name.
    """
    return f"bootstrap: oci\nfrom: image@{image.digest}\n"


def environment_script(image: SifSource) -> str:
    """Return a shell script that sets the image's environment.

    HOME is omitted, because Apptainer uses the caller's home folder or `--home`. Variables in
    `unsettable_variables` are also omitted.
    """
    lines = ["#!/bin/sh"]
    for name, value in image.environment.items():
        if name == "HOME" or not _is_settable(name):
            continue
        lines.append(f"export {name}={shlex.join([value])}")
    return "\n".join(lines) + "\n"


def unsettable_variables(image: SifSource) -> list[str]:
    """Return the variables of the image that a shell cannot set."""
    return [name for name in image.environment if not _is_settable(name)]


def _is_settable(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name not in READONLY_VARIABLES


def exclusion_script(image: SifSource) -> str:
    """Return a shell script that hides the caller's Python packages.

    Variables that the image sets are not changed.
    """
    names = [name for name in UNWANTED_VARIABLES if name not in image.environment]
    return "".join([UNWANTED_SCRIPT, *(f"export {name}=\n" for name in names), UNFIT_SCRIPT])


def runscript_text(image: SifSource) -> str:
    """Return the runscript, which runs its arguments or the image's command.

    The image's entry point, if any, comes first.
    """
    default = f'[ "$#" -gt 0 ] || set -- {shlex.join(image.command)}\n' if image.command else ""
    entrypoint = shlex.join(image.settings.entrypoint or ())
    return f'#!/bin/sh\n{default}exec {f"{entrypoint} " if entrypoint else ""}"$@"\n'


def _texts(image: SifSource) -> dict[str, tuple[str | bytes, int]]:
    return {
        "Singularity": (definition_text(image), 0o644),
        "labels.json": (codec.encode(sif_labels(image)), 0o644),
        "runscript": (runscript_text(image), 0o755),
        "startscript": (START, 0o755),
        "env/10-docker2singularity.sh": (environment_script(image), 0o755),
        "env/90-environment.sh": (exclusion_script(image), 0o755),
        "env/99-base.sh": (LAST_SCRIPT, 0o755),
    }


def _inspect_metadata(image: SifSource) -> bytes:
    scripts = ("env/10-docker2singularity.sh", "env/90-environment.sh")
    texts = _texts(image)
    attributes = {
        "deffile": definition_text(image),
        "environment": {f"/{HOME}/{name}": texts[name][0] for name in scripts},
        "labels": sif_labels(image),
        "runscript": texts["runscript"][0],
        "startscript": START,
    }
    return codec.encode_compact({"data": {"attributes": attributes}, "type": "container"})


def _can_create_link(tree: MergedTree, path: str) -> bool:
    """Return whether a link at `path` would replace no file or folder of the image."""
    node = tree.find_node(path)
    return node is None or node.kind == "symlink"


def _missing_parents(additions: Sequence[LayerMember], tree: MergedTree) -> list[LayerMember]:
    have = {member.path for member in additions if member.kind is MemberKind.FOLDER}
    paths = {member.path.rpartition("/")[0] for member in additions} - have - {""}
    return [folder_member(path) for path in sorted(paths) if tree.find_node(path) is None]
