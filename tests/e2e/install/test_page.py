"""The page as the chart turns it on: with a token of the cluster, whose rights say which names are shown."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, ChartCluster
from e2e.waiting import eventually

PORT = 8082
FLEET = "/api/fleet"
TEAM = "/api/team?namespace=default"


def ask(address: str, path: str, token: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{address}:{PORT}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_token_of_the_cluster_opens_the_page_and_shows_no_names_without_a_right(chart: ChartCluster) -> None:
    selector = "app.kubernetes.io/component=controller"
    pods = chart.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")
    token = chart.kubectl("create", "token", "default").strip()
    for pod in pods:
        address = pod["status"]["podIP"]
        assert ask(address, FLEET)[0] == 401
        assert ask(address, FLEET, "made-up")[0] == 401

        def shows_the_node(address: str = address) -> bool:
            status, fleet = ask(address, FLEET, token)
            return status == 200 and [row[0] for row in fleet["nodes"]] == [NODE_NAME]

        eventually(shows_the_node, "the page shows the node", within_s=60.0, programs=chart.programs)
        assert ask(address, TEAM, token)[0] == 404, "whose pods may not be listed is not named"
