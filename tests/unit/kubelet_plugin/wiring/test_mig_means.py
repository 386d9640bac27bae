from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dracaena.api.mig import mig_device_name
from dracaena.api.names import ClaimUid, PoolName, gpu_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.changes.change import ForOwner, thing_of
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.mig.instances import MadeInstance
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.ports import GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.wiring.mig_means import mig_kinds
from support.changed_node import ClaimsOfNode
from support.clock import FakeClock
from support.plugin import ThreadLock

H100 = read_machine("h100-x1")
GPU = H100.gpus[0].uuid
CLAIM = ClaimUid("claim-uid")


class Recorded:
    """A process of the plugin on the recorded machine."""

    def __init__(self, folder: Path, gpu: str = GPU) -> None:
        pool = node_pool(H100, "gpu.dracaena.dev", PoolName("node-1"))
        ledger = Ledger(DocumentFolder(folder / "ledger", synced=False), ThreadLock(), "boot-1")
        paths = SimpleNamespace(recorded_mig=folder)
        node: Any = SimpleNamespace(paths=paths, ledger=ledger, clock=FakeClock())
        kinds = mig_kinds(node, None, None, lambda: pool)
        assert kinds is not None
        given: Mapping[str, Scalar] = {"gpu": gpu, "profile": "3g.40gb", "start": 4, "size": 4}
        effect = Effect(MIG_INSTANCE, gpu_device_name(gpu), mig_device_name(gpu, "3g.40gb", 4), parameters=given)
        self.thing = thing_of(effect)
        claims: Any = ClaimsOfNode()
        prepared = PreparedClaim(ClaimReference("default", "claim", CLAIM), (), wants=(effect,))
        claims.good[CLAIM] = Checkpoint(State.STARTED, "boot-1", prepared)
        self.engine = ChangeEngine(
            ledger=ledger, kinds=[kinds.instances, kinds.whole], claims=claims, gpu_lock=lambda _gpu: ThreadLock()
        )

    def make(self) -> MadeInstance:
        self.settle(ForOwner(begins=CLAIM))
        made = self.engine.noted_of(self.thing)
        assert isinstance(made, MadeInstance)
        return made

    def undo(self) -> None:
        self.settle(ForOwner(ends=CLAIM))
        assert self.engine.noted_of(self.thing) is None

    def settle(self, call: ForOwner) -> None:
        for problem in self.engine.settle([self.thing], call, lambda: 30.0).problems.values():
            raise problem


def test_on_a_recorded_machine_an_instance_outlives_the_plugin_that_made_it(tmp_path: Path) -> None:
    made = Recorded(tmp_path).make()
    assert Recorded(tmp_path).make() == made
    Recorded(tmp_path).undo()
    again = Recorded(tmp_path).make()
    assert again == replace(made, uuid=again.uuid)
    assert again.uuid != made.uuid


def test_what_was_made_on_a_machine_that_is_not_played_any_more_counts_as_undone(tmp_path: Path) -> None:
    Recorded(tmp_path).make()
    gone = "GPU-00000000-0000-0000-0000-00000000000f"
    (note,) = (tmp_path / "ledger").iterdir()
    note.rename(str(note).replace(GPU.removeprefix("GPU-"), gone.removeprefix("GPU-")))
    Recorded(tmp_path, gone).undo()


def test_a_gpu_that_the_recorded_machine_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpuGoneError, match="GPU GPU-00000000-0000-0000-0000-00000000000f is not among those"):
        Recorded(tmp_path, "GPU-00000000-0000-0000-0000-00000000000f").make()
