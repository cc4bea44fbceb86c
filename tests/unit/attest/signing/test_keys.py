"""Tests key files of openssl and cosign, their passwords, and refused keys.

tests/data/signing has a key pair with password "pw", and signatures created by cosign 3.1.1.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from imgbuild.attest.signing import keys
from imgbuild.errors import InputError
from tests.support.rows import each_row

DATA = Path(__file__).parents[3] / "data/signing"
PLAIN = forms.NoEncryption()


def _no_password(path: Path) -> bytes:
    pytest.fail(f"unexpected prompt for the password of {path}")


def write(path, key, *, form=forms.PrivateFormat.PKCS8, encryption=PLAIN):
    path.write_bytes(key.private_bytes(forms.Encoding.PEM, form, encryption))
    return path


@pytest.mark.parametrize(
    "form", [forms.PrivateFormat.PKCS8, forms.PrivateFormat.TraditionalOpenSSL]
)
def test_openssl_key_signature_verifies_with_public_key(tmp_path, form):
    private_key = ec.generate_private_key(ec.SECP256R1())
    key = keys.load_private(write(tmp_path / "key.pem", private_key, form=form), _no_password)
    (tmp_path / "key.pub").write_bytes(key.public.pem)
    public = keys.load_public(tmp_path / "key.pub")
    assert public.hint == key.public.hint
    assert public.verify(b"word", key.sign(b"word"))
    assert not public.verify(b"ward", key.sign(b"word"))
    assert not public.verify(b"word", b"no signature")
    assert key.sign(b"word") == key.sign(b"word")


def test_ed25519_signature_verifies(tmp_path):
    key = keys.load_private(write(tmp_path / "key.pem", ed25519.Ed25519PrivateKey.generate()))
    assert key.public.verify(b"word", key.sign(b"word"))
    assert not key.public.verify(b"ward", key.sign(b"word"))
    assert not key.public.verify(b"word", b"too short")


@pytest.mark.parametrize(
    "form", [forms.PrivateFormat.PKCS8, forms.PrivateFormat.TraditionalOpenSSL]
)
def test_encrypted_key_requires_password(tmp_path, monkeypatch, form):
    secret = forms.BestAvailableEncryption(b"pw")
    private_key = ec.generate_private_key(ec.SECP256R1())
    path = write(tmp_path / "key.pem", private_key, form=form, encryption=secret)
    monkeypatch.setenv(keys.PASSWORD, "pw")
    assert keys.load_private(path).sign(b"word")
    monkeypatch.setenv(keys.PASSWORD, "another")
    with pytest.raises(InputError, match="or the password is wrong") as error:
        keys.load_private(path)
    assert "another" not in (error.value.hint or "")


def test_cosign_key_is_decrypted_with_password(monkeypatch):
    monkeypatch.setenv(keys.PASSWORD, "pw")
    key = keys.load_private(DATA / "cosign.key")
    assert key.public.pem == (DATA / "cosign.pub").read_bytes()
    monkeypatch.setenv(keys.PASSWORD, "")
    with pytest.raises(InputError, match="password is wrong"):
        keys.load_private(DATA / "cosign.key")


def _with(change):
    """A cosign key file whose content is modified by `change`."""
    lines = (DATA / "cosign.key").read_text().splitlines()
    inside = json.loads(base64.b64decode("".join(lines[1:-1])))
    change(inside)
    body = base64.b64encode(json.dumps(inside).encode()).decode()
    return "\n".join([lines[0], body, lines[-1], ""])


def _other_cipher(inside):
    inside["cipher"]["name"] = "aes"


def _much_memory(inside):
    inside["kdf"]["params"]["N"] = 1 << 40


def _flipped(inside):
    data = bytearray(base64.b64decode(inside["ciphertext"]))
    data[20] ^= 1
    inside["ciphertext"] = base64.b64encode(data).decode()


@each_row(
    ("change", "message"),
    [
        (_other_cipher, "encrypted with scrypt and aes"),
        (_much_memory, "not a private key"),
        (_flipped, "not a private key"),
        (lambda inside: inside.pop("cipher"), "not a private key"),
    ],
)
def test_damaged_cosign_key_is_refused(tmp_path, change, message):
    path = tmp_path / "cosign.key"
    path.write_text(_with(change))
    with pytest.raises(InputError, match=message):
        keys.load_private(path, lambda _: b"pw")


def test_encrypted_key_without_a_password_or_terminal_is_refused(monkeypatch):
    monkeypatch.delenv(keys.PASSWORD, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(InputError, match="no terminal for a password prompt") as error:
        keys.load_private(DATA / "cosign.key")
    assert error.value.hint == "set COSIGN_PASSWORD"


def test_error_for_an_unsupported_key_type_lists_the_supported_types(tmp_path):
    others: list[Any] = [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ]
    for number, private_key in enumerate(others):
        path = write(tmp_path / f"{number}.pem", private_key)
        with pytest.raises(InputError, match="unsupported key type for signing") as error:
            keys.load_private(path)
        assert "P-256 and Ed25519" in (error.value.hint or "")
        pem = private_key.public_key().public_bytes(
            forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo
        )
        path.write_bytes(pem)
        with pytest.raises(InputError, match="unsupported key type for verification"):
            keys.load_public(path)


def test_private_key_given_for_verification_is_refused_with_a_hint(tmp_path):
    path = write(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()))
    with pytest.raises(InputError, match="is a private key") as error:
        keys.load_public(path)
    assert f"openssl pkey -in {path} -pubout" in (error.value.hint or "")
    with pytest.raises(InputError, match="is a private key"):
        keys.load_public(DATA / "cosign.key")


def test_file_that_contains_no_key_is_refused(tmp_path):
    path = tmp_path / "key.pem"
    with pytest.raises(InputError, match="cannot read"):
        keys.load_private(path)
    path.write_text("hello\n")
    with pytest.raises(InputError, match="not a private key in PEM"):
        keys.load_private(path)
    with pytest.raises(InputError, match="not a public key in PEM"):
        keys.load_public(path)
    with pytest.raises(InputError, match="not a private key in PEM"):
        keys.load_private(DATA / "cosign.pub")
