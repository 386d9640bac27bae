"""Control plane, made-up nodes and two controllers: what the soak disturbs."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from e2e import impatient_controller
from e2e.api import Api
from e2e.bulk import Connection
from e2e.control_plane import ADMIN, DRACAENA_CONTROLLER, ControlPlane
from e2e.installation import DEVICE_CLASSES, RIGHTS
from e2e.made_up_nodes import DRIVER
from e2e.processes import Program
from e2e.slow_binds import SlowBinds
from e2e.soak.fault_proxy import FaultProxy
from e2e.soak.rules import HOPPER, NOT_HOPPER, SHARE
from support.readiness import metric

TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
SHARED_CLASS: Final = "shared.dracaena.dev"
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE: Final = f"controller.{DRIVER}"
PORTS: Final = (8091, 8092)

DEEDS: Final = "deeds.log"

SLOW_BINDS: Final = "slow-binds.json"

BINDS_S: Final = (0.0, 0.0, 0.0, 2.5, 6.0)
"""How long binds take, by the end of the pod's name. The longest take longer than the 2 s after which what
kube-scheduler says is a proof."""

LEASE_S: Final = 14
"""The shortest that the controller takes: its writes may need 10 s of it."""

SETTINGS: Final = (
    f"--lease-duration-s={LEASE_S}",
    "--refused-wait-s=3",
    "--passed-over-wait-s=8",
    "--exclusion-s=60",
    "--longest-exclusion-s=60",
    "--starvation-wait-s=0",
    "--longest-bind-s=12",
    "--log-level=debug",
)
"""Of both controllers; their patience is short, so that waits of minutes fit into a soak of minutes. A try takes 10 s
(5 s until a refusal counts, 3 s while it stands, 2 s to take back): in 60 s a pod has seen six nodes. No node is kept
for a pod that starves: then pods wait on purpose that would fit."""

FLAGS: Final = {"kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",)}
"""Node objects come as they shall be: nobody would remove the taint that says that a node is not ready yet."""


def _request(count: int, name: str = "gpus", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, "count": count, **fields}}


def _share(memory: str) -> dict[str, Any]:
    exactly = {"deviceClassName": SHARED_CLASS, "count": 1, "capacity": {"requests": {"memory": memory}}}
    return {"name": "share", "exactly": exactly}


def _selected(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def _same(attribute: str) -> list[dict[str, Any]]:
    return [{"matchAttribute": attribute}]


SHAPES: Final[dict[str, dict[str, Any]]] = {
    "one": {"requests": [_request(1)]},
    "two": {"requests": [_request(2)]},
    "four": {"requests": [_request(4)]},
    "hopper": {"requests": [_request(2, **_selected(HOPPER))]},
    "not-hopper": {"requests": [_request(1, **_selected(NOT_HOPPER))]},
    "one-numa-node": {
        "requests": [_request(2)],
        "constraints": _same("resource.kubernetes.io/numaNode"),
    },
    "two-requests": {
        "requests": [_request(1, "first"), _request(1, "second")],
        "constraints": _same(f"{DRIVER}/nvlinkGroup"),
    },
    "share": {"requests": [_share(SHARE["memory"])]},
}
"""What templates and named claims ask for: spec.devices of a claim."""


def bind_s(pod: str) -> float:
    """Return how long the bind of a pod takes: its name ends with a number. Friends come when they are called."""
    return 0.0 if pod.startswith("friend") else BINDS_S[int(pod.rpartition("-")[2]) % len(BINDS_S)]


@dataclass(slots=True)
class Replica:
    """One controller process and its road to the server."""

    name: str
    program: Program
    proxy: FaultProxy
    port: int

    def leads(self) -> bool:
        """Whether it says so."""
        return self.program.is_running and metric(self.port, "dracaena_controller_leader") == 1.0


class World:
    """Everything that runs, inside a `with` block."""

    def __init__(self, root: Path, binaries: Path, logs: Path, rng: random.Random) -> None:
        root.mkdir()
        self.plane = ControlPlane(
            root / "control-plane",
            binaries,
            logs,
            (DRACAENA_CONTROLLER,),
            made_up_nodes=True,
            more_flags={**FLAGS, "kube-scheduler": [f"--config={root / SLOW_BINDS}"]},
        )
        self.began_s = time.monotonic()
        self.taking_back = threading.Event()
        """Set when an allocation begins to be taken back: who is bound just now races with it."""
        self._root = root
        self._logs = logs
        self._rng = rng
        self._ends = ExitStack()
        self._api: Api | None = None  # the server's certificate is there after the start
        self.replicas: list[Replica] = []

    def __enter__(self) -> Self:
        try:
            self._ends.enter_context(SlowBinds(self.plane, self._root / SLOW_BINDS, bind_s))
            self._ends.callback(self.plane.stop)
            self.plane.start()
            self.plane.kubectl("apply", "--filename", RIGHTS, "--filename", DEVICE_CLASSES)
            expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "mig"'
            document: dict[str, Any] = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": SHARED_CLASS},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            }
            self.api.create(CLASSES, document)
            for name, spec in SHAPES.items():
                document = {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaimTemplate",
                    "metadata": {"name": name},
                    "spec": {"spec": {"devices": spec}},
                }
                self.api.create(TEMPLATES, document)
            # As a leader that ended left it: without one the first would wait for a leader that nobody knows of.
            spec = {"renewTime": "2026-01-01T00:00:00.000000Z"}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}
            self.api.create(LEASES, lease)
            self.replicas = [self._replica(number, port) for number, port in enumerate(PORTS)]
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def api(self) -> Api:
        """The API as its administrator sees it, without faults."""
        if self._api is None:
            self._api = self.plane.api()
        return self._api

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs, ours first."""
        return (*(replica.program for replica in self.replicas), *self.plane.programs)

    def connect(self) -> Connection:
        """Open a connection of the administrator's."""
        return Connection(self.plane.url, self.plane.authority, ADMIN.token)

    def now_s(self) -> float:
        """Return the seconds since the soak began."""
        return time.monotonic() - self.began_s

    def note(self, deed: str) -> None:
        """Write down what is done to the cluster, and when: the story that belongs to a violation."""
        with (self._logs / DEEDS).open("a", encoding="utf-8") as file:
            file.write(f"{self.now_s():8.2f} s {deed}\n")

    def pause(self, seconds: float) -> None:
        """Wait: the server may be away."""
        time.sleep(seconds)

    def disturb(self, percent: float) -> None:
        """Let so many of a hundred requests of the controllers fail."""
        for replica in self.replicas:
            replica.proxy.percent = percent

    def delay(self, *, on: bool) -> None:
        """Let watches be slow and writes of take-backs late, or no more."""
        for replica in self.replicas:
            replica.proxy.delays = on

    def _replica(self, number: int, port: int) -> Replica:
        # Each proxy has chances of its own, so that what one thread does changes nothing for the others.
        proxy = self._ends.enter_context(
            FaultProxy(self.plane.url, self.plane.authority, random.Random(self._rng.random()), self.taking_back.set)
        )
        name = f"controller-{number}"
        document = json.loads(self.plane.kubeconfig(DRACAENA_CONTROLLER).read_text(encoding="utf-8"))
        document["clusters"][0]["cluster"] = {"server": proxy.url}
        kubeconfig = self._root / f"{name}.kubeconfig"
        kubeconfig.write_text(json.dumps(document), encoding="utf-8")
        command: list[str | Path] = [
            *impatient_controller.COMMAND,
            f"--kubeconfig={kubeconfig}",
            f"--http-address=127.0.0.1:{port}",
            f"--lease-identity={name}",
            *SETTINGS,
        ]
        program = Program(name, command, self._logs)
        self._ends.callback(program.stop)
        return Replica(name, program, proxy, port)
