"""Section: decisions where a third of the nodes have GPUs that are cut on demand, beside nodes of whole GPUs.

Run alone with `PYTHONPATH=tests python -P -m bench.on_demand`; `bench.run` calls rows().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bench.decision import as_watched, node_document, percentile
from bench.partitioned import GOAL_MS, GPU, MIG, MIG_NODES, ONCE, PLAIN_NODES, PartitionedWorld
from bench.repeated import RUNS, Times, least_of
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.machine import Machine
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.cache.slices import with_shared_values
from dracaena.controller.garbage import freeze_what_stays
from dracaena.process.logs import configure_logs
from support.allocation import DRIVER, claim, request
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100_WITH_MEDIA, MigPart, is_legal

WARM: Final = 10
MEASURED: Final = 200
"""Decisions of each form: two lie above p99."""

FLOOR_MS: Final = 25.0
"""The goal is GOAL_MS. On two busy cores the p99 of a part was 13 to 22 ms, its p50 4 to 5."""

TRIES: Final = (0, 1, 3, 4, 6)
"""Parts that are tried on each GPU at the start, drawn by chance."""


def _parts(name: str, *profiles: str, together: bool = False) -> ResourceClaim:
    made = claim(
        name,
        *(
            request(
                f"r{place}",
                1,
                MIG,
                selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}],
            )
            for place, profile in enumerate(profiles)
        ),
    )
    if together:
        made.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    return made


FORMS: Final[Mapping[str, Callable[[str], ResourceClaim]]] = MappingProxyType(
    {
        "1g of any GPU": lambda name: _parts(name, "1g.10gb"),
        "3g of any GPU": lambda name: _parts(name, "3g.40gb"),
        "1g and 2g of one GPU": lambda name: _parts(name, "1g.10gb", "2g.20gb", together=True),
        "1 whole GPU": lambda name: claim(name, request(device_class=GPU)),
    }
)


class OnDemandWorld(PartitionedWorld):
    """Nodes whose GPUs are all taken, and nodes of GPUs that are cut on demand, most of them in use."""

    def _add(self, name: str, base: Machine, number: int) -> None:
        gpus = tuple(replace(gpu, uuid=f"GPU-{number:08x}-1111-4000-8000-{gpu.index:012x}") for gpu in base.gpus)
        made = replace(base, gpus=gpus)
        document = node_document(name, base.name, PLAIN_NODES + number)
        self.cluster.intake.node_changed(None, as_watched(document, Node))
        for page in mig_slices(name, made, [A100_WITH_MEDIA] * len(gpus)):
            watched: Any = with_shared_values(as_watched(msgspec.to_builtins(page), ResourceSlice))
            self.cluster.intake.slice_changed(None, watched)
        for ordinal in range(len(gpus)):
            layout: list[MigPart] = []
            for _ in range(self.rng.choice(TRIES)):
                one = self.rng.choice(A100_WITH_MEDIA.parts())
                if one not in layout and is_legal(A100_WITH_MEDIA, [*layout, one]):
                    layout.append(one)
                    self.take(name, part_name(made, ordinal, one))


def rows(progress: Progress, *, warm: int = WARM, measured: int = MEASURED, nodes: int = MIG_NODES) -> Section:
    """Measure all forms in turn, in one cluster in which claims come and go."""
    parts = 8 * (len(A100_WITH_MEDIA.parts()) + 1)
    progress(f"on demand: {PLAIN_NODES:,} nodes of GPUs, all taken, and {nodes} of {parts} devices that exclude others")
    world = OnDemandWorld(PLAIN_NODES, nodes)
    freeze_what_stays()

    def run() -> Times:
        numbers, all_ms = count(), {name: list[float]() for name in FORMS}
        for _ in range(warm + measured):
            for name, make in FORMS.items():
                all_ms[name].append(world.decide_ms(make(f"asked-{next(numbers)}"), (Allocation, NoFit)))
        world.cluster.check()
        return all_ms

    least, once = least_of(run)
    times, times_once = ({name: of[-measured:] for name, of in found.items()} for found in (least, once))
    cold = {name: of[0] for name, of in once.items()}
    return Section(
        title="Decisions among GPUs that are cut on demand",
        rows=(
            *(Row(f"{name}, p50", percentile(of, 50), unit="ms") for name, of in times.items()),
            *(
                Row(f"{name}, p99", percentile(of, 99), percentile(times_once[name], 99), "ms", against=ONCE)
                for name, of in times.items()
            ),
            *(Row(f"{name}, the very first", spent_ms, unit="ms") for name, spent_ms in cold.items()),
        ),
        floors=tuple(
            Floor(f"on demand: {name}, p99", percentile(of, 99), FLOOR_MS, "ms", goal=GOAL_MS)
            for name, of in times.items()
        ),
        notes=(
            f"{measured} decisions of each form; nearly every node is in a state of its own.",
            f"CPU time; of each decision the least of {RUNS} runs that do the same.",
            "Between two decisions one claim comes and one goes.",
        ),
    )


if __name__ == "__main__":
    import sys

    configure_logs("error", "json")
    options = {"warm": 1, "measured": int(sys.argv[1])} if len(sys.argv) > 1 else {}
    section = rows(lambda text: print(text, file=sys.stderr), **options)
    print(as_text(section))
    print(floors_as_text(section.floors))
