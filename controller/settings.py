"""The controller's settings, with defaults and units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.topology_levels import DEFAULT_LEVELS, MOST_LEVELS, PRESETS, TopologyLevels
from dracaena.process.settings import DRIVER_NAME, WEB_CONFIG_HELP, Structure, option
from dracaena.validation.topology_levels import read_topology_levels

TOPOLOGY_LEVELS: Final = Structure(
    read_topology_levels,
    {"type": "array", "maxItems": MOST_LEVELS, "items": {"type": "string"}},
    "[LABEL, …]",
)

_CONSTANT: Final = "it is a constant now, leave it out"
_CLIENT_FILE: Final = "name a file with basic_auth and tls_config in page-exporters-client-file"


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of `dracaena controller`."""

    FORMER: ClassVar[Mapping[str, str]] = {
        "unbound-wait-s": _CONSTANT,
        "refused-wait-s": _CONSTANT,
        "passed-over-wait-s": _CONSTANT,
        "exclusion-s": _CONSTANT,
        "longest-exclusion-s": _CONSTANT,
        "search-steps": _CONSTANT,
        "lease-name": "the Lease is named controller.<driver name>, leave it out",
        "page-exporters-port": "put the port into the URL of page-exporters: http://NAMESPACE:PORT/SELECTOR",
        "page-exporters-ca-file": _CLIENT_FILE,
        "page-exporters-server-name": _CLIENT_FILE,
        "page-exporters-password-file": _CLIENT_FILE,
    }

    kubeconfig: str = option(
        "", help="kubeconfig file; empty: the pod's ServiceAccount, else KUBECONFIG or ~/.kube/config"
    )
    driver_name: str = option(
        DEFAULT_DRIVER_NAME, help="name of the DRA driver whose devices are allocated", form=DRIVER_NAME
    )
    log_level: str = option(
        "info", help="lowest severity that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("json", help="format of log lines", choices=("json", "text"))
    http_address: str = option(
        "127.0.0.1:0", help="host:port of /healthz, /readyz and /metrics; port 0: any free port; empty: off"
    )
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    page_address: str = option(
        "",
        help="host:port of a read-only page that shows the trees of the nodes, who has what and what waits; users log "
        "in with a user of the web-config file or a bearer token of the cluster; port 0: any free port; empty: "
        "off",
    )
    page_open: bool = option(
        False,
        help="serve the page without password or token; only allowed at an address of this machine, such as "
        "127.0.0.1:8081",
    )
    page_exporters: str = option(
        "",
        help="exporters that the page asks about the GPUs when a user opens a node: URL of the form "
        "http://NAMESPACE[:PORT]/SELECTOR, or https, with the labels of their pods, for example "
        "http://gpu-system/app.kubernetes.io/component=exporter; port 9400 unless one is given; empty: none",
    )
    page_exporters_client_file: str = option(
        "",
        help="file that says how these exporters are asked, as Prometheus' HTTP client settings: basic_auth (username, "
        "password or password_file) and tls_config (ca_file, and server_name because they are reached by address); "
        "empty: without password",
    )
    leader_elect: bool = option(
        True,
        help="elect one replica that writes, through a Lease; false only if a single controller runs, and none is "
        "started within 10 s after one was killed: until then a last write of the old one may land",
    )
    lease_namespace: str = option(
        "", help="namespace of the Lease, the same for all replicas; empty: the pod's own, outside a pod `default`"
    )
    lease_identity: str = option(
        "", help="name of this replica in the Lease, to which a random part is added; empty: the host's name"
    )
    # A leader that dies is replaced this long plus at most WRITE_TIMEOUT_S (10 s) after its last renewal. It writes
    # while its last renewal is younger than the duration less 10 s: two attempts that hang for 3 s must fit in, so 14 s
    # is the least, and 20 s ride out an API server that is slow for some seconds.
    lease_duration_s: int = option(
        20, help="seconds for which a replica leads after its last renewal, the same for all replicas", least=14
    )
    # Writes mostly wait for the API server, 100 ms and more each while it is busy; decisions are made one by one. With
    # 4 workers, pods wait for one and kube-scheduler tries them without success until then (`make bench-cluster`, 100
    # nodes, a busy machine: 12 pods bound per second; with 16: 33). Of the 32 connections the caches take about eight.
    workers: int = option(16, help="number of pods whose claims are written at the same time", least=1)
    # kube-scheduler's own bounds: 15 minutes for a Permit plugin, then 10 minutes for volumes and for other drivers'
    # binding conditions side by side, and a minute for the rest.
    longest_bind_s: float = option(
        1560.0,
        help="longest time in seconds that a bind can take, from when kube-scheduler looks at the claims: if it "
        "reports nothing about a pod, the pod's devices are held back this long before others get them",
        least=1,
    )
    # For one write of ours, the hint saves kube-scheduler the search for the node, which grows with the number of
    # nodes. From 1.35 on it also saves kube-scheduler the same write.
    nominate_above_nodes: int = option(
        500,
        help="number of nodes above which kube-scheduler learns the node of the devices in the pod's "
        "nominatedNodeName; 0: always, -1: never",
        least=-1,
    )
    # Autoscalers look every 10 s or so. A pod that passes the gate but fits nowhere costs kube-scheduler an attempt
    # after each of its back-offs.
    gate_wait_s: float = option(
        20.0,
        help="seconds for which a pod that fits nowhere is held at the scheduling gate of this driver; after that "
        "autoscalers and people see it as Unschedulable; 0: it passes at once",
        least=0,
    )
    # While it stays, the next pod of a Deployment or Job waits for one write less.
    unused_template_s: float = option(
        600.0,
        help="seconds after which a ResourceClaimTemplate that was made for pods with an extended resource is deleted "
        "once no pod uses it",
        least=10,
    )
    # Long compared with the seconds in which devices are ordinarily freed and given again, short compared with the
    # hours that large jobs run. While a node is kept, its free GPUs are idle: at most one node, as long as others hold
    # it.
    starvation_wait_s: float = option(
        300.0,
        help="age in seconds from which one node is kept free for a pod that waits only because GPUs are taken; 0: "
        "never",
        least=0,
    )
    topology_levels: TopologyLevels = option(  # noqa: RUF009 - a field, as the others
        DEFAULT_LEVELS,
        help="node labels that name racks, blocks and the like, the largest first, or names of known lists of labels "
        f"({', '.join(sorted(PRESETS))}), or kueue alone for those of its Topology: pods of one job are placed near "
        f"each other; [] for none, default [{', '.join(DEFAULT_LEVELS.labels)}]",
        structure=TOPOLOGY_LEVELS,
    )
    selection: str = option(
        "best",
        help="which of the permitted devices a pod gets: the best-linked ones, or the first in Kubernetes' own order",
        choices=("best", "first-fit"),
    )
    allowed_drivers: str = option(
        "",
        help="comma-separated names of other DRA drivers whose devices may be allocated in one claim with ours, "
        "although kube-scheduler may take them at the same moment; empty: none",
    )
