"""Prometheus' web-config file: what is taken, what is refused and how, and what holds at the endpoint."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import structlog
import yaml
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError
from dracaena.process.http import HttpEndpoint
from dracaena.process.web_config import decode_web_config, read_sources
from support.certificates import client_context, write_authority, write_server
from support.clock import FakeClock, IdleClock
from support.http_probe import connect, get, raw
from support.kube import wait_for

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
TLS = {"cert_file": "tls.crt", "key_file": "tls.key"}
MUTUAL = {**TLS, "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_server(tmp_path)
    write_authority(tmp_path / "ca.crt")
    return tmp_path


@contextmanager
def serving(folder: Path, document: Any, **how: Any) -> Iterator[HttpEndpoint]:
    path = folder / "web-config.yml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    endpoint = HttpEndpoint("127.0.0.1:0", lambda: None, CollectorRegistry(), web_config_file=str(path), **how)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


@pytest.mark.parametrize("document", ["", "{}", "tls_server_config:\nbasic_auth_users:\n"])
def test_empty_file_protects_nothing(folder: Path, document: str) -> None:
    with serving(folder, document) as endpoint:
        assert get(endpoint.port, "/metrics")[0] == 200


def test_metrics_are_for_https_only_and_health_pages_for_both(folder: Path) -> None:
    with serving(folder, {"tls_server_config": TLS}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200
        assert get(endpoint.port, "/metrics")[:2] == (400, "this page is for HTTPS only\n")
        for path in ("/healthz", "/readyz"):
            assert get(endpoint.port, path)[:2] == (200, "ok\n")
            assert get(endpoint.port, path, tls=client_context())[:2] == (200, "ok\n")


def test_probe_of_kubelet_that_verifies_nothing_is_answered(folder: Path) -> None:
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    with serving(folder, {"tls_server_config": MUTUAL, "basic_auth_users": {"a": HASH}}) as endpoint:
        assert get(endpoint.port, "/healthz", tls=blind)[0] == 200
        assert get(endpoint.port, "/metrics", tls=blind)[:2] == (403, "a client certificate is needed\n")


def test_client_certificate_of_the_authority_opens(folder: Path) -> None:
    with serving(folder, {"tls_server_config": MUTUAL}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context(shows="prometheus"))[0] == 200


def test_client_certificate_of_another_authority_does_not(folder: Path) -> None:
    """The handshake fails, in TLS 1.3 after the client thinks that it is done."""
    with serving(folder, {"tls_server_config": MUTUAL}) as endpoint:
        with pytest.raises((OSError, http.client.HTTPException)):
            get(endpoint.port, "/metrics", tls=client_context(shows="prometheus", of="stranger"))
        assert get(endpoint.port, "/healthz")[0] == 200


@pytest.mark.parametrize(("names", "status"), [(["prometheus"], 200), (["x", "other"], 403)])
def test_names_in_the_client_certificate_may_be_limited(folder: Path, names: list[str], status: int) -> None:
    tls = {**MUTUAL, "client_allowed_sans": names}
    with serving(folder, {"tls_server_config": tls}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context(shows="prometheus"))[0] == status


def test_address_in_the_client_certificate_is_compared_as_an_address(folder: Path) -> None:
    tls = {**MUTUAL, "client_allowed_sans": ["2001:db8::1"]}
    with serving(folder, {"tls_server_config": tls}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context(shows="2001:db8::1"))[0] == 200
        assert get(endpoint.port, "/metrics", tls=client_context(shows="2001:db8::2"))[0] == 403


def test_certificate_may_be_left_out_where_it_is_optional(folder: Path) -> None:
    tls = {**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"}
    with serving(folder, {"tls_server_config": tls}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            get(endpoint.port, "/metrics", tls=client_context(shows="prometheus", of="stranger"))


@pytest.mark.parametrize(
    ("setting", "works", "fails"),
    [
        ({"min_version": "TLS13"}, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2),
        ({"max_version": "TLS12"}, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_versions_are_held(folder: Path, setting: Any, works: ssl.TLSVersion, fails: ssl.TLSVersion) -> None:
    with serving(folder, {"tls_server_config": {**TLS, **setting}}) as endpoint:
        for version, good in ((works, True), (fails, False)):
            context = client_context()
            context.minimum_version = context.maximum_version = version
            if good:
                assert get(endpoint.port, "/metrics", tls=context)[0] == 200
            else:
                with pytest.raises(OSError):  # noqa: PT011 - alert, reset: whichever comes
                    get(endpoint.port, "/metrics", tls=context)


def test_cipher_suites_are_held(folder: Path) -> None:
    suites = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]
    tls = {**TLS, "max_version": "TLS12", "cipher_suites": suites}
    with serving(folder, {"tls_server_config": tls}) as endpoint:
        with (
            connect(endpoint.port) as plain,
            client_context().wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            cipher = client.cipher()
            assert cipher is not None
            assert cipher[0].endswith("AES256-GCM-SHA384")
        other = client_context()
        other.set_ciphers("ECDHE+AES128")
        other.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):  # noqa: PT011
            get(endpoint.port, "/metrics", tls=other)


def test_every_cipher_suite_that_may_be_named_is_one_of_openssl(folder: Path) -> None:
    from dracaena.process.web_config import _SUITES

    path = folder / "web-config.yml"
    for suite in _SUITES:
        path.write_text(yaml.safe_dump({"tls_server_config": {**TLS, "cipher_suites": [suite]}}))
        config = decode_web_config(path, read_sources(path))
        assert config.context is not None
        assert _SUITES[suite] in {each["name"] for each in config.context.get_ciphers()}


def test_certificate_may_stand_in_the_file(folder: Path) -> None:
    tls = {"cert": (folder / "tls.crt").read_text(), "key": (folder / "tls.key").read_text()}
    with serving(folder, {"tls_server_config": tls}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200


def test_headers_stand_in_every_answer(folder: Path) -> None:
    headers = {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=1", "Content-Security-Policy": ""}
    with serving(folder, {"http_server_config": {"headers": headers, "http2": False}}) as endpoint:
        for path in ("/healthz", "/metrics", "/nowhere"):
            answer = get(endpoint.port, path)[2]
            assert (answer["X-Frame-Options"], answer["Strict-Transport-Security"]) == ("deny", "max-age=1")
            assert "Content-Security-Policy" not in answer


def test_user_and_password_open_all_but_the_health_pages_need_none(folder: Path) -> None:
    with serving(folder, {"basic_auth_users": {"a": HASH}}) as endpoint:
        assert get(endpoint.port, "/metrics", user="a", password="right")[0] == 200
        assert get(endpoint.port, "/nowhere", user="a", password="right")[0] == 404
        for path in ("/metrics", "/nowhere", "/healthz/", "//healthz", "/%68ealthz"):
            status, _, headers = get(endpoint.port, path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Basic"), path
        assert get(endpoint.port, "/healthz")[0] == 200


def test_password_is_not_looked_at_where_it_came_over_plain_http(folder: Path) -> None:
    with serving(folder, {"tls_server_config": TLS, "basic_auth_users": {"a": HASH}}) as endpoint:
        assert get(endpoint.port, "/metrics", user="a", password="right")[0] == 400
        assert get(endpoint.port, "/metrics", user="a", password="right", tls=client_context())[0] == 200


BAD: dict[str, tuple[Any, str]] = {
    "no map": ("[]", "is a list, expected a map"),
    "no YAML": ("a: [", "is not YAML, line 1: "),
    "twice": ("tls_server_config: {}\ntls_server_config: {}\n", "'tls_server_config' appears twice"),
    "too deep": ("[\n" * 1_500, "is nested too deeply|is not YAML"),
    "unknown": ({"tls": TLS}, "unknown tls; known: tls_server_config, http_server_config, basic_auth_users"),
    "unknown below": ({"tls_server_config": {**TLS, "certfile": "x"}}, "unknown tls_server_config.certfile; known"),
    "rate limit": ({"rate_limit": {"burst": 1}}, "rate_limit is not supported: .*; remove it"),
    "curves": (
        {"tls_server_config": {**TLS, "curve_preferences": ["X25519"]}},
        "tls_server_config.curve_preferences is not supported",
    ),
    "no map below": ({"tls_server_config": ["x"]}, "tls_server_config is a list, expected a map"),
    "no key": ({"tls_server_config": {"cert_file": "tls.crt"}}, "tls_server_config: neither key nor key_file is given"),
    "no such file": (
        {"tls_server_config": {**TLS, "cert_file": "none.crt"}},
        "tls_server_config.cert_file: .*none.crt: No such file or directory",
    ),
    "key of another": (
        {"tls_server_config": {**TLS, "key_file": "other.key"}},
        "tls_server_config: cert and key are not a certificate and its key without password",
    ),
    "both": ({"tls_server_config": {**TLS, "cert": "x"}}, "cert and cert_file are both given"),
    "name is a number": ({"tls_server_config": {**TLS, "cert_file": 7}}, "cert_file is a int, expected text"),
    "CA without a rule": (
        {"tls_server_config": {**TLS, "client_ca_file": "ca.crt"}},
        "client_ca_file and a verifying client_auth_type belong together",
    ),
    "rule without a CA": (
        {"tls_server_config": {**TLS, "client_auth_type": "RequireAndVerifyClientCert"}},
        "client_ca_file and a verifying client_auth_type belong together",
    ),
    "unverified": (
        {"tls_server_config": {**MUTUAL, "client_auth_type": "RequireAnyClientCert"}},
        "client_auth_type: 'RequireAnyClientCert' is not supported, expected one of NoClientCert, ",
    ),
    "CA that is none": (
        {"tls_server_config": {**MUTUAL, "client_ca_file": "tls.key"}},
        "client_ca is not a certificate",
    ),
    "names without a rule": (
        {"tls_server_config": {**TLS, "client_allowed_sans": ["a"]}},
        "client_allowed_sans needs client_auth_type RequireAndVerifyClientCert",
    ),
    "old version": ({"tls_server_config": {**TLS, "min_version": "TLS10"}}, "min_version: 'TLS10' is not supported"),
    "crossed versions": (
        {"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS12"}},
        "min_version is above max_version",
    ),
    "suite": ({"tls_server_config": {**TLS, "cipher_suites": ["RC4"]}}, "cipher_suites: 'RC4' is not supported"),
    "suites": ({"tls_server_config": {**TLS, "cipher_suites": "x"}}, "cipher_suites is a str, expected a list"),
    "no flag": (
        {"tls_server_config": {**TLS, "prefer_server_cipher_suites": "yes"}},
        "prefer_server_cipher_suites is 'yes', expected true or false",
    ),
    "header": ({"http_server_config": {"headers": {"Server": "x"}}}, "headers: 'Server' is not supported"),
    "header's value": (
        {"http_server_config": {"headers": {"X-Frame-Options": "allow"}}},
        "headers.X-Frame-Options: 'allow' is not supported, expected one of deny, sameorigin",
    ),
    "header in two lines": (
        {"http_server_config": {"headers": {"X-XSS-Protection": "a\r\nSet-Cookie: b"}}},
        "X-XSS-Protection has more than printable ASCII",
    ),
    "password in clear": ({"basic_auth_users": {"a": "right"}}, "the entry of user 'a' is not a bcrypt hash"),
    "expensive hash": (
        {"basic_auth_users": {"a": HASH.replace("$04$", "$31$")}},
        "the hash of user 'a' has cost 31, expected 4 to 14",
    ),
    "colon": ({"basic_auth_users": {"a:b": HASH}}, "user 'a:b' holds a colon"),
    "user is a number": ({"basic_auth_users": {7: HASH}}, "user 7 is a int, expected text"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_held_is_refused_by_name(folder: Path, case: str) -> None:
    document, message = BAD[case]
    (folder / "other").mkdir()
    write_server(folder / "other")
    (folder / "other" / "tls.key").rename(folder / "other.key")
    with pytest.raises(BadInputError, match=message) as raised, serving(folder, document):
        pass
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "right" not in str(raised.value)


def test_message_about_a_broken_file_quotes_no_secret(folder: Path) -> None:
    with pytest.raises(BadInputError) as raised, serving(folder, f"basic_auth_users:\n  a: {HASH}\n b: x\n"):
        pass
    assert HASH not in str(raised.value)


def test_key_with_a_password_is_refused_and_nobody_is_asked_for_one(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "tls.key").read_bytes(), password=None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (folder / "tls.key").write_bytes(sealed)
    with pytest.raises(BadInputError, match="its key without password"), serving(folder, {"tls_server_config": TLS}):
        pass


def test_authorities_may_have_comments_in_any_language(folder: Path) -> None:
    (folder / "ca.crt").write_bytes("# Autorité\n".encode() + (folder / "ca.crt").read_bytes())
    with serving(folder, {"tls_server_config": MUTUAL}) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context(shows="prometheus"))[0] == 200


def test_whatever_goes_wrong_with_a_changed_file_leaves_what_held(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_path: Path) -> None:
        raise RuntimeError("a fault of ours")

    clock = FakeClock()
    with structlog.testing.capture_logs() as logs, serving(folder, {"tls_server_config": TLS}, clock=clock) as endpoint:
        monkeypatch.setattr("dracaena.process.web_config_file.read_sources", broken)
        for _ in range(2):
            clock.advance(1.0)
            assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200
    assert [line["error"] for line in logs if line["log_level"] == "error"] == ["a fault of ours"]


def test_file_that_is_not_there_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"web-config file .*/none.yml: .*No such file or directory"):
        HttpEndpoint("127.0.0.1:0", lambda: None, CollectorRegistry(), web_config_file=str(folder / "none.yml"))


def test_rotated_certificate_holds_for_the_next_connection(folder: Path) -> None:
    clock = FakeClock()
    with serving(folder, {"tls_server_config": TLS}, clock=clock) as endpoint:
        assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200
        write_server(folder, ca="new")
        clock.advance(1.0)
        assert get(endpoint.port, "/metrics", tls=client_context(trusts="new"))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            get(endpoint.port, "/metrics", tls=client_context())


def test_clients_of_an_authority_that_was_taken_out_are_refused(folder: Path) -> None:
    clock = FakeClock()
    with serving(folder, {"tls_server_config": MUTUAL}, clock=clock) as endpoint:
        known = client_context(shows="prometheus")
        assert get(endpoint.port, "/metrics", tls=known)[0] == 200
        write_authority(folder / "ca.crt", ca="new")
        clock.advance(1.0)
        with pytest.raises((OSError, http.client.HTTPException)):
            get(endpoint.port, "/metrics", tls=known)
        assert get(endpoint.port, "/metrics", tls=client_context(shows="prometheus", of="new"))[0] == 200


def test_password_that_was_changed_does_not_open_any_more(folder: Path) -> None:
    clock = IdleClock()
    with serving(folder, {"basic_auth_users": {"a": HASH}}, clock=clock) as endpoint:
        assert get(endpoint.port, "/metrics", user="a", password="right")[0] == 200
        changed = bcrypt.hashpw(b"changed", bcrypt.gensalt(4)).decode()
        (folder / "web-config.yml").write_text(yaml.safe_dump({"basic_auth_users": {"a": changed}}))
        wait_for(lambda: "http-passwords" in clock.idle, "the end of the check, which would count what goes by now")
        clock.advance(1.0)
        assert get(endpoint.port, "/metrics", user="a", password="right")[0] == 401
        assert get(endpoint.port, "/metrics", user="a", password="changed")[0] == 200


def remove(folder: Path) -> None:
    (folder / "web-config.yml").unlink()


def half_written(folder: Path) -> None:
    (folder / "tls.crt").write_text((folder / "tls.crt").read_text()[:200])


def misspelt(folder: Path) -> None:
    (folder / "web-config.yml").write_text("basic_auth_user: {}\n")


@pytest.mark.parametrize("spoil", [remove, half_written, misspelt], ids=lambda each: each.__name__)
def test_file_that_breaks_later_leaves_what_held_and_is_told_once(folder: Path, spoil: Callable[[Path], None]) -> None:
    clock = FakeClock()
    document = {"tls_server_config": TLS, "basic_auth_users": {"a": HASH}}
    with structlog.testing.capture_logs() as logs, serving(folder, document, clock=clock) as endpoint:
        spoil(folder)
        for _ in range(3):
            clock.advance(1.0)
            assert get(endpoint.port, "/metrics", user="a", password="right", tls=client_context())[0] == 200
            assert get(endpoint.port, "/metrics", tls=client_context())[0] == 401
        errors = [line for line in logs if line["log_level"] == "error"]
        assert [line["event"] for line in errors] == ["web-config file cannot be used, the former one stays in use"]
        write_server(folder)
        (folder / "web-config.yml").write_text("")
        clock.advance(1.0)
        assert get(endpoint.port, "/metrics")[0] == 200


def test_client_that_hangs_up_in_its_handshake_leaves_no_traceback(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(folder, {"tls_server_config": TLS}) as endpoint:
        raw(endpoint.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 600)
        with connect(endpoint.port) as client:
            client.sendall(b"\x16")
        with connect(endpoint.port) as client:
            client.shutdown(socket.SHUT_WR)
        assert get(endpoint.port, "/metrics", tls=client_context())[0] == 200
    assert capfd.readouterr().err == ""
