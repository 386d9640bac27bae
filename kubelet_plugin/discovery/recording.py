"""A machine in a form that can be shared: all that a choice depends on, nothing that identifies its owner."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace

from dracaena.api.machine import Gpu, Machine
from dracaena.api.topology import Nic

SOURCE = (
    "Recorded from the NVIDIA driver of a real machine with `dracaena topology record`. "
    "UUIDs and the fabric's cluster are made up."
)

_SPACE = uuid.UUID("0f9a1c52-6c0e-5b1c-9a53-1f6f0c6f2c11")
"""Our own namespace of UUIDs (RFC 9562, version 5)."""
_KERNEL_CARD = re.compile(r"(?:mlx[45]_|bnxt_re|irdma|efa_)[0-9]{1,3}", re.ASCII)
"""Names that the kernel numbers. Others contain addresses or are chosen by people."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+", re.ASCII)


def recording(machine: Machine, *, name: str = "") -> Machine:
    """Return the machine under another name with new identities; equal ones stay equal, and the order stays.

    The new UUIDs depend only on name and ordinal: nobody can test whether one replaces a UUID that they know. PCI
    addresses stay: they identify a slot, not a machine.
    """
    name = name or default_name(machine)
    clusters = _clusters(machine, name)
    gpus = tuple(_gpu(gpu, f"{name}/gpu/{ordinal}", clusters) for ordinal, gpu in enumerate(machine.gpus))
    parents = {gpu.uuid: new.uuid for gpu, new in zip(machine.gpus, gpus, strict=True)}
    return replace(
        machine,
        name=name,
        gpus=gpus,
        topology=replace(
            machine.topology, nics=tuple(_nic(nic, place) for place, nic in enumerate(machine.topology.nics))
        ),
        source=SOURCE,
        mig_devices=tuple(
            replace(mig, parent_uuid=parents[mig.parent_uuid], uuid=f"MIG-{uuid.uuid5(_SPACE, f'{name}/mig/{place}')}")
            for place, mig in enumerate(machine.mig_devices)
        ),
    )


def default_name(machine: Machine) -> str:
    """Return a descriptive name: count and product, for example `8x-nvidia-h200`."""
    products = sorted({gpu.product_name for gpu in machine.gpus if gpu.product_name is not None})
    words = _NOT_IN_NAMES.sub("-", "-".join(products).lower()).strip("-")
    return f"{len(machine.gpus)}x-{words or 'gpu'}"


def _gpu(gpu: Gpu, identity: str, clusters: Mapping[str, str]) -> Gpu:
    clique = gpu.fabric_clique
    if clique is not None:
        cluster, _, number = clique.rpartition(".")
        clique = f"{clusters[cluster]}.{number}"
    return replace(gpu, uuid=f"GPU-{uuid.uuid5(_SPACE, identity)}", fabric_clique=clique)


def _clusters(machine: Machine, name: str) -> Mapping[str, str]:
    """Return the new UUID of each cluster of the fabric, numbered in ordinal order."""
    cliques = [gpu.fabric_clique for gpu in machine.gpus if gpu.fabric_clique is not None]
    found = dict.fromkeys(clique.rpartition(".")[0] for clique in cliques)
    return {cluster: str(uuid.uuid5(_SPACE, f"{name}/cluster/{place}")) for place, cluster in enumerate(found)}


def _nic(nic: Nic, place: int) -> Nic:
    return nic if _KERNEL_CARD.fullmatch(nic.name) else replace(nic, name=f"NIC{place}")
