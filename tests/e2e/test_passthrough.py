"""GPUs for virtual machines on the real kubelet and containerd: what the container of a launcher gets, and what a pod
that is in the virtual machine.

The plugin sees a kernel that has bound the node's only GPU to vfio-pci (fake_kernel). RuntimeClass `kata` is runc under
another name: what kubelet and the plugin do goes by the name, and containerd applies the CDI spec as for any runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import Cluster
from e2e.fake_kernel import GROUP, IOMMU_MINOR, VFIO_DEVICE, plugin_on, vfio_nodes, wait_published
from e2e.gpu_pods import Seen, seen_inside, traces, wait_free
from e2e.installation import DRIVER
from e2e.node import GUEST_HANDLER
from e2e.pods import Pod, claim_spec, create_pod, create_template, delete_pod, pod_claims, wait_event
from support.fake_pci import FakePciBus
from support.gpu_lists import flag

ADDRESS: Final = "0000:e1:00.0"
DEVICE: Final = "vfio-0000-e1-00-0"
VARIABLE: Final = "PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3"
TEMPLATE: Final = "machine"
GUEST: Final = "kata"
"""One of the RuntimeClasses that setting guest-runtime-classes names by itself."""


@pytest.fixture
def with_vfio(installed: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Give the cluster with a node whose only GPU has a VFIO driver, and none of NVIDIA."""
    bus = FakePciBus(tmp_path / "sys")
    gpu = bus.add(ADDRESS, GROUP, driver="vfio-pci", bridges=("pci0000:e0", "0000:e0:01.0"))
    (gpu / "vfio-dev" / f"vfio{VFIO_DEVICE}").mkdir(parents=True)
    root = tmp_path / "no-driver"
    root.mkdir()
    with (
        vfio_nodes(),
        plugin_on(bus, installed, "vfio", flag("passthrough", bind="existing"), f"--driver-root={root}"),
    ):
        wait_published(installed, DEVICE)
        yield installed


@pytest.fixture
def guest_class(installed: Cluster) -> Iterator[None]:
    """Have a RuntimeClass whose pods are in virtual machines."""
    document = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": GUEST}}
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    installed.api.create(classes, document | {"handler": GUEST_HANDLER})
    yield
    installed.api.delete(f"{classes}/{GUEST}")


def seen_by(cluster: Cluster, name: str, *configs: Any, **more: str) -> Seen:
    """Return what a pod with a GPU for virtual machines sees; nothing of it is left."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": f"vfio.{DRIVER}"}}]
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}} for parameters in configs]
    template = create_template(cluster.api, TEMPLATE, {"devices": {"requests": requests, "config": config}})
    pod = Pod(name, templates={"gpu": TEMPLATE}, more=more)
    create_pod(cluster.api, pod)
    seen = seen_inside(cluster.api, pod)
    (claim,) = pod_claims(cluster.api, pod).values()
    assert traces(cluster, claim["metadata"]["uid"])
    delete_pod(cluster.api, pod)
    wait_free(cluster, claim)
    cluster.api.delete(template)
    return seen


def test_a_launcher_gets_the_nodes_of_vfio_and_the_variable_that_names_its_gpu(with_vfio: Cluster) -> None:
    seen = seen_by(with_vfio, "launcher")
    assert set(seen.nodes) == {"/dev/vfio/vfio", f"/dev/vfio/{GROUP}"}
    assert seen.usable == {GROUP}, "the kernel lets it open its group, and no other"
    assert seen.environment[VARIABLE] == ADDRESS
    assert seen.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert seen.libraries == {}, "the guest brings its own driver"


def test_a_launcher_whose_claim_asks_for_iommufd_gets_its_nodes_and_none_of_the_group(with_vfio: Cluster) -> None:
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "VfioConfig", "iommu": "IOMMUFD"}
    seen = seen_by(with_vfio, "newer-launcher", parameters)
    assert set(seen.nodes) == {"/dev/iommu", f"/dev/vfio/devices/vfio{VFIO_DEVICE}"}
    assert seen.usable == {IOMMU_MINOR, VFIO_DEVICE}
    assert seen.environment[VARIABLE] == ADDRESS


@pytest.mark.usefixtures("guest_class")
def test_a_pod_in_a_virtual_machine_gets_the_node_of_the_group_alone(with_vfio: Cluster) -> None:
    guest = seen_by(with_vfio, "guest", runtimeClassName=GUEST)
    assert set(guest.nodes) == {f"/dev/vfio/{GROUP}"}
    assert [name for name in guest.environment if "PCI_RESOURCE" in name or "NVIDIA" in name] == []
    beside = seen_by(with_vfio, "beside")
    assert set(beside.nodes) == {"/dev/vfio/vfio", f"/dev/vfio/{GROUP}"}, "the same claim of a pod on the host"
    assert beside.environment[VARIABLE] == ADDRESS


@pytest.mark.usefixtures("guest_class")
def test_a_pod_in_a_virtual_machine_is_refused_a_gpu_of_the_hosts_driver(installed: Cluster) -> None:
    template = create_template(installed.api, TEMPLATE, claim_spec())
    pod = Pod("without-driver", templates={"gpu": TEMPLATE}, more={"runtimeClassName": GUEST})
    create_pod(installed.api, pod)
    words = f"runs in a virtual machine (RuntimeClass {GUEST}), in which there is no NVIDIA driver of this node"
    said = wait_event(installed.api, pod, "FailedPrepareDynamicResources", words)
    assert "ask for a GPU for virtual machines (class vfio.<driver name>)" in said
    (claim,) = pod_claims(installed.api, pod).values()
    delete_pod(installed.api, pod)
    wait_free(installed, claim)
    installed.api.delete(template)
