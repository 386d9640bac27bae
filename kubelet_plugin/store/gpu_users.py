"""Finds the claims that have something of a GPU of this node; until they are gone it must not be divided anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from dracaena.api.names import ClaimUid, DeviceName, PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.ports import NodeLock, PodCache
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim, PreparedDevice
from dracaena.kubelet_plugin.prepare.reports.podlist import claim_names, may_run
from dracaena.kubelet_plugin.store.checkpoints import Checkpoints

MOST_NAMED: Final = 7
"""Most claims that are named: as many as a GPU has MIG devices. There may be more shares."""

FindClaim = Callable[[str, str], ResourceClaim | None]
"""Namespace and name → the claim, None where there is none (adapters.kube.KubeClaims.find_claim)."""

UnsureClaims = Callable[[], Iterable[tuple[Broken, PreparedClaim]]]
"""See ClaimFiles.unsure(); called with the lock held."""


def is_of_gpu(device: PreparedDevice, gpu: DeviceName) -> bool:
    """Whether a device is the whole GPU or a part of it."""
    return device.physical_gpu == gpu


def is_named_of_gpu(name: str, gpu: DeviceName) -> bool:
    """Whether a device of this name is the whole GPU or a MIG device of it."""
    return name == gpu or name.startswith(f"mig-{gpu.removeprefix('gpu-')}-")


def prepared_users(
    checkpoints: Checkpoints,
    unsure: UnsureClaims,
    gpu: DeviceName | None,
    is_of: Callable[[PreparedDevice, DeviceName], bool] = is_of_gpu,
) -> str | None:
    """See GpuUsers.prepared()."""
    now, _ = checkpoints.load_all()
    found = [each.prepared.claim for each in now if gpu is None or _has(each.prepared, gpu, is_of)]
    if found:
        return _have(found, gpu)
    for each, salvaged in unsure():
        devices = salvaged.devices
        if gpu is None or not devices or any(is_of(device, gpu) for device in devices):
            return f"claim UID {each.uid}, whose checkpoint {each.problem}, may have {_words(gpu)}"
    return None


class GpuUsers:
    """From any thread; keeps no state."""

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        checkpoints: Checkpoints,
        unsure: UnsureClaims,
        pods: PodCache,
        find_claim: FindClaim,
        lock: NodeLock,
        is_of: Callable[[PreparedDevice, DeviceName], bool] = is_of_gpu,
        is_named_of: Callable[[str, DeviceName], bool] = is_named_of_gpu,
    ) -> None:
        """`is_of` and `is_named_of` decide which devices belong to a GPU, and so what names GPUs have here."""
        self._driver = driver
        self._pool = pool
        self._checkpoints = checkpoints
        self._unsure = unsure
        self._pods = pods
        self._find_claim = find_claim
        self._lock = lock
        self._is_of = is_of
        self._is_named_of = is_named_of

    def prepared(self, gpu: DeviceName | None) -> str | None:
        """Return which claims have something of a GPU here, or of any GPU if it is None; None if no claim has. The
        caller holds the lock of the calls.

        A claim for admin access counts too: it would lose its device nodes. A broken checkpoint of which nothing is
        known may be about any GPU.
        """
        return prepared_users(self._checkpoints, self._unsure, gpu, self._is_of)

    def holding(self, gpu: DeviceName | None) -> str | None:
        """Like prepared(), for callers that do not hold the lock: the answer may be outdated a moment later."""
        with self._lock.hold():
            return self.prepared(gpu)

    def allocated(self, gpu: DeviceName | None) -> str | None:
        """Return which claim of a pod of this node was allocated something of a GPU and is not prepared yet, or None.

        Reads each claim from the API, so that it sees a claim whose pod was bound a moment ago, and one that replaced a
        claim of its name that is still prepared. Raises KubeError.
        """
        if not self._pods.synced:
            return "the pods of this node are not known yet"
        with self._lock.hold():
            now, _ = self._checkpoints.load_all()
        prepared = {checkpoint.prepared.claim.uid for checkpoint in now}
        for namespace, name in sorted(set(self._claims_of_pods())):
            claim = self._find_claim(namespace, name)
            if claim is None or claim.metadata.uid in prepared:
                continue
            if any(gpu is None or self._is_named_of(device, gpu) for device in self._devices(claim)):
                return _have([ClaimReference(namespace, name, ClaimUid(claim.metadata.uid))], gpu)
        return None

    def _claims_of_pods(self) -> Iterator[tuple[str, str]]:
        for pod in self._pods.values():
            if may_run(pod):
                yield from ((pod.metadata.namespace, name) for name in claim_names(pod))

    def _devices(self, claim: ResourceClaim) -> Sequence[str]:
        allocation = claim.status.allocation
        results = () if allocation is None else allocation.devices.results
        return [each.device for each in results if (each.driver, each.pool) == (self._driver, self._pool)]


def _has(prepared: PreparedClaim, gpu: DeviceName, is_of: Callable[[PreparedDevice, DeviceName], bool]) -> bool:
    devices = (*prepared.devices, *prepared.former)
    return any(is_of(device, gpu) for device in devices) or any(effect.gpu == gpu for effect in prepared.effects)


def _words(gpu: DeviceName | None) -> str:
    return "a GPU of this node" if gpu is None else f"{gpu} or a part of it"


def _have(claims: Sequence[ClaimReference], gpu: DeviceName | None) -> str:
    shown = sorted(f"{claim} (UID {claim.uid})" for claim in claims)
    if len(shown) == 1:
        return f"claim {shown[0]} has {_words(gpu)}"
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"{len(shown)} claims have {_words(gpu)}: {', '.join(shown[:MOST_NAMED])}{more}"
