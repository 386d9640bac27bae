"""What is wrong with a GPU, judged from what its driver reports: faults by class, how long each lasts, what it means.

Values in, values out. Time is counted in polls, which come every POLL_S (health_monitor). A fault that the driver
shows as a state (lost, a reset that is due, a row waiting to be remapped) lasts while it shows. An XID shows only once:
it lasts until the driver says that nothing needs to be done. Both are cleared only after several good polls in a row.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dracaena.api import limits
from dracaena.api.objects import Taint
from dracaena.host.facts.health import GpuEvent, GpuState
from dracaena.kubelet_plugin.discovery.nvml_words import (
    FABRIC_COMPLETED,
    FABRIC_HEALTH,
    FABRIC_IN_PROGRESS,
    FABRIC_NOT_STARTED,
)

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of programs themselves: the same six that NVIDIA's device plugin and DRA driver ignore."""

CONTAINED_XIDS = frozenset({63, 94})
"""A row remap was recorded; an uncorrectable memory error was contained to its program. If a remap still waits for a
reset, the driver shows that as a state."""

EVICTING_XIDS = frozenset({79, 95, 119})
"""Off the bus, uncontained memory error, GSP firmware silent: no program on this GPU can continue."""

CLEAR_POLLS = 4
"""Good polls in a row that clear a fault: 60 s. A reset takes tens of seconds, in which a GPU answers now and then."""

LASTS_POLLS = 4
"""Polls in a row before a slowdown, a silence or a missing NVLink counts: 60 s. They often pass by themselves: a burst
of load, a driver that brings up another GPU, links that are trained again."""

INFORMED_POLLS = 40
"""How long a harmless fault is reported: 10 minutes, so that it is seen by whoever investigates a crashed program."""

RELAPSE_POLLS = 240
"""A blocking fault within this many polls (an hour) after the last one was cleared is a relapse. Each relapse doubles
the polls that clear it, so that a GPU that fails under each new pod does not get a pod every minute."""

MAX_DOUBLINGS = 4
"""At most 16 times CLEAR_POLLS, 16 minutes: an admin who has repaired a GPU must not wait longer."""

MAX_MESSAGE = 1024
"""Characters of a health message that kubelet keeps (KEP-4680)."""

_ACTIONS = {
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
"""NVML_GPU_RECOVERY_ACTION_*; 0 is none."""

RECOVERY_ACTION = "recovery-action"
ECC = "ecc"
ROW_REMAP = "row-remap"
PAGE_RETIREMENT = "page-retirement"
SLOWDOWN = "slowdown"
NVLINK = "nvlink"
NVLINK_ERRORS = "nvlink-errors"
SRAM = "sram"
"""Keys of faults that a poll shows, and by which it says which of them it could not look for."""

_XID = "xid"
_UNMONITORED = "unmonitored"
_PARTLY = "partly"

FABRIC = "fabric"
"""Key of the faults of the NVSwitch fabric. It comes up once and does not flap: one good poll clears them, and they do
not count as relapses of a GPU."""

CONFIDENTIAL = "confidential"
"""Key of the fault of a GPU that computes confidentially and is not attested yet. Like those of the fabric it is not
the GPU's own, and the first good poll clears it."""

_ONCE = frozenset({_XID, ECC, NVLINK_ERRORS})
"""Keys of faults that show once, when they happen, and not as a state."""

_NOT_ITS_OWN = frozenset({FABRIC, CONFIDENTIAL})
"""Keys of faults that all GPUs of a node usually have together, and whose end does not depend on the GPU."""

_SLOWDOWNS = {0x40: "thermal", 0x80: "power-brake"}
"""nvmlClocksEventReasonHwThermalSlowdown and …HwPowerBrakeSlowdown: the board protects itself. Software caps, which an
admin sets, are no fault."""


class HealthClass(enum.IntEnum):
    """Classes of faults, least serious first."""

    DEGRADED = 1
    """Slower than it should be, or not fully watched."""
    APPLICATION = 2
    """A program's own fault."""
    CONTAINED = 3
    """A memory error that ended with its program."""
    UNREADY = 4
    """Nothing is broken, but programs cannot use it yet, or not now."""
    SILENT = 5
    """The driver gives no answer about this GPU: its state is unknown."""
    FATAL = 6
    """Needs a reset or a replacement; XIDs that are not listed count as such."""
    LOST = 7
    """Off the bus, or gone from the driver's list."""


BLOCKING = HealthClass.UNREADY
"""A fault of this class or a worse one keeps new pods from the device."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong with a GPU."""

    health_class: HealthClass
    key: str
    """Name of its taint below the driver's name."""
    value: str = ""
    """Value of its taint: a label value."""
    gpu_instance: int | None = None
    """The GPU instance that it is limited to; None: the whole GPU."""
    message: str = ""

    @property
    def blocks(self) -> bool:
        """Whether no new pod should get the device."""
        return self.health_class >= BLOCKING

    @property
    def is_fatal(self) -> bool:
        """Whether it lasts until somebody acts."""
        return self.health_class >= HealthClass.FATAL

    @property
    def is_failure(self) -> bool:
        """Whether it blocks because of what the GPU itself did."""
        return self.blocks and not self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether it is a fault of something that the GPUs of a node share, not of the GPU."""
        return self.key in _NOT_ITS_OWN


@dataclass(frozen=True, slots=True)
class Rules:
    """What an admin can set."""

    ignored_xids: AbstractSet[int] = frozenset()
    """XIDs that count as a program's own fault, besides APPLICATION_XIDS."""
    ignore_all: bool = False
    fatal_xids: AbstractSet[int] = frozenset()
    """XIDs that count as fatal, overriding everything else."""
    all_fatal: bool = False
    fabric: bool = True
    """Whether the state of the NVSwitch fabric counts."""
    evict: bool = False
    """Whether EVICTING_XIDS and lost GPUs also end the pods that use them (effect NoExecute)."""


@dataclass(frozen=True, slots=True)
class Held:
    """A fault, and how far it is from being raised or cleared."""

    fault: Fault
    shown_polls: int = 1
    """Polls in a row that showed it."""
    good_polls: int = 0
    """Polls in a row that did not."""
    clear_after: int = CLEAR_POLLS
    raised: bool = True
    away: bool = False
    """Whether the GPU was lost meanwhile: then it has been reset when it is back."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The faults of one GPU, with their history."""

    held: tuple[Held, ...] = ()
    relapses: int = 0
    calm_polls: int = RELAPSE_POLLS
    """Polls since the last blocking fault was cleared."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return the faults that count, worst first."""
        return tuple(sorted((held.fault for held in self.held if held.raised), key=_worst_first))


def xid_fault(event: GpuEvent, rules: Rules) -> Fault | None:
    """Return what an event means by itself; None for one that only calls for a poll."""
    if event.xid is None:
        return None
    health_class = xid_class(event.xid, rules)
    where = "" if event.gpu_instance is None else f" in GPU instance {event.gpu_instance}"
    message = f"the driver reported XID {event.xid}{where} ({health_class.name.lower()})"
    return Fault(health_class, _XID, str(event.xid), event.gpu_instance, message)


def xid_class(xid: int, rules: Rules) -> HealthClass:
    """Return the class of an XID: fatal if the settings say so, else as listed or ignored; fatal if not listed."""
    if rules.all_fatal or xid in rules.fatal_xids:
        return HealthClass.FATAL
    if rules.ignore_all or xid in rules.ignored_xids or xid in APPLICATION_XIDS:
        return HealthClass.APPLICATION
    return HealthClass.CONTAINED if xid in CONTAINED_XIDS else HealthClass.FATAL


def shown_faults(state: GpuState) -> tuple[Fault, ...]:
    """Return the faults that a poll shows. A missing value is not a fault."""
    if state.lost is not None:
        return (Fault(HealthClass.LOST, "gpu-lost", message=state.lost),)
    if state.silent is not None:
        return (Fault(HealthClass.SILENT, "silent", message=state.silent),)
    found = []
    if state.recovery_action:
        action = _ACTIONS.get(state.recovery_action, str(state.recovery_action))
        found.append(Fault(HealthClass.FATAL, RECOVERY_ACTION, action, message=f"the driver asks for {action}"))
    if state.remap_failed:
        found.append(Fault(HealthClass.FATAL, ROW_REMAP, "failed", message="a memory row could not be remapped"))
    if state.remap_pending:
        found.append(Fault(HealthClass.FATAL, ROW_REMAP, "pending", message="a row remap waits for a GPU reset"))
    if state.retirement_pending:
        found.append(Fault(HealthClass.FATAL, PAGE_RETIREMENT, "pending", message="a page waits to be retired"))
    found += _fabric_faults(state)
    if state.cc_ready is False:
        text = "it computes confidentially and accepts no work: it has not been declared attested"
        found.append(Fault(HealthClass.UNREADY, CONFIDENTIAL, "not-ready", message=text))
    for bit, word in _SLOWDOWNS.items():
        if (state.clock_reasons or 0) & bit:
            found.append(Fault(HealthClass.DEGRADED, SLOWDOWN, word, message=f"hardware slowdown: {word}"))
    if state.unwatched is not None:
        found.append(Fault(HealthClass.DEGRADED, _UNMONITORED, message=state.unwatched))
    if state.nvlinks_down:
        text = f"{state.nvlinks_down} of its NVLinks are down"
        found.append(Fault(HealthClass.DEGRADED, NVLINK, "down", message=text))
    if state.sram_exceeded:
        text = "errors of its SRAM exceed NVIDIA's threshold: run the field diagnosis"
        found.append(Fault(HealthClass.CONTAINED, SRAM, "threshold-exceeded", message=text))
    if state.unanswered:
        text = f"not known: {'; '.join(f'{key} ({why})' for key, why in sorted(state.unanswered.items()))}"
        found.append(Fault(HealthClass.DEGRADED, _UNMONITORED, _PARTLY, message=text))
    return tuple(found)


def _fabric_faults(state: GpuState) -> tuple[Fault, ...]:
    """Return what is wrong with the NVSwitch fabric of a GPU; nothing if it has none.

    Until it is complete CUDA fails with error 802 (system not yet initialized) on such a GPU; after a failed
    registration NVLink does not work.
    """
    if state.fabric_state == FABRIC_NOT_STARTED:
        message = "the NVSwitch fabric has not been started: CUDA fails with error 802"
        return (Fault(HealthClass.FATAL, FABRIC, "not-started", message=message),)
    if state.fabric_state == FABRIC_IN_PROGRESS:
        message = "the NVSwitch fabric is being brought up: until then CUDA fails with error 802"
        return (Fault(HealthClass.UNREADY, FABRIC, "in-progress", message=message),)
    if state.fabric_state != FABRIC_COMPLETED:
        return ()
    if state.fabric_status:
        message = f"the GPU could not join the NVSwitch fabric: nvmlReturn {state.fabric_status}, NVLink does not work"
        return (Fault(HealthClass.FATAL, FABRIC, "failed", message=message),)
    mask = state.fabric_health or 0
    found = [word for word, (shift, width, bad) in FABRIC_HEALTH.items() if mask >> shift & width in bad]
    message = f"the NVSwitch fabric reports {', '.join(found)}"
    return (Fault(HealthClass.DEGRADED, FABRIC, "degraded", message=message),) if found else ()


def counted_faults(before: GpuState | None, now: GpuState) -> tuple[Fault, ...]:
    """Return the faults for errors that were counted since the last poll. Counts drop at a reset.

    DCGM, too, reports every replay and recovery of an NVLink.
    """
    if before is None:
        return ()
    return tuple(
        Fault(health_class, key, value, message=f"{more} {words}")
        for name, health_class, key, value, words in _COUNTERS
        if (more := _more(getattr(before, name), getattr(now, name))) > 0
    )


_COUNTERS = (
    ("uncorrected_ecc", HealthClass.CONTAINED, ECC, "uncorrected", "uncorrectable ECC errors"),
    ("nvlink_replays", HealthClass.DEGRADED, NVLINK_ERRORS, "replay", "packets were sent again over NVLinks"),
    ("nvlink_recoveries", HealthClass.DEGRADED, NVLINK_ERRORS, "recovery", "NVLinks were trained again"),
)
"""Counter of GpuState → what its growth means."""


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else now - before


def with_last_counts(before: GpuState | None, now: GpuState) -> GpuState:
    """Return a state with the counters of an earlier one where it has none: errors in between count at the next poll
    that has them.
    """
    if before is None:
        return now
    return replace(now, **{c[0]: getattr(before, c[0]) for c in _COUNTERS if getattr(now, c[0]) is None})


def noted(health: GpuHealth, fault: Fault) -> GpuHealth:
    """Return the health after an event. A repeated event restarts its fault; other faults stay."""
    kept = tuple(held for held in health.held if _identity(held.fault) != _identity(fault))
    return _with(replace(health, held=kept), Held(fault), renewed=len(kept) < len(health.held))


def polled(health: GpuHealth, state: GpuState) -> GpuHealth:
    """Return the health after one poll."""
    shown = {_identity(fault): fault for fault in shown_faults(state)}
    answered = state.lost is None and state.silent is None
    blocked = any(fault.is_failure for fault in health.faults)
    held = []
    for old in health.held:
        again = shown.pop(_identity(old.fault), None)
        new = _again(old, again) if again is not None else _after(old, state, answered=answered)
        if new is not None:
            held.append(new)
    health = replace(health, held=tuple(held), calm_polls=min(health.calm_polls + 1, RELAPSE_POLLS))
    for fault in shown.values():
        health = _with(health, Held(fault, raised=_at_once(fault)))
    cleared = blocked and not any(fault.is_failure for fault in health.faults)
    return replace(health, calm_polls=0) if cleared else health


def on_device(faults: Iterable[Fault], gpu_instance: int | None) -> tuple[Fault, ...]:
    """Return a GPU's faults that affect one of its devices. The whole GPU (None) has them all, a MIG device those of
    the GPU and of its own GPU instance, whose compute instances share memory and engines.

    The driver fills in an event's instances even for undivided GPUs, so they count only for MIG devices.
    """
    return tuple(f for f in faults if gpu_instance is None or f.gpu_instance in {None, gpu_instance})


def taints(
    faults: Iterable[Fault], driver: str, rules: Rules, *, room: int = limits.DEVICE_TAINTS
) -> tuple[Taint, ...]:
    """Return the taints of a device, worst first, each key and value once, at most `room`."""
    found: dict[tuple[str, str], Taint] = {}
    for fault in sorted(faults, key=_worst_first):
        found.setdefault((fault.key, fault.value), Taint(f"{driver}/{fault.key}", fault.value, effect(fault, rules)))
    return tuple(found.values())[:room]


def effect(fault: Fault, rules: Rules) -> str:
    """Return the effect of a fault's taint."""
    if not fault.blocks:
        return "None"
    deadly = fault.health_class is HealthClass.LOST or (fault.key == _XID and int(fault.value) in EVICTING_XIDS)
    return "NoExecute" if deadly and rules.evict else "NoSchedule"


def message(faults: Iterable[Fault]) -> str:
    """Return all messages as one text, worst first, cut to what kubelet keeps."""
    text = "; ".join(fault.message for fault in sorted(faults, key=_worst_first))
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def _identity(fault: Fault) -> tuple[str, str, int | None]:
    return (fault.key, fault.value, fault.gpu_instance)


def _worst_first(fault: Fault) -> tuple[int, str, str, int]:
    return (-fault.health_class, fault.key, fault.value, -1 if fault.gpu_instance is None else fault.gpu_instance)


def _at_once(fault: Fault) -> bool:
    may_pass = fault.key in (SLOWDOWN, NVLINK) or fault.value == _PARTLY
    return fault.health_class is not HealthClass.SILENT and not may_pass


def _again(old: Held, fault: Fault) -> Held:
    shown = old.shown_polls + 1
    return replace(old, fault=fault, shown_polls=shown, good_polls=0, raised=old.raised or shown >= LASTS_POLLS)


def _after(old: Held, state: GpuState, *, answered: bool) -> Held | None:
    """Return a fault after a poll that did not show it, None if that clears it."""
    if not old.raised:
        return None
    told_by = RECOVERY_ACTION if old.fault.key == _XID else old.fault.key
    if not answered or told_by in state.unanswered:
        # proves nothing, except that a lost GPU that comes back has been reset
        return replace(old, shown_polls=0, good_polls=0, away=old.away or state.lost is not None)
    if old.fault.is_shared:
        return None
    good = old.good_polls + 1 if _mended(old, state) else 0
    needed = old.clear_after if old.fault.blocks or old.fault.key not in _ONCE else INFORMED_POLLS
    return None if good >= needed else replace(old, shown_polls=0, good_polls=good)


def _mended(old: Held, state: GpuState) -> bool:
    """Whether the poll of a GPU that answers refutes a fault. A fatal XID needs the driver's word, or a reset."""
    if old.fault.key != _XID or not old.fault.blocks:
        return True
    return state.recovery_action == 0 or (state.recovery_action is None and old.away)


def _with(health: GpuHealth, held: Held, *, renewed: bool = False) -> GpuHealth:
    """Add a fault. The first blocking one soon after another was cleared is a relapse."""
    blocking = held.fault.is_failure
    first = blocking and not renewed and not any(old.fault.is_failure for old in health.held)
    relapses = health.relapses
    if first:
        relapses = min(relapses + 1, MAX_DOUBLINGS) if health.calm_polls < RELAPSE_POLLS else 0
    clear_after = CLEAR_POLLS << relapses if blocking else CLEAR_POLLS
    return replace(health, held=(*health.held, replace(held, clear_after=clear_after)), relapses=relapses)
