"""Requests as one of our ServiceAccounts, as its pod on a node would send them."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.api import JSON, MERGE_PATCH, TIMEOUT_S, Answer
from e2e.api_server import BareApiServer
from e2e.control_plane import ADMIN, ControlPlane
from e2e.install.chart_cluster import NAMESPACE, RELEASE, TRYING, ChartCluster

NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
"""What kube-apiserver puts into the extra of a user whose token is bound to a pod on a node."""


@dataclass(frozen=True, slots=True)
class As:
    """Whoever has a token, of the administrator if none is given, and impersonates somebody."""

    control_plane: ControlPlane | BareApiServer
    user: str
    node: str = ""
    token: str = ADMIN.token

    def send(self, method: str, path: str, body: Any = None) -> Answer:
        """Send one request and return whatever comes back."""
        request = urllib.request.Request(f"{self.control_plane.url}{path}", method=method)
        for name, value in self._headers().items():
            request.add_header(name, value)
        data = json.dumps(body).encode() if body is not None else None
        if data is not None:
            request.add_header("Content-Type", MERGE_PATCH if method == "PATCH" else JSON)
        tls = ssl.create_default_context(cafile=str(self.control_plane.authority))
        try:
            with urllib.request.urlopen(request, data, timeout=TIMEOUT_S, context=tls) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())

    def _headers(self) -> Mapping[str, str]:
        headers = {"Authorization": f"Bearer {self.token}", "Impersonate-User": self.user, "User-Agent": TRYING}
        if self.node:
            headers[f"Impersonate-Extra-{NODE_NAME_KEY.replace('/', '%2F')}"] = self.node
        return headers


def controller(control_plane: ControlPlane | BareApiServer, node: str = "") -> As:
    """The controller's ServiceAccount."""
    return As(control_plane, f"system:serviceaccount:{NAMESPACE}:{RELEASE}-controller", node)


def plugin(control_plane: ControlPlane | BareApiServer, node: str = "") -> As:
    """The plugin's ServiceAccount, in a pod on a node."""
    return As(control_plane, f"system:serviceaccount:{NAMESPACE}:{RELEASE}-kubelet-plugin", node)


def plugin_as_node(chart: ChartCluster, node: str) -> As:
    """The plugin that runs, with a token that is bound to its pod, as the node of that name."""
    selector = "app.kubernetes.io/component=kubelet-plugin"
    (pod, *_) = chart.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")
    bound = {key: pod["metadata"][key] for key in ("name", "uid")} | {"apiVersion": "v1", "kind": "Pod"}
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": bound, "expirationSeconds": 600},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{RELEASE}-kubelet-plugin/token"
    answer = chart.api.send("POST", path, asked)
    assert answer.status == 201, answer.message
    return As(chart.control_plane, f"system:node:{node}", token=answer.document["status"]["token"])
