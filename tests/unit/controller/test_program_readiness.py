"""What /readyz says while the API server breaks one kind: over sockets, to a whole controller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.program import Controller
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.state.cluster import Cluster
from dracaena.demo.apiserver import ApiServer, InjectedFault, discovery
from dracaena.kube.events import Event
from dracaena.process.http import HttpEndpoint
from support.clock import FakeClock
from support.kube import client_from, wait_for
from support.readiness import readiness
from support.structured import device, published

FOR_EVER = 1_000_000


@contextmanager
def served(server: ApiServer, folder: Path, clock: FakeClock) -> Iterator[int]:
    """A controller over a server, without an election, and the port on which it tells how it is."""
    controller = Controller(
        ControllerSettings(leader_elect=False, workers=1),
        client_from(server.kubeconfig(), folder),
        clock=clock,
        registry=CollectorRegistry(),
    )
    endpoint = HttpEndpoint("127.0.0.1:0", controller.not_ready, CollectorRegistry(), state=controller.state)
    endpoint.start()
    controller.start()
    try:
        yield endpoint.port
    finally:
        stopping = threading.Thread(target=controller.stop)
        stopping.start()

        def stopped() -> bool:
            clock.advance(1)  # who waits for the first lists looks at the end once a second
            return not stopping.is_alive()

        wait_for(stopped, "the end")
        endpoint.stop()


def test_the_rules_of_a_version_hold_a_minute_after_the_control_plane_was_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = FakeClock(), list[Features]()
    monkeypatch.setattr(Cluster, "serve", lambda _, features: seen.append(features))
    said = {"major": "1", "minor": "36"}
    monkeypatch.setattr(discovery, "version", lambda _: said)
    with ApiServer(clock=clock.now) as server, served(server, tmp_path, clock) as port:
        wait_for(lambda: readiness(port)[0] == 200 and seen, "the first lists")
        said["minor"] = "37"

        def is_followed() -> bool:
            clock.advance(60)
            return seen[-1] == Features.of((1, 37))

        assert seen[0] == Features.of((1, 36))
        wait_for(is_followed, "the new version")
        said.clear()
        count = len(seen)
        clock.advance(60)
        assert set(seen[count:]) <= {Features.of((1, 37))}


def test_a_field_of_a_slice_that_is_not_known_is_counted_and_reported_by_who_leads(tmp_path: Path) -> None:
    clock, registry = FakeClock(), CollectorRegistry()
    document = published("slice-1", device("gpu", laterField=1), driver="driver-a")
    with ApiServer(clock=clock.now) as server:
        client = client_from(server.kubeconfig(), tmp_path)
        settings = ControllerSettings(leader_elect=False, workers=1)
        controller = Controller(settings, client, clock=clock, registry=registry)
        slices = next(one for one in controller.parts.watches.all if one.resource == "resourceslices")
        assert slices._on_change is not None
        # The server would drop the field, as any does that does not know it.
        slices._on_change(None, ResourceSlice.from_json(msgspec.json.encode(document)))
        labels = {"driver": "driver-a"}
        assert registry.get_sample_value("dracaena_controller_not_understood_slices", labels) == 1
        controller.start()
        try:
            wait_for(lambda: client.list(Event, namespace="default").items, "the Event")
            (event,) = client.list(Event, namespace="default").items
            assert (event.reason, event.involved_object.name) == ("SliceNotUnderstood", "slice-1")
            assert "laterField: unknown to this version" in event.message
        finally:
            controller.stop()


@pytest.mark.parametrize("kind", ["pods", "nodes", "resourceclaims", "resourceslices", "deviceclasses"])
def test_one_kind_whose_watch_is_refused_is_named_after_half_a_minute_and_until_it_is_well(
    kind: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    with ApiServer(clock=clock.now) as server:
        server.faults.add(InjectedFault(path=f"/{kind}[?].*watch=true", times=FOR_EVER, status=503, message="broken"))
        with served(server, tmp_path, clock) as port:
            wait_for(lambda: readiness(port)[0] == 200, "the first lists")
            clock.advance(25)
            assert readiness(port)[0] == 200
            clock.advance(10)
            assert readiness(port)[0] == 503
            named = f"not ready: the cache of {kind} has not been fresh for 35 s: "
            # The watches of other kinds may be on their way still: those come to be fresh, this one does not.

            def told() -> bool:
                text = readiness(port)[1]
                return text.startswith(named) and ": WATCH /" in text

            wait_for(told, "the other watches, and the refusal of this one")
            server.faults.clear()

            def well() -> bool:
                clock.advance(1)
                return readiness(port)[0] == 200

            wait_for(well, "the watch")


def test_a_first_list_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    clock = FakeClock()
    with ApiServer(clock=clock.now) as server:
        server.faults.add(InjectedFault(path="/resourceclaims[?]", times=FOR_EVER, status=500, message="cannot decode"))
        with served(server, tmp_path, clock) as port:

            def told() -> bool:
                text = readiness(port)[1]
                return text.startswith("not ready: the first list of resourceclaims is not complete: ") and (
                    "cannot decode" in text
                )

            wait_for(told, "the reason")
