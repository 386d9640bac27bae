"""What an admin can set for the plugin, and the page that says so."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from dracaena.kubelet_plugin.settings import PluginSettings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    text = "" if field.metadata["structure"] else str(field.default)
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
