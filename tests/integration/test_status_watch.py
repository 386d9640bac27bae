"""`dracaena status --watch` as a process: what it shows follows the cluster until it is interrupted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest

from dracaena.api.objects import Node, Taint
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine
from support.api_ground import ApiGround
from support.controller import NAMESPACE, publish, transport
from support.kube import wait_for as wait_for_it

LONGEST_S = 240.0
"""A process that starts beside others on a loaded machine."""

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"), product_name="NVIDIA A100")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    wait_for_it(condition, what, LONGEST_S)


@pytest.fixture
def client(server: ApiGround, tmp_path: Path) -> KubeClient:
    made = KubeClient(transport(server, tmp_path))
    publish(made, {"a": FOUR})
    return made


@contextmanager
def interruptible() -> Iterator[None]:
    """Let programs that start meanwhile end at SIGINT. A shell that starts tests in the background has it ignored,
    which every program below inherits, and Python then leaves it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def following(folder: Path, output: IO[bytes] | int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "status", "--watch", *arguments]
    with (folder / "errors").open("wb") as errors, interruptible():
        started = subprocess.Popen(
            [*command, "--kubeconfig", str(folder / "kubeconfig")],
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def hold(client: KubeClient) -> None:
    made = holding(claim("c"), "a", device_name(FOUR, 0))
    client.create(
        ResourceClaim, {"metadata": {"name": "c"}, "spec": msgspec.to_builtins(made.spec)}, namespace=NAMESPACE
    )
    status = {"status": msgspec.to_builtins(made.status)}
    client.merge_patch(ResourceClaim, "c", status, namespace=NAMESPACE, subresource="status")


def taint(client: KubeClient) -> None:
    (found,) = client.list(ResourceSlice, field_selector="spec.nodeName=a").items
    lost = Taint(key=f"{DRIVER}/xid", value="79", effect="NoSchedule")
    first, *others = found.spec.devices
    devices = [msgspec.structs.replace(first, taints=[*first.taints, lost]), *others]
    spec = {"spec": {"devices": msgspec.to_builtins(devices)}}
    client.merge_patch(ResourceSlice, found.metadata.name, spec)


def test_each_change_is_a_block_and_what_changes_nothing_is_none(client: KubeClient, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stream, following(tmp_path, stream) as process:
        wait_for(lambda: "4 GPUs: 4 free;" in out.read_text(), "the first block")
        hold(client)
        wait_for(lambda: "4 GPUs: 3 free, 1 used;" in out.read_text(), "the block with the claim")
        client.merge_patch(Node, "a", {"metadata": {"annotations": {"nobody": "shows this"}}})
        taint(client)
        wait_for(lambda: "3 free, 1 failed (1 × xid=79);" in out.read_text(), "the block with the fault")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
    blocks_ = out.read_text().split("\n\nas of ")
    assert [len(block.split(" GPUs: ")) for block in blocks_] == [3, 3, 3], "the tree and the sum of each"
    assert "[default/c, no pod; failed: taint gpu.dracaena.dev/xid=79:NoSchedule]" in blocks_[-1]
    assert (tmp_path / "errors").read_text() == ""


def test_each_change_is_a_line_of_json(client: KubeClient, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stream, following(tmp_path, stream, "a", "-o", "json") as process:
        wait_for(lambda: out.read_text().count("\n") == 1, "the first line")
        client.merge_patch(Node, "a", {"spec": {"unschedulable": True}})
        wait_for(lambda: out.read_text().count("\n") == 2, "the second line")
        client.delete(ResourceSlice, client.list(ResourceSlice).items[0].metadata.name)
        wait_for(lambda: out.read_text().count("\n") == 3, "the third line")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_S) == 130
    first, second, third = (json.loads(line) for line in out.read_text().splitlines())
    assert (first["summary"]["free"], second["summary"]["free"], second["summary"]["closed"]) == (4, 0, 4)
    assert third == {"error": f"node a publishes no devices of {DRIVER}"}


def test_a_terminal_is_redrawn_from_its_first_line(client: KubeClient, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    seen = bytearray()

    def shows(text: str) -> bool:
        os.set_blocking(ours, False)
        try:
            while more := os.read(ours, 65536):
                seen.extend(more)
        except BlockingIOError:
            pass
        return text in seen.decode(errors="replace")

    try:
        with following(tmp_path, theirs) as process:
            wait_for(lambda: shows("4 GPUs: 4 free;"), "the first picture")
            hold(client)
            wait_for(lambda: shows("4 GPUs: 3 free, 1 used;"), "the second picture")
            process.send_signal(signal.SIGINT)
            assert process.wait(LONGEST_S) == 130
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen.count(b"\x1b[H") == 2
    assert seen.count(b"\x1b[J") == 2


def test_a_node_that_does_not_exist_ends_the_command_before_it_watches(client: KubeClient, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stream, following(tmp_path, stream, "aa") as process:
        assert process.wait(LONGEST_S) == 2
    assert (tmp_path / "errors").read_text() == "dracaena: node aa does not exist\n"
    assert client.list(Node).items
