"""Reads the DeviceTaintRules of a cluster, in whichever version it serves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dracaena.api.resource_objects import DeviceTaintRule
    from dracaena.kube.client import KubeClient


def taint_rules(client: KubeClient) -> Sequence[DeviceTaintRule] | None:
    """Return all rules; none if the cluster serves none. None: they may not be read, and standard error says so."""
    from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleV1Beta2
    from dracaena.kube.errors import ForbiddenError, NotFoundError

    kinds: tuple[type[DeviceTaintRule], ...] = (DeviceTaintRule, DeviceTaintRuleV1Beta2)
    for kind in kinds:
        try:
            return client.list(kind).items
        except NotFoundError:
            continue
        except ForbiddenError:
            print("DeviceTaintRules may not be read: GPUs that they take out of use count as free", file=sys.stderr)
            return None
    return ()
