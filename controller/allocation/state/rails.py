"""The rails of the GPUs of a kind of node, from what is published."""

from __future__ import annotations

from dracaena.api import compact
from dracaena.api.attributes import NIC_LEVELS
from dracaena.api.links import LinkLevel
from dracaena.api.rails import rails
from dracaena.controller.allocation.state.node_state import DeviceKind, NodeKind


def rails_of_kind(kind: NodeKind) -> tuple[int | None, ...]:
    """Return the rail of each GPU by its ordinal (api.rails); None: it has none, or does not say. Cost: O(GPUs × NICs):
    ask once for each kind."""
    return rails([_nic_levels(device) for device in kind.devices])


def _nic_levels(device: DeviceKind | None) -> tuple[LinkLevel | None, ...]:
    published = None if device is None else device.device.attributes.get(NIC_LEVELS.name)
    try:
        entries = compact.decode("" if published is None or published.string is None else published.string)
        return tuple(compact.level_of_number(entry) for entry in entries)
    except compact.CompactError:
        return ()
