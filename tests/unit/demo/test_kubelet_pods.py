"""The pod side of the kubelet stand-in over HTTP, with plugins that do just what a test needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.kubelet_claims import ClaimInfo, PluginDevice
from dracaena.demo.kubelet_pods import ClaimNotReadyError, PodRunner
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for
from support.workload import allocate, create_claim, create_pod, get_pod


class PluginThatComesDuringTheCall:
    """Its first call fails; meanwhile the sockets' thread sees a new instance and wakes the runner."""

    runner: PodRunner
    calls = 0

    def require(self, driver: str) -> None:
        pass

    def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, tuple[PluginDevice, ...] | str]:
        self.calls += 1
        if self.calls == 1:
            self.runner.wake()
            raise ClaimNotReadyError("the old instance hung up")
        return {info.uid: () for info in claims}

    def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, str]:
        return {info.uid: "" for info in claims}


def test_a_plugin_that_comes_while_a_pod_fails_is_tried_at_once(tmp_path: Path) -> None:
    plugins = PluginThatComesDuringTheCall()
    with ApiServer(port=0) as server:
        client = client_for(server.url, tmp_path)
        create_claim(client, "c1")
        allocate(client, "c1", "n1", pods=(create_pod(client, "p1", claim="c1", node="n1"),))
        plugins.runner = PodRunner(
            client,
            SystemClock(),
            node_name="n1",
            kubelet_root=tmp_path,
            cdi_root=tmp_path / "cdi",
            plugins=plugins,
            retry_s=3600.0,
        )
        plugins.runner.start()
        try:
            wait_for(lambda: get_pod(client, "p1").status.phase == "Running", "p1 to run")
            assert plugins.calls == 2
        finally:
            plugins.runner.stop()
        assert plugins.runner.failure is None
