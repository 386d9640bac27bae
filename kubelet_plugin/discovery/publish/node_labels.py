"""Labels of a node that describe its GPUs: names and values of GPU feature discovery, and a few of our own.

All follow from the machine alone, so none changes when pods come and go. A label whose value the driver does not report
is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Literal

from dracaena.api.groups import lowest_in_group
from dracaena.api.limits import DNS_LABEL_BYTES
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice, profile_in_resource
from dracaena.api.topology import Topology
from dracaena.host.facts.machine import LeftOut

PREFIX: Final = "nvidia.com/"

MigStrategy = Literal["none", "single", "mixed"]
MIG_STRATEGIES: Final[tuple[MigStrategy, ...]] = ("none", "single", "mixed")
"""`--mig-strategy` of GPU feature discovery: whether MIG devices are labelled as the GPUs, or besides them."""

UNKNOWN: Final = "unknown"
_MODES: Final[Mapping[str, str]] = {"0x0300": "graphics", "0x0302": "compute"}
"""First digits of a PCI class, as sysfs writes it → `gpu.mode`."""

_OF_NO_LABEL: Final = frozenset(
    {
        "nvmlDeviceGetArchitecture",  # the family follows from the compute capability
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetTopologyCommonAncestor",  # where a virtual machine hides the bus NVML never tells it
    }
)
"""NVML calls whose answers appear in no label."""

_MIB = 1 << 20
_NOT_IN_VALUES = re.compile(r"[^A-Za-z0-9-_. ]")
_EDGES = "-_."
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_PROFILE = re.compile(r"(?:(?P<compute>\d+)c\.)?(?P<gpu>\d+)g\.")
_FAMILIES: Final[tuple[tuple[tuple[int, int], str], ...]] = (
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
)
"""Lowest compute capability → family, descending. Below 5.0 there is none, and 11 and 14 have no name yet."""
_NAMELESS = frozenset({11})
_WITH_MIG = frozenset({"8.0", "9.0", "10.0", "10.3", "12.0"})
"""Compute capabilities with products that can be divided."""


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What the labels need besides the machine."""

    machine_type: str = UNKNOWN
    """Product name of the node's firmware."""
    mode: str = UNKNOWN
    """From gpu_mode()."""
    mig_strategy: MigStrategy = "none"
    is_from_driver: bool = False
    """Whether the machine was read from the driver: then a GPU without MIG mode cannot be divided. A recording may lack
    it for other reasons."""
    timestamp_s: int | None = None
    """Seconds since 1970; None: no timestamp."""


def node_labels(machine: Machine, facts: LabelFacts, driver: str) -> Mapping[str, str]:
    """Return all labels, sorted; none for a node without GPUs for containers, so that outdated ones are removed."""
    machine = _of_containers(machine)
    if not machine.gpus:
        return {}
    labels = {**_versions(machine), **_gpus(machine, facts), **_own(machine, driver)}
    if facts.timestamp_s is not None:
        labels[f"{PREFIX}gfd.timestamp"] = str(facts.timestamp_s)
    return dict(sorted(labels.items()))


def _of_containers(machine: Machine) -> Machine:
    """Return a machine without the GPUs that the vGPU manager divides for virtual machines."""
    kept = [place for place, gpu in enumerate(machine.gpus) if gpu.pci_bus_id not in machine.vgpu_parents]
    if len(kept) == len(machine.gpus):
        return machine
    gpus = tuple(machine.gpus[place] for place in kept)
    uuids = {gpu.uuid for gpu in gpus}
    links = machine.topology
    return replace(
        machine,
        gpus=gpus,
        topology=Topology(
            gpu_count=len(kept),
            pairs=tuple(links.link(a, b) for a, b in combinations(kept, 2)),
            numa_nodes=tuple(links.numa_nodes[place] for place in kept),
        ),
        mig_devices=tuple(mig for mig in machine.mig_devices if mig.parent_uuid in uuids),
        passthrough=(),
        vgpus=(),
    )


def gpu_mode(classes: Iterable[str]) -> str:
    """Return `gpu.mode` for the PCI classes of all GPUs, as sysfs writes them: unknown if they differ."""
    modes = {_MODES.get(each[:6], UNKNOWN) for each in classes}
    return modes.pop() if len(modes) == 1 else UNKNOWN


def open_questions(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return the questions that may still be answered, and then may change the labels."""
    return tuple(each for each in left_out if each.may_pass and each.call not in _OF_NO_LABEL)


def feature_file(labels: Mapping[str, str]) -> bytes:
    """Return the labels as a feature file of node-feature-discovery: one `name=value` per line."""
    return "".join(f"{name}={value}\n" for name, value in sorted(labels.items())).encode()


def label_value(text: str) -> str:
    """Convert a text to a label value as GPU feature discovery does, cut to the length limit of labels."""
    words = "-".join(_NOT_IN_VALUES.sub("", text).split())
    return words[:DNS_LABEL_BYTES].strip(_EDGES)


def _versions(machine: Machine) -> dict[str, str]:
    labels: dict[str, str] = {}
    if machine.driver_version and (driver := _VERSION.match(machine.driver_version)):
        major, minor, revision = driver[1], driver[2], driver[3] or ""
        labels |= {"cuda.driver.major": major, "cuda.driver.minor": minor, "cuda.driver.rev": revision}
        labels |= {"cuda.driver-version.major": major, "cuda.driver-version.minor": minor}
        labels |= {"cuda.driver-version.revision": revision, "cuda.driver-version.full": machine.driver_version}
    if machine.cuda_driver_version and (cuda := _VERSION.match(machine.cuda_driver_version)):
        labels |= {"cuda.runtime.major": cuda[1], "cuda.runtime.minor": cuda[2]}
        labels |= {"cuda.runtime-version.major": cuda[1], "cuda.runtime-version.minor": cuda[2]}
        labels["cuda.runtime-version.full"] = f"{cuda[1]}.{cuda[2]}"
    return _prefixed(labels)


def _gpus(machine: Machine, facts: LabelFacts) -> dict[str, str]:
    labels = {
        "gpu.machine": label_value(facts.machine_type) or UNKNOWN,
        "gpu.mode": facts.mode,
        **_mig_capable(machine, is_from_driver=facts.is_from_driver),
        # `true` makes NVIDIA's own MPS daemon run there.
        "mps.capable": "false",
        **_whole(machine.gpus),
    }
    cliques = {gpu.fabric_clique for gpu in machine.gpus if gpu.fabric_clique is not None}
    if len(cliques) == 1:
        labels["gpu.clique"] = cliques.pop()
    if facts.mig_strategy == "none":
        return _prefixed(labels)
    parts = _single(machine) if facts.mig_strategy == "single" else _mixed(machine)
    return _prefixed({**labels, "mig.strategy": facts.mig_strategy, **parts})


def _mig_capable(machine: Machine, *, is_from_driver: bool) -> dict[str, str]:
    """Return nothing if it is not known whether the GPUs can be divided."""
    if any(gpu.mig_enabled is not None for gpu in machine.gpus):
        return {"mig.capable": "true"}
    capabilities = {gpu.cuda_compute_capability for gpu in machine.gpus}
    if not is_from_driver and (None in capabilities or capabilities & _WITH_MIG):
        return {}
    return {"mig.capable": "false"}


def _whole(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels of GPUs, which can name one model only: the most frequent of those with a GPU that is not
    divided, in a tie the first. All GPUs of the model are counted, divided or not."""
    counts = Counter(gpu.product_name for gpu in gpus)
    undivided = [gpu for gpu in gpus if not gpu.mig_enabled]
    named = max(undivided or gpus, key=lambda gpu: counts[gpu.product_name])
    return {**_model(named), **_counted("gpu", counts[named.product_name], replicas=1 if undivided else 0)}


def _model(gpu: Gpu) -> dict[str, str]:
    labels = {}
    if gpu.product_name and (product := label_value(gpu.product_name)):
        labels["gpu.product"] = product
    if gpu.memory_bytes is not None:
        labels["gpu.memory"] = str(gpu.memory_bytes // _MIB)
    if gpu.cuda_compute_capability and (version := _VERSION.match(gpu.cuda_compute_capability)):
        labels |= {"gpu.compute.major": version[1], "gpu.compute.minor": version[2]}
        labels["gpu.family"] = _family(int(version[1]), int(version[2]))
    return labels


def _family(major: int, minor: int) -> str:
    if major in _NAMELESS:
        return "undefined"
    known = (name for least, name in _FAMILIES if (major, minor) >= least)
    return next(known, "undefined") if major < 14 else "undefined"


def _counted(prefix: str, count: int, *, replicas: int = 1) -> dict[str, str]:
    """Return how many there are. Our shares do not count as replicas: they cannot be requested by count. A GPU that is
    divided has none."""
    return {
        f"{prefix}.count": str(count),
        f"{prefix}.replicas": str(replicas),
        f"{prefix}.sharing-strategy": "none",
    }


def _single(machine: Machine) -> dict[str, str]:
    """Return the labels that describe MIG devices as GPUs, in place of those of the GPUs; nothing without a divided
    GPU. All GPUs must be divided, all into devices of one profile."""
    divided = [gpu for gpu in machine.gpus if gpu.mig_enabled]
    if not divided:
        return {}
    is_whole = len(divided) == len(machine.gpus) == len({mig.parent_uuid for mig in machine.mig_devices})
    if not is_whole or len({mig.profile for mig in machine.mig_devices}) != 1:
        invalid = {"gpu.product": _product_of_part(divided[0], "INVALID"), "gpu.memory": "0"}
        return {**invalid, "gpu.count": "0", "gpu.replicas": "0", "gpu.sharing-strategy": ""}
    return _parts("gpu", machine, machine.mig_devices)


def _mixed(machine: Machine) -> dict[str, str]:
    """Return the labels that describe MIG devices beside GPUs, by profile."""
    labels: dict[str, str] = {}
    for profile in sorted({mig.profile for mig in machine.mig_devices}):
        devices = [mig for mig in machine.mig_devices if mig.profile == profile]
        labels |= _parts(f"mig-{profile_in_resource(profile)}", machine, devices)
    return labels


def _parts(prefix: str, machine: Machine, devices: Sequence[MigDevice]) -> dict[str, str]:
    """Return the labels of MIG devices of one profile."""
    first = devices[0]
    parent = next(gpu for gpu in machine.gpus if gpu.uuid == first.parent_uuid)
    product = _product_of_part(parent, label_value(profile_in_resource(first.profile)))
    return {f"{prefix}.product": product, **_counted(prefix, len(devices)), **_part(prefix, first)}


def _product_of_part(parent: Gpu, profile: str) -> str:
    return _cut(f"{label_value(parent.product_name or '') or UNKNOWN}-MIG-{profile}")


def _part(prefix: str, mig: MigDevice) -> dict[str, str]:
    """Return what one MIG device has."""
    labels = {}
    if mig.memory_bytes is not None:
        labels["memory"] = mig.memory_bytes // _MIB
    if mig.multiprocessors is not None:
        labels["multiprocessors"] = mig.multiprocessors
    if (has := mig.attributes) is not None:
        labels |= {"slices.gi": has.gpu_slices, "slices.ci": has.compute_slices, "engines.copy": has.copy_engines}
        labels |= {"engines.decoder": has.decoders, "engines.encoder": has.encoders}
        labels |= {"engines.jpeg": has.jpeg_engines, "engines.ofa": has.ofa_engines}
    elif slices := _PROFILE.match(mig.profile):
        labels |= {"slices.gi": int(slices["gpu"]), "slices.ci": int(slices["compute"] or slices["gpu"])}
    return {f"{prefix}.{name}": str(value) for name, value in labels.items()}


def _own(machine: Machine, driver: str) -> dict[str, str]:
    """Return how the GPUs are linked: useful for node selectors, but without a name in GPU feature discovery."""
    count = len(machine.gpus)
    linked = [(a, b) for a, b in combinations(range(count), 2) if (machine.topology.link(a, b).nvlinks or 0) > 0]
    largest = max(Counter(lowest_in_group(count, linked)).values())
    if count == 1:
        kind = "single"
    elif not linked:
        kind = "pcie"
    elif len(linked) == count * (count - 1) // 2:
        kind = "nvlink"
    else:
        kind = "nvlink-partial"
    return {f"{driver}/topology": kind, f"{driver}/nvlink-group-size": str(largest)}


def _cut(text: str) -> str:
    return text[:DNS_LABEL_BYTES].strip(_EDGES)


def _prefixed(labels: Mapping[str, str]) -> dict[str, str]:
    return {f"{PREFIX}{name}": value for name, value in labels.items()}
