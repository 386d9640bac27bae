"""A node with claims of every kind, the kubelet that prepares them, and one or two whole plugins.

What else happens on it, and what must be so, is in whole_node_simulator.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.mig_geometry import MigPlace, places
from dracaena.api.names import ClaimUid, cdi_device_name, gpu_device_name
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from support.cc_hardware import CcHardware, FakeCcModes
from support.clock import FakeClock
from support.fabric_node import FabricPort
from support.gpu_lists import entry, gpu_list
from support.mig_node import access_minors
from support.mps_node import MpsNode
from support.node_simulator import SWEEP_S, Crashed, FailingSteps, ViolationError
from support.played_hardware import PARTITIONS, PlayedHardware, PlayedMig
from support.plugin import (
    BEST_EFFORT,
    DRIVER,
    NODE,
    FakeClaims,
    FakeKubelet,
    FakePods,
    claim_of,
    make_pod,
    reference_to,
    share_of,
    sharing_config,
)
from support.whole_plugin import PlayedNode, WholePlugin

GIB: Final = 1 << 30
MEMORY_GIB: Final = 10
SLICES: Final = 8
"""Memory slices of a GPU."""
OTHER_INSTANCE: Final = 0.4
"""How often a call comes to the older instance, while there are two."""
IN_RECOVERY: Final = 0.3
"""How often something fails in a start too."""
HEEDED: Final = 0.85
"""How often an allocation takes what is free."""
AT_ONCE: Final = 0.7
"""How often kubelet comes to a new pod before anything else happens."""

LAYOUTS_FILE: Final = """version: v1
mig-configs:
  small: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 3}}]
  mixed: [{devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 1, "1g.10gb": 2}}]
  whole: [{devices: all, mig-enabled: false}]
"""
NAMES: Final = ("small", "mixed", "whole", "")


@dataclass(frozen=True)
class Flavor:
    """What a node is set to, and what claims of it ask for, and how often."""

    name: str
    gpus: int
    kinds: Mapping[str, int]
    settings: Mapping[str, Any]


FLAVORS: Final = (
    Flavor(
        "on demand",
        2,
        {"whole": 3, "share": 2, "slices": 4, "mps": 3, "part": 6, "vfio": 4, "admin": 1},
        {"gpus": gpu_list(shared="all", mig="all", passthrough="all")},
    ),
    Flavor(
        "partitions",
        4,
        {"whole": 5, "slices": 2, "vfio": 4, "admin": 1},
        {"fabric_partitions": True, "gpus": gpu_list(shared="all", passthrough="all")},
    ),
    Flavor("layouts", 2, {"whole": 3, "slices": 3, "mps": 2, "static": 8}, {}),
)
MODES: Final = Flavor(
    "modes",
    2,
    {"whole": 4, "slices": 2, "vfio": 4},
    {"cc_mode_tool": "gpu_tools.py", "gpus": gpu_list(shared="all", passthrough="all")},
)


def flavor_of(seed: int) -> Flavor:
    """Modes are rarer: a switch of all GPUs needs a node that is idle."""
    return MODES if seed % 8 == 6 else FLAVORS[seed % len(FLAVORS)]


class PlayedModes(FakeCcModes):
    """FakeCcModes whose steps are those of the node."""


class HurriedClock(FakeClock):
    """Who waits on it has waited; meanwhile others work."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep_until_set(self, event: Any, timeout_s: float) -> bool:
        self.meanwhile()
        self.advance(timeout_s)
        return bool(event.is_set())


class SteppedFabric(FabricPort):
    """FabricPort whose steps are those of the node."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def _count(self) -> None:
        self.step()


@dataclass(frozen=True)
class Unit:
    """A part of the node that a device has."""

    gpu: int
    """Its ordinal."""
    slices: frozenset[int] = frozenset(range(SLICES))
    is_shared: bool = False

    def collides(self, other: Unit) -> bool:
        if self.gpu != other.gpu or (self.is_shared and other.is_shared):
            return False
        return bool(self.slices & other.slices)


@dataclass(frozen=True)
class Container:
    pod: str
    claim: ResourceClaim
    minors: frozenset[int]


class WholeNode:
    """One node of a flavor, which the seed names if nobody does."""

    def __init__(self, folder: Path, seed: int, flavor: Flavor | None = None) -> None:
        self.folder, self.seed, self.rng = folder, seed, random.Random(seed)
        self.flavor = flavor or flavor_of(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.steps = FailingSteps(removals=False)
        self.hardware = PlayedHardware(folder, self.flavor.gpus, self.change_step)
        self.clock = HurriedClock()
        self.mps = MpsNode(folder / "m", 3, gpus=tuple(gpu.uuid for gpu in self.hardware.gpus))
        self.clock.meanwhile = self.serve
        self.serve()
        self.fabric = SteppedFabric(self.hardware.manager, self.clock)
        self.fabric.step = self.change_step
        self.modes: PlayedModes | None = None
        if self.flavor is MODES:
            self.hardware.modes = CcHardware(folder / "tools", *self.hardware.addresses())
            self.modes = PlayedModes(self.hardware.modes, self.mode_step)
        self.claims, self.pods, self.kubelet = FakeClaims(), FakePods(), FakeKubelet()
        self.hangs: str | None = None
        settings = {**self.flavor.settings, "mps_root": self.mps.places.root}
        if self.flavor.name == "layouts":
            (folder / "layouts.yaml").write_text(LAYOUTS_FILE)
            file = str(folder / "layouts.yaml")
            settings["gpus"] = read_gpus([entry("shared"), entry("layout", file=file)])
        self.played = PlayedNode(
            folder,
            self.claims,
            self.pods,
            self.clock,
            machine=self.hardware.machine,
            intervals=self.hardware,
            limiter=self.hardware,
            cgroups=self.hardware.tree.root,
            kubelet=self.kubelet,
            minors=self.hardware.minors,
            mig=PlayedMig(self.hardware.mig, self.hardware.trips),
            access_minors=access_minors,
            drivers=self.hardware.drivers,
            fabric=self.fabric if self.flavor.name == "partitions" else None,
            modes=self.modes,
            confidential=self.confidential,
            call=self.driver_call,
            settings=settings,
        )
        self.done: list[str] = []
        self.count = 0
        self.every_claim: dict[ClaimUid, ResourceClaim] = {}
        self.kind_of: dict[ClaimUid, str] = {}
        self.prepared: dict[ClaimUid, str] = {}  # what kubelet remembers: claim and its pod
        self.answers: dict[ClaimUid, frozenset[str]] = {}
        self.had: dict[ClaimUid, Mapping[str, str]] = {}  # UUIDs of the MIG devices of claims that kubelet has
        self.forgotten: set[ClaimUid] = set()  # what the driver was told for them is gone with it
        self.renumbered: set[ClaimUid] = set()  # the driver has numbered its GPUs anew since they were prepared
        self.lost_mig: set[ClaimUid] = set()
        self.damaged: set[ClaimUid] = set()
        self.records_damaged = False
        self.containers: list[Container] = []
        self.foreign: dict[tuple[str, int], str] = {}
        self.uncertain: set[tuple[str, int]] = set()  # of those, what may be gone with the driver or a record
        self.cgroups: dict[str, str] = {}
        self.started = self.refused = 0
        self.quiet = False
        self.recovered = False
        self.node: WholePlugin | None = None
        self.older: WholePlugin | None = None
        self.places: dict[str, tuple[int, MigPlace]] = {
            str(place.device_name): (ordinal, place)
            for ordinal, gpu in enumerate(self.hardware.gpus)
            for place in places(gpu.uuid, gpu.mig_profiles)
        }
        self.restart()

    # what is played

    def change_step(self) -> None:
        """A change of the node, and each write of a file, may be where the plugin is killed."""
        try:
            self.steps.step()
        except OSError as error:
            raise TemporaryError(f"the node: {error.strerror}") from error

    def mode_step(self, what: str) -> None:
        """NVIDIA's program resets a GPU between two such steps. See WholeNodeSimulator."""
        del what
        self.change_step()

    def confidential(self) -> ConfidentialState:
        """What NVML says of all GPUs that it has."""
        modes = {gpu.cc_mode for gpu in self.hardware.machine().gpus}
        return ConfidentialState(modes.pop() if len(modes) == 1 else None, ready=True)

    def serve(self) -> None:
        self.mps.supervisor.step()
        self.mps.clock.advance(0.2)

    def driver_call(self, what: str, work: Callable[[], Any]) -> Any:
        """A call that hangs is given up: it was done, or was not."""
        hangs, self.hangs = self.hangs, None
        if hangs is None:
            return work()
        if hangs == "late":
            work()
        raise WedgedError(f"{what}: the NVIDIA driver does not answer")

    # the plugin's life

    def restart(self) -> None:
        self.older = None
        self._start()

    def begin_update(self) -> None:
        before = self.node
        self._start()
        self.older = before if self.node is not None else None

    def end_update(self) -> None:
        self.older = None

    def _start(self) -> None:
        self.steps = FailingSteps(removals=False)
        self.node = WholePlugin(self.played, self.steps)
        if not self.quiet and self.rng.random() < IN_RECOVERY:
            self.fail_soon()
        self.call_newer(lambda node: node.start())
        self.recover()
        self.look()

    def recover(self) -> None:
        """What a start does until it has worked."""
        self.recovered = False

        def work(node: WholePlugin) -> None:
            self.recovered = node.recovery.recover(self.pods.values())

        self.call_newer(work)

    def go_on(self) -> None:
        """The newer instance runs on, and nothing stands in its way any more."""
        self.older = None
        self.steps.left = self.steps.good = None
        if not self.recovered:
            self.recover()

    def fail_soon(self) -> None:
        """Something fails in the start. See WholeNodeSimulator."""

    def kill_soon(self) -> None:
        self.steps.left = self.rng.randint(0, 10)

    def call(self, work: Callable[[WholePlugin], Any]) -> bool:
        """Do something in one of the plugins, if one runs; return whether it worked."""
        if self.older is None or self.rng.random() > OTHER_INSTANCE:
            return self.call_newer(work)
        self.node, self.older = self.older, self.node
        try:
            return self.call_newer(work)
        finally:
            self.node, self.older = self.older, self.node

    def call_newer(self, work: Callable[[WholePlugin], Any]) -> bool:
        if self.node is None:
            return False
        try:
            work(self.node)
        except DracaenaError:
            self.refused += 1
            return False
        except Crashed:
            self.node = None
            return False
        return True

    def look(self) -> None:
        """The newer instance reads its GPUs, and then its threads look in any order: a reading wakes them."""
        if self.node is None:
            return
        rounds = self.node.rounds()
        self.rng.shuffle(rounds)
        for each in (self.node.read, *rounds):
            self.call_newer(lambda _, each=each: each())  # type: ignore[misc]

    def sweep(self) -> None:
        self.call(lambda node: node.sweeper.sweep())

    # pods and kubelet

    def new_pod(self) -> None:
        self.count += 1
        name = f"n{self.count}"
        kind = self.rng.choices(list(self.flavor.kinds), list(self.flavor.kinds.values()))[0]
        devices = self.devices_for(kind)
        if not devices:
            return
        shared = kind in ("share", "slices", "mps")
        more: dict[str, Any] = {"adminAccess": True} if kind == "admin" else {}
        if shared:
            cores = 30 if kind == "mps" else 0
            more = share_of(f"{MEMORY_GIB}Gi", cores, share_id=f"share-of-{name}")
        config = {
            "slices": [sharing_config(strategy="TimeSlicing", interval="Long")],
            "mps": [sharing_config(strategy="MPS")],
            "share": [BEST_EFFORT],
        }
        results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **more} for device in devices]
        pod = f"pod-{name}"
        allocation = {"results": results, "config": config.get(kind, [])}
        claim = claim_of(name, allocation, reserved_for={pod: f"{pod}-uid"})
        uid = ClaimUid(claim.metadata.uid)
        self.every_claim[uid], self.kind_of[uid] = claim, kind
        self.claims.put(claim)
        self.pods.add(make_pod(pod, claims={"claim": name}))
        self.cgroups[f"{pod}-uid"] = str(self.hardware.tree.add(f"{pod}-uid"))
        if self.rng.random() < AT_ONCE:
            self.start(pod)

    def devices_for(self, kind: str) -> Sequence[str]:
        """Return devices for a claim, mostly free ones; none if there are none."""
        offered = self.offered(kind)
        if self.rng.random() < HEEDED and kind != "admin":
            used = [unit for uid in self.living() for unit in self.units(uid)]
            shared = kind in ("share", "slices", "mps")
            offered = [
                devices
                for devices in offered
                if not any(self.unit(d, is_shared=shared).collides(each) for d in devices for each in used)
            ]
        return self.rng.choice(offered) if offered else ()

    def offered(self, kind: str) -> list[tuple[str, ...]]:
        gpus = [gpu_device_name(gpu.uuid) for gpu in self.hardware.gpus]
        vfio = [passthrough_device_name(address) for address in self.hardware.addresses()]
        if kind == "part":
            return [(name,) for name, (_, place) in self.places.items() if place.profile.name in ("1g.10gb", "3g.40gb")]
        if kind == "static":
            return [(str(mig.device_name),) for mig in self.hardware.machine().mig_devices]
        named = vfio if kind == "vfio" else gpus
        if self.flavor.name != "partitions" or kind not in ("vfio", "whole"):
            return [(str(name),) for name in named]
        ordinals = {gpu.module_id: n for n, gpu in enumerate(self.hardware.gpus)}
        return [tuple(str(named[ordinals[m]]) for m in modules) for modules in PARTITIONS.values()]

    def living(self) -> list[ClaimUid]:
        """Return the claims that the API has or kubelet remembers."""
        stored = {ClaimUid(claim.metadata.uid) for claim in self.claims.by_key.values()}
        return sorted(stored | self.prepared.keys())

    def start_pod(self) -> None:
        waiting = [p for p in self.pods.values() if all(c.pod != p.metadata.name for c in self.containers)]
        if waiting:
            self.start(self.rng.choice(waiting).metadata.name)

    def start(self, pod: str) -> bool:
        """kubelet syncs a pod: it remembers the claim, asks the plugin, and starts a container."""
        claim = self.claims.by_key[f"default/{pod.removeprefix('pod-')}"]
        uid = ClaimUid(claim.metadata.uid)
        self.prepared[uid] = pod
        if not self.call(lambda node: self.ask_to_prepare(node, claim)):
            return False
        self.start_container(pod, claim)
        return True

    def ask_to_prepare(self, node: WholePlugin, claim: ResourceClaim) -> None:
        uid = ClaimUid(claim.metadata.uid)
        prepared = node.prepare(reference_to(claim))
        told = frozenset(cdi_device_name(uid, device.device, device.share_id) for device in prepared.devices)
        if self.answers.setdefault(uid, told) != told:
            raise self.violation(f"kubelet was told {sorted(self.answers[uid])} of {uid}, then {sorted(told)}")
        self.had.setdefault(uid, self.mig_uuids(uid))

    def restart_container(self) -> None:
        """A container ends and kubelet starts it again, without a call: what the spec on disk says holds."""
        running = [c for c in self.containers if f"default/{c.pod}" in self.pods.shown]
        if self.node is not None and running:
            old = self.rng.choice(running)
            self.containers.remove(old)
            self.start_container(old.pod, old.claim)

    def start_container(self, pod: str, claim: ResourceClaim) -> None:
        nodes = self.nodes(ClaimUid(claim.metadata.uid))
        if nodes is None:
            return  # the runtime knows no such device: the container stays down
        self.started += 1
        minors = (path.removeprefix("/dev/nvidia") for path in nodes)
        new = Container(pod, claim, frozenset(int(minor) for minor in minors if minor.isdigit()))
        self.judge(new, nodes)
        self.containers.append(new)

    def end_pod(self) -> None:
        running = self.pods.values()
        if self.node is not None and running:
            name = self.rng.choice(running).metadata.name
            self.containers = [c for c in self.containers if c.pod != name]
            if self.unprepare(name):
                self.forget_in_api(name)

    def delete_by_force(self) -> None:
        pods = self.pods.values()
        if pods:
            self.forget_in_api(self.rng.choice(pods).metadata.name)

    def forget_in_api(self, pod: str) -> None:
        self.pods.delete(self.pods.shown[f"default/{pod}"])
        self.claims.by_key.pop(f"default/{pod.removeprefix('pod-')}", None)

    def unprepare(self, pod: str) -> bool:
        for uid in [uid for uid, user in self.prepared.items() if user == pod]:
            self.had.pop(uid, None)
            claim = self.every_claim[uid]
            if not self.call(lambda node, claim=claim: node.unprepare(reference_to(claim))):  # type: ignore[misc]
                return False
            del self.prepared[uid]
            self.answers.pop(uid, None)
            if self.spec(uid).exists() or self.played.checkpoint(uid) is not None:
                raise self.violation(f"{uid} is unprepared, and something of it is left")
            self.look()
        return True

    def reconcile_kubelet(self) -> None:
        """What kubelet does each minute: end containers of pods that it does not know, unprepare their claims."""
        there = {pod.metadata.name for pod in self.pods.values()}
        self.containers = [c for c in self.containers if c.pod in there]
        for pod in sorted(set(self.prepared.values()) - there):
            self.unprepare(pod)
        self.kubelet.claims = {uid for uid, user in self.prepared.items() if user in there}

    def let_time_pass(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.sweep()
            self.look()

    # what claims have

    def units(self, uid: ClaimUid) -> list[Unit]:
        results = self.results(self.every_claim[uid])
        return [self.unit(r.device, is_shared=r.share_id is not None) for r in results if not r.admin_access]

    def unit(self, device: str, *, is_shared: bool) -> Unit:
        if device in self.places:
            ordinal, place = self.places[device]
            return Unit(ordinal, frozenset(range(place.placement.start, place.placement.end)))
        return Unit(self.ordinal(device), is_shared=is_shared)

    def ordinal(self, device: str) -> int:
        """Return the GPU of a device that is a GPU, for containers or for virtual machines."""
        return next(
            n
            for n, gpu in enumerate(self.hardware.gpus)
            if device in (gpu_device_name(gpu.uuid), passthrough_device_name(str(gpu.pci_bus_id)))
        )

    @staticmethod
    def results(claim: ResourceClaim) -> Sequence[Any]:
        return [] if claim.status.allocation is None else claim.status.allocation.devices.results

    def mig_uuids(self, uid: ClaimUid) -> Mapping[str, str]:
        """Return the MIG devices of a claim as they are: device → UUID, empty where there is none."""
        found = {}
        for result in self.results(self.every_claim[uid]):
            if result.device in self.places:
                ordinal, place = self.places[result.device]
                found[str(result.device)] = next(
                    (
                        next(iter(each.compute.values()), "")
                        for each in self.hardware.mig.gpus[ordinal].instances.values()
                        if (each.profile.name, each.placement) == (place.profile.name, place.placement)
                    ),
                    "",
                )
        return found

    def spec(self, uid: ClaimUid) -> Path:
        return self.folder / "cdi" / f"{DRIVER}-claim_{uid}.json"

    def nodes(self, uid: ClaimUid) -> frozenset[str] | None:
        """Return the device nodes that a claim's containers get, None if they cannot be started."""
        try:
            document = json.loads(self.spec(uid).read_bytes())
        except FileNotFoundError:
            return None
        edits = [device["containerEdits"].get("deviceNodes", ()) for device in document["devices"]]
        return frozenset(node["path"] for each in edits for node in each)

    def judge(self, new: Container, nodes: frozenset[str]) -> None:
        """See WholeNodeSimulator."""

    def violation(self, what: str) -> ViolationError:
        return ViolationError(f"seed {self.seed} ({self.flavor.name}): {what}: {self.done}")
