"""Racks, blocks and other levels of a cluster above the node, each named by a label of Nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dracaena.api import limits

RACK: Final = "topology.kubernetes.io/rack"
"""As cluster managers and kind write it."""

CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
"""GPU feature discovery names the NVLink clique of a node so, with the value of our attribute fabricClique."""

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # NVIDIA/topograph, pkg/topology/topology.go (KeyFabricTierPrefix): tier 0 is the switch next to the node.
        "topograph": tuple(f"network.topology.nvidia.com/tier-{tier}" for tier in (2, 1, 0)),
        # Google's page "Schedule GKE workloads with Topology Aware Scheduling"; below them is the host.
        "gke": ("cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"),
        # Amazon's page "How Amazon EC2 topology works", as labels of nodes: the last layer is the switch next to the
        # node. A network of four layers has network-node-layer-4 below these.
        "eks": tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)),
        # Oracle's page "Using RDMA network locality when running workloads on OKE", oracle-quickstart/oci-hpc-oke.
        "oci": tuple(
            f"oci.oraclecloud.com/rdma.{level}_id" for level in ("hpc_island", "network_block", "local_block")
        ),
        # The Topology objects of CoreWeave's chart cks-kueue: leafgroups are below superpods, and these below fabrics.
        "coreweave": tuple(f"backend.coreweave.cloud/{level}" for level in ("fabric", "superpod", "leafgroup")),
    }
)
"""What labels of Nodes say about their place in well-known clusters, top first."""

MOST_LEVELS: Final = 8
"""Clouds have three or four. Every level is a step for each node that a decision for a family compares."""

MISSING: Final = "-"
"""Stands in the path of a domain for a level above it that the node does not name. No label value begins so."""


@dataclass(frozen=True, slots=True)
class TopologyLevels:
    """An ordered list of levels. Below the lowest are the NVLink clique of a node, if it is in one, and the node."""

    labels: tuple[str, ...] = ()
    """Keys of the labels, top first."""
    is_kueues: bool = False
    """Whether a Topology of Kueue in the cluster says which; until it is read there are none."""

    @property
    def names(self) -> tuple[str, ...]:
        """What people call the levels: the keys without prefixes."""
        return tuple(key.rpartition("/")[2] for key in self.labels)

    def domains(self, labels: Mapping[str, str]) -> tuple[str | None, ...]:
        """Return the domain of a node with these labels at each level, top first; None: the node names none.

        A domain is the path of values from the top to it, `block-3/rack-07`, so that two blocks may use one name for
        their racks. What cannot be a label value counts as none.
        """
        path: list[str] = []
        found: list[str | None] = []
        for key in self.labels:
            value = labels.get(key, "")
            is_value = 0 < len(value) <= limits.DNS_LABEL_BYTES and "/" not in value and value != MISSING
            path.append(value if is_value else MISSING)
            found.append("/".join(path) if is_value else None)
        return tuple(found)

    def named(self, domains: tuple[str | None, ...]) -> Iterator[tuple[str, str]]:
        """Yield the levels at which a node has a domain, top first: what people call the level, and the value."""
        for name, domain in zip(self.names, domains, strict=True):
            if domain is not None:
                yield name, domain.rpartition("/")[2]


KUEUE: Final = "kueue"
"""Says in a list of levels that Kueue knows them."""

NO_LEVELS: Final = TopologyLevels()

DEFAULT_LEVELS: Final = TopologyLevels((RACK,))
"""Where nobody says anything."""
