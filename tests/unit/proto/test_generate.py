from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from dracaena.proto.dra.v1 import api_pb2 as dra_v1
from dracaena.proto.dra.v1beta1 import api_pb2 as dra_v1beta1
from dracaena.proto.generate import IMPORT_ROOT, generate, proto_files
from dracaena.proto.health.v1 import api_pb2 as health_v1
from dracaena.proto.health.v1alpha1 import api_pb2 as health_v1alpha1
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.podresources.v1 import api_pb2 as podresources

GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")

CLAIM = {"namespace": 1, "uid": 2, "name": 3}
DRA = {
    "Claim": CLAIM,
    "NodePrepareResourcesRequest": {"claims": 1},
    "NodePrepareResourcesResponse": {"claims": 1},
    "NodePrepareResourceResponse": {"devices": 1, "error": 2},
    "Device": {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4},
    "NodeUnprepareResourcesRequest": {"claims": 1},
    "NodeUnprepareResourcesResponse": {"claims": 1},
    "NodeUnprepareResourceResponse": {"error": 1},
}
DRA_CALLS = {
    "NodePrepareResources": ("NodePrepareResourcesRequest", "NodePrepareResourcesResponse", False),
    "NodeUnprepareResources": ("NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse", False),
}
HEALTH = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {"devices": 1},
    "DeviceIdentifier": {"pool_name": 1, "device_name": 2},
    "DeviceHealth": {
        "device": 1,
        "health": 2,
        "last_updated_time": 3,
        "health_check_timeout_seconds": 4,
        "message": 5,
    },
}
HEALTH_CALLS = {"NodeWatchResources": ("NodeWatchResourcesRequest", "NodeWatchResourcesResponse", True)}
REGISTRATION = {
    "InfoRequest": {},
    "PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
    "RegistrationStatus": {"plugin_registered": 1, "error": 2},
    "RegistrationStatusResponse": {},
}
REGISTRATION_CALLS = {
    "GetInfo": ("InfoRequest", "PluginInfo", False),
    "NotifyRegistrationStatus": ("RegistrationStatus", "RegistrationStatusResponse", False),
}

PODRESOURCES = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": 1},
    "PodResources": {"name": 1, "namespace": 2, "containers": 3},
    "ContainerResources": {"name": 1, "dynamic_resources": 5},
    "DynamicResource": {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4},
    "ClaimResource": {"cdi_devices": 1, "driver_name": 2},
    "CDIDevice": {"name": 1},
}
PODRESOURCES_CALLS = {"List": ("ListPodResourcesRequest", "ListPodResourcesResponse", False)}

WIRE = [
    (
        dra_v1.DESCRIPTOR,
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        {**DRA, "Device": {**DRA["Device"], "share_id": 5}},
        DRA_CALLS,
    ),
    (dra_v1beta1.DESCRIPTOR, "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", DRA, DRA_CALLS),
    (health_v1.DESCRIPTOR, "v1.DRAResourceHealth", HEALTH, HEALTH_CALLS),
    (health_v1alpha1.DESCRIPTOR, "v1alpha1.DRAResourceHealth", HEALTH, HEALTH_CALLS),
    (registration.DESCRIPTOR, "pluginregistration.Registration", REGISTRATION, REGISTRATION_CALLS),
    (podresources.DESCRIPTOR, "v1.PodResourcesLister", PODRESOURCES, PODRESOURCES_CALLS),
]


def fields(message: Descriptor) -> dict[str, int]:
    return {field.name: field.number for field in message.fields}


def test_generating_again_gives_what_is_committed(tmp_path: Path) -> None:
    generate(tmp_path)

    def contents(root: Path) -> dict[str, bytes]:
        folder = root / "dracaena" / "proto"
        return {str(p.relative_to(folder)): p.read_bytes() for pattern in GENERATED for p in folder.rglob(pattern)}

    committed = contents(IMPORT_ROOT)
    assert len(committed) == len(proto_files()) * len(GENERATED)
    assert contents(tmp_path) == committed


@pytest.mark.parametrize(("file", "service", "messages", "calls"), WIRE, ids=[w[1] for w in WIRE])
def test_service_names_calls_and_field_numbers_are_those_of_kubelet(
    file: FileDescriptor,
    service: str,
    messages: dict[str, dict[str, int]],
    calls: dict[str, tuple[str, str, bool]],
) -> None:
    assert [s.full_name for s in file.services_by_name.values()] == [service]
    assert {name: fields(message) for name, message in file.message_types_by_name.items()} == messages
    methods = file.services_by_name[service.rpartition(".")[2]].methods
    assert {m.name: (m.input_type.name, m.output_type.name, m.server_streaming) for m in methods} == calls


def test_file_paths_are_unique_in_the_global_pool() -> None:
    assert dra_v1.DESCRIPTOR.name == "dracaena/proto/dra/v1/api.proto"
    assert len({w[0].name for w in WIRE}) == len(WIRE)


def test_answers_are_maps_by_claim_uid() -> None:
    for module in (dra_v1, dra_v1beta1):
        for message in (module.NodePrepareResourcesResponse, module.NodeUnprepareResourcesResponse):
            entry = message.DESCRIPTOR.fields_by_name["claims"].message_type
            assert entry.GetOptions().map_entry
            assert entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING


def test_a_share_id_can_be_absent() -> None:
    assert not dra_v1.Device().HasField("share_id")
    assert dra_v1.Device(share_id="").HasField("share_id")


def test_health_values_are_those_of_kubelet() -> None:
    for module in (health_v1, health_v1alpha1):
        assert dict(module.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}
