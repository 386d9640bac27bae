from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import patch

from dracaena.api.resource_objects import DeviceClass
from dracaena.demo.apiserver import ApiServer
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import SystemClock
from support.held_up_threads import HeldUpThreads
from support.kube import client_for


def seen_half_done(seed: int) -> bool:
    """Whether a thread is seen between two steps that it takes at once, right after the first."""
    first, second = threading.Event(), threading.Event()
    clock = SystemClock()

    def steps() -> None:
        first.set()
        clock.monotonic()  # a function of ours, in which a thread may be held up
        second.set()

    worker = Worker("two steps", steps, clock)
    before = threading.getprofile()
    threading.setprofile(HeldUpThreads(seed, calls=1.0, longest_s=0.2))
    try:
        worker.start()
        first.wait()
        return not second.wait(0.002)
    finally:
        threading.setprofile(before)
        worker.stop()


def test_a_test_that_looks_too_early_is_found_by_some_seed() -> None:
    found = [seed for seed in range(20) if seen_half_done(seed)]
    assert len(found) > 3


def test_a_server_of_the_demo_is_not_held_up_in_what_it_calls_of_ours_either(tmp_path: Path) -> None:
    selector = {"cel": {"expression": "device.driver == 'a' || device.driver == 'b'"}}
    before = threading.getprofile()
    threading.setprofile(HeldUpThreads(1, calls=1.0, longest_s=0.0))
    try:
        with patch("support.held_up_threads.time.sleep") as sleep, ApiServer() as server:
            client = client_for(server.url, tmp_path)
            client.create(DeviceClass, {"metadata": {"name": "c"}, "spec": {"selectors": [selector]}})
    finally:
        threading.setprofile(before)
    assert sleep.mock_calls == []
