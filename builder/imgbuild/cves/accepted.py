"""Vulnerabilities that the matrix accepts, until a day: which of them hold, and for what."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from imgbuild.matrix.accepted import AcceptedCve


def accepting(
    accepted: Sequence[AcceptedCve], ids: Collection[str], today: datetime.date
) -> AcceptedCve | None:
    """The first of `accepted` for one of `ids` that holds `today`, its last day included."""
    return next((one for one in accepted if one.id in ids and not expired(one, today)), None)


def expired(one: AcceptedCve, today: datetime.date) -> bool:
    """Whether `one` counts no more."""
    return one.expires < today
