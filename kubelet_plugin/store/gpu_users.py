"""Finds the claims that have something of a GPU of this node; until they are gone it must not be divided anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dracaena.api.names import ClaimUid, DeviceName, PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.ports import PodCache
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.prepare.reports.podlist import claim_names, may_run
from dracaena.kubelet_plugin.store.claims import IsOf, NodeClaims, have_in_words, is_of_gpu

FindClaim = Callable[[str, str], ResourceClaim | None]
"""Namespace and name → the claim, None where there is none (adapters.kube.KubeClaims.find_claim)."""


def is_named_of_gpu(name: str, gpu: DeviceName) -> bool:
    """Whether a device of this name is the whole GPU or a MIG device of it."""
    return name == gpu or name.startswith(f"mig-{gpu.removeprefix('gpu-')}-")


class GpuUsers:
    """From any thread; keeps no state."""

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        claims: NodeClaims,
        pods: PodCache,
        find_claim: FindClaim,
        is_of: IsOf = is_of_gpu,
        is_named_of: Callable[[str, DeviceName], bool] = is_named_of_gpu,
    ) -> None:
        """`is_of` and `is_named_of` decide which devices belong to a GPU, and so what names GPUs have here."""
        self._driver = driver
        self._pool = pool
        self._claims = claims
        self._pods = pods
        self._find_claim = find_claim
        self._is_of = is_of
        self._is_named_of = is_named_of

    def holding(self, gpu: DeviceName | None) -> str | None:
        """Return which claims have something of a GPU here, or of any GPU if it is None (NodeClaims.who_has)."""
        return self._claims.who_has(gpu, self._is_of)

    def allocated(self, gpu: DeviceName | None) -> str | None:
        """Return which claim of a pod of this node was allocated something of a GPU and is not prepared yet, or None.

        Reads each claim from the API, so that it sees a claim whose pod was bound a moment ago, and one that replaced a
        claim of its name that is still prepared. Raises KubeError.
        """
        if not self._pods.synced:
            return "the pods of this node are not known yet"
        prepared = {checkpoint.prepared.claim.uid for checkpoint in self._claims.current()}
        for namespace, name in sorted(set(self._claims_of_pods())):
            claim = self._find_claim(namespace, name)
            if claim is None or claim.metadata.uid in prepared:
                continue
            if any(gpu is None or self._is_named_of(device, gpu) for device in self._devices(claim)):
                return have_in_words([ClaimReference(namespace, name, ClaimUid(claim.metadata.uid))], gpu)
        return None

    def _claims_of_pods(self) -> Iterator[tuple[str, str]]:
        for pod in self._pods.values():
            if may_run(pod):
                yield from ((pod.metadata.namespace, name) for name in claim_names(pod))

    def _devices(self, claim: ResourceClaim) -> Sequence[str]:
        allocation = claim.status.allocation
        results = () if allocation is None else allocation.devices.results
        return [each.device for each in results if (each.driver, each.pool) == (self._driver, self._pool)]
