"""A whole cluster for one run: control plane, one node, and Dracaena on it. Left in order, or by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.api import Api
from e2e.control_plane import DRACAENA_CONTROLLER, DRACAENA_PLUGIN, ControlPlane, node_identity
from e2e.gpus import StandInGpus
from e2e.installation import Installation
from e2e.node import Node
from e2e.processes import Program
from e2e.waiting import eventually

NODE_NAME = "node-a"

EXAMPLE_IMAGES = ("docker.io/example/gpu-program:1.0",)
"""Names in the manifests below deploy/examples: they run as they are, with the probe inside."""

NODE_READY_S = 90.0
"""From kubelet's start: it reports within 10 s once the runtime has a network; the rest is for a loaded machine."""


class Cluster:
    """Kubernetes with one Ready node inside a `with` block. Dracaena is started by install(), once."""

    def __init__(self, root: Path, binaries: Path, logs: Path) -> None:
        kubelet = node_identity(NODE_NAME)
        self.control_plane = ControlPlane(
            root / "control-plane", binaries, logs, (kubelet, DRACAENA_CONTROLLER, DRACAENA_PLUGIN)
        )
        self.node = Node(
            NODE_NAME, root / NODE_NAME, binaries, logs, self.control_plane.kubeconfig(kubelet), EXAMPLE_IMAGES
        )
        self.gpus = StandInGpus(root / "gpus")
        self.installation = Installation(self.control_plane, self.node, self.gpus, logs)
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._ends.callback(self.control_plane.stop)
            self.control_plane.start()
            self._ends.callback(self.node.stop)
            self.node.start()
            self.wait_node_ready()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs, ours first: what a failure is most likely about."""
        return (*self.installation.programs, *self.node.programs, *self.control_plane.programs)

    @property
    def is_up(self) -> bool:
        """Whether the start went well and the end has not begun."""
        return self.control_plane.apiserver.is_running and self.node.kubelet.was_started

    @property
    def api(self) -> Api:
        """The API as its administrator sees it."""
        return self.control_plane.api()

    def install(self) -> None:
        """Start Dracaena."""
        self.gpus.make()
        self._ends.callback(self.installation.stop)
        self.installation.start()

    def wait_node_ready(self) -> None:
        """Wait until the scheduler may use the node."""
        eventually(self._node_is_ready, "the node is Ready", within_s=NODE_READY_S, programs=self.programs)

    @contextmanager
    def kubelet_away(self) -> Iterator[None]:
        """Have kubelet stopped in the block, and back after it. The node is Ready all the time: what shows that kubelet
        is back is that the devices are published again."""
        with self.installation.published_anew():
            self.node.kubelet.stop()
            yield
            self.node.kubelet.start()
        self.wait_node_ready()

    def restart_clients(self) -> None:
        """Let all clients, those on the node and ours too, see a server that was started again at once, for the same
        reason as ControlPlane.restart_clients."""
        self.control_plane.restart_clients()
        with self.kubelet_away():
            for program in self.installation.programs:
                program.stop()
                program.start()
        self.installation.wait_ready()

    def restart_node(self) -> None:
        """Cut the node's power and start it again, with all that runs on it. The control plane runs on."""
        self.installation.plugin.kill()
        self.node.power_off()
        with self.installation.published_anew():
            self.node.power_on()
            self.installation.plugin.start()
        self.installation.wait_ready()
        self.wait_node_ready()

    def _node_is_ready(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{NODE_NAME}")
        if node is None or node["spec"].get("taints"):
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
