"""How severe a vulnerability is: the words of advisories, and the base score of CVSS 3."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

MALICIOUS = "MAL-"  # ids of advisories about malicious packages, which have no score


class Rating(enum.StrEnum):
    """A severity, lowest first. `unknown`: its advisories do not say."""

    UNKNOWN = "unknown"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Its place, from 0 for unknown."""
        return list(Rating).index(self)


# As GitHub's advisories and Debian's tracker write them.
_WORDS = {
    "low": Rating.LOW,
    "moderate": Rating.MEDIUM,
    "medium": Rating.MEDIUM,
    "high": Rating.HIGH,
    "critical": Rating.CRITICAL,
    "unimportant": Rating.LOW,
}

# Weights of CVSS 3.1, section 7.4 of its specification; those of PR depend on the scope.
_WEIGHTS = {
    "AV": {"N": 0.85, "A": 0.62, "L": 0.55, "P": 0.2},
    "AC": {"L": 0.77, "H": 0.44},
    "UI": {"N": 0.85, "R": 0.62},
    "C": {"H": 0.56, "L": 0.22, "N": 0.0},
    "I": {"H": 0.56, "L": 0.22, "N": 0.0},
    "A": {"H": 0.56, "L": 0.22, "N": 0.0},
}
_PRIVILEGES = {
    "U": {"N": 0.85, "L": 0.62, "H": 0.27},
    "C": {"N": 0.85, "L": 0.68, "H": 0.5},
}


def of_word(word: object) -> Rating:
    """The rating that an advisory names, such as MODERATE or `low**`; else unknown."""
    return _WORDS.get(str(word).lower().strip("* "), Rating.UNKNOWN)


def of_score(score: float) -> Rating:
    """The rating of a CVSS score, 0.0 to 10.0 (CVSS 3.1, section 5)."""
    bounds = ((9.0, Rating.CRITICAL), (7.0, Rating.HIGH), (4.0, Rating.MEDIUM))
    return next((rating for bound, rating in bounds if score >= bound), Rating.LOW)


def base_score(vector: str) -> float | None:
    """The base score of a CVSS 3.0 or 3.1 vector; None for another form.

    The formula and the rounding are those of CVSS 3.1, section 7.1; in a few cases the result
    differs by 0.1 from that of 3.0.
    """
    head, _, rest = vector.partition("/")
    if head not in ("CVSS:3.0", "CVSS:3.1"):
        return None
    given = dict(part.split(":", 1) for part in rest.split("/") if ":" in part)
    try:
        changed = {"U": False, "C": True}[given["S"]]
        weight = {name: known[given[name]] for name, known in _WEIGHTS.items()}
        privileges = _PRIVILEGES[given["S"]][given["PR"]]
    except KeyError:
        return None
    sub = 1 - (1 - weight["C"]) * (1 - weight["I"]) * (1 - weight["A"])
    impact = 7.52 * (sub - 0.029) - 3.25 * (sub - 0.02) ** 15 if changed else 6.42 * sub
    if impact <= 0:
        return 0.0
    exploitability = 8.22 * weight["AV"] * weight["AC"] * privileges * weight["UI"]
    return _up(min((1.08 if changed else 1.0) * (impact + exploitability), 10.0))


def _up(value: float) -> float:
    """Rounded up to one decimal, as appendix A of the specification does it."""
    whole = round(value * 100_000)
    return whole / 100_000 if whole % 10_000 == 0 else (math.floor(whole / 10_000) + 1) / 10


def highest(ratings: Iterable[Rating]) -> Rating:
    """The highest of `ratings`; unknown if there are none."""
    return max(ratings, key=lambda one: one.rank, default=Rating.UNKNOWN)
