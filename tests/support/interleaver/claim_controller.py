"""The resourceclaim controller of kube-controller-manager 1.36: frees claims of pods that are gone, reserves for bound
ones."""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.kube.errors import KubeError
from support.interleaver.scheduler import View
from support.interleaver.server import Server, is_reserved_for, reference, with_status

Work = Generator[str, None, None]


class ClaimController:
    """syncClaim and syncPod, over a view that may be behind by any time."""

    def __init__(self, server: Server, cleared: Callable[[ResourceClaim], None]) -> None:
        """`cleared` is called with a claim as it was before its allocation was cleared."""
        self._server = server
        self._cleared = cleared
        self.view = View(server)
        self.under_way: Work | None = None

    def wants(self, key: str) -> bool:
        """Whether its view shows something to do about a claim."""
        claim = self.view.claims.get(key)
        if claim is None:
            return False
        left = self._left(claim)
        is_going = claim.metadata.deletion_timestamp is not None and not left
        return len(left) < len(claim.status.reserved_for) or (is_going and self._protects(claim))

    def wants_pod(self, key: str) -> bool:
        """Whether its view shows a bound pod without a reservation."""
        pod = self.view.pods.get(key)
        return pod is not None and not _is_done(pod) and bool(pod.spec.node_name) and self._unreserved(pod) is not None

    def sync(self, key: str) -> Work:
        """Let go of a claim what nobody uses: two writes."""
        claim = self.view.claims[key]
        left = self._left(claim)
        had = len(claim.status.reserved_for)
        changed = with_status(claim, reserved_for=left)
        if not left and self._protects(claim):
            changed = with_status(changed, allocation=None, devices=[])
        try:
            yield f"frees {key}"
            stored = self._server.update_claim(changed) if changed.status != claim.status else claim
            if claim.status.allocation is not None and stored.status.allocation is None:
                self._cleared(claim)
            if stored.status.allocation is None and self._protects(stored) and (not left or had > len(left)):
                yield f"takes the finalizer off {key}"
                finalizers = [name for name in stored.metadata.finalizers if name != DELETE_PROTECTION_FINALIZER]
                metadata = msgspec.structs.replace(stored.metadata, finalizers=finalizers)
                self._server.update_claim(msgspec.structs.replace(stored, metadata=metadata))
        except KubeError:
            return

    def reserve(self, pod_key: str) -> Work:
        """Reserve for a pod that is bound without a reservation."""
        pod = self.view.pods[pod_key]
        claim = self._unreserved(pod)
        if claim is None:
            return
        yield f"reserves {claim.key} for {pod_key}"
        try:
            self._server.update_claim(with_status(claim, reserved_for=[*claim.status.reserved_for, reference(pod)]))
        except KubeError:
            return

    def _left(self, claim: ResourceClaim) -> list[ConsumerReference]:
        kept: list[ConsumerReference] = []
        for user in claim.status.reserved_for:
            key = f"{claim.metadata.namespace}/{user.name}"
            seen = self.view.pods.get(key)
            if user.uid in self.view.gone:
                continue
            if seen is None:
                stored = self._server.pods.get(key)  # it asks the server before it takes a pod for gone
                if stored is None or stored.metadata.uid != user.uid:
                    continue
            elif seen.metadata.uid != user.uid:
                # Its views of claims and pods may be apart: then it takes a new pod for an old one's successor. That
                # race is its own, and left out here.
                stored = self._server.pods.get(key)
                if stored is None or stored.metadata.uid != user.uid:
                    continue
            elif _is_done(seen):
                continue
            kept.append(user)
        return kept

    def _unreserved(self, pod: Pod) -> ResourceClaim | None:
        for entry in pod_claims(pod):
            claim = self.view.claims.get(entry.key or "")
            if claim is not None and claim.status.allocation is not None and not is_reserved_for(claim, pod):
                return claim
        return None

    @staticmethod
    def _protects(claim: ResourceClaim) -> bool:
        return DELETE_PROTECTION_FINALIZER in claim.metadata.finalizers


def _is_done(pod: Pod) -> bool:
    is_dropped = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return pod.status.phase in ENDED or is_dropped
