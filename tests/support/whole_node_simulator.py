"""A node on which everything happens in any order: claims of every kind, labels, kills, full disks, lost and broken
files, a driver that is loaded anew and numbers its GPUs differently, calls that hang, and what admins do by hand.

The plugin is the whole one, perhaps twice during an update. The oracle knows nothing of it: it looks at the hardware,
at CDI specs, and at what kubelet was answered.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from dracaena.api import mps
from dracaena.api.confidential import CC_MODES, cc_mode_label
from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.mps import MpsPhase
from dracaena.api.names import ClaimUid, gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.labels.follower import SETTLE_S
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE
from support import fake_gpu_tools
from support.mig_node import access_minors
from support.node_simulator import SWEEP_S
from support.played_hardware import HOST, LATE, PARTITIONS
from support.plugin import DRIVER
from support.whole_node import GIB, MEMORY_GIB, MODES, NAMES, Container, WholeNode

SETTLE_EVERY = 20
"""Steps between two times in which nothing fails and the plugin may set all right."""

LAYOUTS: Mapping[str, Mapping[int, Mapping[str, int]]] = {
    "small": {0: {"1g.10gb": 3}, 1: {"1g.10gb": 3}},
    "mixed": {0: {"3g.40gb": 1, "1g.10gb": 2}, 1: {"3g.40gb": 1, "1g.10gb": 2}},
    "whole": {0: {}, 1: {}},
}
"""By ordinal: what LAYOUTS_FILE says."""

CHANGES = (
    "time slice",
    "memory limit",
    "MIG mode",
    "MIG instance",
    "MIG compute instance",
    "MIG compute instance's end",
    "MIG instance's end",
)
FABRIC_CALLS = ("fmConnect", "fmActivateFabricPartition", "fmDeactivateFabricPartition")
STRANGER = 4711
"""A process of somebody else."""


class WholeNodeSimulator(WholeNode):
    """step() does one random thing; end() ends all in order and looks that nothing is left."""

    kills: ClassVar[int] = 3
    """How often the plugin is killed, of all that happens."""
    loads: ClassVar[int] = 1
    """How often the GPU driver is loaded anew."""

    def step(self) -> None:
        things = self.things()
        thing = self.rng.choices(list(things), list(things.values()))[0]
        self.done.append(thing.__name__)
        thing()
        if self.node is None and self.rng.random() < 0.5:
            self.restart()
        self.look_around()
        if len(self.done) % SETTLE_EVERY == 0:
            self.settle()

    def things(self) -> dict[Callable[[], None], int]:
        """Return what may happen, and how often of all."""
        on_board = self.flavor.name == "partitions"
        return {
            self.new_pod: 14,
            self.start_pod: 10,
            self.restart_container: 4,
            self.end_pod: 5,
            self.delete_by_force: 1,
            self.reconcile_kubelet: 2,
            self.let_time_pass: 2,
            self.restart: 1,
            self.begin_update: 1,
            self.end_update: 1,
            self.kill_soon: self.kills,
            self.fill_disk: 2,
            self.fail_change: 2,
            self.hang: 1,
            self.open_a_gpu: 1,
            self.lose_checkpoint: 1,
            self.tear_checkpoint: 1,
            self.damage_record: 1,
            self.load_gpu_driver: self.loads,
            self.reboot: 1 if self.seed % 5 == 0 else 0,
            self.divide_by_hand: int(self.flavor.name == "on demand"),
            self.set_by_hand: 1,
            self.bind_by_hand: int(self.flavor.name == "on demand"),
            self.undo_by_hand: 3,
            self.label: 2 * int(self.flavor.name == "layouts"),
            self.silence_fabric: int(on_board),
            self.label_mode: 5 * int(self.flavor is MODES),
            self.fail_mode: 2 * int(self.flavor is MODES),
        }

    # faults

    def fail_soon(self) -> None:
        self.rng.choice([self.kill_soon, self.fill_disk, self.fail_change])()

    def fill_disk(self) -> None:
        """The disk fails in one of the next steps, and perhaps in some after it."""
        self.steps.good, self.steps.failing = self.rng.randint(0, 8), self.rng.randint(1, 4)

    def fail_change(self) -> None:
        """The next change of one kind does nothing, or does it and does not say so."""
        self.hardware.trips.fails.add(self.rng.choice(["", LATE]) + self.rng.choice(CHANGES))

    def hang(self) -> None:
        """The driver does not answer the next call, which it does not do, or does late."""
        self.hangs = self.rng.choice(["never", "late"])

    def open_a_gpu(self) -> None:
        """Somebody has a GPU open for a while: an unbind of it would wait."""
        address = self.rng.choice(self.hardware.addresses())
        self.hardware.bus.open_by.setdefault(address, []).append(STRANGER)

    def close_gpus(self) -> None:
        for address in self.hardware.addresses():
            self.hardware.bus.close(address)

    def silence_fabric(self) -> None:
        manager = self.hardware.manager
        self.rng.choice([manager.silent, manager.late]).append(self.rng.choice(FABRIC_CALLS))

    def fail_mode(self) -> None:
        """NVIDIA's program fails at one GPU from now on."""
        assert self.hardware.modes is not None
        faults = [fault for fault in fake_gpu_tools.FAULTS if not fault.startswith("hangs")]
        self.hardware.modes.faults({self.rng.choice(self.hardware.addresses()): self.rng.choice(faults)})

    def lose_checkpoint(self) -> None:
        self.damage(lambda path: path.unlink())

    def tear_checkpoint(self) -> None:
        self.damage(lambda path: path.write_bytes(path.read_bytes()[:-20]))

    def damage(self, how: Callable[[Path], object]) -> None:
        """Damage the checkpoint of a claim that kubelet has, or those of all: their CDI specs are whole."""
        done = [uid for uid in sorted(self.had) if self.spec(uid).exists() and self.played.checkpoint(uid)]
        self.rng.shuffle(done)
        for uid in done if self.rng.random() < 0.3 else done[:1]:
            how(self.played.checkpoints / f"{uid}.json")
            self.damaged.add(uid)
        if self.rng.random() < 0.5:
            self.restart()

    def damage_record(self) -> None:
        """Lose or break a file that is no claim's, in one of four runs: what nobody knows of may stay then."""
        data = self.folder / "kubelet" / "plugins" / DRIVER
        files = [p for p in sorted([*data.glob("*.json"), *data.glob("*/*.json")]) if p.parent.name != "claims"]
        if not files:
            return
        path, is_lost = self.rng.choice(files), self.rng.random() < 0.5
        if self.seed % 4 == 0:
            path.unlink() if is_lost else path.write_bytes(path.read_bytes()[:-3])
            self.records_damaged = True
            # What was set before a share is written there alone, so the driver's default comes back in its place.
            noted = path.stem.removeprefix(f"{TIME_SLICE}.")
            named = {("interval", n) for n, gpu in enumerate(self.hardware.gpus) if gpu_device_name(gpu.uuid) == noted}
            self.uncertain |= named & self.foreign.keys()

    def load_gpu_driver(self) -> None:
        """The driver is loaded anew: it has forgotten all, MIG devices too, and may number its GPUs differently."""
        if self.rng.random() < 0.7:
            before = list(self.hardware.numbers)
            self.rng.shuffle(self.hardware.numbers)
            moved = {n for n, number in enumerate(self.hardware.numbers) if number != before[n]}
            self.renumbered |= {uid for uid in self.had if moved & {unit.gpu for unit in self.units(uid)}}
        for ordinal, gpu in enumerate(self.hardware.mig.gpus):
            gpu.instances.clear()
            self.foreign = {key: each for key, each in self.foreign.items() if key != ("mig", ordinal)}
        intervals = [self.hardware.slices.intervals[gpu.uuid].value for gpu in self.hardware.gpus]
        # One that a share has replaced comes back with its end: it was noted as what was there before.
        self.foreign = {k: v for k, v in self.foreign.items() if k[0] != "interval" or intervals[k[1]] != v}
        self.hardware.load()
        self.mps.world.reload_driver()
        self.played.loads += 1
        self.forgotten |= {uid for uid in self.every_claim if self.may_have(uid)}
        self.lost_mig |= {uid for uid in self.every_claim if self.may_have(uid) and self.mig_uuids(uid)}
        if self.flavor.name == "on demand" and self.rng.random() < 0.5:
            self.replace_by_hand()
        if self.older is not None:  # it has let go of the driver too, and opens it again
            self.node, self.older = self.older, self.node
            self.call_newer(lambda node: node.read())
            self.node, self.older = self.older, self.node
        self.look_until_seen()
        # A share that is not enforced again, because its claim is set aside, may end before it is: then nobody knows
        # whether it was an admin who set the driver's default meanwhile.
        self.uncertain |= {key for key in self.foreign if key[0] == "interval" and not self.is_long(key[1])}

    def is_long(self, ordinal: int) -> bool:
        return self.hardware.slices.intervals[self.hardware.gpus[ordinal].uuid] is TimeSliceInterval.LONG

    def reboot(self) -> None:
        """The power is cut: containers are gone, and so is what the kernel and the driver were told."""
        self.node = self.older = None
        self.containers, self.had, self.foreign = [], {}, {}
        self.hardware.bus.boot("nvidia", "snd_hda_intel", "vfio_pci")
        self.hardware.manager.restart(resuming=False)
        for gpu in self.hardware.mig.gpus:
            gpu.instances.clear()
        self.hardware.load()
        if self.hardware.modes is not None:
            for address, mode in self.hardware.modes.after_a_reset().items():
                self.hardware.modes.set(address, mode=mode, pending=None)
        self.mps.world.kill_all()
        self.mps.world.reload_driver()
        self.played.loads += 1
        self.played.boot = self.mps.boot = f"boot-{len(self.done)}"
        shutil.rmtree(self.mps.places.root)  # a tmpfs
        self.mps.start()
        self.serve()
        self.forgotten, self.renumbered, self.lost_mig, self.damaged = set(), set(), set(), set()
        self.restart()

    # what admins do

    def idle(self) -> list[int]:
        """Return the GPUs of which nobody has anything, and on which nothing is left to undo."""
        used = {unit.gpu for uid in self.every_claim for unit in self.units(uid) if self.may_have(uid)}
        return [n for n in range(self.flavor.gpus) if n not in used and not self.is_touched(n)]

    def may_have(self, uid: ClaimUid) -> bool:
        return uid in self.prepared or uid in self.living() or self.played.checkpoint(uid) is not None

    def is_touched(self, ordinal: int) -> bool:
        gpu, address = self.hardware.gpus[ordinal], self.hardware.addresses()[ordinal]
        return (
            bool(self.hardware.mig.gpus[ordinal].instances)
            or self.hardware.drivers_of(address) != HOST
            or self.hardware.slices.intervals[gpu.uuid] is not TimeSliceInterval.DEFAULT
            or any(key[1] == ordinal for key in self.foreign)
        )

    def divide_by_hand(self) -> None:
        for ordinal in self.idle()[:1]:
            made = self.hardware.mig.put(ordinal, "1g.10gb", self.rng.randint(0, 6))
            self.foreign["mig", ordinal] = made.compute[0]

    def replace_by_hand(self) -> None:
        """An admin makes an instance at the very place of a claim's device that went with the driver: it has the same
        number too.
        """
        gone = [device for uid in sorted(self.lost_mig & self.had.keys()) for device in self.had[uid]]
        for ordinal, place in (self.places[device] for device in gone):
            gpu = self.hardware.mig.gpus[ordinal]
            is_free = not any(each.placement.overlaps(place.placement) for each in gpu.instances.values())
            if gpu.mode and is_free and ("mig", ordinal) not in self.foreign:
                made = self.hardware.mig.put(ordinal, place.profile.name, place.placement.start)
                self.foreign["mig", ordinal] = made.compute[0]

    def set_by_hand(self) -> None:
        for ordinal in self.idle()[:1]:
            self.hardware.slices.intervals[self.hardware.gpus[ordinal].uuid] = TimeSliceInterval.SHORT
            self.foreign["interval", ordinal] = TimeSliceInterval.SHORT.value
            self.uncertain.discard(("interval", ordinal))

    def look_until_seen(self) -> None:
        """Look, and once more if that reading hung: until one has worked nobody knows of new numbers, and containers
        start with what was read before.
        """
        hangs = self.hangs is not None
        self.look()
        if hangs:
            self.look()

    def bind_by_hand(self) -> None:
        for ordinal in self.idle()[:1]:
            address = self.hardware.addresses()[ordinal]
            if not self.hardware.bus.open_by.get(address):
                self.hardware.bus.rebind(address, "vfio-pci")
                self.foreign["vfio", ordinal] = "vfio-pci"
                self.look()

    def undo_by_hand(self) -> None:
        """An admin takes back one thing."""
        used = {unit.gpu for uid in self.every_claim for unit in self.units(uid) if self.may_have(uid)}
        can = [key for key in sorted(self.foreign) if key[1] not in used]
        if not can:
            return
        kind, ordinal = self.rng.choice(can)
        del self.foreign[kind, ordinal]
        if kind == "mig":
            gpu = self.hardware.mig.gpus[ordinal]
            gpu.instances.clear()
            gpu.mode = gpu.pending = False
        elif kind == "interval":
            self.hardware.slices.intervals[self.hardware.gpus[ordinal].uuid] = TimeSliceInterval.DEFAULT
        else:
            self.hardware.bus.open_by.pop(self.hardware.addresses()[ordinal], None)
            address = self.hardware.addresses()[ordinal]
            if self.hardware.bus.driver_of(address) == "vfio-pci":
                self.hardware.bus.rebind(address, "nvidia")
            self.hardware.bus.write(f"bus/pci/devices/{address}/driver_override", "\n")
        self.look()

    def label(self) -> None:
        """An admin names another layout."""
        name = self.rng.choice(NAMES)
        self.played.labels = {f"{DRIVER}/mig-layout": name} if name else {}

    def label_mode(self) -> None:
        """An admin asks for another mode, for none, or for nothing any more, perhaps after a drain; meanwhile the
        plugin may be killed and pods may come.
        """
        if self.rng.random() < 0.7:
            for pod in self.pods.values():
                self.forget_in_api(pod.metadata.name)
            self.reconcile_kubelet()
        self.played.labels = self.rng.choice([{}, *({cc_mode_label(DRIVER): mode} for mode in (*CC_MODES, "nonsense"))])
        meanwhile = (self.kill_soon, self.fail_mode, self.new_pod, self.look)
        for _ in range(self.rng.randint(0, 8)):  # a change takes so many looks
            self.rng.choices(meanwhile, (1, 1, 1, 7))[0]()
            self.clock.advance(self.rng.choice([1.0, SETTLE_S]))
            self.look()
            if self.node is None:
                self.restart()

    # the oracle

    def mode_step(self, what: str) -> None:
        """A GPU may be reset only while nobody has one, and without a driver."""
        if what.startswith("before") and (self.had or self.containers):
            raise self.violation(f"{what}, and {sorted(self.had)} have GPUs, and {len(self.containers)} containers run")
        super().mode_step(what)

    def judge(self, new: Container, nodes: frozenset[str]) -> None:
        """A container reaches what its claim has, and nothing that another one's has."""
        uid = ClaimUid(new.claim.metadata.uid)
        units = self.units(uid)
        behind = {n for n, minor in enumerate(self.hardware.numbers) if minor in new.minors}
        own = {unit.gpu for unit in units} or {self.ordinal(r.device) for r in self.results(new.claim)}
        if not behind <= own and uid not in self.damaged:
            raise self.violation(f"{new.pod} got GPUs {sorted(behind)}, its claim has {sorted(own)}")
        wrong = [] if uid in self.damaged | self.forgotten else list(self.missing(uid, nodes))
        if wrong:
            raise self.violation(f"{new.pod} was started, and {wrong}")
        for other in self.containers:
            other_uid = ClaimUid(other.claim.metadata.uid)
            if other_uid != uid and any(a.collides(b) for a in units for b in self.units(other_uid)):
                raise self.violation(f"{new.pod} and {other.pod} have one device")

    def missing(self, uid: ClaimUid, nodes: frozenset[str] | None = None) -> Iterator[str]:
        """Yield what a claim that kubelet has does not have of the node, though it was answered."""
        claim, kind = self.every_claim[uid], self.kind_of[uid]
        if kind == "admin":
            return
        if uid not in self.lost_mig:
            for device, uuid in self.mig_uuids(uid).items():
                if not uuid or uuid != self.had.get(uid, {}).get(device, uuid):
                    yield f"{device} is gone, or another"
                elif nodes is not None and not self.opens(device) <= nodes:
                    yield f"{device} is not opened by {sorted(nodes)}"
        for unit in self.units(uid) if kind == "vfio" else ():
            drivers = self.hardware.drivers_of(self.hardware.addresses()[unit.gpu])
            if drivers[0] != "vfio-pci":
                yield f"GPU {unit.gpu} has drivers {drivers}"
        for unit in self.units(uid) if kind in ("whole", "share", "slices", "mps") else ():
            if self.hardware.drivers_of(self.hardware.addresses()[unit.gpu])[0] != "nvidia":
                yield f"GPU {unit.gpu} has no driver"
        yield from self.missing_partitions(uid)
        if uid not in self.forgotten:
            yield from self.missing_limits(claim, kind)

    def missing_partitions(self, uid: ClaimUid) -> Iterator[str]:
        if self.flavor.name != "partitions" or self.kind_of[uid] not in ("whole", "vfio"):
            return
        if self.records_damaged and uid in self.damaged:
            return  # nobody knows any more which module a GPU is that VFIO has
        wanted = {self.hardware.gpus[unit.gpu].module_id for unit in self.units(uid)}
        linked = [set(PARTITIONS[number]) for number in self.hardware.manager.active if number in PARTITIONS]
        if not any(wanted <= modules for modules in linked):
            yield f"the partition of modules {sorted(map(str, wanted))} is not active"

    def missing_limits(self, claim: ResourceClaim, kind: str) -> Iterator[str]:
        (pod,) = claim.status.reserved_for
        for result in self.results(claim) if kind in ("share", "slices", "mps") else ():
            uuid = self.hardware.gpus[self.ordinal(result.device)].uuid
            limit = self.hardware.limiter.limits.get((uuid, self.cgroups[pod.uid]))
            if kind != "mps" and limit != MEMORY_GIB * GIB:
                yield f"the limit of {pod.name} is {limit}"
            interval = self.hardware.slices.intervals[uuid]
            if kind == "slices" and interval is not TimeSliceInterval.LONG:
                yield f"the interval is {interval}"
            name = mps.share_name(uuid, claim.metadata.uid, str(result.share_id))
            if kind == "mps" and self.mps.phase(name) is not MpsPhase.READY:
                yield f"share {name} is {self.mps.phase(name)}"

    def opens(self, device: str) -> frozenset[str]:
        """Return the nodes that open a MIG device as it is now."""
        ordinal, place = self.places[device]
        found = self.hardware.mig.gpus[ordinal].instances.items()
        number = next(n for n, e in found if (e.profile.name, e.placement) == (place.profile.name, place.placement))
        minors = access_minors(self.hardware.numbers[ordinal], number, 0)
        return frozenset(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors or ())

    def look_around(self) -> None:
        """Nothing is undone that a claim has, and nothing is overwritten that somebody else has set."""
        for uid in sorted(self.had):
            wrong = list(self.missing(uid))
            if wrong:
                raise self.violation(f"{uid} ({self.kind_of[uid]}) is prepared, and {wrong}")
        for (kind, ordinal), wanted in sorted(self.foreign.items()):
            is_lost = bool(self.records_damaged and self.damaged)
            if kind == "interval" and (not self.quiet or self.is_sliced(ordinal) or is_lost):
                continue  # it comes back after the shares, perhaps by a sweep, where anybody still knows it
            if (kind, ordinal) in self.uncertain and self.foreign_now(kind, ordinal) == TimeSliceInterval.DEFAULT.value:
                continue
            if self.foreign_now(kind, ordinal) != wanted:
                raise self.violation(
                    f"{kind} of GPU {ordinal} was set by hand, and is {self.foreign_now(kind, ordinal)}"
                )

    def is_sliced(self, ordinal: int) -> bool:
        """Whether a claim may have set the interval of a GPU."""
        sliced = [uid for uid, kind in self.kind_of.items() if kind == "slices" and self.may_have(uid)]
        return any(unit.gpu == ordinal for uid in sliced for unit in self.units(uid))

    def foreign_now(self, kind: str, ordinal: int) -> str:
        if kind == "mig":
            made = [e.compute.get(0, "") for e in self.hardware.mig.gpus[ordinal].instances.values()]
            return self.foreign[kind, ordinal] if self.foreign[kind, ordinal] in made else f"among {made}"
        if kind == "interval":
            return self.hardware.slices.intervals[self.hardware.gpus[ordinal].uuid].value
        return str(self.hardware.bus.driver_of(self.hardware.addresses()[ordinal]))

    def make_good(self, *, stays: bool = False) -> None:
        """From now on nothing fails. The plugin is started again, unless it runs and `stays`."""
        self.quiet, self.hangs = True, None
        self.hardware.trips.fails.clear()
        self.hardware.manager.silent.clear()
        self.hardware.manager.late.clear()
        self.close_gpus()
        if self.hardware.modes is not None:
            self.hardware.modes.faults({})
        if stays and self.node is not None:
            self.go_on()
        else:
            self.restart()

    def settle(self) -> None:
        """Nothing fails for a while: then each claim that kubelet has is as it was answered. In two of seven sequences
        by the plugin that was there before: a start would make good what its threads have to.
        """
        self.make_good(stays=self.seed % 7 > 4)
        for _ in range(3):
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.sweep()
            self.look()
        # What has another's nodes by now may be set aside: then it has no spec.
        self.forgotten = {uid for uid in self.forgotten & self.renumbered if not self.spec(uid).exists()}
        self.look_around()
        there = {pod.metadata.name for pod in self.pods.values()}
        stuck = sorted(uid for uid, pod in self.prepared.items() if pod not in there)
        if stuck:
            raise self.violation(f"{stuck} cannot be unprepared, and nothing fails")
        self.quiet = False

    def end(self) -> None:
        """End all pods in order; then nothing is left, and each kind of claim can be prepared."""
        self.settle()
        self.make_good()
        for pod in self.pods.values():
            self.forget_in_api(pod.metadata.name)
        if self.flavor is MODES:  # a mode that failed is tried again once its label was taken away
            self.played.labels, wanted = {}, {cc_mode_label(DRIVER): self.rng.choice(CC_MODES)}
            self.look()
            self.played.labels = wanted
        for _ in range(8):  # a layout takes so many looks
            self.reconcile_kubelet()
            self.clock.advance(SWEEP_S)
            self.sweep()
            self.look()
            self.mps.settle()
        self.judge_end()

    def judge_end(self) -> None:
        files = [name for name in self.played.files() if name.startswith(("claims/", "cdi/")) and ".broken" not in name]
        left = [
            *files,
            *self.hardware.left([self.hardware.addresses()[n] for kind, n in self.foreign if kind == "vfio"]),
        ]
        intervals = {self.hardware.gpus[n].uuid for kind, n in self.foreign if kind == "interval"}
        left = [each for each in left if not any(each.startswith(uuid) for uuid in intervals)]
        known = {self.cgroups[pod.uid] for uid in self.damaged for pod in self.every_claim[uid].status.reserved_for}
        left = [each for each in left if not any(each.endswith(cgroup) for cgroup in known)]
        if self.flavor.name == "on demand":
            # Of a checkpoint that is gone nobody can tell when the containers of its claim end: what it had stays.
            lost = {unit.gpu for uid in self.damaged for unit in self.units(uid)}
            left += [
                f"MIG {self.hardware.mig.layout(n)} of GPU {n}"
                for n in range(self.flavor.gpus)
                if self.hardware.mig.gpus[n].instances and ("mig", n) not in self.foreign and n not in lost
            ]
        left += self.without_layout()
        left += self.without_mode()
        left += [f"partition {number}" for number in self.hardware.manager.active]
        left += self.mps.left()
        if self.records_damaged:
            left = files
        if left:
            raise self.violation(f"{left} stay when all pods have ended")

    def without_layout(self) -> list[str]:
        """Return the GPUs that are not in the layout of the Node's label, though nobody uses any."""
        wanted = LAYOUTS.get(self.played.labels.get(f"{DRIVER}/mig-layout", ""), {})
        found = {ordinal: self.counts(ordinal) for ordinal in wanted}
        return [f"GPU {n} is {found[n]}, its layout {wanted[n]}" for n in wanted if found[n] != wanted[n]]

    def without_mode(self) -> list[str]:
        """Return the GPUs that are not in the mode of the Node's label, or would not be after a reset."""
        if self.hardware.modes is None:
            return []
        wanted = self.played.labels[cc_mode_label(DRIVER)]
        found = [*self.hardware.modes.modes().items(), *self.hardware.modes.after_a_reset().items()]
        return [f"the GPU at {address} is in mode {mode}, not {wanted}" for address, mode in found if mode != wanted]

    def counts(self, ordinal: int) -> dict[str, int]:
        return dict(Counter(profile for profile, _, _ in self.hardware.mig.layout(ordinal)))
