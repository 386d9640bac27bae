"""What a table says about a pod: how many containers are ready, its state in one word, and its restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dracaena.api.objects import ENDED
from dracaena.demo.apiserver.tables.ages import age

Document = dict[str, Any]

_NODE_LOST: Final = "NodeLost"
_GATED: Final = "SchedulingGated"
_COMPLETED: Final = "Completed"


@dataclass(frozen=True, slots=True)
class PodSummary:
    """The cells of a pod that are not copied from a field."""

    ready: str
    state: str
    restarts: str


def summary(pod: Document, now: datetime) -> PodSummary:
    """Sum up a pod. Init containers that restart on their own are refused by this server, so none is counted here."""
    status = pod["status"]
    init = _failed_or_unfinished_init(pod)
    state = init or _initial_state(status)
    counted: Sequence[Document] = status.get("containerStatuses") or ()
    ready = 0
    if init is None or _is_true(status, "Initialized"):
        ready = sum(_runs(one) and one["ready"] for one in counted)
        state = _main_state(status, counted, state)
    else:
        counted = status["initContainerStatuses"]
        counted = counted[: _unfinished(counted) + 1]
    total = len(pod["spec"]["containers"] or ())
    return PodSummary(f"{ready}/{total}", _when_deleted(pod, state), _restarts(counted, now))


def _initial_state(status: Document) -> str:
    if any(one["type"] == "PodScheduled" and one.get("reason") == _GATED for one in status.get("conditions") or ()):
        return _GATED
    return str(status.get("reason") or status.get("phase", ""))


def _when_deleted(pod: Document, state: str) -> str:
    if "deletionTimestamp" not in pod["metadata"]:
        return state
    if pod["status"].get("reason") == _NODE_LOST:
        return "Unknown"
    return state if pod["status"].get("phase") in ENDED else "Terminating"


def _unfinished(init: Sequence[Document]) -> int:
    """The place of the first init container that has not succeeded; the number of them if all have."""
    for place, one in enumerate(init):
        ended = one["state"].get("terminated")
        if ended is None or ended["exitCode"]:
            return place
    return len(init)


def _failed_or_unfinished_init(pod: Document) -> str | None:
    init = pod["status"].get("initContainerStatuses") or ()
    place = _unfinished(init)
    if place == len(init):
        return None
    state = init[place]["state"]
    waits_for = (state.get("waiting") or {}).get("reason", "")
    if "terminated" in state:
        return f"Init:{_ending(state['terminated'])}"
    if waits_for and waits_for != "PodInitializing":
        return f"Init:{waits_for}"
    return f"Init:{place}/{len(pod['spec'].get('initContainers') or ())}"


def _ending(terminated: Document) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated['exitCode']}"


def _main_state(status: Document, containers: Sequence[Document], state: str) -> str:
    """The word for the first container that is not simply running, unless others still run next to an ended one."""
    failed = ""
    for one in reversed(containers):
        waiting, terminated = one["state"].get("waiting"), one["state"].get("terminated")
        if waiting and waiting.get("reason"):
            state = waiting["reason"]
        elif terminated is not None:
            state = _ending(terminated)
            failed = state if terminated["exitCode"] else failed
    if state != _COMPLETED:
        return state
    some_run = any(_runs(one) and one["ready"] for one in containers)
    if some_run and _is_true(status, "Ready"):
        return "Running"
    return failed or ("NotReady" if some_run else state)


def _runs(container: Document) -> bool:
    """Whether it runs, and neither waits with a reason nor has ended."""
    state = container["state"]
    waits = bool((state.get("waiting") or {}).get("reason"))
    return "running" in state and "terminated" not in state and not waits


def _is_true(status: Document, condition: str) -> bool:
    found = next((one for one in status.get("conditions") or () if one["type"] == condition), None)
    return found is not None and found["status"] == "True"


def _restarts(containers: Sequence[Document], now: datetime) -> str:
    count = sum(one["restartCount"] for one in containers)
    ends = [(one["lastState"].get("terminated") or {}).get("finishedAt") for one in containers]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)
