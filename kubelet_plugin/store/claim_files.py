"""The files through which containers get a prepared claim: its CDI spec, and device metadata if it has any."""

from __future__ import annotations

from dracaena.kubelet_plugin.device_kinds.cdi_spec import claim_spec
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.ports import ReadClaimNodes, ReadGpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import needs_gpu_driver
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.store.metadata_files import MetadataFiles


class ClaimFiles:
    """Writes them. Callers hold the node's claims; all methods raise DracaenaError naming the path."""

    def __init__(
        self,
        *,
        driver: str,
        claims: NodeClaims,
        claim_nodes: ReadClaimNodes,
        gpu_driver_edits: ReadGpuDriverEdits,
        metadata: MetadataFiles,
        kind_of: KindOf = kind_of,
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._claim_nodes = claim_nodes
        self._gpu_driver_edits = gpu_driver_edits
        self.metadata = metadata
        self._kind_of = kind_of

    def write(self, prepared: PreparedClaim, pool: PublishedPool) -> None:
        """Write all of them, for the devices as in `pool`, the last reading."""
        self.write_spec(prepared)
        self.metadata.write(prepared, pool.attributes)

    def write_spec(self, prepared: PreparedClaim) -> None:
        """Write the CDI spec."""
        # First, because it limits its wait for a driver root that hangs; reading the nodes below that root does not.
        edits = self._gpu_driver_edits() if needs_gpu_driver(prepared.devices) else GpuDriverEdits()
        spec = claim_spec(prepared, self._driver, self._claim_nodes(prepared.devices), edits, self._kind_of)
        self._claims.write_spec(prepared.claim.uid, spec)
