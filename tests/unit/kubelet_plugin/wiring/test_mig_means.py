from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dracaena.api.names import DeviceName, PoolName, gpu_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.effects.mig_device_records import MigDeviceRecords
from dracaena.kubelet_plugin.effects.mig_instances import MigInstances, WholeGpus
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.ports import GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, MIG_OFF, Effect, Scalar
from dracaena.kubelet_plugin.store.own_places import OwnPlaces
from dracaena.kubelet_plugin.wiring.mig_means import mig_means
from support.clock import FakeClock
from support.plugin import ThreadLock, node_claims

H100 = read_machine("h100-x1")
GPU = H100.gpus[0].uuid
GIVEN: Mapping[str, Scalar] = {"gpu": GPU, "profile": "3g.40gb", "start": 4, "size": 4}
EFFECT = Effect(MIG_INSTANCE, gpu_device_name(GPU), DeviceName("mig"), parameters=GIVEN)


def instances(folder: Path) -> MigInstances:
    """As a process of the plugin on the recorded machine has it."""
    pool = node_pool(H100, "gpu.dracaena.dev", PoolName("node-1"))
    records = MigDeviceRecords(DocumentFolder(folder, synced=False), ThreadLock(), "boot-1", lambda _effect: None)
    means = mig_means(folder, None, None, lambda: pool, OwnPlaces(FakeClock(), node_claims(folder)), records)
    assert isinstance(means[MIG_OFF], WholeGpus)
    found = means[MIG_INSTANCE]
    assert isinstance(found, MigInstances)
    return found


def test_on_a_recorded_machine_an_instance_outlives_the_plugin_that_made_it(tmp_path: Path) -> None:
    noted: list[Mapping[str, Scalar]] = []
    outcome = instances(tmp_path).apply_noting(EFFECT, (), noted.append)
    assert noted[0] == {"making": True}
    assert instances(tmp_path).apply_noting(replace(EFFECT, outcome=outcome), (), noted.append) == outcome
    instances(tmp_path).undo(replace(EFFECT, outcome=outcome), ())
    assert instances(tmp_path).apply_noting(EFFECT, (), noted.append)["uuid"] != outcome["uuid"]


def test_what_was_made_on_a_machine_that_is_not_played_any_more_counts_as_undone(tmp_path: Path) -> None:
    outcome = instances(tmp_path).apply_noting(EFFECT, (), lambda _: None)
    instances(tmp_path).undo(replace(EFFECT, parameters={**GIVEN, "gpu": "GPU-other"}, outcome=outcome), ())


def test_a_gpu_that_the_recorded_machine_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpuGoneError, match="GPU GPU-none is not among those"):
        instances(tmp_path).apply_noting(replace(EFFECT, parameters={**GIVEN, "gpu": "GPU-none"}), (), lambda _: None)
