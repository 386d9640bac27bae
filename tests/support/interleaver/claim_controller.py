"""The resourceclaim controller of kube-controller-manager 1.36: makes claims from templates, frees claims of pods that
are gone, reserves for bound ones. And its garbage collector, as far as generated claims go."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import ENDED, Pod, PodResourceClaimStatus
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.kube.errors import KubeError
from support.interleaver.scheduler import View
from support.interleaver.server import Server, is_reserved_for, owner_uid, reference, with_status

Work = Generator[str, None, None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What it may look at next, by key."""

    claims: frozenset[str]
    pods: frozenset[str]
    collected: tuple[str, ...]


class ClaimController:
    """syncClaim and syncPod, over a view that may be behind by any time."""

    def __init__(
        self, server: Server, cleared: Callable[[ResourceClaim], None], generate: Callable[[str, Pod], ResourceClaim]
    ) -> None:
        """`cleared` is called with a claim as it was before its allocation was cleared, `generate` with the name of a
        template and a pod: it returns the claim that is made for it."""
        self._server = server
        self._cleared = cleared
        self._generate = generate
        self._generated: dict[tuple[str, str], ResourceClaim] = {}
        """UID of a pod and name of a template → the claim that it made last, whether its view shows it or not (its
        mutation cache)."""
        self.view = View(server)
        self.under_way: Work | None = None
        self._known: tuple[tuple[int, ...], Wanted] = (), Wanted(frozenset(), frozenset(), ())

    def wanted(self) -> Wanted:
        """Return all that its view, and the server where it asks that, show to be done. Worked out once for each state
        of both."""
        state = (self._server.version, *self.view.at.values())
        if self._known[0] != state:
            found = Wanted(
                frozenset(filter(self.wants, self._server.claims)),
                frozenset(filter(self.wants_pod, self._server.pods)),
                tuple(filter(self.wants_collected, self._server.claims)),
            )
            self._known = state, found
        return self._known[1]

    def wants(self, key: str) -> bool:
        """Whether its view shows something to do about a claim."""
        claim = self.view.claims.get(key)
        if claim is None:
            return False
        left = self._left(claim)
        is_going = claim.metadata.deletion_timestamp is not None and not left
        is_freed = len(left) < len(claim.status.reserved_for) or (is_going and self._protects(claim))
        return is_freed or (not left and self._is_unneeded(claim))

    def wants_pod(self, key: str) -> bool:
        """Whether its view shows a bound pod without a reservation, or one without a claim from a template."""
        pod = self.view.pods.get(key)
        if pod is None or _is_done(pod):
            return False
        return (bool(pod.spec.node_name) and self._unreserved(pod) is not None) or bool(self._missing(pod))

    def wants_collected(self, key: str) -> bool:
        """Whether the garbage collector finds the pod gone that a claim was made for. It asks the server."""
        claim = self._server.claims[key]
        owner = owner_uid(claim)
        if owner is None or claim.metadata.deletion_timestamp is not None:
            return False
        return all(pod.metadata.uid != owner for pod in self._server.pods.values())

    def sync(self, key: str) -> Work:
        """Let go of a claim what nobody uses: two writes; and delete it if it was made for a pod that needs it no
        more."""
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
        if not left and self._is_unneeded(claim):
            yield f"deletes {key}, whose pod needs it no more"
            if key in self._server.claims:
                self._server.delete(ResourceClaim, key)

    def sync_pod(self, pod_key: str) -> Work:
        """Make the claims that a pod lacks and write their names into its status; reserve for one that is bound without
        a reservation."""
        pod = self.view.pods[pod_key]
        names: dict[str, str] = {}
        for template in self._missing(pod):
            claim = self._orphan(pod, template)
            if claim is None:
                yield f"makes a claim from {template} for {pod_key}"
                claim = self._generated[pod.metadata.uid, template] = self._generate(template, pod)
            names[template] = claim.metadata.name
        if names:
            yield f"writes {', '.join(sorted(names.values()))} into the status of {pod_key}"
            self._write_names(pod_key, names)
        claim = self._unreserved(pod) if pod.spec.node_name else None
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

    def _missing(self, pod: Pod) -> list[str]:
        """Return the templates of which a pod has no claim of its own."""
        if pod.metadata.deletion_timestamp is not None:
            return []
        return [entry.alias for entry in pod_claims(pod) if entry.generated and not self._is_own(pod, entry.key)]

    def _is_own(self, pod: Pod, key: str | None) -> bool:
        claim = self.view.claims.get(key or "")
        return claim is not None and owner_uid(claim) == pod.metadata.uid

    def _orphan(self, pod: Pod, template: str) -> ResourceClaim | None:
        """Return a claim that was made for a pod, and whose name did not get into its status."""
        known = self._generated.get((pod.metadata.uid, template))
        is_gone = known is not None and known.metadata.uid in self.view.gone_claims
        return None if is_gone else known

    def _write_names(self, pod_key: str, names: Mapping[str, str]) -> None:
        """Nothing guards this write: a new pod of the name gets what was made for the one before it."""
        stored = self._server.pods.get(pod_key)
        if stored is None:
            return
        known = {status.name: status for status in stored.status.resource_claim_statuses}
        known |= {alias: PodResourceClaimStatus(name=alias, resource_claim_name=name) for alias, name in names.items()}
        status = msgspec.structs.replace(stored.status, resource_claim_statuses=list(known.values()))
        if status != stored.status:
            self._server.update_pod(msgspec.structs.replace(stored, status=status))

    def _is_unneeded(self, claim: ResourceClaim) -> bool:
        """Whether the pod that a claim was made for was replaced, or will run no more. One that its view does not show
        may still come, and is the garbage collector's."""
        owner = next((owner for owner in claim.metadata.owner_references if owner.controller), None)
        if owner is None or claim.metadata.deletion_timestamp is not None:
            return False
        pod = self.view.pods.get(f"{claim.metadata.namespace}/{owner.name}")
        return pod is not None and (pod.metadata.uid != owner.uid or _is_done(pod))

    def _unreserved(self, pod: Pod) -> ResourceClaim | None:
        """Return an allocated claim that is not reserved for its pod. The server takes no new user of a claim that is
        being deleted: the real one tries that again and again, with growing pauses, and changes nothing by it."""
        for entry in pod_claims(pod):
            claim = self.view.claims.get(entry.key or "")
            if claim is not None and entry.generated and owner_uid(claim) != pod.metadata.uid:
                return None
            if claim is None or claim.metadata.deletion_timestamp is not None:
                continue
            if claim.status.allocation is not None and not is_reserved_for(claim, pod):
                return claim
        return None

    @staticmethod
    def _protects(claim: ResourceClaim) -> bool:
        return DELETE_PROTECTION_FINALIZER in claim.metadata.finalizers


def _is_done(pod: Pod) -> bool:
    is_dropped = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return pod.status.phase in ENDED or is_dropped
