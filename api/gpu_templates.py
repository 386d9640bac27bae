"""ResourceClaimTemplates whose name says everything: `gpus-<count>.<DeviceClass>`, and for MIG devices of one profile
`mig-<profile>-<count>.mig.<driver>`.

An admission policy cannot create objects. So the claims that it puts into pods in place of `nvidia.com/gpu` and
`nvidia.com/mig-<profile>` name templates of these forms, and the controller creates those that are missing
(docs/design/admission.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.mig import RESOURCE_PROFILE, profile_in_resource, profile_of_resource
from dracaena.api.names import rewrite_label
from dracaena.api.objects import Namespace

REQUEST: Final = "gpus"
MIG_REQUEST: Final = "mig"
"""Names of the one request, for whole GPUs and for MIG devices."""

_MIG: Final = "mig."
"""Prefix of the driver's name in the class of its MIG devices."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "dracaena-controller"
"""Label that distinguishes templates made by the controller from those of users, which it never deletes."""

_COUNT: Final = "[1-9][0-9]{0,9}"
_NAME: Final = re.compile(rf"gpus-({_COUNT})\.(.+)")
_MIG_NAME: Final = re.compile(rf"mig-({RESOURCE_PROFILE})-({_COUNT})\.(mig\..+)")


@dataclass(frozen=True, slots=True)
class GpuTemplate:
    """What such a name asks for."""

    count: int
    device_class: str
    profile: str = ""
    """Of MIG devices, as NVML names it; their class is `mig.<driver>`. Empty: any device of the class."""

    @property
    def name(self) -> str:
        """The name of the template."""
        what = f"mig-{profile_in_resource(self.profile)}" if self.profile else "gpus"
        return f"{what}-{self.count}.{self.device_class}"

    def spec(self) -> dict[str, Any]:
        """Return spec of the template."""
        exactly: dict[str, Any] = {"deviceClassName": self.device_class}
        if self.profile:
            expression = has_profile(self.profile, self.device_class.removeprefix(_MIG))
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        exactly |= {"allocationMode": "ExactCount", "count": self.count}
        request = MIG_REQUEST if self.profile else REQUEST
        return {"spec": {"devices": {"requests": [{"name": request, "exactly": exactly}]}}}

    def document(self) -> Mapping[str, Any]:
        """Return the object to create."""
        return {"metadata": {"name": self.name, "labels": {MANAGED_BY: MANAGER}}, "spec": self.spec()}


def has_opted_in(namespace: Namespace, driver: str) -> bool:
    """Whether such templates are made in a namespace."""
    return namespace.metadata.labels.get(rewrite_label(driver)) == "true"


def read_gpu_template(name: str) -> GpuTemplate | None:
    """Return what the name of a template asks for; None for any other name. Whether the class is a valid name is not
    checked here: the API server checks the names of templates in pods.
    """
    if found := _NAME.fullmatch(name):
        return GpuTemplate(int(found[1]), found[2])
    mig = _MIG_NAME.fullmatch(name)
    profile = mig and profile_of_resource(mig[1])
    return GpuTemplate(int(mig[2]), mig[3], profile) if mig and profile else None


def has_profile(profile: str, driver: str) -> str:
    """Return the CEL expression for MIG devices of one profile. The chart's policy `templates` knows its text."""
    return f'device.attributes["{driver}"].profile == "{profile}"'
