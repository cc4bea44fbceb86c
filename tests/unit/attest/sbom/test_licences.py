"""Tests reading licences from METADATA and Debian copyright files."""

from __future__ import annotations

import pytest

from imgbuild.attest.sbom import licences
from imgbuild.attest.sbom.licences import Licence
from tests.support.rows import each_row

HEAD = "Metadata-Version: 2.4\nName: one\nVersion: 1.0\n"
FORMAT = "Format: https://example.org/copyright-format/1.0/\n"


@each_row(
    ("fields", "expected"),
    [
        ("License-Expression: mit or apache-2.0\n", Licence("MIT OR Apache-2.0")),
        ("License-Expression: MIT\nLicense: something else\n", Licence("MIT")),
        ("License-Expression: no such licence\n", Licence(license_text="no such licence")),
        ("License: BSD-3-Clause\n", Licence("BSD-3-Clause")),
        ("License: Apache 2.0\n", Licence("Apache-2.0")),
        ("License: MIT License\n\n        Copyright (c) 2026 a person\n", Licence("MIT")),
        (
            "License: Apache License\n   Version 2.0, January 2004\n   TERMS\n",
            Licence("Apache-2.0"),
        ),
        (
            "License: NVIDIA Proprietary Software\n",
            Licence(license_text="NVIDIA Proprietary Software"),
        ),
        ("Classifier: License :: OSI Approved :: MIT License\n", Licence("MIT")),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved\n", Licence()),
        # "BSD" is ambiguous: several licences have that name.
        (
            "License: BSD\nClassifier: License :: OSI Approved :: BSD License\n",
            Licence(license_text="BSD"),
        ),
        # Two classifiers do not define "and" or "or".
        (
            (
                "Classifier: License :: OSI Approved :: MIT License\n"
                "Classifier: License :: OSI Approved :: ISC License (ISCL)\n"
            ),
            Licence(license_text="MIT License; ISC License (ISCL)"),
        ),
        # A custom text is not a licence name.
        ("License: Copyright 2010 P.\n  Redistribution and use\n  are permitted\n", Licence()),
        ("", Licence()),
    ],
)
def test_licence_is_read_from_metadata(fields: str, expected: Licence):
    assert licences.metadata_licence(f"{HEAD}{fields}\nDescription\nLicense: MIT\n") == expected


@each_row(
    ("stated", "expected"),
    [
        (["Expat"], "MIT"),
        (["GPL-2+", "LGPL-2.1", "GFDL-NIV-1.3+"],
         "GFDL-1.3-no-invariants-or-later AND GPL-2.0-or-later AND LGPL-2.1-only"),
        (["GPL-1+ or Artistic", "Artistic or GPL-1+"], "Artistic-1.0-Perl OR GPL-1.0-or-later"),
        (["MPL-1.1 or GPL-2+ or LGPL-2.1+"],
         "GPL-2.0-or-later OR LGPL-2.1-or-later OR MPL-1.1"),
        (["GPL-1+ or Artistic, and Expat"], "(Artistic-1.0-Perl OR GPL-1.0-or-later) AND MIT"),
        (["GPL-3+ with Bison exception"], "GPL-3.0-or-later WITH Bison-exception-2.2"),
        (["GPL-2+ with Font exception"],
         "LicenseRef-Debian-GPL-2-plus-with-Font-exception"),
        (["public-domain"], "LicenseRef-Debian-public-domain"),
        (["BSD-3-clause and/or GPL-3+"], "LicenseRef-Debian-BSD-3-clause-and-or-GPL-3-plus"),
        ([""], ""),
    ],
)  # fmt: skip
def test_licence_is_read_from_copyright_file(stated: list[str], expected: str):
    files = "".join(f"\nFiles: *\nLicense: {licence}\n the text\n .\n" for licence in stated)
    assert licences.copyright_licence(FORMAT + files) == Licence(expected)


def test_paragraph_without_files_defines_a_licence_text():
    text = f"{FORMAT}\nFiles: *\nLicense: GPL-2 or ISC\n\nLicense: GPL-2\n text\n\nLicense: ISC\n"
    assert licences.copyright_licence(text).expression == "GPL-2.0-only OR ISC"


@pytest.mark.parametrize(
    "text",
    [
        "This package was debianized by a person. It is under the GPL-2.\n",
        f"{FORMAT}\nFiles: *\nLicense: MIT\nno field and no continuation\n",
        "",
    ],
)
def test_copyright_file_in_free_text_yields_no_licence(text: str):
    assert licences.copyright_licence(text) == Licence()


def test_licences_that_are_not_in_the_spdx_list_become_references():
    references = licences.licence_references(
        "(MIT OR LicenseRef-Debian-b) AND LicenseRef-Debian-a AND LicenseRef-Debian-b"
    )
    assert list(references) == ["LicenseRef-Debian-a", "LicenseRef-Debian-b"]
