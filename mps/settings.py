"""What an admin can set for the MPS supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.process.settings import DRIVER_NAME, WEB_CONFIG_HELP, TextForm, option

ROOT = TextForm(r"/[A-Za-z0-9_./-]*[A-Za-z0-9_-]", "an absolute path of letters, digits and . _ - /")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings:
    """Settings of `dracaena mps`."""

    FORMER: ClassVar[Mapping[str, str]] = {
        "protocol": "it is 3 where the driver has it, else 2, leave it out",
        "check-s": "it is a constant now, leave it out",
        "poll-s": "it is a constant now, leave it out",
    }

    root: str = option(
        "/run/dracaena/mps",
        help="folder shared with the kubelet plugin, at the same path as on the host; must be on a tmpfs, and short "
        "because of the sockets below it",
        form=ROOT,
    )
    driver_root_mount: str = option(
        "/", help="where this process sees the root folder of the NVIDIA driver installation"
    )
    driver_name: str = option(
        DEFAULT_DRIVER_NAME,
        help="DRA driver of this node's plugin, whose folder says when the GPU driver must be released",
        form=DRIVER_NAME,
    )
    kubelet_root: str = option("/var/lib/kubelet", help="kubelet's folder, which contains that of the plugin")
    multi_user: bool = option(
        True,
        help="serve clients of all users on one GPU (Volta and later); false: of one user at a time, which the plugin "
        "must then know",
    )
    http_address: str = option(
        "127.0.0.1:0", help="host:port of /healthz, /readyz and /metrics; port 0: any free port; empty: off"
    )
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    log_level: str = option(
        "info", help="lowest severity that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("json", help="format of log lines", choices=("json", "text"))
