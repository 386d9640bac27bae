"""What an admin can set for the plugin."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.process.settings import option

CONTROLLER = "controller"
KUBE_SCHEDULER = "kube-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of `dracaena kubelet-plugin`."""

    node_name: str = option(help="name of this node; its pool of devices has the same name")
    machine: str = option(help="name of a recorded machine or path of its JSON file: the GPUs of this node")
    kubeconfig: str = option("", help="kubeconfig file; without it the pod's ServiceAccount or the usual places")
    driver_name: str = option(DEFAULT_DRIVER_NAME, help="DRA driver name; taint, CDI vendor and annotations follow it")
    kubelet_root: str = option("/var/lib/kubelet", help="kubelet's folder (its --root-dir)")
    cdi_root: str = option("/var/run/cdi", help="folder where the container runtime looks for CDI specs")
    dev_root: str = option("/", help="folder of the host that holds its /dev")
    pod_uid: str = option("", help="UID of the plugin's own pod: lets two instances run during an upgrade")
    allocator: str = option(
        CONTROLLER,
        help="who allocates the devices of this node; with kube-scheduler they are published without our taint",
        choices=(CONTROLLER, KUBE_SCHEDULER),
    )
    http_address: str = option("127.0.0.1:0", help="host:port of /healthz, /readyz, /metrics; port 0: any; empty: off")
    log_level: str = option("info", help="least level of log lines", choices=("debug", "info", "warning", "error"))
    log_format: str = option("json", help="form of log lines", choices=("json", "text"))
