"""What an admin can set for the MPS supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.process.settings import DRIVER_NAME, WEB_CONFIG_HELP, TextForm, option

ROOT = TextForm(r"/[A-Za-z0-9_./-]*[A-Za-z0-9_-]", "an absolute path of letters, digits and . _ - /")

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings:
    """Settings of `dracaena mps`."""

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
    protocol: str = option(
        AUTO, help="protocol of nvidia-cuda-mps-control; auto: 3 if the driver has it (R615), else 2",
        choices=(AUTO, "2", "3"),
    )  # fmt: skip
    multi_user: bool = option(
        True,
        help="serve clients of all users on one GPU (Volta and later); false: of one user at a time, which the plugin "
        "must then know",
    )
    check_s: float = option(
        5.0, help="seconds between two checks of running servers; a process that dies is noticed at once", least=0.1
    )
    poll_s: float = option(
        0.2, help="seconds between two looks for new requests and for processes that died", least=0.01
    )
    http_address: str = option(
        "127.0.0.1:0", help="host:port of /healthz, /readyz and /metrics; port 0: any free port; empty: off"
    )
    web_config_file: str = option("", help=WEB_CONFIG_HELP)
    log_level: str = option(
        "info", help="lowest severity that is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option("json", help="format of log lines", choices=("json", "text"))
