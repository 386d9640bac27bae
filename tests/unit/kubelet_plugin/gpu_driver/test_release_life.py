"""Many lives of a driver hold what is promised of it, and each planted fault breaks one (support.gpu_driver_life)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dracaena.host.adapters.nvml.events import NvmlEvents
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.health import Poll
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.discovery.health import gpu_health
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from support.gpu_driver_life import Life
from support.seeds import sampled

STEPS = 400
SEEDS = range(12)
"""Each planted fault is found in one of these."""


def live(folder: Path, seed: int) -> None:
    life = Life(folder, seed)
    try:
        for _ in range(STEPS):
            life.step()
            life.check()
        life.heal()
        life.check_healed()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}; done: {', '.join(life.done[-25:])}") from error
    finally:
        life.stop()


@pytest.mark.parametrize("seed", sampled(range(400), 3, 30))
def test_what_a_driver_goes_through_is_told_and_nobody_holds_it_who_should_not(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def close_after_a_poll_with_a_lost_gpu(patch: pytest.MonkeyPatch) -> None:
    poll = NvmlMachine.poll

    def closing(self: NvmlMachine) -> Poll:
        found = poll(self)
        if found.lost is not None:
            self.close()
        return found

    patch.setattr(NvmlMachine, "poll", closing)


def one_lost_gpu_ends_all_event_sets(patch: pytest.MonkeyPatch) -> None:
    drop = NvmlEvents._drop

    def dropping(self: NvmlEvents, *arguments: Any) -> None:
        drop(self, *arguments)
        for uuid, event_set in list(self._sets.items()):
            drop(self, uuid, event_set, *arguments[2:])

    patch.setattr(NvmlEvents, "_drop", dropping)
    patch.setattr(NvmlEvents, "watch_again", lambda _self, _handles: None)


def events_that_wait_are_dropped_when_nvml_is_closed(patch: pytest.MonkeyPatch) -> None:
    let_go = NvmlEvents._let_go

    def forgetting(self: NvmlEvents) -> None:
        let_go(self)
        self._kept.clear()

    patch.setattr(NvmlEvents, "_let_go", forgetting)


def events_are_never_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NvmlEvents, "watch_again", lambda _self, _handles: None)


def a_request_is_not_obeyed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NvmlLibrary, "obey", lambda _self: None)


def a_gpu_without_events_is_not_told(patch: pytest.MonkeyPatch) -> None:
    shown = gpu_health.shown_faults
    patch.setattr(gpu_health, "shown_faults", lambda state: tuple(f for f in shown(state) if f.key != "unmonitored"))


def a_fabric_is_held_for_ever(patch: pytest.MonkeyPatch) -> None:
    after = gpu_health._after

    def holding(old: gpu_health.Held, state: Any, *, answered: bool) -> gpu_health.Held | None:
        return old if old.fault.key == gpu_health.FABRIC else after(old, state, answered=answered)

    patch.setattr(gpu_health, "_after", holding)


def a_trouble_is_told_at_each_look(patch: pytest.MonkeyPatch) -> None:
    update = NodeTroubles.update

    def telling(self: NodeTroubles, source: str, found: Sequence[Trouble]) -> None:
        self._found[source] = ()
        update(self, source, found)

    patch.setattr(NodeTroubles, "update", telling)


@pytest.mark.parametrize(
    "plant",
    [
        close_after_a_poll_with_a_lost_gpu,
        one_lost_gpu_ends_all_event_sets,
        events_that_wait_are_dropped_when_nvml_is_closed,
        events_are_never_asked_for_again,
        a_request_is_not_obeyed,
        a_gpu_without_events_is_not_told,
        a_fabric_is_held_for_ever,
        a_trouble_is_told_at_each_look,
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            live(folder, seed)
        except AssertionError:
            return
    pytest.fail("no life showed it")
