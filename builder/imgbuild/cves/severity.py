"""Rates the severity of vulnerabilities from terms in advisories and CVSS scores."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from cvss import CVSS2, CVSS3, CVSS4, CVSSError

MALICIOUS_PREFIX = "MAL-"  # IDs of advisories about malicious packages, which have no score


class Rating(enum.StrEnum):
    """A severity, lowest first. `unknown` means that advisories state no severity."""

    UNKNOWN = "unknown"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The position in the order of severities, 0 for unknown."""
        return list(Rating).index(self)


# Terms of GitHub advisories, Debian's tracker and scanners.
_WORDS = {
    "low": Rating.LOW,
    "moderate": Rating.MEDIUM,
    "medium": Rating.MEDIUM,
    "high": Rating.HIGH,
    "critical": Rating.CRITICAL,
    "unimportant": Rating.LOW,
    "negligible": Rating.LOW,
}

# Prefixes of vector formats; those of CVSS 2 have none.
_FORMS = {"CVSS:4.0/": CVSS4, "CVSS:3.1/": CVSS3, "CVSS:3.0/": CVSS3, "AV:": CVSS2}


def word_rating(word: object) -> Rating:
    """Return the rating for a term in an advisory, such as MODERATE or `low**`, or unknown."""
    return _WORDS.get(str(word).lower().strip("* "), Rating.UNKNOWN)


def score_rating(score: float) -> Rating:
    """Return the rating of a CVSS score, 0.0 to 10.0 (CVSS 3.1, section 5; 4.0, section 6)."""
    bounds = ((9.0, Rating.CRITICAL), (7.0, Rating.HIGH), (4.0, Rating.MEDIUM))
    return next((rating for bound, rating in bounds if score >= bound), Rating.LOW)


def base_score(vector: str) -> float | None:
    """Return the base score of a vector of CVSS 2, 3.0 or 3.1, or the score of a CVSS 4.0 vector.

    Returns None for other vectors. CVSS 4.0 has a single score, which includes optional metrics
    such as E.
    """
    for prefix, form in _FORMS.items():
        if vector.startswith(prefix):
            try:
                return float(form(vector).base_score)
            except CVSSError:
                return None
    return None


def highest_rating(ratings: Iterable[Rating]) -> Rating:
    """Return the highest of `ratings`, or unknown if there are none."""
    return max(ratings, key=lambda rating: rating.rank, default=Rating.UNKNOWN)
