"""Dracaena on the cluster, without a chart: its two programs as processes, its DeviceClass and its rights."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from e2e.control_plane import DRACAENA_CONTROLLER, DRACAENA_PLUGIN, ControlPlane
from e2e.gpus import StandInGpus
from e2e.node import CDI_ROOT, Node
from e2e.processes import Program
from e2e.waiting import eventually

DRIVER = "gpu.dracaena.dev"
REPOSITORY = Path(__file__).parents[2]
RIGHTS = Path(__file__).parent / "manifests" / "rbac.yaml"
DEVICE_CLASSES = REPOSITORY / "deploy" / "deviceclasses"

CONTROLLER_PORT = 8081
PLUGIN_PORT = 8082

START_S = 60.0
"""A program is ready 2 s after its start on a free machine, the plugin when kubelet has found it."""

_CLAIMS_METRIC = "dracaena_plugin_claims_total{"

MAIN = "dracaena.cli.main"
_PYTHON = (sys.executable, "-P", "-m")


class Installation:
    """The two programs of one cluster with one node."""

    def __init__(self, control_plane: ControlPlane, node: Node, gpus: StandInGpus, logs: Path) -> None:
        self._control_plane = control_plane
        self._node = node
        self._gpus = gpus
        self._logs = logs
        self.controller = Program("dracaena-controller", self._controller_command(), logs)
        self.plugin = Program("dracaena-kubelet-plugin", self._plugin_command(gpus), logs)
        self.programs = (self.controller, self.plugin)

    @property
    def plugin_data(self) -> Path:
        """The plugin's own folder below kubelet's."""
        return self._node.kubelet_root / "plugins" / DRIVER

    @property
    def podlist_path(self) -> Path:
        """The file that monitoring reads."""
        return self._node.kubelet_root / "pod-resources" / "podlist.json"

    def start(self) -> None:
        """Give the rights, make the DeviceClass, start both programs and wait until the devices are published."""
        self._control_plane.kubectl("apply", "--filename", RIGHTS, "--filename", DEVICE_CLASSES)
        self.controller.start()
        self.plugin.start()
        self.wait_ready()

    def stop(self) -> None:
        """End both programs."""
        for program in self.programs:
            program.stop()

    def wait_ready(self) -> None:
        """Wait until both programs say that they are ready, kubelet knows the plugin and the devices are published.

        A pod that is bound before kubelet knows the plugin waits for kubelet's next sync.
        """
        for program, port in ((self.controller, CONTROLLER_PORT), (self.plugin, PLUGIN_PORT)):
            ready = partial(serves, port, "/readyz")
            eventually(ready, f"{program.name} is ready", within_s=START_S, programs=(program,))
        registered = partial(serves, PLUGIN_PORT, "/metrics", "dracaena_plugin_registered 1.0")
        eventually(registered, "kubelet takes the plugin", within_s=START_S, programs=self.programs)
        eventually(self.slices, "the devices are published", within_s=START_S, programs=self.programs)

    @contextmanager
    def published_anew(self) -> Iterator[None]:
        """At the end of the block, in which kubelet is started, wait until the devices are published again: kubelet
        deletes the slices of its node a moment after it started, at another time where the API server is away then.
        Until that has happened they are those of before."""
        before = self._slice_uids()
        yield
        what = "kubelet has deleted the slices, and the devices are published again"
        eventually(partial(self._has_others, before), what, within_s=START_S, programs=self.programs)

    def another_plugin(self, pod_uid: str, port: int, environment: Mapping[str, str] | None = None) -> Program:
        """Return one more instance of the plugin, not started, as the pod of this UID runs it during an upgrade."""
        flags = (f"--pod-uid={pod_uid}", f"--http-address=127.0.0.1:{port}")
        command = (*self._plugin_command(self._gpus), *flags)
        return Program(f"dracaena-kubelet-plugin-{pod_uid}", command, self._logs, environment=environment)

    def plugin_of_another_machine(
        self, name: str, within: Sequence[str | Path], *options: str | Path, main: str = MAIN
    ) -> Program:
        """Return the plugin of this node, not started, with other options about GPUs; `within` is the command that runs
        it, `main` the module that takes the command line."""
        command = (*within, *self._plugin_of_the_node(main), *options)
        return Program(f"dracaena-kubelet-plugin-{name}", command, self._logs)

    def slices(self) -> list[Any]:
        """Return the ResourceSlices of our driver on this node."""
        found = self._control_plane.api().items("/apis/resource.k8s.io/v1/resourceslices")
        ours = (DRIVER, self._node.name)
        return [one for one in found if (one["spec"]["driver"], one["spec"].get("nodeName")) == ours]

    def devices(self) -> list[Any]:
        """Return the devices in these slices."""
        return [device for one in self.slices() for device in one["spec"].get("devices") or ()]

    def podlist(self) -> list[dict[str, Any]]:
        """Return what podlist.json holds, nothing while it is not there."""
        if not self.podlist_path.exists():
            return []
        entries: list[dict[str, Any]] = json.loads(self.podlist_path.read_text(encoding="utf-8"))
        return entries

    def prepare_calls(self) -> float:
        """Return how many claims kubelet has asked the plugin to prepare since the plugin's start."""
        lines = [line for line in _read(PLUGIN_PORT, "/metrics").splitlines() if line.startswith(_CLAIMS_METRIC)]
        return sum(float(line.split()[-1]) for line in lines if 'operation="prepare"' in line)

    def cdi_specs(self) -> list[Path]:
        """Return our CDI specs."""
        return sorted(CDI_ROOT.glob(f"{DRIVER}-claim_*.json"))

    def _has_others(self, before: AbstractSet[str]) -> bool:
        now = self._slice_uids()
        return bool(now) and now.isdisjoint(before)

    def _slice_uids(self) -> AbstractSet[str]:
        return frozenset(str(one["metadata"]["uid"]) for one in self.slices())

    def _controller_command(self) -> list[str | Path]:
        return [
            *_PYTHON,
            MAIN,
            "controller",
            f"--kubeconfig={self._control_plane.kubeconfig(DRACAENA_CONTROLLER)}",
            f"--http-address=127.0.0.1:{CONTROLLER_PORT}",
            "--leader-elect=false",  # after a kill the next one would wait for the lease: test_leadership.py does
            "--log-level=debug",
        ]

    def _plugin_command(self, gpus: StandInGpus) -> list[str | Path]:
        return [
            *self._plugin_of_the_node(),
            f"--machine={gpus.machine}",
            f"--dev-root={gpus.dev_root}",
            f"--driver-root={gpus.driver_root}",
        ]

    def _plugin_of_the_node(self, main: str = MAIN) -> list[str | Path]:
        return [
            *_PYTHON,
            main,
            "kubelet-plugin",
            f"--kubeconfig={self._control_plane.kubeconfig(DRACAENA_PLUGIN)}",
            f"--node-name={self._node.name}",
            f"--kubelet-root={self._node.kubelet_root}",
            f"--http-address=127.0.0.1:{PLUGIN_PORT}",
            "--log-level=debug",
        ]


def serves(port: int, path: str, text: str = "") -> bool:
    try:
        return text in _read(port, path)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _read(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        return str(response.read().decode())
