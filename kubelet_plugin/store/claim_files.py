"""The files through which containers get a prepared claim: its CDI spec, and device metadata if it has any."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.ports import DocumentStore, ReadClaimNodes, ReadGpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import needs_gpu_driver
from dracaena.kubelet_plugin.prepare.cdi.devices import devices_in_spec
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.spec import claim_of_spec_file, claim_spec, spec_file_name
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store.checkpoints import Checkpoints
from dracaena.kubelet_plugin.store.metadata_files import MetadataFiles

log = structlog.get_logger()


class ClaimFiles:
    """Writes and removes them. Callers hold the node's lock; all methods raise DracaenaError naming the path."""

    def __init__(
        self,
        *,
        driver: str,
        claim_nodes: ReadClaimNodes,
        gpu_driver_edits: ReadGpuDriverEdits,
        specs: DocumentStore,
        metadata: MetadataFiles,
        kind_of: KindOf = kind_of,
    ) -> None:
        self._driver = driver
        self._claim_nodes = claim_nodes
        self._gpu_driver_edits = gpu_driver_edits
        self._specs = specs
        self.metadata = metadata
        self._kind_of = kind_of
        head, tail = spec_file_name(driver, ClaimUid("\0")).split("\0")
        self._uid_in_name = slice(len(head), -len(tail))

    def write(self, prepared: PreparedClaim, pool: PublishedPool) -> None:
        """Write all of them, for the devices as in `pool`, the last reading."""
        self.write_spec(prepared)
        self.metadata.write(prepared, pool.attributes)

    def write_spec(self, prepared: PreparedClaim) -> None:
        """Write the CDI spec."""
        # First, because it limits its wait for a driver root that hangs; reading the nodes below that root does not.
        edits = self._gpu_driver_edits() if needs_gpu_driver(prepared.devices) else GpuDriverEdits()
        spec = claim_spec(prepared, self._driver, self._claim_nodes(prepared.devices), edits, self._kind_of)
        self._specs.write(spec_file_name(self._driver, prepared.claim.uid), spec)

    def remove_spec(self, uid: ClaimUid) -> None:
        """Remove the CDI spec: no container of the claim can be started until there is one again."""
        self._specs.remove(spec_file_name(self._driver, uid))

    def spec_is_gone(self, uid: ClaimUid) -> bool:
        """Whether there is no CDI spec."""
        return self._specs.read(spec_file_name(self._driver, uid)) is None

    def with_spec(self) -> set[ClaimUid]:
        """Return the claims that have a CDI spec."""
        found = (claim_of_spec_file(self._driver, name) for name in self._specs.names(".json"))
        return {uid for uid in found if uid is not None}

    def is_without_spec(self, uid: ClaimUid) -> bool:
        """Whether there is no CDI spec, of this driver or of another with the same names of files on this node."""
        end = spec_file_name("", uid)
        return not any(name.endswith(end) for name in self._specs.names(end))

    def spec_is_seen(self, uid: ClaimUid) -> bool:
        """Whether there is a CDI spec; a folder that cannot even be read holds none of ours."""
        try:
            return not self.spec_is_gone(uid)
        except DracaenaError:
            return False

    def salvage(self, broken: Broken) -> PreparedClaim:
        """Return what a claim with a broken checkpoint holds according to its CDI spec; no devices if it has none.

        The nodes in the spec may belong to another device by now, so all of them also count as former ones.
        """
        spec = self._specs.read(spec_file_name(self._driver, broken.uid))
        devices = () if spec is None else devices_in_spec(spec, broken.uid)
        return PreparedClaim(ClaimReference("", "", broken.uid), devices, former=devices)

    def unsure(self, checkpoints: Checkpoints) -> Iterator[tuple[Broken, PreparedClaim]]:
        """Yield the claims whose checkpoints broke, and those whose checkpoints are gone while their CDI specs are
        there; each with what it holds according to its spec. Their containers may run. The caller holds the lock.

        One whose spec is gone too, or cannot be read, is without devices. A spec that names none is of no claim.
        """
        for each in checkpoints.load_all()[1]:
            yield each, self._salvage_if_read(each) or _nothing_known(each)
        known, uid_at = checkpoints.uids(), self._uid_in_name
        # Each prepare looks at the specs of all claims, perhaps hundreds: quickly leave out those that are known.
        for name in [name for name in self._specs.names(".json") if name[uid_at] not in known]:
            uid = claim_of_spec_file(self._driver, name)
            if uid is not None:
                gone = Broken(uid, "is gone")
                salvaged = self._salvage_if_read(gone)
                if salvaged is None or salvaged.devices:
                    yield gone, salvaged or _nothing_known(gone)

    def _salvage_if_read(self, broken: Broken) -> PreparedClaim | None:
        """A spec that cannot be read, such as a link in its place, must not keep other claims from their answers."""
        try:
            return self.salvage(broken)
        except DracaenaError as error:
            log.warning("it is not known what a claim holds", claim_uid=broken.uid, error=str(error))
            return None


def _nothing_known(broken: Broken) -> PreparedClaim:
    return PreparedClaim(ClaimReference("", "", broken.uid), ())
