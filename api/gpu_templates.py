"""ResourceClaimTemplates whose name says everything: `gpus-<count>.<DeviceClass>`.

An admission policy cannot create objects. So the claims that it puts into pods in place of `nvidia.com/gpu` name
templates of this form, and the controller creates those that are missing (docs/design/0027-unchanged-manifests.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.names import rewrite_label
from dracaena.api.objects import Namespace

REQUEST: Final = "gpus"
"""Name of the one request."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "dracaena-controller"
"""Label that tells templates made by the controller from those of users, which it never deletes."""

_NAME: Final = re.compile(r"gpus-([1-9][0-9]{0,9})\.(.+)")


@dataclass(frozen=True, slots=True)
class GpuTemplate:
    """What such a name asks for."""

    count: int
    device_class: str

    @property
    def name(self) -> str:
        """The name of the template."""
        return f"gpus-{self.count}.{self.device_class}"

    def spec(self) -> dict[str, Any]:
        """Return spec of the template."""
        exactly = {"deviceClassName": self.device_class, "allocationMode": "ExactCount", "count": self.count}
        return {"spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}}}

    def document(self) -> Mapping[str, Any]:
        """Return the object to create."""
        return {"metadata": {"name": self.name, "labels": {MANAGED_BY: MANAGER}}, "spec": self.spec()}


def has_opted_in(namespace: Namespace, driver: str) -> bool:
    """Whether such templates are made in a namespace."""
    return namespace.metadata.labels.get(rewrite_label(driver)) == "true"


def read_gpu_template(name: str) -> GpuTemplate | None:
    """Return what the name of a template asks for, None for any other name. That the class can be a name at all is for
    the API server to say, which checks what pods call their templates.
    """
    found = _NAME.fullmatch(name)
    return None if found is None else GpuTemplate(int(found[1]), found[2])
