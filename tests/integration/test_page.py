"""The page of the real controller: a pod is followed from waiting to running, on the embedded API server."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import KubeClient
from support.allocation import blocks, machine
from support.api_ground import ApiGround
from support.controller import ask, publish, transport
from support.exporting_node import entry, exporting_node, gpu_uuid, pod_uid
from support.exporting_nvml import FakeProcess
from support.forked_programs import ForkedProgram
from support.http_probe import connect, get
from support.kube import wait_for
from support.sockets import short_folder
from support.workload import NAMESPACE

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name="T4")

TIMEOUT_S: Final = 60.0
"""A change is on the page within two seconds; the rest is for a loaded machine."""


class Reader:
    """Looks at the page of a controller, and follows it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._events = connect(port)
        self._events.settimeout(TIMEOUT_S)
        self._events.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def close(self) -> None:
        self._events.close()

    def read(self, path: str) -> Any:
        status, text, _ = get(self.port, path, timeout_s=20.0)
        assert status == 200, text
        return json.loads(text)

    def state(self, pod: str) -> str:
        status, text, _ = get(self.port, f"/api/pod?namespace={NAMESPACE}&name={pod}", timeout_s=20.0)
        return str(json.loads(text)["state"]) if status == 200 else "unknown"

    def follow(self, pod: str, wanted: str) -> None:
        """Look whenever an event says so, until the pod has this state."""
        until_s = time.monotonic() + TIMEOUT_S
        while (seen := self.state(pod)) != wanted:
            assert time.monotonic() < until_s, f"{pod} is {seen}, not {wanted}"
            assert self._events.recv(1 << 12), "the stream ended"

    def holders(self, node: str) -> list[list[str]]:
        gpus = self.read(f"/api/node?name={node}")["gpus"]
        return [holder["pods"] for gpu in gpus for holder in gpu["heldBy"]]

    def why(self, pod: str) -> str:
        waits = self.read("/api/waiting")["waiting"]["groups"]
        return next((str(group["why"]) for group in waits if pod in group["first"]), "")


def page_port(log: Path) -> int:
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("event") == "serving the page":
            return int(entry["port"])
    return 0


def run_pod(client: KubeClient, pod: str) -> None:
    """Do what kube-scheduler and kubelet do with a pod whose claims are allocated."""
    binding = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": "n"}}
    client.create_subresource(Pod, pod, "binding", binding, namespace=NAMESPACE)
    client.merge_patch(Pod, pod, {"status": {"phase": "Running"}}, namespace=NAMESPACE, subresource="status")


def test_a_pod_is_followed_from_waiting_to_running(server: ApiGround, tmp_path: Path) -> None:
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"n": FOUR})
    log = tmp_path / "log"
    flags = ["--leader-elect=false", f"--kubeconfig={tmp_path}/kubeconfig"]
    flags += ["--page-address=127.0.0.1:0", "--page-open=true"]
    with (
        contextlib.ExitStack() as closing,
        ForkedProgram(("controller", *flags), log=log) as started,
    ):
        try:
            reader = Reader(wait_for(lambda: page_port(log), "the page", TIMEOUT_S))
            closing.callback(reader.close)
            ask(client, "first", {"of-first": 3})
            reader.follow("first", "allocated")
            run_pod(client, "first")
            reader.follow("first", "running")
            ask(client, "second", {"of-second": 2})
            why = wait_for(lambda: reader.why("second"), "why the second pod waits", TIMEOUT_S)
            assert why == "0/1 nodes fit: 1 with 2 or more GPUs, fewer than 2 of them free (n)"
            assert reader.state("second") == "waiting"
            summary = reader.read("/api/summary")
            assert (summary["nodes"], summary["gpus"]["gpus"], summary["gpus"]["free"]) == (1, 4, 1)
            (row,) = reader.read("/api/fleet")["nodes"]
            assert (row[0], sorted(row[3])) == ("n", sorted("###."))
            (team,) = reader.read("/api/teams")["teams"]
            assert (team["namespace"], team["holds"]["gpus"], team["waiting"]) == (NAMESPACE, 3, 1)
            hits = [hit["open"] for hit in reader.read("/api/search?q=sec")["hits"]]
            assert hits == [f"pod/{NAMESPACE}/second"]
            assert {one["gpus"]: one["pods"] for one in summary["fits"]} == {1: 1, 2: 0, 4: 0, 8: 0}
            client.delete(Pod, "first", namespace=NAMESPACE, grace_period_s=0)
            nothing = {"status": {"allocation": None, "reservedFor": None}}
            client.merge_patch(ResourceClaim, "of-first", nothing, namespace=NAMESPACE, subresource="status")
            reader.follow("second", "allocated")
            run_pod(client, "second")
            reader.follow("second", "running")
            (claim,) = reader.read(f"/api/pod?namespace={NAMESPACE}&name=second")["claims"]
            assert (len(claim["devices"]), claim["decision"]["links"]) == (2, "1 pair NV12")
            # Nodes are shown as of a moment ago, pods as they are.
            wait_for(lambda: reader.holders("n") == [["second"]] * 2, "what the second pod has", TIMEOUT_S)
            assert get(reader.port, "/graph")[1].count(f"[{NAMESPACE}/of-second for second]") == 2
            (usage,) = reader.read("/usage")["pods"]
            assert (usage["pod"], len(usage["devices"])) == ("second", 2)
        finally:
            started.kill()


def test_the_page_asks_the_exporter_of_a_node_and_says_where_it_gives_no_figures(
    server: ApiGround, tmp_path: Path
) -> None:
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"n": FOUR, "without": FOUR})
    run_exporter_pod(client, "of-n", "n")
    log = tmp_path / "log"
    flags = ["--leader-elect=false", f"--kubeconfig={tmp_path}/kubeconfig"]
    flags += ["--page-address=127.0.0.1:0", "--page-open=true"]
    with short_folder() as folder, contextlib.ExitStack() as closing:
        node = closing.enter_context(exporting_node(folder, node_name="n"))
        node.list(entry("a", gpu_uuid(0), number=1))
        node.nvml.activity[0].processes = [FakeProcess(1, 100, sm_percent=40)]
        node.run(1, pod_uid(1))
        flags += [f"--page-exporters=http://{NAMESPACE}:{node.program.http.port}/app=exporter"]
        started = closing.enter_context(ForkedProgram(("controller", *flags), log=log))
        closing.callback(started.kill)
        reader = Reader(wait_for(lambda: page_port(log), "the page", TIMEOUT_S))
        closing.callback(reader.close)
        wait_for(lambda: reader.read("/api/summary")["nodes"] == 2, "both nodes are known", TIMEOUT_S)
        # An exporter that does not answer in time, as on a loaded machine, is asked again.
        (use,) = wait_for(lambda: reader.read("/api/use?node=n")["uses"], "what the pod uses", TIMEOUT_S)
        assert (use["pod"], use["gpu"], use["smPercent"], use["memoryBytes"]) == ("a", 0, 40, 100 << 20)
        told = reader.read("/api/use?node=without")
        assert (told["trouble"], told["uses"]) == ("no figures from node without: no exporter runs on it", [])
        node.program.stop()
        gone = "no figures from node n: 127.0.0.1 gave no answer"
        wait_for(lambda: str(reader.read("/api/use?node=n")["trouble"]).startswith(gone), gone, TIMEOUT_S)
        assert reader.read("/api/node?name=n")["free"] == 4, "nothing else breaks"


def run_exporter_pod(client: KubeClient, name: str, node: str) -> None:
    """Make the pod of an exporter as it is when it runs."""
    containers = [{"name": "exporter", "image": "example/exporter:1.0"}]
    meta = {"name": name, "labels": {"app": "exporter"}}
    document = {"metadata": meta, "spec": {"nodeName": node, "containers": containers}}
    client.create(Pod, document, namespace=NAMESPACE)
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    client.merge_patch(Pod, name, status, namespace=NAMESPACE, subresource="status")
