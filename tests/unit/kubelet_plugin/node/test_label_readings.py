from __future__ import annotations

from dracaena.api.confidential import MODE_STATE_LABEL, cc_mode_label
from dracaena.api.names import release_label
from dracaena.kubelet_plugin.node.label_readings import LabelReadings
from support.plugin_world import DRIVER


def test_gpus_are_read_at_once_when_a_label_changes_that_a_reading_depends_on() -> None:
    asked: list[str] = []
    readings = LabelReadings(DRIVER, {}, lambda: asked.append("read"))
    readings.take({"zone": "a"})
    readings.take({"zone": "b"})
    assert asked == []
    labels = {"zone": "b"}
    for key in (MODE_STATE_LABEL, cc_mode_label(DRIVER), release_label(DRIVER), "nvidia.com/gpu.deploy.driver"):
        labels[key] = "paused-for-driver-upgrade" if key.startswith("nvidia.com/gpu.deploy") else "on"
        readings.take(labels)
        readings.take(dict(labels))
        assert asked == ["read"], key
        asked.clear()


def test_a_request_that_was_known_before_the_watch_and_is_gone_has_the_gpus_read() -> None:
    asked: list[str] = []
    readings = LabelReadings(DRIVER, {release_label(DRIVER): "true"}, lambda: asked.append("read"))
    readings.take({})
    assert asked == ["read"]


def test_a_mode_counts_once_the_watch_has_shown_it() -> None:
    asked: list[str] = []
    readings = LabelReadings(DRIVER, {MODE_STATE_LABEL: "on"}, lambda: asked.append("read"))
    readings.take({MODE_STATE_LABEL: "on"})
    assert asked == ["read"]
