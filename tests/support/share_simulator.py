"""A node on which everything happens in any order, and whose shares are held to their part by the GPU driver.

As updated_node_simulator, with time slices and memory limits, which a driver that is loaded anew forgets. The thread
that makes them again and the one that follows the devices look in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from dracaena.kubelet_plugin.changes.kinds.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.changes.kinds.time_slices import TimeSlices
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import pod_of
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, TIME_SLICE, Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from dracaena.kubelet_plugin.upkeep.effect_renewal import EffectRenewal
from support.fake_memory_limits import CgroupTree, FakeLimiter
from support.fake_nvidia_smi import FakeTimeSlices
from support.node_simulator import ViolationError
from support.plugin import BEST_EFFORT, PluginNode, ThreadLock, sharing_config
from support.updated_node_simulator import UpdatedSimulator


@dataclass
class ShareSimulator(UpdatedSimulator):
    """`renewed` counts how often something that was forgotten had to be made again."""

    renewed: int = 0
    gpus: ClassVar[int | None] = 3
    kinds: ClassVar[Mapping[str, int]] = {"whole": 2, "share": 8, "admin": 1}

    def __post_init__(self) -> None:
        self.gpu_locks: dict[DeviceName, ThreadLock] = {}
        self.tree = CgroupTree(self.folder / "cgroup")
        self.cgroups = Cgroups(str(self.tree.root))
        self.limiter, self.slices, self.opened = FakeLimiter(), FakeTimeSlices(), 0
        super().__post_init__()

    def new_node(self, **more: Any) -> PluginNode:
        self.show_driver()
        node = NodeEnforcement(memory_limits=None, time_slices=None)
        made: PluginNode = super().new_node(
            kind_of=kinds_on(lambda: node),
            kinds=[MemoryLimits(self.limiter, self.cgroups), TimeSlices(self.slices)],
            gpu_locks=self.gpu_locks,
            **more,
        )
        self.renewal = EffectRenewal(
            opened=lambda: self.opened,
            claims=made.node_claims,
            effects=made.effects,
            users_known=lambda: True,
            pods_of=made.reporter.users_of,
            pods_now=made.reporter.users_of,
            tell=lambda *_: None,
            clock=self.clock,
        )
        return made

    def configs(self) -> list[dict[str, Any]]:
        # Nearly all alike: a GPU has one interval at a time.
        word = self.rng.choices(["", "Long", "Short"], [2, 4, 1])[0]
        return [sharing_config(strategy="TimeSlicing", interval=word)] if word else [BEST_EFFORT]

    def show_driver(self) -> None:
        """The driver that is loaded has the GPUs that are there, and knows nothing of before."""
        present = [gpu.uuid for gpu in self.all_gpus if gpu_device_name(gpu.uuid) in self.minors]
        if self.opened:
            self.limiter.gpus = set(present)
            self.slices.intervals = {uuid: self.slices.intervals[uuid] for uuid in present}
            return
        self.opened = 1
        self.load(present)

    def load(self, present: list[str]) -> None:
        self.limiter.gpus = set(present)
        self.limiter.limits.clear()
        self.slices.intervals = dict.fromkeys(present, TimeSliceInterval.DEFAULT)

    def load_gpu_driver(self) -> None:
        super().load_gpu_driver()
        self.opened += 1
        self.load([gpu.uuid for gpu in self.all_gpus if gpu_device_name(gpu.uuid) in self.minors])

    def start_pod(self) -> None:
        for pod in self.pods.values():
            self.tree.add(pod.metadata.uid)
        super().start_pod()

    def break_checkpoint(self) -> None:
        self.older = None
        super().break_checkpoint()

    def look(self) -> None:
        """The two threads of the newer instance look in any order."""
        looks = [super().look, self.renew]
        self.beside.shuffle(looks)
        for each in looks:
            each()

    def renew(self) -> None:
        before = (dict(self.limiter.limits), dict(self.slices.intervals))
        self.call_newer(lambda _: self.renewal.look())
        self.renewed += before != (self.limiter.limits, self.slices.intervals)

    def things(self) -> dict[Callable[[], None], int]:
        """Checkpoints break in every second run: what the others leave in the driver is a fault."""
        return {**super().things(), self.break_checkpoint: self.seed % 2}

    def step(self) -> None:
        super().step()
        if self.node is None or self.steps.left is not None:
            return
        super().look()
        self.renew()
        self.judge_shares()

    def judge_shares(self) -> None:
        """Look whether the driver holds each prepared share to what its claim was given."""
        if self.node is None:
            return
        with self.node.node_claims.hold():
            now = self.node.node_claims.current()
        made = [effect for each in now if each.state is State.DONE for effect in each.prepared.effects]
        for effect in made:
            if self.uuid_of(effect) in self.limiter.gpus:
                self.judge_effect(effect, made)

    def uuid_of(self, effect: Effect) -> str:
        return next(gpu.uuid for gpu in self.all_gpus if gpu_device_name(gpu.uuid) == effect.gpu)

    def judge_effect(self, effect: Effect, made: list[Effect]) -> None:
        gpu = self.uuid_of(effect)
        if effect.kind == TIME_SLICE:
            wanted: object = effect.parameters["interval"]
            seen: object = self.slices.intervals[gpu].value
        elif effect.kind == MEMORY_LIMIT and (cgroup := self.cgroups.of_pod(pod_of(effect))) is not None:
            mates = [each for each in made if (each.kind, each.gpu) == (MEMORY_LIMIT, effect.gpu)]
            wanted = sum(int(each.parameters["memory_bytes"]) for each in mates if pod_of(each) == pod_of(effect))
            seen = self.limiter.limits.get((gpu, cgroup))
        else:
            return
        if wanted != seen:
            raise ViolationError(f"seed {self.seed}: {effect} is {wanted}, the driver has {seen}: {self.done}")

    def drain(self) -> None:
        """As before, and a sweep for what lost claims had; then the driver must have nothing of any share."""
        super().drain()
        assert self.node is not None
        for kind in (MEMORY_LIMIT, TIME_SLICE):
            self.node.engine.sweep(kind)
        left = [gpu for gpu, interval in self.slices.intervals.items() if interval is not TimeSliceInterval.DEFAULT]
        if left or self.limiter.limits:
            raise ViolationError(f"seed {self.seed}: shares have ended, the driver has {left}, {self.limiter.limits}")
