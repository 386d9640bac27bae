"""Section: decisions where a third of the nodes offer MIG devices beside nodes of whole GPUs.

Run alone with `PYTHONPATH=tests python -P -m bench.partitioned`; `bench.run` calls rows().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bench.decision import KINDS, World, as_watched, cpu_ns, node_document, percentile
from bench.repeated import RUNS, Times, least_of
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.cache.slices import with_shared_values
from dracaena.controller.garbage import collect_between_decisions, freeze_what_stays
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, device_class, holding, pod, pool_slice, request
from support.bare_cluster import decide, land, written

PLAIN_NODES: Final = 1_000
MIG_NODES: Final = 500
PARTS: Final = 7
"""MIG devices of each of a node's 8 GPUs: 56 devices, the most that a slice holds beside taints is 64."""

FILL: Final = 0.75
"""Share of the MIG devices that are held, each by a claim, drawn by chance: nearly every node has its own mask."""

WARM: Final = 30
MEASURED: Final = 200
"""Decisions of each form: two lie above p99."""

MIG: Final = "mig"
GPU: Final = "gpu"
OTHER: Final = "nic.example.com"

ONCE: Final = "the first run alone"

GOAL_MS: Final = 5.0
FLOOR_MS: Final = 25.0


def _class(name: str, expression: str) -> Any:
    return device_class(name, selectors=[{"cel": {"expression": expression}}])


def _of_type(kind: str) -> str:
    return f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'


def _of_one_parent(name: str) -> ResourceClaim:
    made = claim(name, request(count=2, device_class=MIG))
    made.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    return made


FORMS: Final[Mapping[str, tuple[Callable[[str], ResourceClaim], type]]] = MappingProxyType(
    {
        "1 MIG device": (lambda name: claim(name, request(device_class=MIG)), Allocation),
        "2 MIG devices of one GPU": (_of_one_parent, Allocation),
        "1 whole GPU, all taken": (lambda name: claim(name, request(device_class=GPU)), NoFit),
        "8 devices of any kind": (lambda name: claim(name, request(count=8)), Allocation),
        "a device of another driver": (lambda name: claim(name, request(device_class=OTHER)), Refused),
    }
)
"""What is asked, and what the answer has to be."""


class PartitionedWorld(World):
    """Nodes whose GPUs are all taken, and nodes of MIG devices of which a share is."""

    def __init__(self, plain: int = PLAIN_NODES, mig: int = MIG_NODES) -> None:
        super().__init__(plain, KINDS)
        for name, kind in ((MIG, _of_type("mig")), (GPU, _of_type("gpu")), (OTHER, f'device.driver == "{OTHER}"')):
            self.cluster.intake.class_changed(None, _class(name, kind))
        for name, kind in self.kind_of.items():
            pool = self.inventory.pool(name)
            assert pool is not None
            self._hold(name, kind, [device for device in pool.devices if device is not None])
        self.held: list[ResourceClaim] = []
        base = read_machine("hgx-h100")
        for number in range(mig):
            self._add(f"mig-node-{number:05}.example.com", base, number)

    def _add(self, name: str, base: Machine, number: int) -> None:
        published = pool_slice(name, _divided(base, number))
        devices = [device for device in published.spec.devices if device.name.startswith("mig-")]
        published = msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))
        document = node_document(name, base.name, PLAIN_NODES + number)
        self.cluster.intake.node_changed(None, as_watched(document, Node))
        self.cluster.intake.slice_changed(
            None, with_shared_values(as_watched(msgspec.to_builtins(published), ResourceSlice))
        )
        for device in devices:
            if self.rng.random() < FILL:
                self.take(name, device.name)

    def take(self, node: str, device: str) -> None:
        """Let a claim hold one device."""
        self.number += 1
        stored = holding(claim(f"mig-{self.number}", request(device_class=MIG)), node, device)
        self.cluster.intake.claim_changed(None, stored)
        self.held.append(stored)

    def let_one_go(self) -> None:
        """Let a claim end that the seed names."""
        place = self.rng.randrange(len(self.held))
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        self.cluster.intake.claim_changed(self.held.pop(), None)

    def decide_ms(self, asked: ResourceClaim, expected: type | tuple[type, ...]) -> float:
        """Decide for a new pod, take in what is written, and return the CPU time of the decision alone."""
        collect_between_decisions()  # as the worker does that decides next
        name = asked.metadata.name
        waiting = pod(name, name, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
        self.cluster.intake.claim_changed(None, asked)
        self.cluster.intake.pod_changed(None, waiting)
        began = cpu_ns()
        decision = decide(self.cluster, waiting, asked)
        spent_ms = (cpu_ns() - began) / 1e6
        assert isinstance(decision, expected), decision
        if isinstance(decision, Allocation):
            (stored,) = written(decision, waiting)
            land(self.cluster, stored)
            self.cluster.intake.claim_changed(asked, stored)
            self.held.append(stored)
            self.let_one_go()
        else:
            self.cluster.intake.claim_changed(asked, None)
        self.cluster.intake.pod_changed(waiting, None)
        return spent_ms


def _divided(base: Machine, number: int) -> Machine:
    """A machine whose GPUs are divided into as many parts as go, each with an identity of its own."""
    gpus = tuple(
        replace(gpu, mig_enabled=True, uuid=f"GPU-{number:08x}-1111-4000-8000-{gpu.index:012x}") for gpu in base.gpus
    )
    parts = tuple(
        MigDevice(
            parent_uuid=gpu.uuid,
            uuid=f"MIG-{number:08x}-{gpu.index:04x}-{part:04x}-8000-{0:012x}",
            gpu_instance_id=part + 1,
            compute_instance_id=0,
            profile="1g.10gb",
            start=part,
            size=1,
            memory_bytes=10 << 30,
            multiprocessors=16,
        )
        for gpu in gpus
        for part in range(PARTS)
    )
    return replace(base, gpus=gpus, mig_devices=parts)


def rows(progress: Progress, *, warm: int = WARM, measured: int = MEASURED) -> Section:
    """Measure all forms in turn, in one cluster in which claims come and go."""
    progress(f"partitioned: {PLAIN_NODES:,} nodes of GPUs, all taken, and {MIG_NODES} of {8 * PARTS} MIG devices")
    world = PartitionedWorld()
    freeze_what_stays()

    def run() -> Times:
        numbers, all_ms = count(), {name: list[float]() for name in FORMS}
        for _ in range(warm + measured):
            for name, (make, expected) in FORMS.items():
                all_ms[name].append(world.decide_ms(make(f"asked-{next(numbers)}"), expected))
        world.cluster.check()
        return all_ms

    least, once = least_of(run)
    times, times_once = ({name: of[-measured:] for name, of in found.items()} for found in (least, once))
    cold = {name: of[0] for name, of in once.items()}
    return Section(
        title="Decisions among MIG nodes",
        rows=(
            *(Row(f"{name}, p50", percentile(of, 50), unit="ms") for name, of in times.items()),
            *(
                Row(f"{name}, p99", percentile(of, 99), percentile(times_once[name], 99), "ms", against=ONCE)
                for name, of in times.items()
            ),
            *(Row(f"{name}, the very first", spent_ms, unit="ms") for name, spent_ms in cold.items()),
        ),
        floors=tuple(
            Floor(f"{name}, p99", percentile(of, 99), FLOOR_MS, "ms", goal=GOAL_MS) for name, of in times.items()
        ),
        notes=(
            f"{measured} decisions of each form, {FILL:.0%} of the MIG devices held, drawn by chance.",
            f"CPU time; of each decision the least of {RUNS} runs that do the same.",
            "Between two decisions one claim comes and one goes.",
        ),
    )


if __name__ == "__main__":
    import sys

    options = {"warm": 1, "measured": int(sys.argv[1])} if len(sys.argv) > 1 else {}
    section = rows(lambda text: print(text, file=sys.stderr), **options)
    print(as_text(section))
    print(floors_as_text(section.floors))
