"""Whose turn it is: pods of higher priority first, then older ones."""

from __future__ import annotations

from dracaena.api.objects import Pod

Turn = tuple[int, bool, str, str]
"""Sorts pods: the smallest is served first. No two pods of a cluster have one."""


def turn(pod: Pod) -> Turn:
    """Return a pod's place among all others. spec.priority first, as kube-scheduler's queue has it, then the time of
    creation (times of the API sort as texts; whole seconds), those that were never created last, then the key.

    None of it ever changes while the pod lives, so all replicas and all leaders order alike.
    """
    created = pod.metadata.creation_timestamp
    return -pod.spec.priority, created is None, created or "", pod.key
