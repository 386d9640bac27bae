"""A fault in one of the controller's threads: it goes on, or the process ends; never does it stand still unseen."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.controller.lifecycle.phases import RecordEvent
from dracaena.controller.program import STUCK_S, Controller
from dracaena.controller.reconciler import Nothing
from dracaena.controller.settings import ControllerSettings
from support.allocation import claim, holding
from support.clock import FakeClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer


def empty_lists(request: Request) -> None:
    if request.watching:
        request.begin_stream()
        threading.Event().wait(0.2)
        request.end_stream()
    else:
        request.answer(200, {"metadata": {"resourceVersion": "1"}, "items": []})


def controller_over(server: ScriptedServer, folder: Path, clock: FakeClock, ends: list[str]) -> Controller:
    settings = ControllerSettings(leader_elect=False, workers=1)
    return Controller(
        settings, client_for(server.url, folder), clock=clock, registry=CollectorRegistry(), on_lost=ends.append
    )


def test_nodes_are_kept_for_who_starves_although_what_else_is_done_each_second_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ends = FakeClock(), list[str]()
    looked: list[float] = []

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    def look(created_before: str, *, now_s: float, deadline: object) -> None:
        looked.append(now_s)

    with ScriptedServer(empty_lists) as server:
        controller = controller_over(server, tmp_path, clock, ends)
        monkeypatch.setattr(controller.parts.waiting, "report_due", fail)
        monkeypatch.setattr(controller.parts.cluster, "keep_for_starving", look)
        controller.start()

        def twice() -> bool:
            clock.advance(1)
            return len(looked) > 2

        wait_for(twice, "two looks")
        controller.stop()
    assert ends == []


def test_a_record_that_meets_what_it_cannot_is_counted_and_the_process_goes_on(tmp_path: Path) -> None:
    registry, ends = CollectorRegistry(), list[str]()
    with ScriptedServer(empty_lists) as server:
        client = client_for(server.url, tmp_path)
        settings = ControllerSettings(leader_elect=False, workers=1)
        controller = Controller(settings, client, clock=FakeClock(), registry=registry, on_lost=ends.append)
        controller.parts.intake.claim_changed(None, claim("c"))
        assert controller.parts.cluster._state.records.send("default/c", RecordEvent.SEND_DROP) is None
    labels = {"phase": "free", "event": "send drop"}
    assert registry.get_sample_value("dracaena_controller_record_faults_total", labels) == 1
    assert ends == []


def test_a_controller_that_cannot_begin_for_a_fault_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ends = FakeClock(), list[str]()

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    with ScriptedServer(empty_lists) as server:
        controller = controller_over(server, tmp_path, clock, ends)
        monkeypatch.setattr(controller.parts.cluster, "all_collisions", fail)
        controller.start()
        wait_for(lambda: ends, "the end")
        controller.stop()
    assert ends == ["fault in thread starter"]


@pytest.mark.parametrize("elsewhere", [(), ("gpu-1",)], ids=["its holder has nothing now", "its holder has another"])
def test_a_device_that_changed_hands_while_the_watch_was_broken_is_no_collision(
    elsewhere: tuple[str, ...], tmp_path: Path
) -> None:
    """The list that follows tells of both claims, and that of the new holder would come first by name."""
    clock, ends, lists = FakeClock(), list[str](), list[int]()
    registry = CollectorRegistry()
    old, new = claim("z-old"), claim("a-new")
    later = holding(old, "n", *elsewhere) if elsewhere else old
    states = ((holding(old, "n", "gpu-0"), new), (later, holding(new, "n", "gpu-0")))

    def answer(request: Request) -> None:
        if not request.path.endswith("/resourceclaims"):
            empty_lists(request)
        elif request.watching:
            running.wait(10)
            request.answer(410, {"reason": "Expired", "message": "too old"})
        else:
            documents = []
            for item in states[bool(lists)]:
                document = msgspec.to_builtins(item)
                document["metadata"]["resourceVersion"] = str(10 + len(lists))
                documents.append(document)
            lists.append(len(documents))
            request.answer(200, {"metadata": {"resourceVersion": "1"}, "items": documents})

    with ScriptedServer(answer) as server:
        settings = ControllerSettings(leader_elect=False, workers=1)
        controller = Controller(
            settings, client_for(server.url, tmp_path), clock=clock, registry=registry, on_lost=ends.append
        )
        running = controller.parts.work._opened
        controller.start()

        def told() -> bool:
            clock.advance(0.2)
            shown = controller.parts.cluster.claim("default/a-new")
            return shown is not None and shown.status.allocation is not None

        wait_for(told, "the second list")
        controller.stop()
    assert registry.get_sample_value("dracaena_controller_collisions_total", {"kind": "own"}) is None
    assert ends == []


def test_a_decision_that_never_ends_makes_the_process_one_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ends = FakeClock(), list[str]()
    stuck, free = threading.Event(), threading.Event()

    def plan(key: str) -> Nothing:
        stuck.set()
        free.wait(10)
        return Nothing("done")

    with ScriptedServer(empty_lists) as server:
        controller = controller_over(server, tmp_path, clock, ends)
        monkeypatch.setattr(controller.parts.reconciler, "plan", plan)
        controller.start()
        wait_for(lambda: controller.parts.work.is_open, "the start")
        controller.parts.queue.add("ns/p")
        wait_for(stuck.is_set, "a decision")
        clock.advance(STUCK_S - 1)
        assert controller.not_alive() is None
        clock.advance(1)
        assert controller.not_alive() == "a decision has been under way for 60 s"
        free.set()
        wait_for(lambda: controller.not_alive() is None, "its end")
        controller.stop()
    assert ends == []
