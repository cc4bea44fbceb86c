"""Opens the cache, and the sources of files for locks and builds."""

from __future__ import annotations

from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.pipeline.session import Session
from imgbuild.system.console import console


def open_inputs(session: Session, *, locking: bool = False) -> Inputs:
    """Open the cache and the sources of files.

    If `locking` is set, the indexes are used even if the mirror is set as the only source. Raises
    InputError if a mirror setting is invalid.
    """
    named = mirror.find_mirror(
        session.project.root, session.options.mirror, only=session.options.mirror_only
    )
    own = mirror.Mirror.of(named, any_source=locking, plain_http=session.options.plain_http)
    context = Context.open(console, offline=session.options.offline)
    return Inputs(session.matrix, context, mirror=own)
