"""A kubeconfig with insecure-skip-tls-verify: one line of our log, and no warning of Python's."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import structlog
import yaml
from prometheus_client import CollectorRegistry

from dracaena.kube import transport
from dracaena.kube.transport import Transport
from dracaena.process.http import HttpEndpoint
from support.certificates import write_server


def kubeconfig(folder: Path, port: int) -> str:
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_it_is_told_once_and_in_our_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_server(tmp_path)
    (tmp_path / "web-config.yml").write_text("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n")
    server = HttpEndpoint(
        "127.0.0.1:0", lambda: None, CollectorRegistry(), web_config_file=str(tmp_path / "web-config.yml")
    )
    server.start()
    transport._tell_unverified.cache_clear()
    try:
        with structlog.testing.capture_logs() as logs, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                one = Transport.from_kubeconfig(kubeconfig(tmp_path, server.port), user_agent="tests")
                assert [one.request("GET", "/healthz") for _ in range(2)] == [b"ok\n", b"ok\n"]
    finally:
        server.stop()
    assert [(line["log_level"], line["server"]) for line in logs] == [("warning", f"https://127.0.0.1:{server.port}")]
    assert "not verified" in logs[0]["event"]
    assert [str(one.message) for one in seen if "Unverified" in str(one.message)] == []
    assert capfd.readouterr().err == ""
