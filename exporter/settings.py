"""What an admin can set for the exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.process.settings import DRIVER_NAME, NODE_NAME, WEB_CONFIG_HELP, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Settings of `dracaena exporter`."""

    FORMER: ClassVar[Mapping[str, str]] = {"deadline-s": "it is a constant now, leave it out"}

    node_name: str = option(help="name of this node, and the label hostname of all series", form=NODE_NAME)
    driver_name: str = option(
        DEFAULT_DRIVER_NAME,
        help="DRA driver of this node's plugin, whose folder says when the GPU driver must be released",
        form=DRIVER_NAME,
    )
    kubelet_root: str = option("/var/lib/kubelet", help="kubelet's folder; podlist.json is in its pod-resources")
    driver_root_mount: str = option(
        "/", help="where this process sees the root folder of the NVIDIA driver installation"
    )
    collectors: str = option(
        "",
        help="file that selects fields, in the format of dcgm-exporter (FIELD, type, help); empty: the default fields",
    )
    idle_after_s: float = option(
        900.0, help="seconds without use after which an allocated GPU counts as idle", least=1.0
    )
    http_address: str = option(
        "127.0.0.1:9400", help="host:port of /metrics, /healthz and /readyz; port 0: any free port"
    )
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    log_level: str = option(
        "info", help="lowest severity that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("json", help="format of log lines", choices=("json", "text"))
