"""Defines the types of strings in `matrix.yaml` and in locks: names, versions, paths, reasons.

The patterns are checked whenever a file is read. `matrix.settings` has additional checks. A valid
string can contain quotes, `$` or spaces. `render` quotes these characters in its output.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from imgbuild.values import CONTROLS

# A text without control characters, on one line or on several.
LINE = rf"^[^{CONTROLS}]*\Z"
PROSE = LINE.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f")
NAME = r"[a-z0-9]+([._-][a-z0-9]+)*"
REGISTRY_IMAGE = r"[A-Za-z0-9\[][A-Za-z0-9._:/\[\]-]*@sha256:[0-9a-f]{64}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
LABEL = r"[a-z0-9]+([.-][a-z0-9]+)*"
DEBIAN_PACKAGE = r"[a-z0-9][a-z0-9+.-]+"
FOLDER = r"(/[A-Za-z0-9._+-]+)+"
LIST_URL = r"https?://[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[A-Za-z0-9._~%+-]+)+"
ARCHIVE_URL = rf"{LIST_URL}\.tar\.gz"
WHEEL = (
    r"[A-Za-z0-9][A-Za-z0-9_.]*-[0-9][A-Za-z0-9_.!+]*(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}"
    r"\.whl"
)
SDIST_ENDINGS = (".tar.gz", ".zip")  # PEP 625, and what was usual before it
SDIST = rf"[A-Za-z0-9][A-Za-z0-9._!+-]*({'|'.join(map(re.escape, SDIST_ENDINGS))})"
_PART = r"(?!\.{1,2}(/|\Z))[A-Za-z0-9._+~%:!=@-]+"
STANDALONE_PREFIX = "/opt/python"  # the folder of a standalone build of Python in an image
# Its releases: those whose standard library the audit has names of (data/audit/stdlib.yaml).
STANDALONE_RELEASES = ("3.10", "3.11", "3.12", "3.13", "3.14")
VERSION_LABEL = "dev.imgbuild.version."  # begins the label with a pinned package's version
GPU_LABEL = "dev.imgbuild.gpu"  # of the compute capabilities


def _matching(pattern: str, description: str) -> Meta:
    """The constraint of a text that matches `pattern` as a whole."""
    return Meta(pattern=rf"^{pattern}\Z", description=description)


Line = Annotated[
    str, Meta(pattern=LINE, description="a single line of text without control characters")
]
Prose = Annotated[str, Meta(pattern=PROSE, description="text without control characters")]
Name = Annotated[str, _matching(NAME, "lower-case name, valid as an image tag")]
Package = Annotated[
    str, _matching(r"[a-z0-9]+(-[a-z0-9]+)*", "package name, normalized as in PEP 503")
]
Version = Annotated[
    str,
    _matching(
        r"[0-9][0-9A-Za-z.!+]*", "an exact version, in quotes if YAML would read it as a number"
    ),
]
CudaVersion = Annotated[
    str, _matching(r"[0-9]+\.[0-9]+", 'CUDA release, major.minor, in quotes: "12.4"')
]
PythonVersion = Annotated[str, _matching(r"3\.[0-9]+", 'version of Python: "3.11"')]
PythonPatch = Annotated[
    str, _matching(r"3\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?", 'exact version of Python: "3.12.11"')
]
ArchiveUrl = Annotated[str, _matching(ARCHIVE_URL, "URL of a .tar.gz, without credentials")]
GlibcVersion = Annotated[str, _matching(r"2\.[0-9]+", 'version of glibc: "2.36"')]
Repository = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9][A-Za-z0-9.:-]*(/[a-z0-9]+([._-]+[a-z0-9]+)*)+",
        "a repository in a registry: host/owner/name",
    ),
]
Reason = Annotated[
    str,
    Meta(
        min_length=8,
        pattern=PROSE,
        description="the reason, shown in error messages and diffs",
    ),
]
Source = Annotated[
    str,
    Meta(
        pattern=r"^(https://[^ ]+"
        r"|[a-z0-9-]+==[0-9][0-9A-Za-z.!+]* [\w.-]+(/[\w.-]+)*:[0-9]+"
        r"|[\w.-]+(/[\w.-]+)*)\Z",
        description="https://… of documentation, PACKAGE==VERSION PATH:LINE of a wheel, or the path"
        " of a file in a repository",
    ),
]
# For locks, in which versions are normalized (PEP 440).
LockedVersion = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]+!)?[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?"
        r"(\+[a-z0-9]+(\.[a-z0-9]+)*)?\Z",
        description="one exact, normalized version",
    ),
]
Specifier = Annotated[
    str,
    _matching(
        r"[0-9A-Za-z.!+*<>=~, _-]*", 'version specifier, such as ">=78,<79"; empty for any version'
    ),
]
Day = Annotated[
    str, _matching(r"[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "a date as YYYY-MM-DD")
]
DebianPackage = Annotated[str, _matching(DEBIAN_PACKAGE, "name of a Debian package")]
DebianVersion = Annotated[str, _matching(r"[0-9][A-Za-z0-9.+:~-]*", "version of a Debian package")]
DebianArch = Annotated[str, _matching(r"[a-z0-9-]+", "name of an architecture in Debian")]
VariableName = Annotated[str, _matching(VARIABLE, "name of an environment variable")]
LabelName = Annotated[str, _matching(LABEL, "a reversed domain name")]
ImagePath = Annotated[
    str,
    _matching(
        r"(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._+-]+)+",
        "an absolute path without . or .., such as /opt/venv",
    ),
]
FilePath = Annotated[str, _matching(rf"{_PART}(/{_PART})*", "a relative path of plain names")]
FolderPath = Annotated[str, _matching(rf"/?{_PART}(/{_PART})*", "a path of plain names")]
WheelFile = Annotated[str, _matching(WHEEL, "file name of a wheel")]
MediaType = Annotated[str, _matching(r"[a-z0-9.+_-]+/[a-z0-9.+_-]+", "a media type")]
RegistryImage = Annotated[
    str, _matching(REGISTRY_IMAGE, "reference with a digest: host/name:tag@sha256:…")
]
FlashinferMode = Annotated[
    Literal["prebuilt", "jit", "off"],
    Meta(description="whether kernels are prebuilt in a wheel, compiled at first use, or not used"),
]

FormVersion = Annotated[Literal[1], Meta(description="the format version of this file")]
Check = Literal["metadata", "elf", "cuda", "imports", "calls", "support", "rules"]
