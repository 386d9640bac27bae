"""A node on which everything happens in any order, and whose files are damaged: checkpoints are lost or torn, writes
and removals fail, the plugin is killed while it recovers, its driver's files are not there, and effects fail.

The oracle knows nothing of the plugin. After each thing that happened it looks at the CDI specs and checkpoints as
files, at the containers that run, and at what kubelet was answered.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.names import CDI_SHARE_MARK, ClaimUid, cdi_device_name, gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from support.fake_memory_limits import CgroupTree, FakeLimiter
from support.fake_nvidia_smi import FakeTimeSlices
from support.node_simulator import SWEEP_S, Crashed, Steps, ViolationError, may_share
from support.plugin import BEST_EFFORT, DRIVER, reference_to, sharing_config
from support.updated_node_simulator import UpdatedSimulator
from support.whole_plugin import PlayedNode, WholePlugin

SETTLE_EVERY = 40
"""Steps between two times in which nothing fails and the plugin may set all right."""

IN_RECOVERY = 0.3
"""How often something fails in a start too."""


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


class FailingDriver:
    """The GPU driver: intervals of time slices, and limits of memory. `fails` holds what fails once: it did nothing, or
    with `late` what it was asked for. Each change is a step at which the plugin may be killed, before it and after it.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.slices, self.limiter = FakeTimeSlices(), FakeLimiter()
        self.slices.before_each = self.limiter.before_each = step
        self.fails: tuple[str, ...] = ()

    def load(self, gpus: Sequence[str]) -> None:
        """It is loaded, has these GPUs, and knows nothing of before."""
        self.limiter.gpus = set(gpus)
        self.limiter.limits.clear()
        self.slices.intervals = dict.fromkeys(gpus, TimeSliceInterval.DEFAULT)

    def read(self, gpu: str) -> TimeSliceInterval | None:
        return self.slices.read(gpu)

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        what = "undo" if interval is TimeSliceInterval.DEFAULT else "apply"
        self._or_fail(what, lambda: self.slices.set(gpu, interval))

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        what = "undo" if limit_bytes is None else "apply"
        self._or_fail(what, lambda: self.limiter.limit(gpu, cgroup, limit_bytes))

    def _or_fail(self, what: str, change: Callable[[], None]) -> None:
        failing = {each for each in self.fails if each.endswith(what)}
        self.fails = tuple(each for each in self.fails if each not in failing)
        if what in failing:
            raise TemporaryError(f"the driver does not {what}")
        change()
        if f"late {what}" in failing:
            raise TemporaryError(f"no answer to {what}")


class DamagedNodeSimulator(UpdatedSimulator):
    """Files are damaged in runs of an even seed, and GPUs get other numbers in the others: nobody can follow a claim
    that has no checkpoint. In these, what has the wrong numbers can be removed at once.
    """

    gpus: ClassVar[int | None] = 3
    kinds: ClassVar[Mapping[str, int]] = {"whole": 3, "share": 8, "admin": 1}
    heeded: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        self.quiet = False
        self.stopping = False
        self.damaged: set[ClaimUid] = set()  # their effects may be known to nobody
        self.ending: set[ClaimUid] = set()  # kubelet has begun to unprepare them
        self.answers: dict[ClaimUid, frozenset[str]] = {}  # the CDI devices that kubelet was told
        self.first_specs: dict[ClaimUid, bytes] = {}
        self.every_claim: dict[ClaimUid, ResourceClaim] = {}
        self.restored = 0
        self.tree, self.cgroups = CgroupTree(self.folder / "cgroup"), dict[str, str]()
        self.driver = FailingDriver(self.driver_step)
        self.played: PlayedNode | None = None
        super().__post_init__()

    # the plugin's world

    def new_steps(self) -> FailingSteps:
        return FailingSteps(removals=not self.seed % 2)

    def new_node(self, **more: Any) -> WholePlugin:
        self.stopping = False
        if self.played is None:
            self.load_driver()
            self.played = PlayedNode(
                self.folder,
                self.claims,
                self.pods,
                self.clock,
                machine=self.machine,
                intervals=self.driver,
                limiter=self.driver,
                cgroups=self.tree.root,
                kubelet=self.kubelet,
                minors=self.gpu_driver_minors,
                edits=self.gpu_driver_edits,
            )
        return WholePlugin(self.played, self.steps, **more)

    def begin(self) -> None:
        self.call_newer(lambda node: node.start())

    def machine(self) -> Machine:
        """What NVML says: the GPUs that the driver has, numbered as it numbers them."""
        gpus = tuple(self.pool().gpus.values())
        pairs = tuple(Link(LinkLevel.SYS, None) for _ in combinations(gpus, 2))
        return Machine("node", gpus, Topology(len(gpus), pairs, (None,) * len(gpus)), driver_version="615.10")

    def load_gpu_driver(self) -> None:
        super().load_gpu_driver()
        self.load_driver()

    def load_driver(self) -> None:
        self.driver.load([gpu.uuid for gpu in self.all_gpus if gpu_device_name(gpu.uuid) in self.minors])
        if self.played is not None:
            self.played.loads += 1

    def show_minors(self, node: Any) -> None:
        """The kernel module says them by itself."""

    def read_gpus(self, node: Any) -> None:
        try:
            node.read()
        except Crashed:
            self.node = None if self.node is node else self.node
            self.older = None if self.older is node else self.older

    def driver_step(self) -> None:
        try:
            self.steps.step()
        except OSError as error:
            raise TemporaryError(f"the driver: {error.strerror}") from error

    def look(self) -> None:
        """The threads of the newer instance look in any order."""
        if self.node is None:
            return
        rounds = self.node.rounds()
        self.beside.shuffle(rounds)
        for each in rounds:
            self.call_newer(lambda _, each=each: each())  # type: ignore[misc]

    def configs(self) -> list[dict[str, Any]]:
        # Nearly all alike: a GPU has one interval at a time.
        word = self.rng.choices(["", "Long", "Short"], [2, 4, 1])[0]
        slices = sharing_config(strategy="TimeSlicing", interval=word, enforcement="BestEffort")
        return [slices] if word else [BEST_EFFORT]

    def start_pod(self) -> None:
        for pod in self.pods.values():
            self.cgroups[pod.metadata.uid] = str(self.tree.add(pod.metadata.uid))
        super().start_pod()

    def gpu_driver_edits(self) -> GpuDriverEdits:
        if self.stopping:
            raise TemporaryError("the plugin is stopping")
        return GpuDriverEdits()

    def before_recovery(self) -> None:
        if not self.quiet and self.rng.random() < IN_RECOVERY:
            self.rng.choice([self.crash, self.fail_steps, self.stop_soon, self.fail_effect])()

    def ask_to_prepare(self, node: WholePlugin, claim: ResourceClaim) -> None:
        uid = ClaimUid(claim.metadata.uid)
        prepared = node.state.prepare(reference_to(claim))
        told = frozenset(cdi_device_name(uid, device.device, device.share_id) for device in prepared.devices)
        if self.answers.setdefault(uid, told) != told:
            raise self.violation(f"kubelet was told {sorted(self.answers[uid])} of {uid}, then {sorted(told)}")
        self.ending.discard(uid)
        self.first_specs.setdefault(uid, self.spec(uid).read_bytes())

    def ask_to_unprepare(self, node: WholePlugin, claim: ResourceClaim) -> None:
        uid = ClaimUid(claim.metadata.uid)
        self.ending.add(uid)
        super().ask_to_unprepare(node, claim)
        if self.spec(uid).exists() or self.checkpoint(uid).exists():
            raise self.violation(f"{uid} is unprepared, and something of it is left")

    # what happens besides

    def new_pod(self) -> None:
        super().new_pod()
        self.every_claim |= {ClaimUid(claim.metadata.uid): claim for claim in self.claims.by_key.values()}

    def fail_steps(self) -> None:
        """The disk fails in one of the next steps, and perhaps in some after it."""
        assert isinstance(self.steps, FailingSteps)
        self.steps.good, self.steps.failing = self.rng.randint(0, 8), self.rng.randint(1, 4)

    def stop_soon(self) -> None:
        """The plugin is about to stop, and still answers."""
        self.stopping = True

    def fail_effect(self) -> None:
        self.driver.fails = (self.rng.choice(["apply", "undo", "late apply", "late undo"]),)

    def lose_checkpoint(self) -> None:
        self.damage(lambda path: path.unlink())

    def tear_checkpoint(self) -> None:
        """It is half there, as if by a change in place or by a write of somebody else."""

        def tear(path: Path) -> None:
            half = path.read_bytes()[:-20]
            if self.rng.random() < 0.5:
                path.unlink()
            path.write_bytes(half)

        self.damage(tear)

    def lose_spec(self) -> None:
        for uid in self.done_claims()[:1]:
            self.spec(uid).unlink()

    def damage(self, how: Callable[[Path], None]) -> None:
        """Damage one checkpoint, or all: what their claims have in common is then known from their specs alone."""
        done = self.done_claims()
        for uid in done if self.rng.random() < 0.3 else done[:1]:
            how(self.checkpoint(uid))
            self.damaged.add(uid)
        if self.rng.random() < 0.5:
            self.restart_plugin()
        if self.rng.random() < 0.7:
            self.rng.choice([self.crash_soon, self.fail_steps, self.stop_soon, self.fail_effect])()
        if self.rng.random() < 0.7:
            self.beside_kubelet(lambda node: node.sweeper.sweep())
            self.look()

    def crash_soon(self) -> None:
        self.steps.left = self.rng.randint(0, 4)

    def done_claims(self) -> list[ClaimUid]:
        """Return the claims whose checkpoints say no more than their specs do, in any order."""
        done = [uid for uid, body in self.checkpoints() if body.get("state") == "done" and self.spec(uid).exists()]
        return self.rng.sample(done, len(done))

    def things(self) -> dict[Callable[[], None], int]:
        damages = 1 - self.seed % 2
        return {
            **super().things(),
            self.end_pod: 2,
            self.break_checkpoint: 0,
            self.renumber: 2 * (self.seed % 2),
            self.fail_steps: 2,
            self.stop_soon: 1,
            self.fail_effect: 2,
            self.lose_checkpoint: 3 * damages,
            self.tear_checkpoint: 2 * damages,
            self.lose_spec: 1,
        }

    def step(self) -> None:
        super().step()
        self.look_at_files()
        if len(self.done) % SETTLE_EVERY == 0:
            self.settle()

    def settle(self) -> None:
        """Nothing fails for a while: then each pod that runs has what it had."""
        self.make_good()
        for _ in range(3):
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.call(lambda node: node.sweeper.sweep())
            self.look()
            self.look_at_files()
        self.quiet = False
        for uid in sorted({ClaimUid(each.claim.metadata.uid) for each in self.containers}):
            self.judge_restored(uid)

    def make_good(self) -> None:
        self.quiet = True
        self.end_update()
        self.start_kubelet()
        self.restart_plugin()

    def drain(self) -> None:
        self.settle()
        self.make_good()
        super().drain()
        known = {
            self.cgroups[each.uid]
            for uid in self.damaged
            for each in self.every_claim[uid].status.reserved_for
            if each.uid in self.cgroups
        }
        limits = {cgroup for _, cgroup in self.driver.limiter.limits}
        longer = [gpu for gpu, each in self.driver.slices.intervals.items() if each is not TimeSliceInterval.DEFAULT]
        if limits - known or longer:
            raise self.violation(f"limits {sorted(limits - known)} and {longer} stay when all pods have ended")

    # the oracle

    def look_at_files(self) -> None:
        self.judge_specs()
        has_checkpoint = {path.stem for path in self.checkpoint_files()}
        specs = {uid for uid, _ in self.specs()}
        running = {ClaimUid(each.claim.metadata.uid) for each in self.containers}
        for uid in sorted(running | self.answered()):
            if uid not in specs and uid not in has_checkpoint:
                raise self.violation(f"{uid} may run, and there is neither a spec nor a checkpoint of it")

    def judge_specs(self) -> None:
        """No device is in two specs, and each has what kubelet was told."""
        users: dict[str, list[ClaimUid]] = {}
        answered = self.answered()
        for uid, names in self.specs():
            if uid in answered and not self.answers[uid] <= names:
                raise self.violation(f"kubelet was told {sorted(self.answers[uid])}, the spec has {sorted(names)}")
            for device in {name.removeprefix(f"{uid}-").partition(CDI_SHARE_MARK)[0] for name in names}:
                users.setdefault(device, []).append(uid)
        for device, uids in users.items():
            for one in uids:
                for other in uids:
                    if one < other and not may_share(self.every_claim[one], self.every_claim[other]):
                        raise self.violation(f"{device} is in the specs of {one} and {other}")

    def judge_restored(self, uid: ClaimUid) -> None:
        claim = self.every_claim[uid]
        if claim.key not in self.claims.by_key:
            return  # nobody can rebuild what is left of it
        body = dict(self.checkpoints()).get(uid, {})
        if self.seed % 2 and body.get("aside"):
            return
        if body.get("state") != "done" or not self.spec(uid).exists():
            raise self.violation(f"{uid} runs and is not restored: {body}")
        if not self.seed % 2 and self.spec(uid).read_bytes() != self.first_specs[uid]:
            raise self.violation(f"{uid} runs, and its spec is another than before")
        self.restored += uid in self.damaged

    def answered(self) -> set[ClaimUid]:
        """Return the claims that kubelet takes for prepared."""
        return (self.answers.keys() & self.prepared.keys()) - self.ending

    def spec(self, uid: ClaimUid) -> Path:
        return self.folder / "cdi" / f"{DRIVER}-claim_{uid}.json"

    def checkpoint(self, uid: ClaimUid) -> Path:
        assert self.played is not None
        return self.played.checkpoints / f"{uid}.json"

    def checkpoint_files(self) -> Sequence[Path]:
        assert self.played is not None
        return sorted(self.played.checkpoints.glob("*.json"))

    def specs(self) -> Iterator[tuple[ClaimUid, frozenset[str]]]:
        """Yield the claims that have one, with the names of their CDI devices."""
        for path in sorted((self.folder / "cdi").glob("*.json")):
            devices = json.loads(path.read_bytes())["devices"]
            yield ClaimUid(path.stem.partition("_")[2]), frozenset(device["name"] for device in devices)

    def checkpoints(self) -> Iterator[tuple[ClaimUid, Mapping[str, Any]]]:
        """Yield the claims whose checkpoints can be read, with what they say."""
        for path in self.checkpoint_files():
            try:
                yield ClaimUid(path.stem), json.loads(path.read_bytes())["checkpoint"]
            except ValueError:
                continue

    def violation(self, what: str) -> ViolationError:
        return ViolationError(f"seed {self.seed}: {what}: {self.done}")
