from __future__ import annotations

import pytest
import trustme

from imgbuild.deb.certificates import certificate_der, install_certificates, subject_hash
from imgbuild.deb.tree import DebTree
from imgbuild.errors import IntegrityError
from imgbuild.oci.tar import LayerMember

ROOT_X2 = """\
-----BEGIN CERTIFICATE-----
MIICGzCCAaGgAwIBAgIQQdKd0XLq7qeAwSxs6S+HUjAKBggqhkjOPQQDAzBPMQsw
CQYDVQQGEwJVUzEpMCcGA1UEChMgSW50ZXJuZXQgU2VjdXJpdHkgUmVzZWFyY2gg
R3JvdXAxFTATBgNVBAMTDElTUkcgUm9vdCBYMjAeFw0yMDA5MDQwMDAwMDBaFw00
MDA5MTcxNjAwMDBaME8xCzAJBgNVBAYTAlVTMSkwJwYDVQQKEyBJbnRlcm5ldCBT
ZWN1cml0eSBSZXNlYXJjaCBHcm91cDEVMBMGA1UEAxMMSVNSRyBSb290IFgyMHYw
EAYHKoZIzj0CAQYFK4EEACIDYgAEzZvVn4CDCuwJSvMWSj5cz3es3mcFDR0HttwW
+1qLFNvicWDEukWVEYmO6gbf9yoWHKS5xcUy4APgHoIYOIvXRdgKam7mAHf7AlF9
ItgKbppbd9/w+kHsOdx1ymgHDB/qo0IwQDAOBgNVHQ8BAf8EBAMCAQYwDwYDVR0T
AQH/BAUwAwEB/zAdBgNVHQ4EFgQUfEKWrt5LSDv6kviejM9ti6lyN5UwCgYIKoZI
zj0EAwMDaAAwZQIwe3lORlCEwkSHRhtFcP9Ymd70/aTSVaYgLXTWNLxBo1BfASdW
tL4ndQavEi51mI38AjEAi/V3bNTIZargCyzuFJ0nN6T5U6VR5CmD1/iQMVtCnwr1
/q4AaOeMSQ+2b1tbFfLn
-----END CERTIFICATE-----
"""
FOLDER = "usr/share/ca-certificates/mozilla"


def test_certificate_subject_hash_matches_openssl() -> None:
    assert (
        subject_hash(certificate_der(ROOT_X2.encode(), "x")) == "0b9bc432"
    )  # openssl x509 -subject_hash


def put(tree: DebTree, name: str, data: bytes) -> None:
    tree.add(LayerMember(path=f"{FOLDER}/{name}", size=len(data), content=data), "ca-certificates")


def authority(name: str) -> bytes:
    return trustme.CA(organization_name=name, organization_unit_name="unit").cert_pem.bytes()


def test_certificate_bundle_links_and_list_are_created() -> None:
    tree = DebTree()
    other = authority("Any")
    put(tree, "B (old),_Root.crt", ROOT_X2.strip().encode())  # no newline at the end
    put(tree, "A.crt", other)
    put(tree, "README", b"no certificate")
    install_certificates(tree)
    certs = "etc/ssl/certs"
    assert tree.read(f"{certs}/ca-certificates.crt") == other + ROOT_X2.encode()
    assert tree.read("etc/ca-certificates.conf").decode().splitlines()[-2:] == [
        "mozilla/A.crt",
        "mozilla/B (old),_Root.crt",
    ]
    pem = tree.get(f"{certs}/B_=old=__Root.pem")
    assert pem is not None
    assert pem.target == f"/{FOLDER}/B (old),_Root.crt"
    link = tree.get(f"{certs}/0b9bc432.0")
    assert link is not None
    assert link.target == "B_=old=__Root.pem"
    assert tree.read(f"{certs}/0b9bc432.0") == ROOT_X2.strip().encode()


def test_certificate_authorities_with_the_same_name_are_numbered() -> None:
    tree = DebTree()
    for file in ("B.crt", "A.crt"):
        put(tree, file, ROOT_X2.encode())
    install_certificates(tree)
    targets = [tree.get(f"etc/ssl/certs/0b9bc432.{number}") for number in (0, 1)]
    assert [item.target for item in targets if item] == ["A.pem", "B.pem"]


def test_certificate_subject_hash_ignores_case_and_spaces() -> None:
    first = subject_hash(certificate_der(authority("Some   Authority "), "x"))
    assert first == subject_hash(certificate_der(authority("some authority"), "x"))
    assert first != subject_hash(certificate_der(authority("someauthority"), "x"))


def test_error_names_the_file_without_a_certificate() -> None:
    tree = DebTree()
    put(tree, "broken.crt", b"nothing")
    with pytest.raises(IntegrityError, match=r"broken\.crt does not contain a certificate"):
        install_certificates(tree)
