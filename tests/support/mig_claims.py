"""Claims on a node whose GPUs are divided on demand, through prepare and unprepare on real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dracaena.api.mig_geometry import places
from dracaena.api.names import PoolName, gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.mig.on_demand import divided_gpus
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from support.gpu_lists import gpu_list
from support.killed_steps import KilledSteps
from support.mig_node import MigNode
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    PluginNode,
    ThreadLock,
    claim_for_devices,
    reference_to,
)

NEVER = 1 << 30
"""A step that no test comes to."""


class Claims:
    """A plugin over one hardware. restart() is a kill: files, instances and nothing else stay."""

    def __init__(self, folder: Path, mig: MigNode, setting: str = "all") -> None:
        self.folder, self.mig = folder, mig
        machine = mig.hardware.machine
        self.gpus = [gpu_device_name(gpu.uuid) for gpu in machine.gpus]
        self.pool = node_pool(machine, DRIVER, PoolName(NODE), divided=divided_gpus(gpu_list(mig=setting), machine))
        self.claims = FakeClaims()
        self.restart()

    def restart(self, disk: FileSteps | None = None) -> None:
        """`disk`: one that is not as it should be."""
        self.steps = KilledSteps(NEVER)
        steps = disk or self.steps
        files = DocumentFolder(self.folder / "ledger", steps=steps, synced=False)
        self.mig.ledger = Ledger(files, ThreadLock(), "boot-1")
        self.mig.start()
        kinds: list[AnyThingKind] = [self.mig.instances, self.mig.whole]
        self.node = PluginNode(self.folder, self.claims, pool=self.pool, steps=steps, kinds=kinds)

    def sweep(self) -> int:
        """Look for what no claim has any more."""
        return self.node.engine.sweep(MIG_INSTANCE, self.node._told_of)

    def note_of(self, place: str) -> Path:
        """The file that says what was made at a place."""
        return self.folder / "ledger" / f"{MIG_INSTANCE}.{place}.json"

    def notes(self) -> list[Path]:
        return sorted((self.folder / "ledger").glob("*.json"))

    def lose(self, claim: ResourceClaim) -> None:
        """Break a claim's checkpoint; kubelet unprepares it before it is rebuilt."""
        self.break_checkpoint(claim)
        self.node.state.unprepare(reference_to(claim))

    def break_checkpoint(self, claim: ResourceClaim) -> None:
        (self.folder / "claims" / f"{reference_to(claim).uid}.json").write_bytes(b"rubbish")
        self.node.node_claims.look_at_each()

    def read(self, pool: PublishedPool) -> None:
        self.pool = self.node.pool = pool

    def claim(self, name: str, *devices: str, config: Any = None, **result: Any) -> ResourceClaim:
        claim = claim_for_devices(name, *devices, config=config, **result)
        self.claims.put(claim)
        return claim

    def place(self, profile: str, start: int, ordinal: int = 0) -> str:
        gpu = self.mig.hardware.machine.gpus[ordinal]
        return next(
            place.device_name
            for place in places(gpu.uuid, gpu.mig_profiles)
            if (place.profile.name, place.placement.start) == (profile, start)
        )

    def done(self) -> list[PreparedClaim]:
        found = self.node.node_claims.current()
        return [checkpoint.prepared for checkpoint in found if checkpoint.state is State.DONE]
