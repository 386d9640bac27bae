"""MIG instances on a fake driver, through the real pynvml: one process of the plugin after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.mig import mig_device_name
from dracaena.api.names import gpu_device_name
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.adapters.nvml.mig_control import NvmlMigControl
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.mig_instances import MigInstances
from dracaena.kubelet_plugin.changes.kinds.mig_mode import WholeGpus
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.ports import GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, MIG_OFF, Effect, Scalar
from support.changed_node import BOOT, ClaimsOfNode
from support.clock import FakeClock
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.mig_geometries import divisible_machine
from support.plugin import ThreadLock

T = TypeVar("T")


def ask_at_once(_what: str, work: Callable[[], T], _deadline_s: float) -> T:
    return work()


class HungStep:
    """The driver's thread, which gives no answer to one step: it did the step late, or had not come to it."""

    def __init__(self, number: int, *, is_done: bool) -> None:
        self.left = number
        self.is_done = is_done
        self.has_hung = False

    def __call__(self, what: str, work: Callable[[], object], _deadline_s: float) -> object:
        self.left -= 1
        if self.left != 0:
            return work()
        self.has_hung = True
        if self.is_done:
            with suppress(DracaenaError):
                work()
        raise WedgedError(f"{what}: the NVIDIA driver does not answer")


def access_minors(gpu: int, gpu_instance: int, compute_instance: int) -> tuple[int, int] | None:
    """As the driver counts: nine nodes for each GPU instance, of 15."""
    first = 3 + gpu * 15 * 9 + gpu_instance * 9
    return first, first + 1 + compute_instance


@dataclass
class Release:
    """Implements Permission: whether the driver is in other hands."""

    reason: str | None = None

    def refusal(self) -> str | None:
        return self.reason

    def enter(self) -> None:
        if self.reason is not None:
            raise GpuDriverReleasedError(self.reason)

    def leave(self) -> None:
        pass


class MemoryFiles:
    """Implements DocumentStore."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.written: list[tuple[str, bytes]] = []

    def names(self, suffix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.data if name.endswith(suffix)))

    def read(self, name: str) -> bytes | None:
        return self.data.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.data[name] = data
        self.written.append((name, data))

    def write_if_changed(self, name: str, data: bytes) -> bool:
        is_new = self.data.get(name) != data
        if is_new:
            self.write(name, data)
        return is_new

    def remove(self, name: str) -> None:
        self.data.pop(name, None)


@dataclass
class MigNode:
    """One GPU driver process after the other on one hardware; `fake` is what the process of now has open."""

    hardware: FakeMigHardware
    fake: FakeMigNvml = field(init=False)
    library: NvmlLibrary = field(init=False)
    instances: MigInstances = field(init=False)
    whole: WholeGpus = field(init=False)
    engine: ChangeEngine = field(init=False)
    """Over `claims`."""
    claims: ClaimsOfNode = field(default_factory=ClaimsOfNode)
    ask: Callable[..., object] = ask_at_once
    files: MemoryFiles = field(default_factory=MemoryFiles)
    ledger: Ledger = field(init=False)
    """Over `files`, if nobody sets another."""
    clock: FakeClock = field(default_factory=FakeClock)
    release: Release = field(default_factory=Release)
    is_read: bool = True
    """Whether the plugin knows the GPUs of its node."""
    left_out: set[str] = field(default_factory=set)
    """UUIDs of the GPUs that its last reading lacks."""
    knows_profiles: bool = True
    """Whether the last reading has how each GPU can be divided."""
    renumbered: bool = False
    """Whether the last reading is of a driver that numbered the profiles differently."""

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.files, ThreadLock(), BOOT)
        self.start()

    def start(self) -> None:
        """Start a process of the plugin; the one before was stopped or killed."""
        self.fake = FakeMigNvml(self.hardware)
        self.library = NvmlLibrary(lambda: self.fake, permission=self.release)
        hand = MigHand(NvmlMigControl(self.library), self._asked)
        self.instances = MigInstances(hand, self.gpu, access_minors, self.ledger, self.clock)
        self.whole = WholeGpus(hand, self.gpu)
        locks: dict[str, ThreadLock] = {}
        self.engine = ChangeEngine(
            ledger=self.ledger,
            kinds=[self.instances, self.whole],
            claims=self.claims,  # type: ignore[arg-type]
            gpu_lock=lambda gpu: locks.setdefault(gpu, ThreadLock()),
        )

    def _asked(self, what: str, work: Callable[[], object], deadline_s: float) -> object:
        return self.ask(what, work, deadline_s)

    def gpu(self, uuid: str) -> Gpu:
        if not self.is_read:
            raise TemporaryError("the GPUs of this node are not known yet")
        found = next(
            (gpu for gpu in self.hardware.machine.gpus if gpu.uuid == uuid and uuid not in self.left_out), None
        )
        if found is None:
            raise GpuGoneError(f"this node has no GPU {uuid}")
        profiles = found.mig_profiles if self.knows_profiles else ()
        if self.renumbered:
            numbers = [profile.profile_id for profile in profiles]
            numbers = [*numbers[1:], *numbers[:1]]
            profiles = tuple(replace(p, profile_id=n) for p, n in zip(profiles, numbers, strict=True))
        return replace(found, mig_profiles=profiles)


@contextmanager
def mig_node(architecture: str = "Hopper", count: int = 2) -> Iterator[MigNode]:
    node = MigNode(FakeMigHardware(divisible_machine(count, architecture)))
    try:
        yield node
    finally:
        node.library.close()


def instance(node: MigNode, profile: str, start: int, ordinal: int = 0) -> Effect:
    """The effect of one place."""
    gpu = node.hardware.machine.gpus[ordinal]
    known = next(each for each in gpu.mig_profiles if each.name == profile)
    size = next(place.size for place in known.placements if place.start == start)
    device = mig_device_name(gpu.uuid, profile, start)
    given: Mapping[str, Scalar] = {"gpu": gpu.uuid, "profile": profile, "start": start, "size": size}
    return Effect(MIG_INSTANCE, gpu_device_name(gpu.uuid), device, parameters=given)


def whole_gpu(node: MigNode, ordinal: int = 0) -> Effect:
    gpu = node.hardware.machine.gpus[ordinal]
    name = gpu_device_name(gpu.uuid)
    return Effect(MIG_OFF, name, name, parameters={"gpu": gpu.uuid})
