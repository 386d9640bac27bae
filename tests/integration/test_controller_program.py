"""`dracaena controller` as a process: it says when it is ready, decides, and ends when it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from dracaena.api.topology_levels import PRESETS
from dracaena.controller.settings import ControllerSettings
from dracaena.demo.apiserver import ApiServer
from dracaena.kube.client import KubeClient
from support.allocation import DRIVER, blocks, machine
from support.api_ground import ApiGround
from support.controller import allocated_all, ask, publish, transport
from support.kube import wait_for

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


@contextmanager
def process(server_url_config: Path, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "controller", "--kubeconfig", str(server_url_config)]
    command.append("--leader-elect=false")  # test_controller_leadership.py holds the election
    with log.open("wb") as stream:
        started = subprocess.Popen([*command, *arguments], stdout=stream, stderr=stream)
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def logged(log: Path, event: str) -> dict[str, object] | None:
    for line in log.read_text().splitlines():
        entry: dict[str, object] = json.loads(line)
        if entry.get("event") == event:
            return entry
    return None


def get(port: object, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_process_serves_health_and_metrics_decides_and_ends_on_sigterm(server: ApiGround, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"n": FOUR})
    ask(client, "p", {"c": 2})
    flags = ("--log-level=debug", "--starvation-wait-s=120", "--topology-levels=[oci, rack]")
    with process(tmp_path / "kubeconfig", log, *flags) as started:
        port = wait_for(lambda: logged(log, "started"), "the start")["http_port"]
        wait_for(lambda: get(port, "/readyz")[0] == 200, "to be ready")
        wait_for(lambda: allocated_all(client), "the claim")
        wait_for(lambda: logged(log, "allocated"), "the line that says so")
        assert 'dracaena_controller_decisions_total{result="allocated"} 1.0' in get(port, "/metrics")[1]
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 0
    line = logged(log, "allocated")
    assert line is not None
    assert (line["pod"], line["node"], line["links"]) == ("default/p", "n", "1 pair PIX")
    decided = [entry for entry in lines(log) if entry.get("decision") == line["decision"]]
    assert [entry["event"] for entry in decided] == ["decided", "allocated"]
    assert decided[0]["result"] == "allocated"
    (settings,) = (entry for entry in lines(log) if entry["event"] == "settings")
    assert (settings["starvation_wait_s"], settings["driver_name"]) == (120, DRIVER)
    assert settings["workers"] == ControllerSettings().workers
    (unused,) = (entry for entry in lines(log) if entry["event"] == "no node has these labels of topology-levels")
    assert unused["labels"] == [*PRESETS["oci"], "rack"]


def test_an_unknown_setting_is_refused_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("starvation-wait: 5\n")
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "controller", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert "unknown starvation-wait; did you mean starvation-wait-s?; known: kubeconfig, " in line


def test_without_an_api_server_it_is_alive_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with ApiServer() as server:
        gone = server.kubeconfig()
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(gone))
    with process(tmp_path / "kubeconfig", log) as started:
        port = wait_for(lambda: logged(log, "started"), "the start")["http_port"]
        assert get(port, "/healthz")[0] == 200
        status, text = get(port, "/readyz")
        assert (status, "the first list of " in text) == (503, True)
        started.send_signal(signal.SIGINT)
        assert started.wait(20) == 0


def test_a_kubeconfig_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "controller", "--kubeconfig", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert str(tmp_path / "none") in ended.stderr
