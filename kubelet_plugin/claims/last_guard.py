"""The last guard: no container gets a device, or a device node, that another claim holds, whoever allocated it.

It trusts only its own record of what was prepared on this node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.confidential_gate import ConfidentialGate
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.device_kinds.holders import (
    Overdrawn,
    holders,
    of_another_mode,
    of_unknown_address,
    overdrawn,
)
from dracaena.kubelet_plugin.device_kinds.moved_devices import held_nodes
from dracaena.kubelet_plugin.device_kinds.plan import gated_devices
from dracaena.kubelet_plugin.ports import ReadMinors
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE
from dracaena.kubelet_plugin.prepare.guests import NO_GUESTS, GuestRuntimes, fitted_to_pods
from dracaena.kubelet_plugin.prepare.mps_containers import unfit_container
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice, PublishedPool
from dracaena.kubelet_plugin.store.claims import NodeClaims

log = structlog.get_logger()


class DeviceHeldError(TemporaryError):
    """Another claim still holds a device. This passes once kubelet unprepares that claim; kubelet retries."""

    def __init__(
        self, text: str, holders: tuple[PreparedClaim, ...] = (), *, overdrawn: tuple[Overdrawn, ...] = ()
    ) -> None:
        """All `holders` must give back what they hold; of each Overdrawn, only as many holders as make room."""
        super().__init__(text)
        self.holders = holders
        self.overdrawn = overdrawn

    def outlasts(self, in_use: Callable[[PreparedClaim], bool]) -> bool:
        """Whether this lasts as long as the claims in use do, even if all others are unprepared."""
        if any(in_use(holder) for holder in self.holders):
            return True
        return any(each.is_by([holder for holder in each.holders if in_use(holder)]) for each in self.overdrawn)


class AllocatedAnewError(TemporaryError):
    """The claim was allocated devices other than those it holds here. Only the end of its pods helps, so nothing
    waits for it.
    """


class LastGuard:
    """Refuses by raising TemporaryError, since every reason may pass. Holds no state of its own."""

    def __init__(
        self,
        *,
        claims: NodeClaims,
        claim_reconciler: ClaimReconciler,
        read_minors: ReadMinors,
        changing: Callable[[], Collection[str]] = tuple,
        guest_runtimes: GuestRuntimes = NO_GUESTS,
        refusal: Callable[[], str | None] = lambda: None,
        mps_folders: Callable[[], Collection[str]] = tuple,
        gate: ConfidentialGate,
    ) -> None:
        """All but `gate` are called with the lock held: `changing` returns the GPUs that are not granted now, whole or
        in part, as device names or PCI addresses; `refusal` returns why no GPU of the node is, None if they are;
        `mps_folders` returns what containers of shares by MPS see at places of the supervisor's choice.
        """
        self._claims = claims
        self._claim_reconciler = claim_reconciler
        self._read_minors = read_minors
        self._changing = changing
        self._guest_runtimes = guest_runtimes
        self._refusal = refusal
        self._mps_folders = mps_folders
        self._gate = gate

    def refuse_unready(self, claim: ResourceClaim, pool: PublishedPool) -> None:
        """Refuse GPUs that must compute confidentially and do not, or that accept no work yet. The caller does not hold
        the lock: this may wait for the driver.
        """
        gated = gated_devices(claim, pool)
        if gated:
            self._gate.refuse(gated)

    def refuse_stale(self, prepared: PreparedClaim) -> None:
        """Refuse device nodes that no longer belong to the claim's devices, by what the driver shows without a call.

        The last reading may be a minute old. Since then the driver may have been reloaded or unloaded, and an admin may
        have bound a GPU to another one. It does not know the GPUs for virtual machines; they are compared where their
        nodes are read (ReadClaimNodes).
        """
        try:
            minors = self._read_minors()
        except TemporaryError as error:
            # A driver that hangs is not reloaded meanwhile: the last reading holds.
            log.warning("minors of the GPUs are not compared", error=str(error))
            return
        if minors is None:
            return
        for device in (d for d in prepared.devices if not d.is_passthrough and d.pci_bus_id is not None):
            address = str(device.pci_bus_id)
            minor = minors.get(address)
            if minor != device.minor:
                seen = f"/dev/nvidia{minor} now"
                if minor is None:
                    driver = f"/sys/bus/pci/devices/{address}/driver"
                    seen = f"no GPU there now (on the node, `readlink {driver}` names the driver that has it)"
                raise TemporaryError(
                    f"GPU {device.parent_uuid or device.uuid} at {address} was /dev/nvidia{device.minor} when the "
                    f"GPUs were last read, the driver has {seen}: waiting for the next reading"
                )

    def refuse_held(self, plan: PreparedClaim, pool: PublishedPool) -> None:
        """Refuse a claim if another still holds its devices or their nodes. The caller holds the lock."""
        refusal = self._refusal()
        if refusal is not None:
            raise TemporaryError(refusal)
        changing = self._changing()
        for device in plan.devices if changing else ():
            if device.physical_gpu in changing or device.pci_bus_id in changing:
                gpu = device.pci_bus_id if device.is_vgpu else device.physical_gpu
                raise TemporaryError(
                    f"request {device.request}: {gpu} is being divided into another layout, and "
                    f"{device.device} may disappear with it: delete the pod if it does not start within minutes"
                )
        others = [*self._claim_reconciler.possible_conflicts(plan, pool)]
        for each, salvaged in self._claims.unsure():
            if each.uid == plan.claim.uid:
                continue
            if not salvaged.devices:
                raise TemporaryError(
                    f"the checkpoint of claim UID {each.uid} {each.problem}, and no CDI spec tells which devices it "
                    "holds: nothing is granted until it is rebuilt from the claim, or undone"
                )
            others.append(salvaged)
        held = holders(plan, others)
        if held:
            text = "; ".join(_held(plan, *entry) for entry in held)
            raise _device_held(plan, text, tuple(holder for _, _, holder in held))
        lost = of_unknown_address(plan, others, pool)
        if lost:
            text = "; ".join(_lost(plan, *entry) for entry in lost)
            raise _device_held(plan, text, tuple(holder for _, _, holder in lost))
        short = overdrawn(plan, others, pool)
        if short:
            _log_held(plan, tuple(holder for each in short for holder in each.holders))
            raise DeviceHeldError(_short(plan, short), overdrawn=short)
        unlike = of_another_mode(plan, others)
        if unlike and self._is_rebuilt(plan.claim.uid):
            # Claims that are rebuilt have shared their GPU until now: they would wait for each other for ever.
            unlike = of_another_mode(plan, self._known())
        if unlike:
            text = "; ".join(
                f"{device} has a share of {holder.claim.told_to(plan.claim)}, and {difference}"
                for device, holder, difference in unlike
            )
            raise _device_held(plan, text, tuple(holder for _, holder, _ in unlike))
        nodes = held_nodes(plan, others)
        if nodes:
            raise _device_held(plan, "; ".join(map(str, nodes)), tuple(node.holder for node in nodes))

    def _is_rebuilt(self, uid: ClaimUid) -> bool:
        return self._claims.may_be_in_use(uid) or any(each.uid == uid for each, _ in self._claims.unsure())

    def _known(self) -> Sequence[PreparedClaim]:
        """Return the claims of which it is known, by what they want, how they share their GPUs."""
        return [c.prepared for c in self._claims.current() if not c.provisional or c.prepared.wants]

    def fitted(self, plan: PreparedClaim, pods: Sequence[Pod]) -> PreparedClaim | str:
        """Return the plan adapted to the pods of its claim, or why it does not fit them: a container cannot use a share
        by MPS as it is, or runs in a virtual machine that lacks what it needs. The caller holds the lock.

        What a GPU for virtual machines needs depends on the RuntimeClass, so unknown pods get none.
        """
        unknown = set(plan.consumers).difference(pod.metadata.uid for pod in pods)
        if unknown and any(device.is_passthrough for device in plan.devices):
            raise TemporaryError(
                f"pod UID {min(unknown)}, for which claim {plan.claim} is reserved, is not known yet: what it gets "
                "depends on its RuntimeClass"
            )
        unfit = None
        if any(each.kind == MPS_SHARE for each in plan.wants) or self._claims.wanting(MPS_SHARE):
            others = (c.prepared for c in self._claims.current())
            unfit = unfit_container(plan, others, pods, self._mps_folders())
        return unfit or fitted_to_pods(plan, pods, self._guest_runtimes)


def refuse_other_allocation(prepared: PreparedClaim, claim: ResourceClaim, driver: str) -> None:
    """Refuse a prepared claim whose allocation, as just read, names devices other than those it holds here."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    wanted = {(r.request, r.pool, r.device, r.share_id) for r in results if r.driver == driver}
    held = {(d.request, d.pool, d.device, d.share_id) for d in prepared.devices}
    if wanted != held:
        raise AllocatedAnewError(
            f"claim {prepared.claim} was allocated again while it is prepared here: it holds "
            f"{_names(d.device for d in prepared.devices)}, its allocation says {_names(w[2] for w in wanted)}. "
            "Delete the pods of this node that use it: kubelet must unprepare it first"
        )


def _names(devices: Iterable[str]) -> str:
    return ", ".join(sorted(devices)) or "none"


def _device_held(plan: PreparedClaim, text: str, by: tuple[PreparedClaim, ...]) -> DeviceHeldError:
    _log_held(plan, by)
    return DeviceHeldError(text, by)


def _log_held(plan: PreparedClaim, by: tuple[PreparedClaim, ...]) -> None:
    """Log for admins who holds the devices: the text of the error goes to the pod, through kubelet."""
    log.info("devices are held by other claims", claim=str(plan.claim), held_by=sorted({str(one.claim) for one in by}))


def _held(plan: PreparedClaim, device: PreparedDevice, theirs: PreparedDevice, holder: PreparedClaim) -> str:
    name = holder.claim.told_to(plan.claim)
    of = "" if theirs.device == device.device else f" as a part of the same GPU, by device {theirs.device},"
    return f"request {device.request}: device {device.device} is still held{of} by {name}, which is not unprepared yet"


def _lost(plan: PreparedClaim, device: PreparedDevice, theirs: PreparedDevice, holder: PreparedClaim) -> str:
    held = f"which is still held by {holder.claim.told_to(plan.claim)}"
    if theirs.is_vgpu:
        return (
            f"request {device.request}: device {device.device} may have been the GPU of {theirs.device}, {held}: that "
            "vGPU is gone, and it is no longer known whose it was. Delete the pods of that claim"
        )
    return (
        f"request {device.request}: device {device.device} may be {theirs.device}, {held}: its PCI address is not "
        "known any more, and the NVIDIA driver, which could tell, does not have it. Delete the pods of that claim, or "
        "bind its GPU to the NVIDIA driver again"
    )


def _short(plan: PreparedClaim, short: Sequence[Overdrawn]) -> str:
    return "; ".join(
        f"{each} (held by {', '.join(holder.claim.told_to(plan.claim) for holder in each.holders)})" for each in short
    )
