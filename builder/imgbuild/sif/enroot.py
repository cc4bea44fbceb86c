"""Creates the files that enroot and pyxis read in a squashfs (separate: a format).

The files are environment, fstab and rc. They match the files of `enroot import`, which `enroot
create` requires. Unlike with `enroot import`, files keep their owners.
"""

from __future__ import annotations

from imgbuild.oci.merged import Merged
from imgbuild.oci.tar import Member
from imgbuild.sif.files import labels
from imgbuild.sif.image import SifSource, file, folder, words
from imgbuild.system import quoting

LOCK = "opt/imgbuild/lock.json"
LOCAL = """\
# Sourced by /etc/rc before the command runs: it may change the environment, or the command.
"""


def members(image: SifSource, tree: Merged) -> list[Member]:
    """The members of a layer on top of the image whose files are `tree`."""
    additions = [
        file("etc/environment", environment(image)),
        file("etc/fstab", mounts(image)),
        file("etc/rc", start(image), 0o755),
    ]
    if tree.find("etc/rc.local") is None:
        additions.append(file("etc/rc.local", LOCAL, 0o755))
    if image.lock:
        additions.append(file(LOCK, image.lock))
    above = [LOCK.rpartition("/")[0]] if image.lock else []
    folders = dict.fromkeys(
        part for path in ("etc", *above, image.settings.working_dir) for part in _parts(path)
    )
    return [*(folder(path) for path in folders if tree.find(path) is None), *additions]


def environment(image: SifSource) -> str:
    """The environment, one NAME=VALUE per line; enroot replaces ${NAME} with the host's value."""
    return "".join(f"{item}\n" for item in image.settings.env or () if "\n" not in item)


def mounts(image: SifSource) -> str:
    """An fstab that makes each volume of the image a writable folder.

    InputError for a path that is not a plain word, because enroot would mount another path.
    """
    return "".join(
        f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev\n"
        for path in map(quoting.plain, sorted(image.settings.volumes or {}))
    )


def start(image: SifSource) -> str:
    """The start script, which runs its arguments, or the image's command, with the entry point."""
    place = words([image.settings.working_dir or "/"])
    entrypoint = image.settings.entrypoint or ()
    lines = [f"# {quoting.line(f'{name} {text}')}" for name, text in labels(image).items()]
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
        f"exec {words([*entrypoint, *image.command])}",
    ]
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    return words([text])


def _parts(path: str) -> list[str]:
    """The folders of `path`, the outermost first."""
    names = [name for name in path.split("/") if name]
    return ["/".join(names[: number + 1]) for number in range(len(names))]
