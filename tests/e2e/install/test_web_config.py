"""Metrics behind TLS and a password, with kubelet's probes as the chart has them."""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from e2e.install.chart_cluster import NAMESPACE, ChartCluster
from e2e.waiting import eventually
from support.certificates import client_context, write_server

SECRET = "metrics-web"
USER, PASSWORD = "prometheus", "correct horse"
PORT = 8080
REPLACED_S = 120.0


@pytest.fixture
def protected(chart: ChartCluster, tmp_path: Path) -> Iterator[ChartCluster]:
    write_server(tmp_path)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(6)).decode()
    (tmp_path / "web-config.yml").write_text(
        f"tls_server_config: {{cert_file: tls.crt, key_file: tls.key}}\nbasic_auth_users: {{{USER}: {hashed}}}\n"
    )
    names = ("web-config.yml", "tls.crt", "tls.key")
    files = [f"--from-file={tmp_path / name}" for name in names]
    chart.kubectl("--namespace", NAMESPACE, "create", "secret", "generic", SECRET, *files)
    try:
        chart.upgrade(webConfig={"secretName": SECRET})
        yield chart
    finally:
        chart.upgrade()
        chart.kubectl("--namespace", NAMESPACE, "delete", "secret", SECRET)


def pods(chart: ChartCluster) -> list[str]:
    """Return the addresses of our pods once those of before the upgrade are gone."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def all_new() -> bool:
        found = chart.api.items(path)
        volumes = [{volume["name"] for volume in pod["spec"]["volumes"]} for pod in found]
        return len(found) == 3 and all("web-config" in names for names in volumes)

    eventually(all_new, "all pods have the file", within_s=REPLACED_S, programs=chart.programs)
    return [pod["status"]["podIP"] for pod in chart.api.items(path)]


def status(url: str, *, password: str = "") -> int:
    context = client_context() if url.startswith("https:") else None
    if context is not None:
        context.check_hostname = False  # the certificate is for another address; its authority is checked
        assert context.verify_mode is ssl.CERT_REQUIRED
    request = urllib.request.Request(url)
    if password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{USER}:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_metrics_are_protected_and_kubelet_still_finds_the_pods_ready(protected: ChartCluster) -> None:
    for address in pods(protected):
        assert status(f"https://{address}:{PORT}/metrics", password=PASSWORD) == 200
        assert status(f"https://{address}:{PORT}/metrics", password="wrong") == 401
        assert status(f"https://{address}:{PORT}/metrics") == 401
        assert status(f"http://{address}:{PORT}/metrics", password=PASSWORD) == 400
        for page in ("healthz", "readyz"):
            assert status(f"http://{address}:{PORT}/{page}") == status(f"https://{address}:{PORT}/{page}") == 200
