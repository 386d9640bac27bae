"""Pods of an exporter, with what is needed to ask one: the node where it runs and the address where it listens.

Not api.objects.Pod: the pods of a whole cluster are kept in memory, and nothing else needs their addresses.
"""

from __future__ import annotations

from typing import ClassVar

from dracaena.api.objects import KubeObject, Wire


class AddressedPodStatus(Wire, frozen=True):
    """status of a Pod."""

    phase: str = ""
    pod_i_p: str = ""
    """podIP: where it listens; empty until kubelet has set it."""


class AddressedPod(KubeObject, frozen=True):
    """A pod with its address."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "pods"
    KIND: ClassVar[str] = "Pod"

    status: AddressedPodStatus = AddressedPodStatus()
