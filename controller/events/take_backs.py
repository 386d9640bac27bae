"""Messages for users about allocations that are taken back."""

from __future__ import annotations

from typing import Final

from dracaena.controller.lifecycle.pod_record import Wait
from dracaena.controller.lifecycle.prospects import PREEMPTED
from dracaena.controller.state.group_turns import YIELDED
from dracaena.controller.state.upkeep import TakenBack

MESSAGE_LENGTH: Final = 300
"""Characters of kube-scheduler's message that are repeated: its node counts come first."""


def why_taken_back(found: TakenBack) -> str:
    """Say why GPUs are taken back from a pod."""
    said = f": {found.said.message[:MESSAGE_LENGTH]}" if found.said is not None else ""
    if found.reason == PREEMPTED:
        return (
            f"GPUs on node {found.node} are taken back, because kube-scheduler did not evict pods of lower priority "
            f"there for it, or these did not end in time{said}"
        )
    if found.reason == YIELDED:
        return (
            f"GPUs on node {found.node} are given back, because this pod's gang does not get all of its GPUs now: "
            "another gang comes first, there are too few, or pods of it are missing"
        )
    then = "Another node is tried" if found.node_matters else "GPUs are allocated again once it says something else"
    return f"GPUs on node {found.node} are taken back, because kube-scheduler does not bind the pod there{said} {then}"


def why_held(said: str, wait: Wait) -> str:
    """Say why nothing is allocated for a pod that gets no node for a while."""
    message = said[:MESSAGE_LENGTH] or "nothing"
    return (
        f"its GPUs were given back, because kube-scheduler did not bind it for reasons of its own: {message} "
        f"They are allocated again once it says something else, at {wait.again_at} at the latest"
    )


def when_again(wait: Wait | None) -> str:
    """Say when what is not tried now is tried again; empty when everything may be tried."""
    return "" if wait is None else f"what was tried before is tried again from {wait.again_at}"
