"""A recording keeps what choices depend on and nothing that identifies the machine."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Machine
from dracaena.api.machine_json import decode_machine, encode_machine
from dracaena.api.topology import Nic
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.recording import default_name, recording
from support.machines import divided_machine

CLUSTERS = ("6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f", "9a0a0b57-2f2b-4f0e-8a3c-5d1a2b3c4d5e")


def real() -> Machine:
    """Return a machine with everything that could identify it."""
    machine = read_machine("gb200-tray")
    cliques = [f"{CLUSTERS[0]}.7", f"{CLUSTERS[0]}.7", f"{CLUSTERS[1]}.3", None]
    names = ["mlx5_0", "enx0cc47a1b2c3d", "acme-storage", "mlx5_bond_0", "bnxt_re1", "ibp3s0", "efa_0", "NIC9"]
    nics = tuple(replace(nic, name=name) for nic, name in zip(machine.topology.nics, names, strict=True))
    return replace(
        machine,
        name="node17.acme.example",
        source="rack 5",
        gpus=tuple(replace(gpu, fabric_clique=c) for gpu, c in zip(machine.gpus, cliques, strict=True)),
        topology=replace(machine.topology, nics=nics),
    )


def test_nothing_of_the_owner_is_left() -> None:
    machine = real()
    text = encode_machine(recording(machine, name="tray")).decode()
    for secret in (*(gpu.uuid for gpu in machine.gpus), *CLUSTERS, "acme", "rack 5", "0cc47a1b2c3d", "bond"):
        assert secret not in text


def test_links_and_facts_stay() -> None:
    machine = real()
    recorded = recording(machine, name="tray")
    assert recorded.topology.pairs == machine.topology.pairs
    assert recorded.topology.numa_nodes == machine.topology.numa_nodes
    assert [nic.levels for nic in recorded.topology.nics] == [nic.levels for nic in machine.topology.nics]
    for kept, gpu in zip(recorded.gpus, machine.gpus, strict=True):
        assert replace(kept, uuid=gpu.uuid, fabric_clique=gpu.fabric_clique) == gpu


def test_cards_with_a_name_of_the_kernel_keep_it() -> None:
    names = [nic.name for nic in recording(real()).topology.nics]
    assert names == ["mlx5_0", "NIC1", "NIC2", "NIC3", "bnxt_re1", "NIC5", "efa_0", "NIC7"]


def test_gpus_of_one_clique_stay_together() -> None:
    cliques = [gpu.fabric_clique or "" for gpu in recording(real(), name="tray").gpus]
    assert cliques[0] == cliques[1] != cliques[2]
    assert [clique.rpartition(".")[2] for clique in cliques] == ["7", "7", "3", ""]


def test_a_recording_is_the_same_each_time_and_can_be_read_again() -> None:
    first = recording(real(), name="tray")
    assert recording(first, name="tray") == first
    assert decode_machine(encode_machine(first)) == first
    assert recording(real(), name="other").gpus[0].uuid != first.gpus[0].uuid


def test_the_name_says_what_it_is() -> None:
    machine = real()
    assert default_name(machine) == "4x-nvidia-gb200"
    bare = replace(machine, gpus=tuple(replace(gpu, product_name=None) for gpu in machine.gpus))
    assert default_name(bare) == "4x-gpu"


def test_two_cards_never_get_one_name() -> None:
    machine = real()
    nics = (Nic("NIC1", (None,) * 4), Nic("office", (None,) * 4))
    recorded = recording(replace(machine, topology=replace(machine.topology, nics=nics)))
    assert [nic.name for nic in recorded.topology.nics] == ["NIC0", "NIC1"]


def test_mig_devices_get_new_names_and_keep_their_parents() -> None:
    machine = divided_machine()
    recorded = recording(machine, name="divided")
    assert not {mig.uuid for mig in recorded.mig_devices} & {mig.uuid for mig in machine.mig_devices}
    assert {mig.parent_uuid for mig in recorded.mig_devices} == {recorded.gpus[1].uuid}
    assert [mig.profile for mig in recorded.mig_devices] == [mig.profile for mig in machine.mig_devices]
    assert decode_machine(encode_machine(recorded)) == recorded
