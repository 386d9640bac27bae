"""The exporter behind TLS and a password, over real sockets: pages that tell of pods, and those that kubelet needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.certificates import client_context, write_authority, write_server
from support.exporting_node import ExportingNode, entry, exporting_node, gpu_uuid
from support.http_probe import get
from support.sockets import short_folder

PROTECTED = ("/metrics", "/graph", "/usage")
HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
TLS = {"cert_file": "tls.crt", "key_file": "tls.key"}


@pytest.fixture
def web() -> Iterator[Path]:
    with short_folder() as folder:
        write_server(folder)
        write_authority(folder / "ca.crt")
        yield folder / "web-config.yml"


def write(web: Path, **document: object) -> str:
    web.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(web)


def names(node: ExportingNode, user: str, password: str) -> list[str]:
    """Return the pods that a scrape over TLS tells of."""
    port = node.program.http.port
    status, text, _ = get(port, "/metrics", tls=client_context(), user=user, password=password, timeout_s=30.0)
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return [sample.labels["pod"] for sample in families["dracaena_gpu_allocation_info"].samples]


def test_the_right_password_over_tls_opens_and_nothing_else_does(web: Path) -> None:
    config = write(web, tls_server_config=TLS, basic_auth_users={"prometheus": HASH})
    with exporting_node(web.parent, web_config_file=config) as node:
        node.list(entry("trainer", gpu_uuid(0)))
        port = node.program.http.port
        assert names(node, "prometheus", "right") == ["trainer"]
        for path in PROTECTED:
            assert get(port, path, tls=client_context(), user="prometheus", password="right", timeout_s=30.0)[0] == 200
            wrong = (("prometheus", "wrong"), ("prometheus", ""), ("somebody", "right"), ("", ""))
            for user, password in wrong:
                status, text, _ = get(port, path, tls=client_context(), user=user, password=password, timeout_s=30.0)
                assert (status, "trainer" in text) == (401, False), (path, user, password)
            status, text, _ = get(port, path, user="prometheus", password="right", timeout_s=30.0)
            assert (status, "trainer" in text) == (400, False), f"{path} without TLS"


def test_kubelet_asks_for_health_without_tls_and_password(web: Path) -> None:
    config = write(web, tls_server_config=TLS, basic_auth_users={"prometheus": HASH})
    with exporting_node(web.parent, web_config_file=config) as node:
        for tls in (None, client_context()):
            assert get(node.program.http.port, "/healthz", tls=tls, timeout_s=30.0)[:2] == (200, "ok\n")


def test_a_client_certificate_of_the_authority_opens_where_one_is_demanded(web: Path) -> None:
    demanded = {**TLS, "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}
    with exporting_node(web.parent, web_config_file=write(web, tls_server_config=demanded)) as node:
        port = node.program.http.port
        shown = client_context(shows="prometheus")
        assert get(port, "/metrics", tls=shown, timeout_s=30.0)[0] == 200
        assert get(port, "/metrics", tls=client_context(), timeout_s=30.0)[0] == 403
