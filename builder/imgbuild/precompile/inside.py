"""Runs the image's Python on a script that compiles, in a root folder without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.container import run_in_image, sandbox
from imgbuild.errors import WorkFailed
from imgbuild.lock.lock import Lock

TAIL = 20  # lines of a failed script's output that its error has


class UnpackedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of `lock`, unpacked to `root`, and how it runs."""

    lock: Lock
    root: sandbox.Root
    settings: run_in_image.CommandConfig

    def python(
        self,
        script: str,
        words: Sequence[str],
        *,
        folder: Path,
        place: str,
        env: Mapping[str, str],
        failed: str,
        hint: str,
        readonly: bool = False,
        answer: str | None = None,
    ) -> None:
        """Run `script` with `words` as the image's user, who may write to `folder` at `place`.

        WorkFailed, with the end of its output, if it fails or does not leave the file `answer`.
        """
        lock, user = self.lock, self.lock.settings.user
        done = sandbox.run(
            self.root,
            [*self.settings.entrypoint, f"{lock.settings.prefix}/bin/python", "-c", script, *words],
            env=run_in_image.environment(self.settings) | {"HOME": user.home, **env},
            binds=[sandbox.Bind(source=folder, target=place, writable=True)],
            user=(user.uid, user.gid),
            readonly=readonly,
        )
        if done.status != 0 or (answer is not None and not (folder / answer).is_file()):
            lines = (done.stderr or done.stdout).strip().splitlines()[-TAIL:]
            tail = "\n".join(line for line in lines if not line.startswith("Traceback "))
            message = f"{lock.target}: {failed} (status {done.status}):\n{tail}"
            raise WorkFailed(message, hint=hint)
