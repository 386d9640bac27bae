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
from e2e.control_plane import ADMIN, ControlPlane
from e2e.install.chart_cluster import NAMESPACE, RELEASE

NODE_NAME_KEY = "authentication.kubernetes.io/node-name"
"""What kube-apiserver puts into the extra of a user whose token is bound to a pod on a node."""


@dataclass(frozen=True, slots=True)
class As:
    """The administrator, who impersonates somebody."""

    control_plane: ControlPlane
    user: str
    node: str = ""

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
        headers = {"Authorization": f"Bearer {ADMIN.token}", "Impersonate-User": self.user}
        if self.node:
            headers[f"Impersonate-Extra-{NODE_NAME_KEY.replace('/', '%2F')}"] = self.node
        return headers


def controller(control_plane: ControlPlane, node: str = "") -> As:
    """The controller's ServiceAccount."""
    return As(control_plane, f"system:serviceaccount:{NAMESPACE}:{RELEASE}-controller", node)


def plugin(control_plane: ControlPlane, node: str = "") -> As:
    """The plugin's ServiceAccount, in a pod on a node."""
    return As(control_plane, f"system:serviceaccount:{NAMESPACE}:{RELEASE}-kubelet-plugin", node)
