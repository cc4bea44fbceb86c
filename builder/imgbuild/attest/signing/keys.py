"""Private and public keys, and their passwords (COSIGN_PASSWORD): ECDSA P-256 and Ed25519.

They are read from PEM files as openssl and cosign write them. A password comes from
$COSIGN_PASSWORD, else from the terminal; no message contains it, nor any part of a private key.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import hashlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    Private = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    Public = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the name of a variable
LIMIT = 1 << 16  # bytes; a key file has some hundred
KINDS = "ECDSA on P-256 and Ed25519"
MAKE = "make a pair with: cosign generate-key-pair"
# cosign's own encrypted form, by its name of today and that of before 2.0.
_COSIGN = re.compile(
    rb"-----BEGIN ENCRYPTED (SIGSTORE|COSIGN) PRIVATE KEY-----(.+?)-----END", re.DOTALL
)
_SCRYPT_LIMIT = 1 << 20  # cosign has N = 65536; a larger one is a file that wants memory


class PublicKey:
    """A key that verifies. `hint` is how a bundle names it: base64 of the SHA-256 of its DER."""

    def __init__(self, key: Public) -> None:
        from cryptography.hazmat.primitives import serialization as forms

        self._key = key
        spki = forms.PublicFormat.SubjectPublicKeyInfo
        self.pem = key.public_bytes(forms.Encoding.PEM, spki)
        der = key.public_bytes(forms.Encoding.DER, spki)
        self.hint = base64.b64encode(hashlib.sha256(der).digest()).decode()

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's signature of `data`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            if isinstance(self._key, ec.EllipticCurvePublicKey):
                self._key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
            else:
                self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """A key that signs. The same data has the same signature each time (RFC 6979 and 8032)."""

    def __init__(self, key: Private) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`; of an elliptic curve as DER."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        return self._key.sign(data)


def load_public(path: Path) -> PublicKey:
    """The public key in the file at `path`; InputError if there is none that can be used."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    data = _read(path)
    if b"PRIVATE KEY-----" in data:
        message = f"{path} is a private key; a signature is checked with the public one"
        hint = f"cosign public-key --key {path}, or: openssl pkey -in {path} -pubout"
        raise InputError(message, hint=hint)
    try:
        key = forms.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        message = f"{path} is not a public key in PEM"
        raise InputError(message, hint=MAKE) from error
    if isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return PublicKey(key)
    message = f"{path} is a kind of key that imgbuild cannot verify with"
    raise InputError(message, hint=f"supported keys: {KINDS}")


def load_private(path: Path, password: Callable[[Path], bytes] | None = None) -> PrivateKey:
    """The private key in the file at `path`; InputError if there is none that can be used.

    `password` is asked only if the file is encrypted; by default `key_password`.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    data, ask = _read(path), password or key_password
    try:
        if encrypted_key := _COSIGN.search(data):
            key = forms.load_der_private_key(_opened(encrypted_key[2], ask(path), path), None)
        else:
            encrypted = b"BEGIN ENCRYPTED PRIVATE" in data or b"Proc-Type: 4,ENCRYPTED" in data
            key = forms.load_pem_private_key(data, ask(path) if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        message = f"{path} is not a private key in PEM, or the password is wrong"
        raise InputError(message, hint=f"set {PASSWORD}, or {MAKE}") from error
    if isinstance(key, ed25519.Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return PrivateKey(key)
    message = f"{path} is a kind of key that imgbuild cannot sign with"
    raise InputError(message, hint=f"supported keys: {KINDS}; {MAKE}")


def key_password(path: Path) -> bytes:
    """The password of the key at `path`: $COSIGN_PASSWORD, which may be empty, or a prompt."""
    if (password := os.environ.get(PASSWORD)) is not None:
        return password.encode()
    if not sys.stdin.isatty():
        message = f"{path} is encrypted, and there is no terminal to ask for its password"
        raise InputError(message, hint=f"set {PASSWORD}")
    return getpass.getpass(f"Password of {path}: ").encode()


class _Kdf(msgspec.Struct, frozen=True):
    name: str
    params: dict[str, int]
    salt: bytes


class _Cipher(msgspec.Struct, frozen=True):
    name: str
    nonce: bytes


class _EncryptedKey(msgspec.Struct, frozen=True):
    """What is inside cosign's own form: how the key is derived, and the encrypted DER."""

    kdf: _Kdf
    cipher: _Cipher
    ciphertext: bytes


def _opened(body: bytes, password: bytes, path: Path) -> bytes:
    """The DER in cosign's own encrypted form; ValueError if it or the password is wrong."""
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    try:
        encrypted_key = msgspec.json.decode(
            base64.b64decode(body, validate=False), type=_EncryptedKey
        )
    except (msgspec.DecodeError, binascii.Error) as error:
        raise ValueError(str(path)) from error
    if (encrypted_key.kdf.name, encrypted_key.cipher.name) != ("scrypt", "nacl/secretbox"):
        message = (
            f"{path} is encrypted with {encrypted_key.kdf.name} and {encrypted_key.cipher.name}"
        )
        raise InputError(
            message, hint="imgbuild supports only scrypt with nacl/secretbox, as cosign writes it"
        )
    cost, block, parallel = (encrypted_key.kdf.params.get(name, 0) for name in ("N", "r", "p"))
    memory = 128 * cost * block + 128 * block * parallel
    if not 1 < cost <= _SCRYPT_LIMIT or not 0 < block <= 64 or not 0 < parallel <= 16:
        raise ValueError(str(path))
    key = hashlib.scrypt(
        password,
        salt=encrypted_key.kdf.salt,
        n=cost,
        r=block,
        p=parallel,
        dklen=32,
        maxmem=2 * memory,
    )
    try:
        return SecretBox(key).decrypt(encrypted_key.ciphertext, encrypted_key.cipher.nonce)
    except CryptoError as error:
        raise ValueError(str(path)) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LIMIT)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message, hint=MAKE) from error
