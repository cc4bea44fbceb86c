"""Creates package URLs, such as `pkg:pypi/torch@2.6.0?file_name=…`.

Package URLs of wheels and Debian packages have no download location, because files are identified
by name and sha256.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from imgbuild.values import Digest, Sha256, normalize_package


def pypi_purl(package: str, version: str, file: str) -> str:
    """Return the package URL of a wheel or an sdist."""
    return _purl("pypi", normalize_package(package), version, {"file_name": file})


def deb_purl(package: str, version: str, arch: str, *, release: str, source: str) -> str:
    """Return the package URL of a Debian package. `source` is NAME@VERSION."""
    distro = f"debian-{release}" if release else ""
    return _purl(
        "deb", f"debian/{package}", version, {"arch": arch, "distro": distro, "upstream": source}
    )


def generic_purl(name: str, version: str, *, url: str, sha256: Sha256) -> str:
    """Return the package URL of a file from `url` that no package type describes."""
    place = {"checksum": f"sha256:{sha256}", "download_url": url}
    return _purl("generic", name, version, place)


def oci_purl(name: str, digest: Digest, *, arch: str, place: str = "") -> str:
    """Return the package URL of an image.

    `place` is the repository with host, or "" if unknown.
    """
    return _purl("oci", name.lower(), digest, {"arch": arch, "repository_url": place})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    query = "&".join(
        f"{key}={quote(value, safe=':/')}" for key, value in sorted(qualifiers.items()) if value
    )
    path = "/".join(quote(part, safe="") for part in name.split("/"))
    return f"pkg:{kind}/{path}@{quote(version, safe=':')}" + (f"?{query}" if query else "")
