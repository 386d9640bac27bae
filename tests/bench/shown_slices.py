"""Section: what an answer about a node costs, whatever its slices say.

Every number of a slice takes odd values (support.slice_numbers), and the page, `status`, `explain` and `simulate`
answer. Run alone with `PYTHONPATH=tests python -P -m bench.shown_slices`; `bench.run` calls rows(). The tests count the
same work in lines of Python; here it is seconds and bytes.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bench.report import Floor, Progress, Section, Table, as_text, floors_as_text
from dracaena.api.attributes import MAX_ORDINAL
from dracaena.api.availability import MOST_PAGES
from dracaena.api.names import gpu_device_name
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import Device, DeviceAttribute, ResourceSlice
from support.slice_numbers import SAMPLES, changed, number_paths, values_for
from support.slice_readers import READERS, holders_of_all

LONGEST_S: Final = 1.0
MOST_MIB: Final = 64.0
DEVICES: Final = 64
"""Of a slice with taints, by the API."""
TAINTS: Final = 15
"""Of a device, beside ours."""

Case = tuple[str, Sequence[ResourceSlice]]


def rows(progress: Progress) -> Section:
    """Measure all cases: a minute or two."""
    worst: dict[str, tuple[float, str, float, str]] = {}
    count = 0
    for name, slices in _cases():
        count += 1
        claims = holders_of_all(slices)[:1_000]
        for reader, answer in READERS.items():
            seconds = _seconds(lambda: answer(slices, claims))  # noqa: B023  called at once
            mib = _peak_mib(lambda: answer(slices, claims))  # noqa: B023
            before = worst.get(reader, (0.0, "", 0.0, ""))
            longest = (seconds, name) if seconds > before[0] else before[:2]
            worst[reader] = (*longest, *((mib, name) if mib > before[2] else before[2:]))
        if count % 100 == 0:
            progress(f"shown slices: {count} cases")
    table = [
        (reader, f"{seconds * 1000:.0f}", slowest, f"{mib:.1f}", largest)
        for reader, (seconds, slowest, mib, largest) in worst.items()
    ]
    header = ("answer of", "longest, ms", "with", "most memory, MiB", "with ")
    return Section(
        title="Slices of a hostile node: what answers about it cost",
        tables=(Table(f"{count} nodes, each with one odd number or as much as there may be", header, tuple(table)),),
        notes=("Seconds are CPU time of the one thread that answers; the page's are of five answers in a row.",),
        floors=(
            Floor("longest answer about a hostile node", max(one[0] for one in worst.values()), LONGEST_S, "s"),
            Floor("memory of an answer about a hostile node", max(one[2] for one in worst.values()), MOST_MIB, "MiB"),
        ),
    )


def _cases() -> Iterator[Case]:
    for sample, pages in SAMPLES.items():
        for name, path in number_paths(pages):
            for value in values_for(pages, path):
                yield f"{sample}, {name} = {str(value)[:20]}", changed(pages, path, value)
    yield "as many GPUs as there may be", [_page(0, [_gpu(number) for number in range(MAX_ORDINAL + 1)])]
    yield (
        "more slices than are shown",
        [_page(page, [_gpu(page * DEVICES + number) for number in range(DEVICES)]) for page in range(2 * MOST_PAGES)],
    )


def _gpu(number: int) -> Device:
    identity = f"GPU-{uuid.UUID(int=number)}"
    values: dict[str, Any] = {"type": "gpu", "uuid": identity, "productName": "x" * 64}
    attributes = {name: DeviceAttribute(string=value) for name, value in values.items()}
    attributes |= {name: DeviceAttribute(int_value=number) for name in ("ordinal", "index")}
    taints = [Taint(key=f"t{number}-{place}.example.com", value="x", effect="NoSchedule") for place in range(TAINTS)]
    return Device(name=gpu_device_name(identity), attributes=attributes, taints=taints)


def _page(number: int, devices: list[Device]) -> ResourceSlice:
    (base, *_) = SAMPLES["whole"]
    page = msgspec.convert(base, ResourceSlice)
    metadata = msgspec.structs.replace(page.metadata, name=f"n-{number:04}")
    return msgspec.structs.replace(page, metadata=metadata, spec=msgspec.structs.replace(page.spec, devices=devices))


def _seconds(call: Any) -> float:
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s


def _peak_mib(call: Any) -> float:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    found = rows(_tell)
    print(as_text(found) + floors_as_text(found.floors), end="")
    sys.exit(0 if all(floor.holds for floor in found.floors) else 1)
