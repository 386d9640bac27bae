"""How containerd, CRI-O and NVIDIA's runtime are configured on the host."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.discovery.health.toolkit_access import ToolkitConfig

FILES: Final = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/k0s/containerd.toml",
    "/etc/crio/crio.conf",
)
FOLDERS: Final = ("/etc/containerd/conf.d", "/etc/k0s/containerd.d", "/etc/crio/crio.conf.d")
"""Of containerd by its packages, k3s, RKE2, MicroK8s and k0s, and of CRI-O. Files in folders count after the others, in
the order of their names."""

TOOLKIT_FILE: Final = "nvidia-container-runtime/config.toml"
"""Below /etc; below `.config` beside the program where the GPU operator has installed it."""

MOST_BYTES: Final = 1 << 20
"""Of one file: containerd's default configuration has 10 KB."""


def runtime_documents(host: GpuDriverRoot) -> Iterator[Mapping[str, Any]]:
    """Yield the files of containerd and CRI-O that can be read, in the order in which they count."""
    in_folders = (f"{folder}/{name}" for folder in FOLDERS for name in host.names(folder))
    for path in (*FILES, *(path for path in in_folders if path.endswith((".toml", ".conf")))):
        found = _document(host, path)
        if found is not None:
            yield found


def toolkit_config(host: GpuDriverRoot, program: str) -> ToolkitConfig:
    """Return how NVIDIA's runtime program at a path is configured."""
    beside, general = str(PurePosixPath(program).parent / ".config" / TOOLKIT_FILE), f"/etc/{TOOLKIT_FILE}"
    found = ((path, _document(host, path)) for path in (beside, general))
    return next((ToolkitConfig(path, document) for path, document in found if document), ToolkitConfig(general, {}))


def _document(host: GpuDriverRoot, path: str) -> Mapping[str, Any] | None:
    resolved = host.resolve(path)
    if resolved is None:
        return None
    try:
        with host.on_disk(resolved).open("rb") as file:
            return tomllib.loads(file.read(MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError):  # no file, or no TOML: the runtime does not use it either
        return None
