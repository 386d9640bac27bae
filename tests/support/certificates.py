"""Certificates for tests of TLS, made anew by each run."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

import trustme


@functools.cache
def authority(name: str) -> trustme.CA:
    """Return the CA of that name."""
    return trustme.CA(organization_name=name)


def write_server(folder: Path, *, ca: str = "ca", common_name: str = "") -> None:
    """Write tls.crt and tls.key for 127.0.0.1."""
    certificate = authority(ca).issue_cert("127.0.0.1", "localhost", common_name=common_name or None)
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(folder / "tls.key")


def write_authority(path: Path, *, ca: str = "ca") -> None:
    """Write the certificate of the CA."""
    authority(ca).cert_pem.write_to_path(path)


def client_context(*, trusts: str = "ca", shows: str = "", of: str = "ca") -> ssl.SSLContext:
    """Return the TLS of a client; `shows` is the name in a certificate of the CA `of`, empty: none."""
    context = ssl.create_default_context()
    authority(trusts).configure_trust(context)
    if shows:
        authority(of).issue_cert(shows).configure_cert(context)
    return context
