"""Configurations for another type of device than their requests get, and only those, give a warning."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.names import DEFAULT_DRIVER_NAME as DRIVER
from dracaena.validation import Severity, render_path, validate_all
from dracaena.validation.config_types import SHIPPED_TYPES
from dracaena.validation.ignored import SHIPPED

VFIO, VGPU, MIG, SHARE = (f"{before}.{DRIVER}" for before in ("vfio", "vgpu", "mig", "share"))
IOMMUFD = {"kind": "VfioConfig", "iommu": "IOMMUFD"}
SHARED = {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
SECRET = {"kind": "GpuConfig", "confidential": "Required"}
LINKED = {"kind": "TopologyPolicy", "requirement": "PIX"}


def config(parameters: dict[str, Any], *requests: str, driver: str = DRIVER) -> dict[str, Any]:
    opaque = {"driver": driver, "parameters": {"apiVersion": "gpu.dracaena.dev/v1alpha1", **parameters}}
    return {"requests": list(requests), "opaque": opaque} if requests else {"opaque": opaque}


def cel(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def exactly(class_name: str, name: str = "r", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **fields}}


def either(*class_names: str) -> dict[str, Any]:
    return {
        "name": "r",
        "firstAvailable": [{"name": f"a{at}", "deviceClassName": c} for at, c in enumerate(class_names)],
    }


def claim(requests: list[dict[str, Any]], *configs: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": requests, "config": list(configs)}},
    }


def device_class(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def warned(*documents: dict[str, Any]) -> list[tuple[str, str]]:
    found = [finding for findings in validate_all(documents) for finding in findings]
    assert all(finding.severity is Severity.WARNING for finding in found), list(map(str, found))
    return [(render_path(finding.path), finding.message.partition(":")[0]) for finding in found]


KIND = ("spec.devices.config[0].opaque.parameters.kind", "a VfioConfig does nothing here")
SHARING = (
    "spec.devices.config[0].opaque.parameters.sharing",
    "sharing does nothing here, or has the claim refused on its node",
)
OF = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == '


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (claim([exactly(DRIVER)], config(IOMMUFD)), KIND),
        (claim([exactly(MIG)], config(IOMMUFD, "r")), KIND),
        (claim([exactly(SHARE)], config(IOMMUFD)), KIND),
        (claim([exactly(DRIVER, "a"), exactly(VFIO, "b")], config(IOMMUFD, "a")), KIND),
        (claim([either(VFIO, DRIVER)], config(IOMMUFD, "r/a1")), KIND),
        (claim([exactly("mine", **cel(f'{OF} "gpu"'))], config(IOMMUFD)), KIND),
        (claim([exactly(VFIO)], config(SHARED)), SHARING),
        (claim([exactly(VGPU)], config(SHARED)), SHARING),
        (claim([exactly(MIG)], config(SHARED)), SHARING),
    ],
)
def test_a_configuration_for_another_type_of_device_is_warned_of(
    document: dict[str, Any], wanted: tuple[str, str]
) -> None:
    assert warned(document) == [wanted]


@pytest.mark.parametrize(
    "document",
    [
        claim([exactly(VFIO)], config(IOMMUFD), config(SECRET), config(LINKED)),
        claim([exactly(VGPU)], config(IOMMUFD)),
        claim([exactly(DRIVER, "a"), exactly(VFIO, "b")], config(IOMMUFD)),
        claim([either(VFIO, DRIVER)], config(IOMMUFD, "r"), config(SHARED, "r")),
        claim([exactly("somebodys")], config(IOMMUFD), config(SHARED)),
        claim([exactly(DRIVER)], config(SHARED), config(SECRET)),
        claim([exactly(SHARE)], config(SHARED)),
    ],
)
def test_what_may_mean_a_device_of_the_right_type_is_not(document: dict[str, Any]) -> None:
    assert warned(document) == []


def test_a_class_of_the_input_says_what_it_means() -> None:
    memory = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("1Gi"))'
    of_guests = device_class("machines", **cel(f'{OF} "vfio" && {memory}'))
    assert warned(of_guests, claim([exactly("machines")], config(IOMMUFD))) == []
    assert warned(of_guests, claim([exactly("machines")], config(SHARED))) == [SHARING]
    (found,) = warned(device_class("machines", **cel(f'{OF} "gpu"'), config=[config(IOMMUFD)]))
    assert found == ("spec.config[0].opaque.parameters.kind", KIND[1])


def test_each_class_of_the_chart_has_its_type() -> None:
    assert set(SHIPPED_TYPES) == set(SHIPPED)
