"""A node on which everything happens in any order: pods, kubelet, crashes, and a driver that numbers its GPUs anew.

The plugin is the real one on real files; API, kubelet, runtime and driver are played. After each start of a container
the simulator looks by itself which physical GPUs that container can reach, and compares with all others that run.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Gpu
from dracaena.api.names import ClaimUid, DeviceName, PoolName, gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PublishedPool
from dracaena.kubelet_plugin.upkeep.device_watch import DeviceWatch
from support.clock import FakeClock
from support.plugin import (
    BEST_EFFORT,
    DRIVER,
    NODE,
    FakeClaims,
    FakeKubelet,
    FakePods,
    PluginNode,
    claim_of,
    make_pod,
    reference_to,
    share_of,
)

MACHINE = "7-gpu-box"
SWEEP_S = 300.0
MEANWHILE = 0.2
"""How often kubelet unprepares a claim while the plugin reads one."""


class Crashed(BaseException):
    """The process is gone in the middle of a step of file work."""


class Steps(FileSteps):
    """Crashes in the n-th step from now, or after it."""

    def __init__(self) -> None:
        self.left: int | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        self.step()
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self.step()
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self.step()
        super().remove(path, folder)

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crashed


class FailingSteps(Steps):
    """Besides, so many steps fail, beginning with the n-th from now."""

    def __init__(self, *, removals: bool) -> None:
        """`removals`: they may fail too."""
        super().__init__()
        self.good: int | None = None
        self.failing = 0
        self._removals = removals

    def remove(self, path: Path, folder: int) -> None:
        good, self.good = self.good, self.good if self._removals else None
        try:
            super().remove(path, folder)
        finally:
            self.good = self.good if self._removals else good

    def step(self) -> None:
        super().step()
        if self.good is None:
            return
        self.good -= 1
        if self.good < 0:
            self.failing -= 1
            if self.failing <= 0:
                self.good = None
            raise OSError(errno.EIO, "Input/output error")


@dataclass(frozen=True)
class Container:
    """A container that runs."""

    pod: str
    claim: ResourceClaim
    nodes: frozenset[int]
    """Minors of its device nodes."""
    gpus: frozenset[DeviceName]
    """What was behind them when it was started."""


class ViolationError(AssertionError):
    """A container can reach what is not its own, or a claim holds what nobody will let go of."""


class SlowClaims(FakeClaims):
    """An API that takes its time: `meanwhile` happens between what it saw and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        claim = super().read_claim(reference)
        self._happen()
        return claim

    def find_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        claim = super().find_claim(namespace, name)
        self._happen()
        return claim

    def _happen(self) -> None:
        if (happens := self.meanwhile) is not None:
            self.meanwhile = None
            happens()
            self.meanwhile = happens


@dataclass
class Simulator:
    """One node. step() does one random thing; drain() ends all pods and looks that nothing stays held."""

    folder: Path
    seed: int
    refused: int = 0
    started: int = 0
    done: list[str] = field(default_factory=list)
    gpus: ClassVar[int | None] = None
    """How many there are of the machine's; None: all."""
    kinds: ClassVar[Mapping[str, int]] = {"whole": 6, "share": 2, "admin": 1}
    """What claims ask for, and how often."""
    heeded: ClassVar[float] = 0.9
    """How often an allocation takes what is free."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        # The recording has no PCI addresses, by which the driver tells minors.
        gpus = read_machine(MACHINE).gpus[: self.gpus]
        self.all_gpus = [
            dataclasses.replace(gpu, pci_bus_id=f"0000:{n:02x}:00.0", memory_bytes=80 << 30)
            for n, gpu in enumerate(gpus)
        ]
        self.minors: dict[DeviceName, int] = {gpu_device_name(g.uuid): n for n, g in enumerate(self.all_gpus)}
        self.beside = random.Random(f"beside {self.seed}")
        self.claims, self.pods, self.kubelet = SlowClaims(), FakePods(), FakeKubelet()
        self.clock = FakeClock()
        self.kubelet_up = True
        self.prepared: dict[ClaimUid, tuple[ResourceClaim, set[str]]] = {}  # what kubelet remembers on its disk
        self.unprepared: set[ClaimUid] = set()  # what kubelet was told to be unprepared
        self.containers: list[Container] = []
        self.count = 0
        self.node: Any = None
        """A PluginNode, or what a subclass has in its place."""
        self.restart_plugin()

    # what is played

    def pool(self) -> PublishedPool:
        gpus = {
            name: dataclasses.replace(gpu, index=self.minors[name], minor=self.minors[name])
            for gpu in self.all_gpus
            if (name := gpu_device_name(gpu.uuid)) in self.minors
        }
        return PublishedPool(DRIVER, PoolName(NODE), gpus)

    def gpu_driver_minors(self) -> dict[str, int]:
        return {_address(g): self.minors[n] for g in self.all_gpus if (n := gpu_device_name(g.uuid)) in self.minors}

    def checkpoint(self, uid: ClaimUid) -> Path:
        return self.folder / "claims" / f"{uid}.json"

    def behind(self, nodes: frozenset[int]) -> frozenset[DeviceName]:
        return frozenset(name for name, minor in self.minors.items() if minor in nodes)

    # single things that happen

    def restart_plugin(self) -> None:
        self.steps = self.new_steps()
        self.node = self.new_node()
        self.begin()
        self.before_recovery()
        self.beside_kubelet(lambda node: node.recovery.recover(self.pods.values()))
        self.look()

    def begin(self) -> None:
        """What a process of the plugin does first."""
        for files in (self.node.checkpoint_files, self.node.podlist, self.node.specs):
            files.remove_half_written()
        self.watch = DeviceWatch(self.node.context, self.node.recovery, self.pods)

    def new_steps(self) -> Steps:
        return Steps()

    def before_recovery(self) -> None:
        """What happens between the start of the plugin and its first look at what is left."""

    def new_node(self, **more: Any) -> Any:
        return PluginNode(
            self.folder,
            self.claims,
            self.pods,
            pool=self.pool(),
            minors=self.gpu_driver_minors(),
            steps=self.steps,
            kubelet=self.kubelet,
            clock=self.clock,
            **more,
        )

    def look(self) -> None:
        self.call(lambda _: self.watch.look())

    def call(self, work: Callable[[Any], Any]) -> bool:
        """Do something in the plugin, if it runs; return whether it worked."""
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

    def beside_kubelet(self, work: Callable[[Any], Any]) -> None:
        """As call(), for what the plugin does by itself: meanwhile kubelet may unprepare what it has prepared."""
        self.claims.meanwhile = self.unprepare_meanwhile
        self.call(work)
        self.claims.meanwhile = None
        again = [uid for uid in sorted(self.unprepared) if self.checkpoint(uid).exists()]
        if again and self.node is not None:
            raise ViolationError(
                f"seed {self.seed}: {again} are prepared, and kubelet has unprepared them: {self.done}"
            )

    def unprepare_meanwhile(self) -> None:
        if not (self.kubelet_up and self.node and self.prepared) or self.beside.random() > MEANWHILE:
            return
        uid = self.beside.choice(sorted(self.prepared))
        claim, users = self.prepared[uid]
        self.containers = [each for each in self.containers if each.claim.metadata.uid != uid]
        try:
            self.ask_to_unprepare(self.node, claim)
        except DracaenaError:
            return
        del self.prepared[uid]
        self.unprepared.add(uid)
        for pod in users:
            if f"default/{pod}" in self.pods.shown:
                self.forget_in_api(pod)

    def new_pod(self) -> None:
        """A claim is allocated and its pod bound here. Some allocations heed nobody: the guard must."""
        self.count += 1
        kind = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        free = (
            self.free_for(kind) if self.rng.random() < self.heeded else [gpu_device_name(g.uuid) for g in self.all_gpus]
        )
        if not free:
            return
        count = 1 if kind == "share" else self.rng.randint(1, min(2, len(free)))
        share = share_of(f"{self.rng.choice([10, 30, 50])}Gi", self.rng.choice([0, 30, 60]), share_id=f"s-{self.count}")
        more_of: dict[str, dict[str, Any]] = {"share": share, "admin": {"adminAccess": True}}
        more = more_of.get(kind, {})
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **more}
            for device in self.rng.sample(free, count)
        ]
        name = f"n{self.count}"
        claim = claim_of(
            name, {"results": results, "config": self.configs()}, reserved_for={f"pod-{name}": f"pod-{name}-uid"}
        )
        self.claims.put(claim)
        self.pods.add(make_pod(f"pod-{name}", claims={"claim": name}))

    def configs(self) -> list[dict[str, Any]]:
        """Return what a new claim says of how its GPUs are shared."""
        return [BEST_EFFORT]

    def free_for(self, kind: str) -> list[DeviceName]:
        present = sorted(self.minors)
        if kind == "admin":
            return present
        taken = {
            DeviceName(r.device)
            for c in self.claims.by_key.values()
            for r in _results(c)
            if not r.admin_access and not (kind == "share" and r.share_id is not None)
        }
        return [device for device in present if device not in taken]

    def start_pod(self) -> None:
        """kubelet syncs a pod that does not run yet: it remembers the claim, asks us, and starts a container."""
        waiting = [p for p in self.pods.values() if all(c.pod != p.metadata.name for c in self.containers)]
        if not self.kubelet_up or not waiting:
            return
        pod = self.rng.choice(waiting)
        claim = self.claims.by_key[f"default/{pod.spec.resource_claims[0].resource_claim_name}"]
        uid = ClaimUid(claim.metadata.uid)
        self.prepared.setdefault(uid, (claim, set()))[1].add(pod.metadata.name)
        if self.call(lambda node: self.ask_to_prepare(node, claim)):
            self.start_container(pod.metadata.name, claim)

    def ask_to_prepare(self, node: Any, claim: ResourceClaim) -> None:
        node.state.prepare(reference_to(claim))

    def ask_to_unprepare(self, node: Any, claim: ResourceClaim) -> None:
        node.state.unprepare(reference_to(claim))

    def restart_container(self) -> None:
        """A container ends and kubelet starts it again, without a call of ours: what the spec on disk says holds."""
        if not self.kubelet_up or self.node is None or not self.containers:
            return
        old = self.rng.choice(self.containers)
        if f"default/{old.pod}" not in self.pods.shown:
            return  # kubelet ends those
        self.containers.remove(old)
        self.start_container(old.pod, old.claim)

    def start_container(self, pod: str, claim: ResourceClaim) -> None:
        path = self.folder / "cdi" / f"{DRIVER}-claim_{claim.metadata.uid}.json"
        if not path.exists():
            return  # the runtime knows no such device: the container stays down
        edits = [device["containerEdits"]["deviceNodes"] for device in json.loads(path.read_bytes())["devices"]]
        nodes = frozenset(int(n["path"].removeprefix("/dev/nvidia")) for device in edits for n in device)
        new = Container(pod, claim, nodes, self.behind(nodes))
        self.started += 1
        self.judge(new)
        self.containers.append(new)

    def judge(self, new: Container) -> None:
        own = frozenset(DeviceName(r.device) for r in _results(new.claim))
        if new.gpus != own:
            raise ViolationError(f"seed {self.seed}: {new.pod} got {sorted(new.gpus)}, its claim has {sorted(own)}")
        for other in self.containers:
            if other.claim.metadata.uid == new.claim.metadata.uid or may_share(new.claim, other.claim):
                continue
            both = new.gpus & (other.gpus | self.behind(other.nodes))
            if both:
                raise ViolationError(f"seed {self.seed}: {sorted(both)} reached {new.pod} and {other.pod}: {self.done}")

    def end_pod(self) -> None:
        """A pod ends in order: kubelet ends its containers and unprepares, then the API forgets it."""
        running = [p for p in self.pods.values() if p.metadata.name]
        if not self.kubelet_up or self.node is None or not running:
            return
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
        for uid, (claim, users) in list(self.prepared.items()):
            if pod in users:
                if not self.call(lambda node, c=claim: self.ask_to_unprepare(node, c)):  # type: ignore[misc]
                    return False
                del self.prepared[uid]
                self.unprepared.add(uid)
                self.look()
        return True

    def reconcile_kubelet(self) -> None:
        """What kubelet does each minute: end containers of pods that it does not know, unprepare their claims."""
        if not self.kubelet_up:
            return
        there = {pod.metadata.name for pod in self.pods.values()}
        self.containers = [c for c in self.containers if c.pod in there]
        for pod in sorted({user for _, users in self.prepared.values() for user in users} - there):
            self.unprepare(pod)
        self.kubelet.claims = {uid for uid, (_, users) in self.prepared.items() if users & there}

    def stop_kubelet(self) -> None:
        self.kubelet_up, self.kubelet.silent = False, "kubelet has no socket"

    def start_kubelet(self) -> None:
        if self.kubelet_up:
            return
        self.kubelet_up, self.kubelet.silent, self.kubelet.claims = True, None, set()
        self.kubelet.run += 1
        if self.rng.random() < 0.2:
            self.prepared = {}  # its disk was lost: it ends what it does not know, and unprepares nothing

    def let_time_pass(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.beside_kubelet(lambda node: node.sweeper.sweep())

    def renumber(self) -> None:
        """The driver is loaded anew: GPUs came or went, or were found in another order. The plugin reads it at once,
        or is asked for claims first: then /proc says more than what it read last.
        """
        self.load_gpu_driver()
        if self.node is None:
            return
        self.show_minors(self.node)
        if self.rng.random() < 0.5:
            self.start_pod()
        if self.node is not None:
            self.read_gpus(self.node)
            self.look()

    def show_minors(self, node: Any) -> None:
        """The kernel module says the numbers of its GPUs at once."""
        node.minors = self.gpu_driver_minors()

    def read_gpus(self, node: Any) -> None:
        """The plugin reads its GPUs."""
        node.pool = self.pool()

    def load_gpu_driver(self) -> None:
        names = [gpu_device_name(gpu.uuid) for gpu in self.all_gpus]
        present = [name for name in names if self.rng.random() < 0.8] or names
        if self.rng.random() < 0.3:
            self.rng.shuffle(present)
        self.minors = {name: minor for minor, name in enumerate(present)}

    def crash(self) -> None:
        """The plugin is killed in one of the next steps of its file work, whatever it is at then."""
        self.steps.left = self.rng.randint(0, 12)

    def break_checkpoint(self) -> None:
        """A file becomes unreadable while the plugin is down; of a claim whose nodes are all its devices'."""
        if self.node is None:
            return
        good = self.node.node_claims.current()
        whole = [c for c in good if not c.prepared.former and c.aside is None]
        if whole:
            uid = self.rng.choice(whole).prepared.claim.uid
            self.checkpoint(uid).write_bytes(b"rubbish")
            if self.rng.random() < 0.5:
                self.load_gpu_driver()
            self.restart_plugin()

    # all of it

    def things(self) -> dict[Callable[[], None], int]:
        """Return what may happen, and how often of all."""
        return {
            self.new_pod: 8,
            self.start_pod: 10,
            self.restart_container: 5,
            self.end_pod: 4,
            self.delete_by_force: 2,
            self.reconcile_kubelet: 3,
            self.stop_kubelet: 2,
            self.start_kubelet: 2,
            self.let_time_pass: 2,
            self.renumber: 2,
            self.crash: 1,
            self.break_checkpoint: 1,
        }

    def step(self) -> None:
        things = self.things()
        thing = self.rng.choices(list(things), list(things.values()))[0]
        self.done.append(thing.__name__)
        thing()
        if self.node is None and self.rng.random() < 0.5:
            self.restart_plugin()

    def drain(self) -> None:
        """End everything in order, with all that helps there again: then no device may be held by anybody."""
        self.start_kubelet()
        while self.node is None or self.steps.left is not None:
            self.restart_plugin()
        for pod in self.pods.values():
            self.forget_in_api(pod.metadata.name)
        for _ in range(5):
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.call(lambda node: node.sweeper.sweep())
        left = sorted(name for name in self.node.files() if name.startswith(("claims/", "cdi/")))
        left = [name for name in left if not name.endswith(".broken")]
        if left or self.containers:
            raise ViolationError(f"seed {self.seed}: {left} stay when all pods have ended")


def _results(claim: ResourceClaim) -> Sequence[Any]:
    return [] if claim.status.allocation is None else claim.status.allocation.devices.results


def may_share(one: ResourceClaim, other: ResourceClaim) -> bool:
    """Whether two claims may reach one GPU: a look for admins, or shares of the same GPU."""
    first, second = _results(one)[0], _results(other)[0]
    if first.admin_access or second.admin_access:
        return True
    return first.share_id is not None and second.share_id is not None and first.device == second.device


def _address(gpu: Gpu) -> str:
    assert gpu.pci_bus_id is not None
    return gpu.pci_bus_id
