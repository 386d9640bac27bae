"""What the plugin publishes of a GPU that is cut on demand, as the controller reads it."""

from __future__ import annotations

import msgspec

from dracaena.api.partitions import lefts
from dracaena.api.resourceslice import encode_mig_places, mig_counter_set, with_whole_consumption
from dracaena.controller.allocation.score.partitions import PartitionTable
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, node, pool_slice
from support.mig_nodes import mig_classes
from support.partition_tables import cut_states, footprint_slices


def test_a_recorded_h100_is_read_with_its_places_and_their_worth() -> None:
    made = read_machine("hgx-h100")
    base = pool_slice("a", made)
    (taint,) = base.spec.devices[0].taints
    parts = [device for gpu in made.gpus for device in encode_mig_places(made, gpu)]
    devices = [
        *(with_whole_consumption(device, gpu) for device, gpu in zip(base.spec.devices, made.gpus, strict=True)),
        *(msgspec.structs.replace(device, taints=[taint]) for device in parts),
    ]
    pool = msgspec.structs.replace(base.spec.pool, resource_slice_count=2)
    spec = msgspec.structs.replace(base.spec, pool=pool, devices=devices)
    of_sets = msgspec.structs.replace(spec, devices=[], shared_counters=[mig_counter_set(gpu, {}) for gpu in made.gpus])
    meta = msgspec.structs.replace(base.metadata, name="counters")
    pages = [msgspec.structs.replace(base, spec=spec), msgspec.structs.replace(base, metadata=meta, spec=of_sets)]
    inventory = make_inventory(DRIVER, nodes=[node("a")], slices=pages, classes=mig_classes())
    state = inventory.state("a")
    assert isinstance(state, NodeState)
    assert state.free == 0xFF
    gpus = state.kind.partitions.gpus
    assert [one.ordinal for one in gpus] == list(range(8))
    assert not state.kind.partitions.has_more
    for one, left in zip(gpus, lefts(gpus, state.rest), strict=True):
        table = PartitionTable(one.geometry)
        assert (one.geometry.slices, len(one.geometry.places), left) == (8, 25, one.geometry.there)
        assert footprint_slices(table.worth(left)) == 41
        assert len(cut_states(table)) == 656
