from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from dracaena.api.errors import BadInputError
from dracaena.controller.adapters.exporters import (
    MOST_BYTES,
    ExporterAccessFiles,
    ExporterError,
    ExportersUrl,
    HttpExporters,
)
from dracaena.controller.views.node_use import read_usage
from dracaena.process.clock import Clock, SystemClock
from support.certificates import write_authority, write_server
from support.clock import FakeClock
from support.exporting_node import HOST, ExportingNode, entry, exporting_node, gpu_uuid, pod_uid
from support.exporting_nvml import FakeProcess
from support.sockets import short_folder

LOCAL = "127.0.0.1"
HERE = "^" + re.escape(f"{LOCAL} ")
GAVE_NONE = HERE + "gave no answer: "
BEGIN = "-----BEGIN CERTIFICATE-----"


def access(
    port: int,
    ca: Path | str = "",
    password: Path | str = "",
    name: str = "",
    *,
    timeout_s: float = 10.0,
    clock: Clock | None = None,
) -> HttpExporters:
    settings = files_of(port, ca, password, name)
    return HttpExporters(settings.now, clock or SystemClock(), timeout_s=timeout_s)


def files_of(port: int, ca: Path | str = "", password: Path | str = "", name: str = "") -> ExporterAccessFiles:
    """What asks as these files say; the file that names them lies next to one of them."""
    login = {"username": "page", "password_file": str(password)} if password else {}
    tls = {key: str(value) for key, value in (("ca_file", ca), ("server_name", name)) if value}
    client = Path(password or ca or "nothing").parent / f"client-{bool(tls)}-{bool(login)}.yaml"
    if login or tls:
        client.write_text(yaml.safe_dump({"basic_auth": login or None, "tls_config": tls or None}))
    scheme = "https" if tls else "http"
    url = ExportersUrl.parse(f"{scheme}://gpu-system:{port}/app=exporter")
    return ExporterAccessFiles(url, str(client) if login or tls else "")


def busy(node: ExportingNode) -> None:
    node.list(entry("a", gpu_uuid(0), number=1))
    node.nvml.activity[0].processes = [FakeProcess(1, 100, sm_percent=40)]
    node.run(1, pod_uid(1))


def test_an_exporter_tells_what_its_containers_use() -> None:
    with short_folder() as folder, exporting_node(folder) as node:
        busy(node)
        told = read_usage(HOST, access(node.program.http.port).usage(LOCAL))
        (use,) = told.uses
        assert (use.namespace, use.pod, use.container, use.gpu) == ("team", "a", "main", 0)
        assert (use.processes, use.memory_bytes, use.sm_percent) == (1, 100 << 20, 40)


def test_one_behind_tls_and_a_password_is_asked_with_both(tmp_path: Path) -> None:
    write_server(tmp_path)
    write_authority(tmp_path / "ca.crt")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    tls = {"cert_file": "tls.crt", "key_file": "tls.key"}
    web = tmp_path / "web-config.yml"
    web.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": {"page": hashed}}))
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("right\n")
    wrong.write_text("wrong\n")
    with short_folder() as folder, exporting_node(folder, web_config_file=str(web)) as node:
        port = node.program.http.port
        assert read_usage(HOST, access(port, tmp_path / "ca.crt", right).usage(LOCAL)).uses == ()
        assert access(port, tmp_path / "ca.crt", right, "localhost").usage(LOCAL)
        with pytest.raises(ExporterError, match=HERE + "refuses the user and password of the controller$"):
            access(port, tmp_path / "ca.crt", wrong).usage(LOCAL)
        with pytest.raises(
            ExporterError, match=HERE + "asks for a password: set basic_auth in page-exporters-client-file$"
        ):
            access(port, tmp_path / "ca.crt").usage(LOCAL)
        with pytest.raises(ExporterError, match=GAVE_NONE + ".*certificate verify failed: Hostname mismatch"):
            access(port, tmp_path / "ca.crt", right, "other.example").usage(LOCAL)
        with pytest.raises(ExporterError, match=HERE + "expects HTTPS: page-exporters needs a URL with https$"):
            access(port, password=right).usage(LOCAL)


def test_who_is_not_of_the_authority_is_not_reported_the_password(tmp_path: Path) -> None:
    write_authority(tmp_path / "ca.crt")
    (tmp_path / "password").write_text("right\n")
    told = b""

    def listen(client: socket.socket) -> None:
        nonlocal told
        while data := client.recv(1 << 16):
            told += data
            client.settimeout(0.2)  # it may say more without an answer

    with answering(listen) as port, pytest.raises(ExporterError, match=GAVE_NONE):
        access(port, tmp_path / "ca.crt", tmp_path / "password").usage(LOCAL)
    assert told.startswith(b"\x16\x03"), "no more than the beginning of a handshake"
    assert b"Authorization" not in told


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection at a time."""
    with socket.create_server((LOCAL, 0)) as listener:
        over = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    with listener.accept()[0] as client:
                        with contextlib.suppress(OSError):
                            answer(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_refusal_ends_the_connection_while_its_error_is_kept() -> None:
    ended = threading.Event()

    def refuse(client: socket.socket) -> None:
        client.recv(1 << 16)
        client.sendall(b"HTTP/1.1 500 Broken\r\nContent-Length: 9\r\n\r\n")
        if client.recv(1) == b"":
            ended.set()

    with answering(refuse) as port:
        with pytest.raises(ExporterError, match=HERE + "answered with status 500$") as kept:
            access(port).usage(LOCAL)
        assert ended.wait(10)
        assert kept.value.__traceback__ is not None, "it holds what was read of the answer"


def hang(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def drip(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b" ")
        time.sleep(0.05)


def drip_headers(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        client.sendall(b"a")
        time.sleep(0.05)


@pytest.mark.parametrize("answer", [hang, drip, drip_headers])
def test_one_that_is_slow_is_cut_off(answer: Callable[[socket.socket], None]) -> None:
    with (
        answering(answer) as port,
        pytest.raises(ExporterError, match=GAVE_NONE + r"it did not arrive in full within 0.5 s$"),
    ):
        access(port, timeout_s=0.5).usage(LOCAL)


def test_what_it_took_to_connect_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, connect = FakeClock(), socket.create_connection

    def connect_slowly(*args: Any, **options: Any) -> socket.socket:
        made = connect(*args, **options)
        clock.advance(29.9)
        return made

    def answer_late(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        client.settimeout(10)
        hang(client)  # until it is cut off, else the answer ends as a good one does

    monkeypatch.setattr(socket, "create_connection", connect_slowly)
    with (
        answering(answer_late) as port,
        pytest.raises(ExporterError, match=GAVE_NONE + "it did not arrive in full within 30 s$"),
    ):
        access(port, timeout_s=30, clock=clock).usage(LOCAL)


def says(answer: bytes) -> Callable[[socket.socket], None]:
    """Return what reads a question and answers it so: one left unread could reset the connection."""

    def say(client: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += client.recv(1 << 16)
        client.sendall(answer)

    return say


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (MOST_BYTES + 1), "answered with more than 4 MiB$"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", "answered with status 500$"),
        (b"HTTP/1.1 403 No\r\n\r\n", "answered with status 403: it may require a client certificate"),
        (b"\x00\xff nonsense\r\n\r\n", "gave no answer: .*nonsense"),
        (b"", "gave no answer: Remote end closed connection without response$"),
    ],
)
def test_whatever_is_at_the_port_ends_in_words(answer: bytes, words: str) -> None:
    with answering(says(answer)) as port, pytest.raises(ExporterError, match=HERE + words):
        access(port).usage(LOCAL)


def test_a_port_at_which_nothing_listens_is_reported() -> None:
    with socket.create_server((LOCAL, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ExporterError, match=GAVE_NONE + ".*Connection refused"):
        access(port).usage(LOCAL)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a", "Expected `object`, got `array`$"),
        ("a: [", "while parsing"),
        ("basic_auth: {username: ''}", "basic_auth needs username, and either password or password_file, not empty$"),
        ("basic_auth: {password: p}", "Object missing required field `username` - at `\\$.basic_auth`$"),
        ("basic_auth: {username: u, password: p, password_file: f}", "basic_auth needs username, and either password"),
        ("basic_auth: {username: u, password: ''}", "basic_auth needs username, and either password"),
        ("basic_auth: {username: u, password: 1}", "Expected `str`, got `int` - at `\\$.basic_auth.password`$"),
        ("basic_auth: secret", "Expected `object . null`, got `str` - at `\\$.basic_auth`$"),
        ("authorization: {credentials: x}", "Object contains unknown field `authorization`$"),
        ("tls_config: {insecure_skip_verify: true}", "Object contains unknown field `insecure_skip_verify`"),
        ("tls_config: {server_name: x}", "has tls_config, and the URL in page-exporters is not https$"),
        ("basic_auth: {username: u, password: p}\nbasic_auth: {}", ".*twice"),
    ],
)
def test_a_client_file_that_cannot_be_used_is_reported_at_the_start(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "client.yaml"
    file.write_text(text)
    with pytest.raises(BadInputError, match=f"^file {file}:? {why}"):
        ExporterAccessFiles(ExportersUrl.parse("http://ns/app=exporter"), str(file))


def test_names_in_a_client_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("right\n")
    (tmp_path / "client.yaml").write_text("basic_auth: {username: u, password_file: password}")
    now = ExporterAccessFiles(ExportersUrl.parse("http://ns/app=e"), str(tmp_path / "client.yaml")).now()
    assert now.headers == {"Authorization": "Basic dTpyaWdodA=="}
    assert (now.port, now.tls) == (9400, None)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://ns/app.example/part=a,b=c", ExportersUrl("ns", "app.example/part=a,b=c", 9400, has_tls=False)),
        ("https://gpu-system:65535/app in (a)".replace(" ", ""), None),
    ],
)
def test_a_url_names_namespace_port_and_labels(url: str, wanted: ExportersUrl | None) -> None:
    assert ExportersUrl.parse(url) == (wanted or ExportersUrl("gpu-system", "appin(a)", 65535, has_tls=True))


@pytest.mark.parametrize(
    "url",
    ["", "ns/app=a", "http://ns", "http://ns/", "http:///app=a", "http://ns:0/a=b", "http://ns:65536/a", "ftp://n/a"],
)
def test_a_url_that_names_no_exporters_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match=r"^page-exporters .*: expected http://NAMESPACE\[:PORT\]/SELECTOR"):
        ExportersUrl.parse(url)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # Given an empty text ssl trusts the authorities of the system, and it takes texts of ASCII only.
        ("", f"holds no certificate of an authority: expected a line {BEGIN}$"),
        ("näher beschrieben\n", f"holds no certificate of an authority: expected a line {BEGIN}$"),
        (f"{BEGIN}\nnothing\n-----END CERTIFICATE-----\n", r"holds a certificate that cannot be read: \[X509\]"),
    ],
)
def test_a_file_without_an_authority_is_reported_at_the_start(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=f"^file {file} {why}"):
        access(1, file)


def test_a_file_of_authorities_may_have_comments_in_any_language_and_only_these_are_trusted(tmp_path: Path) -> None:
    write_authority(tmp_path / "ca.crt")
    (tmp_path / "ca.crt").write_text("# Behörde\n" + (tmp_path / "ca.crt").read_text(), encoding="utf-8")
    tls = files_of(1, tmp_path / "ca.crt").now().tls
    assert tls is not None
    assert len(tls.get_ca_certs()) == 1


def test_files_that_are_not_there_are_reported_at_the_start(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(BadInputError, match=f"^file {absent} cannot be read: .*No such file"):
        access(1, absent)
    with pytest.raises(BadInputError, match=f"^file {absent} cannot be read: .*No such file"):
        access(1, password=absent)


def test_files_are_read_again_when_authority_and_password_are_replaced(tmp_path: Path) -> None:
    def serve(ca: str, password: str) -> str:
        write_server(tmp_path, ca=ca)
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        tls = {"cert_file": "tls.crt", "key_file": "tls.key"}
        (tmp_path / "web.yml").write_text(
            yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": {"page": hashed}})
        )
        return str(tmp_path / "web.yml")

    authorities, password = tmp_path / "ca.crt", tmp_path / "password"
    write_authority(authorities)
    password.write_text("old\n")
    files = files_of(1, authorities, password)
    port = 1
    asked = HttpExporters(lambda: dataclasses.replace(files.now(), port=port), SystemClock(), timeout_s=10.0)
    with short_folder() as folder, exporting_node(folder, web_config_file=serve("ca", "old")) as node:
        port = node.program.http.port
        assert read_usage(HOST, asked.usage(LOCAL)).uses == ()
        assert files.now().tls is files.now().tls, "what stays the same is not made anew"
    with short_folder() as folder, exporting_node(folder, web_config_file=serve("other", "new")) as node:
        port = node.program.http.port
        with pytest.raises(ExporterError, match=GAVE_NONE + ".*certificate verify failed"):
            asked.usage(LOCAL)
        write_authority(authorities, ca="other")
        with pytest.raises(ExporterError, match=HERE + "refuses the user and password of the controller$"):
            asked.usage(LOCAL)
        password.write_text("new\n")
        assert read_usage(HOST, asked.usage(LOCAL)).uses == ()


@pytest.mark.parametrize(("name", "text"), [("ca.crt", ""), ("ca.crt", None), ("password", ""), ("password", None)])
def test_a_file_that_can_no_longer_be_used_is_reported_and_nothing_is_asked_as_before(
    tmp_path: Path, name: str, text: str | None
) -> None:
    write_authority(tmp_path / "ca.crt")
    (tmp_path / "password").write_text("p\n")
    asked = access(1, tmp_path / "ca.crt", tmp_path / "password")
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInputError, match=r"^file .*(not empty$|cannot be read|holds no)"):
        asked.usage(LOCAL)
    write_authority(tmp_path / "ca.crt")
    (tmp_path / "password").write_text("p\n")
    with pytest.raises(ExporterError, match=GAVE_NONE):
        asked.usage(LOCAL)
