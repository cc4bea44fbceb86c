"""Which of the vulnerabilities that the matrix accepts are still accepted on a given date."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from imgbuild.matrix.accepted import AcceptedCve


def accepting(
    accepted: Sequence[AcceptedCve], ids: Collection[str], today: datetime.date
) -> AcceptedCve | None:
    """The first of `accepted` that is for one of `ids` and has not expired; None without one."""
    return next(
        (entry for entry in accepted if entry.id in ids and not expired(entry, today)), None
    )


def expired(entry: AcceptedCve, today: datetime.date) -> bool:
    """Whether the last day of `entry` is before `today`."""
    return entry.expires < today
