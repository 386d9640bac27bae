"""Prepares and unprepares one claim: what is written in which order, so that a crash after any step is harmless.

Prepare: checkpoint "started" → CDI spec → podlist.json → checkpoint "done" → answer. Unprepare takes back in the
reverse order, from the files of this node alone: the claim may be gone. Both may be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.names import ClaimUid, GpuUuid
from dracaena.api.objects import Pod, ResourceClaim
from dracaena.api.podclaims import pod_claims
from dracaena.kubelet_plugin.assignments import Assignments
from dracaena.kubelet_plugin.checkpoints import Checkpoints
from dracaena.kubelet_plugin.ports import ClaimGoneError, ClaimReader, ControlNodes, DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.cdi import claim_spec, device_names, spec_file_name
from dracaena.kubelet_plugin.prepare.checkpoint import Broken, Checkpoint, State
from dracaena.kubelet_plugin.prepare.plan import (
    ClaimReference,
    DecodeConfig,
    NodePool,
    PreparedClaim,
    PreparedDevice,
    Refusal,
    holders,
    plan_claim,
)

log = structlog.get_logger()


class PrepareError(PermanentError):
    """The claim cannot be prepared as it is; the text says why and reaches the pod's Events through kubelet."""


class DeviceHeldError(TemporaryError):
    """Another claim still holds a device. It passes when kubelet unprepares that claim; kubelet asks again."""


class DeviceState:
    """The claims of this node. Calls may come from several threads; the node's lock orders them."""

    def __init__(
        self,
        *,
        pool: NodePool,
        dev_root: str,
        control_nodes: ControlNodes,
        decode_config: DecodeConfig,
        claims: ClaimReader,
        checkpoints: Checkpoints,
        specs: DocumentStore,
        assignments: Assignments,
        lock: NodeLock,
    ) -> None:
        self._pool = pool
        self._dev_root = dev_root
        self._control_nodes = control_nodes
        self._decode_config = decode_config
        self._claims = claims
        self._checkpoints = checkpoints
        self._specs = specs
        self._assignments = assignments
        self._lock = lock

    def prepare(self, reference: ClaimReference) -> PreparedClaim:
        """Make a claim's devices ready for containers and return them; for a prepared claim the same answer again.

        Raises DracaenaError; then nothing of this call is left behind, unless the disk refuses even removals, which
        the next call or unprepare repeats.
        """
        with self._lock.hold():
            prepared = self._already_prepared(reference.uid)
        if prepared is not None:
            return prepared
        # The API is read without the lock: a slow server must not hold up the other claims of the node.
        claim = self._claims.read_claim(reference)
        self._assignments.learn_consumers(claim)
        with self._lock.hold():
            return self._already_prepared(reference.uid) or self._prepare(claim)

    def unprepare(self, reference: ClaimReference) -> None:
        """Take back what prepare did. A claim that was never prepared is fine.

        Raises DracaenaError; the claim then still holds its devices and kubelet asks again.
        """
        with self._lock.hold():
            self._take_back(reference.uid)
        self._assignments.changed()

    def recover(self, pods: Iterable[Pod]) -> bool:
        """Finish or take back what a crash left half done, and rebuild broken checkpoints from the claims of `pods`.

        Kubelet does not ask again for a claim whose pod runs. Returns whether nothing of this kind is left that a
        later try could settle.
        """
        with self._lock.hold():
            good, broken = self._checkpoints.load_all()
        uids = {b.uid for b in broken}
        references = [c.prepared.claim for c in good if c.state is State.STARTED]
        if uids:
            references += self._find_claims(uids, pods)
        settled = [self._recover(reference) for reference in references]
        return all(settled)

    def _already_prepared(self, uid: ClaimUid) -> PreparedClaim | None:
        checkpoint = self._checkpoints.load(uid)
        if (
            not isinstance(checkpoint, Checkpoint)
            or checkpoint.state is not State.DONE
            or checkpoint.boot_id != self._checkpoints.boot_id
        ):
            return None
        if self._specs.read(spec_file_name(self._pool.driver, uid)) is None:
            log.warning("CDI spec was gone, written again", claim_uid=uid)
            self._write_spec(checkpoint.prepared)
        return checkpoint.prepared

    def _prepare(self, claim: ResourceClaim) -> PreparedClaim:
        plan = plan_claim(claim, self._pool, self._decode_config)
        if isinstance(plan, Refusal):
            raise PrepareError(str(plan))
        self._refuse_held(plan)
        try:
            started = self._checkpoints.start(plan)
            self._write_spec(plan)
            self._assignments.write_podlist(including=plan)
            self._checkpoints.finish(started)
        except DracaenaError:
            self._undo(plan.claim)
            raise
        self._assignments.changed()
        log.info("claim prepared", uuids=[device.uuid for device in plan.devices])
        return plan

    def _undo(self, reference: ClaimReference) -> None:
        try:
            self._take_back(reference.uid)
        except DracaenaError as error:
            log.warning("half a preparation stays until the next try", claim=str(reference), error=str(error))

    def _take_back(self, uid: ClaimUid) -> None:
        known = self._checkpoints.load(uid) is not None
        if known:
            self._assignments.forget(uid)
        self._specs.remove(spec_file_name(self._pool.driver, uid))
        if known:
            self._checkpoints.remove(uid)
            log.info("claim unprepared", claim_uid=uid)

    def _write_spec(self, prepared: PreparedClaim) -> None:
        spec = claim_spec(prepared, self._pool.driver, self._control_nodes(), self._dev_root)
        self._specs.write(spec_file_name(self._pool.driver, prepared.claim.uid), spec)

    def _refuse_held(self, plan: PreparedClaim) -> None:
        good, broken = self._checkpoints.load_all()
        others = [checkpoint.prepared for checkpoint in good]
        others += [self._salvage(b) for b in broken if b.uid != plan.claim.uid]
        held = holders(plan, others)
        if held:
            raise DeviceHeldError("; ".join(_held(device, holder) for device, holder in held))

    def _salvage(self, broken: Broken) -> PreparedClaim:
        """Return what a claim with a broken checkpoint holds by its CDI spec.

        No spec means no devices: kubelet gets its answer only after the spec is written.
        """
        spec = self._specs.read(spec_file_name(self._pool.driver, broken.uid))
        names = () if spec is None else device_names(spec, broken.uid)
        devices = tuple(
            PreparedDevice(request="", pool=self._pool.name, device=name, uuid=GpuUuid(""), minor=0) for name in names
        )
        return PreparedClaim(ClaimReference("", "", broken.uid), devices)

    def _find_claims(self, uids: set[ClaimUid], pods: Iterable[Pod]) -> Sequence[ClaimReference]:
        """Return the claims of these UIDs that pods of this node use; the names are nowhere else."""
        named = {(claim.namespace, claim.name) for pod in pods for claim in pod_claims(pod) if claim.name is not None}
        candidates = [ClaimReference(namespace, name, uid) for namespace, name in sorted(named) for uid in sorted(uids)]
        return [reference for reference in candidates if self._exists(reference)]

    def _exists(self, reference: ClaimReference) -> bool:
        try:
            self._claims.read_claim(reference)
        except ClaimGoneError:
            return False
        return True

    def _recover(self, reference: ClaimReference) -> bool:
        """Settle one claim; return whether that is done."""
        try:
            self.prepare(reference)
        except (ClaimGoneError, PrepareError) as error:
            log.info("half a preparation taken back", claim=str(reference), reason=str(error))
            self.unprepare(reference)
        except DracaenaError as error:
            log.warning("claim not recovered yet", claim=str(reference), error=str(error))
            return False
        return True


def _held(device: PreparedDevice, holder: PreparedClaim) -> str:
    name = f"claim {holder.claim} (UID {holder.claim.uid})" if holder.claim.name else f"claim UID {holder.claim.uid}"
    return f"request {device.request}: device {device.device} is still held by {name}, which is not unprepared yet"
