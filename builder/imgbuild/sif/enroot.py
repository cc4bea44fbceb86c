"""Creates the files in a squashfs that enroot and pyxis read.

The files `environment`, `fstab` and `rc` are required by `enroot create`. They have the same
content as in the output of `enroot import`. Unlike with `enroot import`, the image's files keep
their owners.
"""

# A separate module: a format.
from __future__ import annotations

import shlex

from imgbuild.oci.merged import MergedTree
from imgbuild.oci.tar import LayerMember, file_member, folder_member
from imgbuild.sif.files import sif_labels
from imgbuild.sif.image import SifSource
from imgbuild.system import quoting

LOCK = "opt/imgbuild/lock.json"
LOCAL_SCRIPT = """\
# Sourced by /etc/rc before the command runs: it may change the environment, or the command.
"""


def enroot_members(image: SifSource, tree: MergedTree) -> list[LayerMember]:
    """Return the members of a layer to add to the image with the files in `tree`."""
    additions = [
        file_member("etc/environment", environment_text(image)),
        file_member("etc/fstab", fstab_text(image)),
        file_member("etc/rc", start_script(image), 0o755),
    ]
    if tree.find_node("etc/rc.local") is None:
        additions.append(file_member("etc/rc.local", LOCAL_SCRIPT, 0o755))
    if image.lock:
        additions.append(file_member(LOCK, image.lock))
    above = [LOCK.rpartition("/")[0]] if image.lock else []
    folders = dict.fromkeys(
        part for path in ("etc", *above, image.settings.working_dir) for part in _parts(path)
    )
    return [*(folder_member(path) for path in folders if tree.find_node(path) is None), *additions]


def environment_text(image: SifSource) -> str:
    """Return the environment as NAME=VALUE lines. enroot replaces ${NAME} with the host's value."""
    return "".join(f"{item}\n" for item in image.settings.env or () if "\n" not in item)


def fstab_text(image: SifSource) -> str:
    """Return an fstab that mounts a writable folder on each volume of the image.

    Raises InputError for paths with special characters, because enroot would mount another path.
    """
    return "".join(
        f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev\n"
        for path in map(quoting.require_plain_word, sorted(image.settings.volumes or {}))
    )


def start_script(image: SifSource) -> str:
    """Return the start script, which runs its arguments or the image's command.

    The image's entry point, if any, comes first.
    """
    place = shlex.join([image.settings.working_dir or "/"])
    entrypoint = image.settings.entrypoint or ()
    lines = [
        f"# {quoting.comment_line(f'{name} {text}')}" for name, text in sif_labels(image).items()
    ]
    lines += [
        "",
        f"mkdir -p {place} 2>/dev/null",
        f"cd {place} && unset OLDPWD || exit 1",
        "if [ -s /etc/rc.local ]; then",
        "  . /etc/rc.local",
        "fi",
        'if [ "$#" -gt 0 ]; then',
        f"  exec {' '.join([*map(_word, entrypoint), chr(34) + '$@' + chr(34)])}",
        "fi",
        f"exec {shlex.join([*entrypoint, *image.command])}",
    ]
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    return shlex.join([text])


def _parts(path: str) -> list[str]:
    names = [name for name in path.split("/") if name]
    return ["/".join(names[: number + 1]) for number in range(len(names))]
