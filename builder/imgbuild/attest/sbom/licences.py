"""Reads licences of wheels (METADATA) and Debian packages (copyright files) as SPDX expressions.

Ambiguous names such as "BSD" are kept as text. Copyright files that are not machine-readable are
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser

import msgspec
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from imgbuild.deb.control import parse_paragraphs

LONGEST_NAME = 80  # maximum length of a licence's name; longer values are its text
DEBIAN = "LicenseRef-Debian-"
FORMAT = re.compile(r"^Format: *https?://\S*copyright-format", re.MULTILINE)
# `License:` had no defined values before PEP 639: common spellings that identify one licence.
SPELLINGS = {
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license version 2.0, january 2004": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd-2-clause license": "BSD-2-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}
# Classifiers that name one licence (PEP 639, appendix on mapping); "BSD License" does not.
CLASSIFIERS = {
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
# Short names of Debian's copyright format that are another name of SPDX's; all others that are not
# in SPDX's list are specific to Debian.
SHORT_NAMES = {
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",  # the version in /usr/share/common-licenses
    "boost": "BSL-1.0",
    "bsd-4-clause-uc": "BSD-4-Clause-UC",
    "cc0": "CC0-1.0",
    "expat": "MIT",
    "openldap-2.8": "OLDAP-2.8",
}
GNU = re.compile(r"(A?GPL|LGPL|GFDL(?:-NIV)?)-([0-9](?:\.[0-9])?)(?:\.0)?(\+?)", re.IGNORECASE)
EXCEPTIONS = {
    "bison exception": "Bison-exception-2.2",
    "bison-2.2 exception": "Bison-exception-2.2",
    "libtool exception": "Libtool-exception",
    "linux-syscall-note exception": "Linux-syscall-note",
}


class Licence(msgspec.Struct, frozen=True):
    """The licence that a package declares: an SPDX expression, or else a text."""

    expression: str = ""
    license_text: str = ""


def parse_headers(text: str) -> Message:
    """Return the header fields of METADATA: all lines before the first empty line."""
    return HeaderParser().parsestr(text)


def metadata_licence(text: str) -> Licence:
    """Return the licence in METADATA: License-Expression, or else License, or else classifiers."""
    fields = parse_headers(text)
    stated = fields.get("License-Expression", "").strip()
    if stated:
        return (
            Licence(expression)
            if (expression := _normalize_expression(stated))
            else Licence(license_text=stated)
        )
    lines = [line.strip() for line in fields.get("License", "").splitlines() if line.strip()]
    lines = [] if lines[:1] == ["UNKNOWN"] else lines
    # also titles of complete licence texts
    for stated in (" ".join(lines[:1]), " ".join(lines[:2])):
        if expression := SPELLINGS.get(stated.lower(), "") or _normalize_expression(stated):
            return Licence(expression)
    classified = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier", [])
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    if len(classified) == 1 and (expression := CLASSIFIERS.get(classified[0], "")):
        return Licence(expression)
    title = lines[0] if len(lines) == 1 and len(lines[0]) <= LONGEST_NAME else ""
    return Licence(license_text=title or "; ".join(classified))


def copyright_licence(text: str) -> Licence:
    """Join all licences in a copyright file in Debian's machine-readable format with AND.

    The licences are those of the source package, even if the binary package contains only a part of
    it.
    """
    if not FORMAT.search(text.split("\n\n", 1)[0]):
        return Licence()
    try:
        # A paragraph without files contains the text of a licence that others refer to.
        named = [
            " ".join(paragraph["License"].split("\n", 1)[0].split())
            for paragraph in parse_paragraphs(text)
            if "License" in paragraph and ("Files" in paragraph or "Format" in paragraph)
        ]
    except ValueError:  # does not follow the format
        return Licence()
    conjuncts = sorted({part for name in named for part in _conjuncts(name)})
    if len(conjuncts) > 1:
        conjuncts = [f"({part})" if " OR " in part else part for part in conjuncts]
    return Licence(_normalize_expression(" AND ".join(conjuncts)))


def licence_references(expression: str) -> Iterator[str]:
    """Yield the names in an expression that are not on the SPDX License List."""
    yield from sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)))


def _normalize_expression(text: str) -> str:
    """Normalize `text` as an SPDX expression, or return "" if it is not one."""
    try:
        return str(canonicalize_license_expression(text)) if text else ""
    except InvalidLicenseExpression:
        return ""


def _conjuncts(text: str) -> Iterator[str]:
    """Split the text after `License:` into expressions that must all be met.

    A comma has the lowest precedence.
    """
    for part in re.split(r", +and +|, +", text):
        choices = [
            [
                short_name
                for name in re.split(r" +and +", choice)
                if (short_name := _short_name(name))
            ]
            for choice in re.split(r" +or +", part)
        ]
        if len(choices) == 1:
            yield from choices[0]
        else:  # "and" has a higher precedence than "or", as in SPDX
            yield " OR ".join(sorted(" AND ".join(choice) for choice in choices if choice))


def _short_name(text: str) -> str:
    name, _, exception = text.strip().partition(" with ")
    expression = SHORT_NAMES.get(name.lower(), "")
    if not expression and (gnu := GNU.fullmatch(name)):
        family, version, later = gnu[1].upper(), gnu[2], gnu[3]
        version = version if "." in version else f"{version}.0"
        family = "GFDL" if family == "GFDL-NIV" else family
        middle = "-no-invariants" if gnu[1].upper() == "GFDL-NIV" else ""
        expression = _normalize_expression(
            f"{family}-{version}{middle}-{'or-later' if later else 'only'}"
        )
    # A name must not contain an operator: "and/or" and the like are kept as text.
    expression = expression or (
        _normalize_expression(name) if re.fullmatch(r"[A-Za-z0-9.-]+", name) else ""
    )
    if exception and expression:
        clause = EXCEPTIONS.get(exception.lower(), "")
        expression = _normalize_expression(f"{expression} WITH {clause}") if clause else ""
    if expression:
        return expression
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("+", "-plus")).strip("-.")
    return f"{DEBIAN}{plain}" if plain else ""
