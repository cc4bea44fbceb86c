"""Loads private and public keys (ECDSA P-256 and Ed25519) and asks for passwords.

Keys are read from PEM files in the formats of openssl and cosign. Passwords are read from
$COSIGN_PASSWORD, or else from the terminal. Messages contain no passwords or private keys.
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
from imgbuild.system import decoding
from imgbuild.system.files import require_readable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    PrivateKeyTypes = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    PublicKeyTypes = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

PASSWORD = "COSIGN_PASSWORD"  # noqa: S105 - the name of a variable
LIMIT = 1 << 16  # bytes; a key file has a few hundred
KINDS = "ECDSA on P-256 and Ed25519"
CREATION_REMEDY = "to create a key pair, run: cosign generate-key-pair"
# cosign's encrypted format: the PEM labels since and before version 2.0.
_COSIGN = re.compile(
    rb"-----BEGIN ENCRYPTED (SIGSTORE|COSIGN) PRIVATE KEY-----(.+?)-----END", re.DOTALL
)
_SCRYPT_LIMIT = 1 << 20  # cosign has N = 65536; a larger value would exhaust memory


class PublicKey:
    """A public key.

    `hint`, which identifies the key in a bundle, is the base64-encoded SHA-256 of the key in DER.
    """

    def __init__(self, key: PublicKeyTypes) -> None:
        from cryptography.hazmat.primitives import serialization as forms

        self._key = key
        spki = forms.PublicFormat.SubjectPublicKeyInfo
        self.pem = key.public_bytes(forms.Encoding.PEM, spki)
        der = key.public_bytes(forms.Encoding.DER, spki)
        self.hint = base64.b64encode(hashlib.sha256(der).digest()).decode()

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of `data`."""
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
    """A private key. Signatures are deterministic (RFC 6979 and 8032)."""

    def __init__(self, key: PrivateKeyTypes) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Sign `data`. ECDSA signatures are DER-encoded."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            return self._key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        return self._key.sign(data)


def load_public(path: Path) -> PublicKey:
    """Load the public key at `path`. Raises InputError if it is missing or unsupported."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    data = _read_key_file(path)
    if b"PRIVATE KEY-----" in data:
        message = f"{path} is a private key, but signatures are verified with a public key"
        hint = (
            f"to print the public key, run: cosign public-key --key {path}, or openssl pkey -in "
            f"{path} -pubout"
        )
        raise InputError(message, hint=hint)
    try:
        key = forms.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        message = f"{path} is not a public key in PEM format"
        raise InputError(message, hint=CREATION_REMEDY) from error
    if isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return PublicKey(key)
    message = f"{path} has an unsupported key type for verification"
    raise InputError(message, hint=f"use one of: {KINDS}")


def load_private(path: Path, password: Callable[[Path], bytes] | None = None) -> PrivateKey:
    """Load the private key at `path`.

    `password`, by default `key_password`, is called only if the file is encrypted. Raises
    InputError if the file is missing or unsupported.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    data, ask = _read_key_file(path), password or key_password
    try:
        if encrypted_key := _COSIGN.search(data):
            key = forms.load_der_private_key(_decrypt_key(encrypted_key[2], ask(path), path), None)
        else:
            encrypted = b"BEGIN ENCRYPTED PRIVATE" in data or b"Proc-Type: 4,ENCRYPTED" in data
            key = forms.load_pem_private_key(data, ask(path) if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        message = f"{path} is not a private key in PEM, or the password is wrong"
        raise InputError(message, hint=f"set {PASSWORD}, or {CREATION_REMEDY}") from error
    if isinstance(key, ed25519.Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return PrivateKey(key)
    message = f"{path} has an unsupported key type for signing"
    raise InputError(message, hint=f"use one of: {KINDS}; {CREATION_REMEDY}")


def key_password(path: Path) -> bytes:
    """Return the password in $COSIGN_PASSWORD, or else prompt for the password of `path`."""
    if (password := os.environ.get(PASSWORD)) is not None:
        return password.encode()
    if not sys.stdin.isatty():
        message = f"{path} is encrypted, and there is no terminal for a password prompt"
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
    """An encrypted private key in cosign's format, with the parameters of the key derivation."""

    kdf: _Kdf
    cipher: _Cipher
    ciphertext: bytes


def _decrypt_key(body: bytes, password: bytes, path: Path) -> bytes:
    """Return the DER of the key. Raises ValueError if the data or the password is wrong."""
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    try:
        encrypted_key = decoding.decode_json(base64.b64decode(body, validate=False), _EncryptedKey)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise ValueError(str(path)) from error
    if (encrypted_key.kdf.name, encrypted_key.cipher.name) != ("scrypt", "nacl/secretbox"):
        message = (
            f"{path} is encrypted with {encrypted_key.kdf.name} and {encrypted_key.cipher.name}"
        )
        raise InputError(
            message, hint="use a key that cosign encrypted with scrypt and nacl/secretbox"
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


def _read_key_file(path: Path) -> bytes:
    with require_readable(path, hint=CREATION_REMEDY), path.open("rb") as file:
        return file.read(LIMIT)
