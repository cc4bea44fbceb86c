"""The sources of inputs of locks and builds in a session."""

from __future__ import annotations

from imgbuild.assemble import mirror
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.pipeline.session import Session
from imgbuild.system.console import console


def open_inputs(session: Session, *, locking: bool = False) -> Inputs:
    """The cache and its sources.

    A lock is created from the indexes, so that a mirror is then never the only source.

    Raises InputError if a mirror setting is unreadable.
    """
    named = mirror.find(
        session.project.root, session.options.mirror, only=session.options.mirror_only
    )
    own = mirror.Mirror.of(named, any_source=locking, plain_http=session.options.plain_http)
    context = Context.open(console, offline=session.options.offline)
    return Inputs(session.matrix, context, mirror=own)
