"""Settings by node: a label of the Node names a section of the file, and its change starts the plugin anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import TemporaryError
from dracaena.api.objects import Node
from dracaena.demo.apiserver import Faults, InjectedFault
from dracaena.host.adapters.files.lock import CallLock
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.paths import LAST_ASKING
from dracaena.kubelet_plugin.node.section import LAST_SECTION, NodeSection
from dracaena.kubelet_plugin.program import Program
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.process.clock import SystemClock
from dracaena.process.settings import Layers, add_arguments, read_layers
from support.api_ground import ApiGround
from support.kube import wait_for
from support.plugin_world import CALL_S, DRIVER, NODE, START_S, World, http, start_process
from support.sockets import short_folder

LABEL = f"{DRIVER}/settings"
SECTIONS = """
podlist-gpus: minor
sections:
  indexed: {podlist-gpus: index}
  as-general: {podlist-gpus: minor}
"""


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


def label(world: World, section: str | None) -> None:
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {LABEL: section}}})


def layers(world: World, text: str = SECTIONS) -> Layers[PluginSettings]:
    file = world.folder / "settings.yaml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser, PluginSettings)
    return read_layers(
        PluginSettings, parser.parse_args(["--config", str(file), *world.arguments()]), {}, sectioned=True
    )


def data_folder(world: World) -> Path:
    return world.kubelet / "plugins" / DRIVER


def section_of(world: World, text: str = SECTIONS, **changes: Any) -> NodeSection:
    clock = SystemClock()
    lock = CallLock(data_folder(world) / "serialize.lock", clock)
    files = DocumentFolder(data_folder(world))
    given = {"end": lambda: None, **changes}
    return NodeSection(layers(world, text), world.client, files, lock, clock, **given)


def events(world: World) -> dict[str, str]:
    return {event.reason: event.message for event in world.events()}


@pytest.mark.parametrize(
    ("section", "form"), [(None, "minor"), ("indexed", "index"), ("as-general", "minor"), ("unknown", "minor")]
)
def test_the_label_of_the_node_names_the_section(world: World, section: str | None, form: str) -> None:
    label(world, section)
    assert section_of(world).choose().podlist_gpus == form
    assert (data_folder(world) / LAST_SECTION).read_text() == f"{section or ''}\n"


def test_an_unknown_section_is_told_on_the_node_and_the_general_settings_hold(world: World) -> None:
    label(world, "indxed")
    section = section_of(world)
    program = Program(section.choose(), registry=CollectorRegistry(), section=section)
    program.start()
    try:
        message = wait_for(lambda: events(world).get("SettingsSectionUnknown"), "an event")
        assert message == (
            f"label {LABEL} of this node names section 'indxed' of the settings file, which has as-general, indexed: "
            "the settings outside the sections apply"
        )
        wanted = 'dracaena_plugin_settings_section{known="false",section="indxed"} 1.0'
        assert wanted in http(program, "/metrics")[1]
    finally:
        program.stop()


def test_a_label_without_any_section_in_the_file_is_told_too(world: World) -> None:
    label(world, "indexed")
    section = section_of(world, "podlist-gpus: minor\n")
    program = Program(section.choose(), registry=CollectorRegistry(), section=section)
    program.start()
    try:
        message = wait_for(lambda: events(world).get("SettingsSectionUnknown"), "an event")
        assert "which has no sections" in message
    finally:
        program.stop()


def test_a_label_that_means_the_same_settings_changes_nothing_and_another_ends_the_program(world: World) -> None:
    ended: list[bool] = []
    section = section_of(world, end=lambda: ended.append(True))
    program = Program(section.choose(), registry=CollectorRegistry(), section=section)
    program.start()
    try:
        label(world, "as-general")
        wait_for(lambda: (data_folder(world) / LAST_SECTION).read_text() == "as-general\n", "seen")
        assert (ended, "SettingsChanged" in events(world)) == ([], False)
        shown = 'dracaena_plugin_settings_section{known="true",section="as-general"} 1.0'
        wait_for(lambda: shown in http(program, "/metrics")[1], "shown")
        label(world, "indexed")
        wait_for(lambda: ended, "the end")
        message = wait_for(lambda: events(world).get("SettingsChanged"), "an event")
        assert f"label {LABEL} of this node is 'indexed' now" in message
    finally:
        program.stop()


@pytest.mark.embedded_only(reason="makes the server fail")
@pytest.mark.parametrize("sectioned", [False, True])
def test_a_plugin_that_cannot_follow_its_node_is_not_ready_and_says_so(
    world: World, faults: Faults, sectioned: bool
) -> None:
    section = section_of(world) if sectioned else None
    settings = section.choose() if section is not None else world.settings()
    faults.add(InjectedFault(path=r"/nodes\?", status=503, times=10_000))
    program = Program(settings, registry=CollectorRegistry(), section=section)
    program.start()
    try:
        world.register()
        wait_for(lambda: "the first list of nodes is not complete" in (program.ready() or ""), "said", timeout_s=30)
        assert 'dracaena_plugin_unreadable_objects{resource="nodes"} 0.0' in http(program, "/metrics")[1]
        faults.clear()
        wait_for(lambda: program.ready() is None, "ready", timeout_s=60)
    finally:
        program.stop()


@pytest.mark.embedded_only(reason="makes the server fail")
def test_without_the_api_server_the_section_of_the_last_start_holds(world: World, faults: Faults) -> None:
    label(world, "indexed")
    with_server = section_of(world).choose()
    faults.add(InjectedFault(path=".*/nodes.*", status=503, times=10_000))
    assert section_of(world).choose() == with_server
    (data_folder(world) / LAST_SECTION).unlink()
    with pytest.raises(TemporaryError, match=f"label {LABEL} of node {NODE} that names one cannot be read"):
        section_of(world).choose()
    assert section_of(world, "podlist-gpus: minor\n").choose().podlist_gpus == "minor"  # no section to be chosen


@pytest.mark.embedded_only(reason="makes the server fail")
def test_without_the_api_server_a_request_for_the_driver_is_remembered(world: World, faults: Faults) -> None:
    asking = {"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"}
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {**asking, "other": "paused-for-lunch"}}})
    section_of(world).choose()
    faults.add(InjectedFault(path=".*/nodes.*", status=503, times=10_000))
    without_server = section_of(world)
    without_server.choose()
    assert without_server.labels == asking
    for damaged in (b"[]", b"{", b"\xff", b'{"other": 1}'):
        (data_folder(world) / LAST_ASKING).write_bytes(damaged)
        after = section_of(world)
        after.choose()
        assert after.labels == {}


def test_where_nobody_asks_for_the_driver_any_more_no_file_says_so(world: World) -> None:
    label = "nvidia.com/gpu.deploy.client"
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {label: "paused-for-driver-upgrade"}}})
    section_of(world).choose()
    assert (data_folder(world) / LAST_ASKING).exists()
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {label: None}}})
    section_of(world).choose()
    assert not (data_folder(world) / LAST_ASKING).exists()


def test_the_process_ends_orderly_when_its_label_changes_and_takes_the_section_at_the_next_start(world: World) -> None:
    (world.folder / "settings.yaml").write_text(SECTIONS)
    config = ["--config", str(world.folder / "settings.yaml")]
    process = start_process(world, more=config)
    try:
        pod = world.pod("pod", "claim")
        claim = world.allocated_claim("claim", [3], pod)
        answer = world.prepare(claim)[claim.metadata.uid]
        assert (answer.error, world.podlist()) == ("", [("pod", ("3",))])
        label(world, "indexed")
        _, text = process.communicate(timeout=CALL_S)
        assert (process.returncode, "Traceback" in text) == (0, False)
        assert "the plugin restarts to apply its settings" in text
    finally:
        process.kill()
    again = start_process(world, more=config)
    try:
        assert world.prepare(claim)[claim.metadata.uid] == answer
    finally:
        again.kill()
        again.communicate()


def test_a_mistake_in_a_section_of_other_nodes_ends_in_one_line(world: World) -> None:
    (world.folder / "settings.yaml").write_text("sections: {other: {podlist-gpus: colour}}\n")
    process = start_process(world, more=["--config", str(world.folder / "settings.yaml")])
    _, text = process.communicate(timeout=START_S)
    assert process.returncode == 2
    assert "section other: podlist-gpus: 'colour' is not one of uuid, index, minor, device-name" in text
    assert len(text.splitlines()) == 1
