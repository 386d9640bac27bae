"""Discovery, slices, CDI and prepare on the GPUs of this machine: run by hand with `make device-test`.

Not collected by `make test`: it needs an NVIDIA driver, and fails without one. It prints what it read, and compares
with what nvidia-smi says. DRACAENA_TEST_RECORD=FILE keeps this machine as a recorded machine.
"""

# ruff: noqa: T201 - what it prints is what it is run for

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dracaena.api.devicepool import decode_pool
from dracaena.api.machine import Machine
from dracaena.api.machine_json import decode_machine, encode_machine
from dracaena.api.names import PoolName
from dracaena.api.tree import render_tree
from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.host.adapters.nvml.library import NvmlError
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes, DevRoot
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel, find_gpu_driver_files
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.device_kinds.allocatable import slice_specs
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.recording import recording
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import parse_topo_matrix
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation, GpuDriverPlaces
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import gpu_driver_edits
from dracaena.process.clock import SystemClock
from support.plugin import DRIVER, NODE, FakeClaims, PluginNode, claim_of, reference_to


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    source = NvmlMachine.of_this_node(NODE)
    for number in range(3):
        began_s = time.monotonic()
        try:
            found = source.read_all()
        except NvmlError as error:
            pytest.exit(f"no GPU to test: {error}", returncode=1)
        print(f"\nreading {number}: {1000 * (time.monotonic() - began_s):.1f} ms")
    yield found
    source.close()


@pytest.fixture(scope="module")
def machine(reading: Reading) -> Machine:
    return reading.machine


def nvidia_smi(*arguments: str) -> str:
    tool = shutil.which("nvidia-smi")
    assert tool is not None, "nvidia-smi is not on the PATH: install it or run where the driver is"
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def query(field: str) -> list[str]:
    """Return one field of all GPUs by nvidia-smi, in the order of PCI addresses."""
    rows = nvidia_smi(f"--query-gpu=pci.bus_id,{field}", "--format=csv,noheader,nounits").splitlines()
    return [row.split(", ", 1)[1] for row in sorted(rows)]


def test_discovery_reads_all_gpus(reading: Reading, machine: Machine) -> None:
    print("\n".join(render_tree(machine)))
    print(encode_machine(machine).decode())
    for left_out in reading.left_out:
        print(f"left out: {left_out}")
    for mig in machine.mig_devices:
        print(f"MIG: {mig.device_name} {mig}")
    machine.check()
    assert machine.gpus
    assert all(gpu.minor is not None and gpu.pci_bus_id is not None for gpu in machine.gpus)
    assert reading.unanswered == 0


def test_nvidia_smi_says_the_same_of_each_gpu(machine: Machine) -> None:
    assert [gpu.uuid for gpu in machine.gpus] == query("uuid")
    assert [gpu.product_name for gpu in machine.gpus] == query("name")
    assert [gpu.cuda_compute_capability for gpu in machine.gpus] == query("compute_cap")
    assert [str(gpu.index) for gpu in machine.gpus] == query("index")
    assert {machine.driver_version} == set(query("driver_version"))
    assert [str(gpu.pcie_generation) for gpu in machine.gpus] == query("pcie.link.gen.max")


def test_nvidia_smi_shows_the_same_links(machine: Machine) -> None:
    text = nvidia_smi("topo", "-m")
    print(text)
    by_index = {gpu.index: ordinal for ordinal, gpu in enumerate(machine.gpus)}
    printed = parse_topo_matrix(text)
    order = [by_index[number] for number in printed.gpus]
    ours = machine.topology.matrix()
    assert [[ours[a][b] for b in order] for a in order] == [list(row) for row in printed.matrix]


def test_minor_numbers_are_those_of_the_device_nodes(machine: Machine) -> None:
    for gpu in machine.gpus:
        assert os.minor(Path(f"/dev/nvidia{gpu.minor}").stat().st_rdev) == gpu.minor


def test_slices_decode_to_the_same_machine(machine: Machine) -> None:
    specs = slice_specs(machine, driver=DRIVER, node_name=NODE, tainted=True)
    for spec in specs:
        for device in spec.devices:
            print(msgspec.json.format(msgspec.json.encode(device)).decode())
    decoded = decode_pool([device for spec in specs for device in spec.devices])
    assert not decoded.problems
    assert decoded.topology.pairs == machine.topology.pairs


def test_the_driver_files_are_there() -> None:
    kernel = Kernel()
    files = find_gpu_driver_files(GpuDriverRoot("/"), kernel, kernel.gpu_driver_version())
    assert files is not None
    edits = gpu_driver_edits(files, "/")
    print(f"\ndriver {files.version} for {files.machine}: {len(edits.mounts)} mounts, {len(edits.hooks)} hooks")
    for mount in edits.mounts:
        print(f"  {mount.host_path} -> {mount.container_path}")
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {file.soname for file in files.libraries}
    assert all(Path(mount.host_path).exists() for mount in edits.mounts)


def test_a_claim_of_all_gpus_is_prepared(machine: Machine, tmp_path: Path) -> None:
    pool = node_pool(machine, DRIVER, PoolName(NODE))
    results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": name} for name in pool.gpus]
    claim = claim_of("all", {"results": results})
    node = PluginNode(
        tmp_path,
        claims=FakeClaims(claim),
        pool=pool,
        claim_nodes=DeviceNodes([DevRoot("/", "/")], required=True).of_claim,
        gpu_driver_edits=GpuDriverInstallation(GpuDriverPlaces("/"), required=True).edits,
    )
    clock = SystemClock()
    began_s = clock.monotonic()
    prepared = node.state.prepare(reference_to(claim))
    print(f"\nprepared in {1000 * (clock.monotonic() - began_s):.1f} ms")
    assert [device.uuid for device in prepared.devices] == [gpu.uuid for gpu in machine.gpus]
    (name,) = node.specs.names(".json")
    spec = msgspec.json.decode(node.specs.read(name) or b"")
    print(msgspec.json.format(msgspec.json.encode(spec)).decode())
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    nodes = [entry["path"] for edit in edits for entry in edit.get("deviceNodes", ())]
    assert "/dev/nvidiactl" in nodes
    assert all(Path(path).is_char_device() for path in nodes)
    node.state.unprepare(reference_to(claim))
    assert node.specs.names(".json") == ()


def test_this_machine_can_be_recorded(machine: Machine) -> None:
    document = encode_machine(recording(machine))
    assert decode_machine(document).topology.pairs == machine.topology.pairs
    for gpu in machine.gpus:
        assert gpu.uuid.encode() not in document
    if "DRACAENA_TEST_RECORD" in os.environ:
        Path(os.environ["DRACAENA_TEST_RECORD"]).write_bytes(document)
