"""What an admin can set for the plugin, and the page that says so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.wiring.from_settings import on_demand_gpus

PAGE = Path(__file__).parents[3] / "docs" / "node.md"


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    text = str(field.default)
    return f"`{text.lower() if isinstance(field.default, bool) else text}`" if text else ""


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \|([^|]*)\| (yes|no) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = [(name, default.strip(), where, text) for name, default, where, text in rows]
    assert listed == [
        (
            field.name.replace("_", "-"),
            default_of(field),
            "yes" if field.metadata["in_sections"] else "no",
            field.metadata["help"],
        )
        for field in dataclasses.fields(PluginSettings)
    ]


def test_what_must_be_known_before_a_section_is_chosen_stands_in_none() -> None:
    early = {field.name for field in dataclasses.fields(PluginSettings) if not field.metadata["in_sections"]}
    assert early == {"node_name", "driver_name", "kubeconfig", "read_as_node", "kubelet_root", "pod_uid"}


def test_which_gpus_are_bound_on_demand_is_told_by_their_addresses() -> None:
    def bound(**changes: Any) -> list[bool]:
        asked = on_demand_gpus(PluginSettings(node_name="n", **changes))
        return [address in asked for address in ("0000:18:00.0", "0000:3b:00.0")]

    assert bound() == bound(passthrough="existing") == [False, False]
    assert bound(passthrough="onDemand") == [True, True]
    assert bound(passthrough="onDemand", passthrough_gpus="0000:3b:00.0,0000:99:00.0") == [False, True]
    assert bound(passthrough="onDemand", mig="onDemand") == [True, True]
    with pytest.raises(BadInputError, match="passthrough=onDemand cannot be combined with mig=layout"):
        bound(passthrough="onDemand", mig="layout")
