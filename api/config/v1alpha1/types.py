"""The kinds of the config group as values.

The schema allows bandwidths up to 10,000 GB/s: more than any GPU announced has (3,600 GB/s), and little enough for a
figure in MB/s to be noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dracaena.api.names import CONFIG_GROUP

API_VERSION = f"{CONFIG_GROUP}/v1alpha1"


class Requirement(Enum):
    """What must hold for the GPUs of one request, or no allocation is made.

    A level means "no pair is linked worse than this", in the order NVLink, PIX, PXB, PHB, NODE, SYS in which
    `nvidia-smi topo -m` is read. So a pair with a direct NVLink satisfies every level, whatever its PCIe level is: a
    user who asks for PIX wants GPUs that talk fast, and is not served by refusing the faster link. A pair whose PCIe
    level is unknown and that has no NVLink satisfies no level: an assumption is no basis for a promise. One GPU alone
    satisfies everything.
    """

    BEST_EFFORT = "BestEffort"
    """The best-linked set, whatever it is. The default when no policy says anything."""
    NVLINK = "NVLink"
    """The NVLink graph of the chosen GPUs alone is connected."""
    PIX = "PIX"
    """No pair worse than one PCIe switch."""
    PXB = "PXB"
    """No pair worse than several PCIe switches below one host bridge."""
    PHB = "PHB"
    """No pair worse than one PCIe host bridge."""
    NODE = "NODE"
    """No pair across NUMA nodes."""


class Objective(Enum):
    """Which node is taken; on it, always the best-linked set."""

    BANDWIDTH = "Bandwidth"
    """The one where the pod gains most compared with what others lose. The default when no policy says anything."""
    PACK = "Pack"
    """The fullest one: whole nodes stay free, for jobs that hardly talk between GPUs."""


class NodeStrategy(Enum):
    """Which of several good nodes is taken. No meaning under Objective.PACK."""

    PACK = "Pack"
    """Of nodes with equal gain the fuller one: whole nodes stay free. The default when no policy says anything."""
    SPREAD = "Spread"
    """The one whose set has the highest bandwidth, and of those the emptiest: the jobs of a class are kept apart."""


class NumaAlignment(Enum):
    """How much it matters that the GPUs of a request are on one NUMA node."""

    PREFERRED = "Preferred"
    """Fewer NUMA nodes are better, after bandwidth and damage. The default when no policy says anything."""
    REQUIRED = "Required"
    """All on one known NUMA node, or no allocation is made. One GPU alone satisfies it."""
    IGNORED = "Ignored"
    """NUMA nodes do not count."""


class NicAlignment(Enum):
    """How much it matters that the GPUs of a request are near a network card.

    A level is a requirement: each GPU, one alone too, has a network card no farther away. An unknown distance satisfies
    no level.
    """

    PREFERRED = "Preferred"
    """Nearer is better, after bandwidth, damage and NUMA nodes. The default when no policy says anything."""
    IGNORED = "Ignored"
    """Network cards do not count."""
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"


class Siblings(Enum):
    """Whether a pod is drawn to the other pods of its family: of its Job, for example."""

    PREFERRED = "Preferred"
    """GPUs that NVLinks join to those of its siblings are better, after what the pod itself gains and what others lose.
    The default when no policy says anything."""
    IGNORED = "Ignored"
    """Siblings do not count."""


@dataclass(frozen=True, slots=True)
class LinkBandwidth:
    """What links are worth on the nodes of a class, in GB/s one way, if the built-in figures do not fit.

    None: the built-in figure applies.
    """

    nvlink: float | None = None
    """Of one NVLink. 0: NVLinks are not counted on."""
    psb: float | None = None
    """Of a pair of GPUs on one board, over PCIe; the other levels alike."""
    pix: float | None = None
    pxb: float | None = None
    phb: float | None = None
    node: float | None = None
    sys: float | None = None


NO_LINK_BANDWIDTH = LinkBandwidth()


@dataclass(frozen=True, slots=True)
class TopologyPolicy:
    """How GPUs are chosen. Read by the controller; the kubelet plugin only validates it.

    None: the policy does not say, so an earlier one applies (`merged`), or else each enum's default. Hashable.
    """

    requirement: Requirement | None = None
    min_bandwidth_gb_s: float | None = None
    """The least collective bandwidth of the GPUs of one request; one GPU alone satisfies it."""
    objective: Objective | None = None
    node_strategy: NodeStrategy | None = None
    numa_alignment: NumaAlignment | None = None
    nic_alignment: NicAlignment | None = None
    siblings: Siblings | None = None
    link_bandwidth: LinkBandwidth = NO_LINK_BANDWIDTH


NO_POLICY = TopologyPolicy()
"""A policy that says nothing."""


class SharingStrategy(Enum):
    """What divides a GPU among the containers that have it."""

    MPS = "MPS"
    """A server of NVIDIA's Multi-Process Service for each GPU."""
    TIME_SLICING = "TimeSlicing"
    """Slices of time, by the driver."""


class TimeSliceInterval(Enum):
    """How long a process may use a GPU before the next one has its turn. NVIDIA names four lengths, and no times."""

    DEFAULT = "Default"
    """As the driver sets it when it is loaded. What holds when no config says anything."""
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class Enforcement(Enum):
    """What happens where a node cannot enforce what a claim consumes of a shared GPU, or lacks the strategy."""

    REQUIRED = "Required"
    """The claim is not prepared there. What holds when no config says anything."""
    BEST_EFFORT = "BestEffort"
    """It is prepared without."""


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """How a GPU that several containers have is divided among them. None: the config does not say."""

    strategy: SharingStrategy | None = None
    enforcement: Enforcement | None = None
    interval: TimeSliceInterval | None = None
    """Counts with strategy TimeSlicing alone."""

    @property
    def is_required(self) -> bool:
        """Whether the node must be able to enforce it."""
        return self.enforcement is not Enforcement.BEST_EFFORT


NO_SHARING = GpuSharing()
"""Says nothing."""


class Confidentiality(Enum):
    """Whether a GPU must compute confidentially."""

    REQUIRED = "Required"
    """It must be in mode on when its claim is prepared, and take work."""


class Iommu(Enum):
    """By which device nodes the launcher of a virtual machine opens a GPU."""

    GROUP = "Group"
    """/dev/vfio/vfio and /dev/vfio/<group>. What holds when no config says anything."""
    IOMMUFD = "IOMMUFD"
    """/dev/iommu and /dev/vfio/devices/vfio<n> (Linux 6.6)."""


@dataclass(frozen=True, slots=True)
class VfioConfig:
    """How a GPU for a virtual machine is handed to its container. Read by the kubelet plugin; the controller validates
    it. Says nothing of other devices. None: the config does not say."""

    iommu: Iommu | None = None


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How a GPU is prepared. Read by the kubelet plugin. The controller validates it, and lets shares of one GPU have
    one strategy and one interval only (api.sharing)."""

    sharing: GpuSharing = NO_SHARING
    confidential: Confidentiality | None = None
    """None: nothing is said. What one config requires, no later one takes back."""
