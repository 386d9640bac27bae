"""Runs NVIDIA's own hook tool as a container runtime would, with the hooks of our specs, for each made-up host.

    GOBIN=/tmp go install github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook@v1.20.1
    PYTHONPATH=tests python -m conformance.cdi_hooks /tmp/nvidia-cdi-hook

As root, because the tool takes the container's folder as its root. Every hook must end well, and then the loader of the
container must know each library of the driver by its SONAME.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.cdi import DRIVER, UID
from dracaena.host.adapters.gpu_driver.ld_so_cache import read_ld_so_cache
from dracaena.kubelet_plugin.adapters.gpu_driver.elf import read_elf
from dracaena.kubelet_plugin.device_kinds.cdi_spec import claim_spec
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.driver_trees import AARCH64, LAYOUTS, Layout, installation_of, make_host, nodes_of

STATE = {"ociVersion": "1.0.2", "id": "container", "status": "creating", "pid": 1}
CONFIGURATION = {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": ["x"], "env": []}}
AS_MOUNT = 'mount --bind "$0" "$0" && exec "$@"'
"""A runtime has the container's folder as a mount of its own; here it is one for the hook alone."""


def problems(tool: str, folder: Path, layout: Layout) -> Iterator[str]:
    """Yield what goes wrong in a container on one host; `folder` is empty."""
    host, container = folder / "host", folder / "bundle/rootfs"
    make_host(host, layout)
    spec = _spec(host, layout)
    for name in ("etc", "sbin", "proc", "dev"):
        (container / name).mkdir(parents=True)
    (folder / "bundle/config.json").write_text(json.dumps(CONFIGURATION))
    _mount(host, container, spec["containerEdits"]["mounts"])
    state = json.dumps({**STATE, "bundle": str(folder / "bundle")})
    for edits in (spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])):
        for hook in edits.get("hooks", ()):
            command = ["unshare", "-m", "sh", "-c", AS_MOUNT, str(container), tool, *hook["args"][1:]]
            done = subprocess.run(command, input=state, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                yield f"{hook['args'][1]} ends with {done.returncode}: {done.stderr.strip()}"
    known = {(each.name, each.path) for each in read_ld_so_cache(container / "etc/ld.so.cache")}
    for mount in spec["containerEdits"]["mounts"]:
        place = Path(mount["containerPath"])
        facts = read_elf(container / str(place).lstrip("/"))
        in_modules = "xorg" in place.parts
        if facts is not None and facts.soname and not in_modules:
            link = str(place.parent / facts.soname)
            if (facts.soname, link) not in known:
                yield f"the loader does not know {link}"


def _spec(host: Path, layout: Layout) -> Mapping[str, Any]:
    devices = tuple(device for gpu in layout.gpus for device in gpu.devices())
    prepared = PreparedClaim(ClaimReference("default", "claim", UID), devices)
    nodes = nodes_of(host, layout).of_claim(devices)
    document = json.loads(claim_spec(prepared, DRIVER, nodes, installation_of(host, layout).edits()))
    assert isinstance(document, dict)
    return document


def _mount(host: Path, container: Path, mounts: Sequence[Mapping[str, Any]]) -> None:
    for mount in mounts:
        source, target = (
            root / mount[key].lstrip("/") for root, key in ((host, "hostPath"), (container, "containerPath"))
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            target.write_bytes(source.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when something goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    tool = parser.parse_args(arguments).tool
    failed = False
    for name, layout in LAYOUTS.items():
        if layout.folder == AARCH64:
            continue  # ldconfig of this machine leaves out libraries of another one
        with tempfile.TemporaryDirectory() as folder:
            found = list(problems(tool, Path(folder), layout))
        failed = failed or bool(found)
        sys.stdout.write(f"{name}: {len(found)} problems\n")
        sys.stdout.writelines(f"  {problem}\n" for problem in found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
