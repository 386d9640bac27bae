"""What can be set about the controller, with defaults and units."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.process.settings import DRIVER_NAME, option


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of `dracaena controller`."""

    kubeconfig: str = option(
        "", help="kubeconfig file; empty: the pod's ServiceAccount, else KUBECONFIG or ~/.kube/config"
    )
    driver_name: str = option(
        DEFAULT_DRIVER_NAME, help="name of the DRA driver whose devices are allocated", form=DRIVER_NAME
    )
    log_level: str = option("info", help="least severe log lines", choices=("debug", "info", "warning", "error"))
    log_format: str = option("json", help="form of log lines", choices=("json", "text"))
    http_address: str = option(
        "127.0.0.1:0", help="host:port of /healthz, /readyz and /metrics; port 0: any free one; empty: off"
    )
    # Writes wait for the API server most of the time: four workers keep it busy, decisions are made one at a time.
    workers: int = option(4, help="pods whose claims are written at the same time", least=1)
    # A bind that began before the reservation was dropped has ended after 2 s: with this wait no pod of 40 was
    # bound without devices, without it 2 of 40 were (real 1.36.3 control plane).
    unbound_wait_s: float = option(
        2.0,
        help="seconds between dropping a reservation and clearing its allocation, when devices are taken back",
        least=0.5,
    )
