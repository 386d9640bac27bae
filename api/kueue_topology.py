"""Kueue's Topology: which labels of Nodes name racks, blocks and the like."""

from __future__ import annotations

from typing import ClassVar

from dracaena.api.objects import KubeObject, Wire


class KueueTopologyLevel(Wire, frozen=True):
    """One level."""

    node_label: str = ""


class KueueTopologySpec(Wire, frozen=True):
    """spec of a Topology."""

    levels: tuple[KueueTopologyLevel, ...] = ()
    """Largest first. The last one is often kubernetes.io/hostname."""


class KueueTopology(KubeObject, frozen=True):
    """apis/kueue/v1beta2/topology_types.go of kubernetes-sigs/kueue."""

    API_VERSION: ClassVar[str] = "kueue.x-k8s.io/v1beta2"
    RESOURCE: ClassVar[str] = "topologies"
    KIND: ClassVar[str] = "Topology"
    NAMESPACED: ClassVar[bool] = False

    spec: KueueTopologySpec = KueueTopologySpec()


class KueueTopologyV1Beta1(KueueTopology, frozen=True):
    """The same in Kueue before 0.15."""

    API_VERSION: ClassVar[str] = "kueue.x-k8s.io/v1beta1"
