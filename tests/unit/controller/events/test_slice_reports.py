"""Fields of slices that are not known are counted by driver, and told once."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.events.slice_reports import MAX_REPORTED, SliceReports
from dracaena.controller.metrics import ControllerMetrics
from support.claim_api import FakeEvents
from support.structured import consumes, device, published


def slice_of(name: str, *devices: dict[str, Any], driver: str = "driver-a", **fields: Any) -> ResourceSlice:
    return ResourceSlice.from_json(msgspec.json.encode(published(name, *devices, driver=driver, **fields)))


def newer(name: str, field: str = "later", **more: Any) -> ResourceSlice:
    fields: dict[str, Any] = {field: [1]}
    return slice_of(name, device(f"gpu-of-{name}", **fields), device("plain"), **more)


class Bench:
    def __init__(self, *, is_leading: bool = True) -> None:
        self.is_leading = is_leading
        self.events = FakeEvents()
        self.registry = CollectorRegistry()
        self.reports = SliceReports(self.events, ControllerMetrics(self.registry), lambda: self.is_leading)

    def told(self) -> list[tuple[str, str]]:
        return [(subject, text) for subject, reason, text in self.events.seen if reason == "SliceNotUnderstood"]

    def count(self, driver: str = "driver-a") -> float | None:
        return self.registry.get_sample_value("dracaena_controller_not_understood_slices", {"driver": driver})


TEXT = (
    "Dracaena allocates nothing that it does not understand. later: unknown to this version: each such device is "
    "left alone. Upgrade Dracaena to use it"
)


def test_a_field_is_reported_once_for_all_slices_of_a_driver() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.reports.changed(None, newer(name))
    assert bench.told() == [("ResourceSlice a", TEXT)]
    assert bench.count() == 3
    bench.reports.changed(None, newer("d", driver="driver-b"))
    assert [subject for subject, _ in bench.told()] == ["ResourceSlice a", "ResourceSlice d"]
    assert (bench.count(), bench.count("driver-b")) == (3, 1)


def test_what_is_known_is_no_matter() -> None:
    bench = Bench()
    bench.reports.changed(None, slice_of("a", device("gpu")))
    bench.reports.changed(None, None)
    assert (bench.told(), bench.count()) == ([], None)


def test_a_slice_that_changes_or_goes_counts_as_it_is_now() -> None:
    bench = Bench()
    old, plain = newer("a"), slice_of("a", device("gpu"))
    bench.reports.changed(None, old)
    bench.reports.changed(old, newer("a", "other"))
    assert bench.count() == 1
    bench.reports.changed(newer("a", "other"), plain)
    assert bench.count() == 0
    bench.reports.changed(plain, old)
    bench.reports.changed(old, None)
    assert bench.count() == 0
    assert len(bench.told()) == 2


def test_a_stand_by_counts_and_tells_when_it_leads() -> None:
    bench = Bench(is_leading=False)
    for name in ("b", "a"):
        bench.reports.changed(None, newer(name))
    assert (bench.told(), bench.count()) == ([], 2)
    bench.is_leading = True
    bench.reports.begin()
    assert bench.told() == [("ResourceSlice a", TEXT)]


def test_a_driver_that_invents_fields_does_not_drown_others() -> None:
    bench = Bench()
    for number in range(3 * MAX_REPORTED):
        bench.reports.changed(None, newer(f"s{number}", f"later{number}"))
    assert len(bench.told()) == MAX_REPORTED
    bench.reports.changed(None, newer("b", driver="driver-b"))
    assert len(bench.told()) == MAX_REPORTED + 1


def test_it_says_what_is_left_alone() -> None:
    bench = Bench()
    bench.reports.changed(None, slice_of("a", device("gpu"), later=1))
    grouped = [one | {"later": 1} for one in consumes("set", c="1")]
    bench.reports.changed(None, slice_of("b", device("gpu", consumes_counters=grouped)))
    assert [text.split(". ")[1] for _, text in bench.told()] == [
        "later: unknown to this version: the pool is left alone",
        "consumesCounters[0].later: unknown to this version: the pool is left alone",
    ]
