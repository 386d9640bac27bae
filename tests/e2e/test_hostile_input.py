"""Whatever kube-apiserver accepts from one user: the others get their GPUs, and nothing that is held is given away.

What a bad object may delay in milliseconds is measured by `make bench BENCH=hostile`; here the limits are seconds, so
that a busy machine fails nothing: what these tests found first took from eight seconds to for ever.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from e2e.hostile import (
    DirectController,
    Honest,
    Hostile,
    direct_controller,
    told,
)
from e2e.installation import DRIVER
from e2e.made_up import FOUR, NODES, TWO, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, create_pod
from e2e.run import LOGS
from e2e.waiting import eventually, never
from support.allocation import blocks, machine
from support.hostile_objects import (
    OTHER_DRIVER,
    HostileObject,
    built_pattern_claim,
    deep_claim,
    fat_claim,
    growing_text_claim,
    macro_claim,
    many_patterns,
    odd_claim,
    pattern_of_device_claim,
    regex_claim,
    selector_claim,
    wide_claim,
)
from support.random_hostile_objects import random_objects

MORE_S = 3.0
"""What bad input may add to the delay of another's pod here: sixty times the goal."""

MEMORY_PER_BYTE = 4
"""Bytes of memory that a byte of a stored object may cost."""

EIGHT = machine("eight", blocks(8, inside="PIX", outside="PIX"))

SEED = 15
OBJECTS = 1000
HONEST_NODES = 40
"""With 320 GPUs: more than there are honest pods in any test, one for each second of STORM_MAX_S."""

STORM_S = 60.0
"""In which the thousand are sent: an honest pod a second has to get its GPU meanwhile."""

STORM_MAX_S = 300.0
"""On a machine that does other things too: kube-apiserver takes up to seconds for one object."""

USED = 3
"""Every so many-th claim is used by a pod: the controller decides only about those."""


UNREADABLE: Mapping[str, Callable[[int, str], HostileObject]] = {
    "1,500 deep": lambda number, driver: deep_claim(number, depth=1_500, driver=driver),
    "deepest": lambda number, driver: deep_claim(number, driver=driver),
    "odd": lambda number, driver: odd_claim(number, driver=driver),
}
"""Python's readers stop at some depth, and at half a surrogate pair; kube-apiserver takes both."""

Tell = Callable[[str], None]
"""Prints a line that is seen also when the test passes: how near the limits it was."""


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    def shown(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="", flush=True)  # noqa: T201

    return shown


@pytest.fixture
def controller(made_up: MadeUpCluster) -> Iterator[DirectController]:
    with direct_controller(made_up, Path(os.environ[LOGS])) as running:
        yield running
        assert running.tracebacks() == []


@pytest.fixture
def honest(made_up: MadeUpCluster, controller: DirectController) -> Iterator[Honest]:
    for number in range(HONEST_NODES):
        made_up.add_node(f"honest-{number}", EIGHT, labels={"tenant": "honest"})
    pods = Honest(made_up)
    yield pods
    pods.stop()


@pytest.fixture
def hostile(made_up: MadeUpCluster, controller: DirectController) -> Iterator[Hostile]:
    made_up.add_node("hostile", FOUR, labels={"tenant": "hostile"})
    sender = Hostile(made_up)
    yield sender
    sender.stop()


def check_served(tell: Tell, name: str, before_s: list[float], now_s: list[float]) -> None:
    """Check that honest pods wait no longer than before, by much."""
    seen = f"{name}: before {told(before_s)}; beside it {told(now_s)}"
    tell(seen)
    assert max(now_s) <= max(before_s) + MORE_S, seen


@pytest.mark.parametrize("shape", UNREADABLE)
def test_a_claim_that_no_reader_of_json_likes_stops_nobody(
    controller: DirectController, honest: Honest, hostile: Hostile, tell: Tell, shape: str
) -> None:
    """While it comes, as long as it is there, and for a controller that starts with it."""
    before_s = honest.ask_for(5)
    ours, theirs = (UNREADABLE[shape](place, driver) for place, driver in enumerate((DRIVER, OTHER_DRIVER)))
    hostile.send_all([ours, theirs])
    users = [hostile.use(ours), hostile.use(theirs)]
    check_served(tell, f"{shape}", before_s, honest.ask_for(5))
    assert controller.is_ready()
    # What it asks for is not understood: its own pod is told which claim that is.
    eventually(
        lambda: any(
            ours.name in text
            for reason in ("WaitingForGPUs", "ClaimUnreadable")
            for text in hostile.events(users[0], reason)
        ),
        "the pod is told of its claim",
        within_s=30,
    )
    controller.restart()
    check_served(tell, f"{shape}, after a restart", before_s, honest.ask_for(3))
    honest.wait_bound()


@pytest.mark.parametrize("restarted", [False, True], ids=["seen as it comes", "there at the start"])
@pytest.mark.parametrize("shape", ["deepest", "odd"])
def test_what_such_a_claim_holds_is_never_given_away(
    made_up: MadeUpCluster, controller: DirectController, hostile: Hostile, shape: str, restarted: bool
) -> None:
    """It is allocated by another program, and one device is left for others."""
    made_up.add_node("shared", TWO, labels={"tenant": "both"})
    first, second = made_up.devices("shared")
    item = UNREADABLE[shape](0, DRIVER)
    if restarted:
        controller.program.stop()
    hostile.send_all([item])
    hostile.hold(item, "shared", first)
    if restarted:
        controller.start()
    pods = [
        Pod(f"other-{number}", claims={"gpu": f"other-{number}"}, node_selector={"tenant": "both"}) for number in (0, 1)
    ]
    for pod in pods:
        create_claim(made_up.api, pod.name, claim_spec())
        create_pod(made_up.api, pod)
    taken = eventually(
        lambda: [one for claim in made_up.api.items(CLAIMS) for one in devices_of(claim)],
        "a pod gets the device that is left",
        within_s=30,
        programs=made_up.programs,
    )
    assert taken == [("shared", second)]
    never(
        lambda: [one for claim in made_up.api.items(CLAIMS) for one in devices_of(claim)] != taken,
        "the other one gets a device that is held",
        for_s=4,
    )


def test_fat_claims_cost_a_few_times_their_size(
    controller: DirectController, honest: Honest, hostile: Hostile, tell: Tell
) -> None:
    """Also at the start, when all of them come at once."""
    before_s = honest.ask_for(5)
    controller.restart()
    empty_bytes, start_bytes = controller.resident_bytes, controller.peak_bytes
    hostile.send_all([fat_claim(number, driver=(DRIVER, OTHER_DRIVER)[number % 2]) for number in range(60)])
    check_served(tell, "60 fat claims", before_s, honest.ask_for(5))  # comes by the same watch, after them
    weight = hostile.sent.accepted_bytes
    grown = controller.peak_bytes - empty_bytes
    tell(f"60 fat claims: {weight:,} bytes cost {grown:,} bytes of memory, {grown / weight:.2f} times")
    assert grown <= MEMORY_PER_BYTE * weight
    controller.restart()
    grown = controller.peak_bytes - start_bytes
    tell(f"60 fat claims at the start: {grown:,} bytes more, {grown / weight:.2f} times")
    assert grown <= MEMORY_PER_BYTE * weight
    check_served(tell, "60 fat claims, after a restart", before_s, honest.ask_for(3))


def test_selectors_of_any_cost_delay_nobody(
    controller: DirectController, honest: Honest, hostile: Hostile, tell: Tell
) -> None:
    before_s = honest.ask_for(5)
    for item in (
        selector_claim("200 patterns", "one", [many_patterns(1_000)]),
        regex_claim(1),
        built_pattern_claim(2),
        pattern_of_device_claim(3),
        growing_text_claim(4),
        macro_claim(5),
        wide_claim(6),
    ):
        hostile.send_all([item])
        hostile.use(item)
        check_served(tell, item.theme, before_s, honest.ask_for(4))
        assert controller.is_ready(), item.theme
    honest.wait_bound()


@pytest.mark.timeout(STORM_MAX_S + 300)
def test_a_thousand_random_objects_stop_nobody(
    made_up: MadeUpCluster, controller: DirectController, honest: Honest, hostile: Hostile, tell: Tell
) -> None:
    before_s = honest.ask_for(5)
    empty_bytes = controller.resident_bytes
    ended = threading.Event()
    now_s: list[float] = []
    unready: list[float] = []

    def one_a_second() -> None:
        while not ended.is_set():
            began_s = time.monotonic()
            now_s.append(honest.ask())
            if not controller.is_ready():
                unready.append(time.monotonic())
            ended.wait(max(0.0, 1.0 - (time.monotonic() - began_s)))

    asking = threading.Thread(target=one_a_second, name="honest-pods")
    asking.start()
    try:
        storm(hostile)
    finally:
        ended.set()
        asking.join()
    peak_bytes = controller.peak_bytes
    tell(f"seed {SEED}: {hostile.sent}")
    tell(f"memory {empty_bytes:,} bytes before, {peak_bytes:,} at most")
    check_served(tell, f"{OBJECTS} random objects", before_s, now_s)
    assert unready == []
    assert peak_bytes - empty_bytes <= MEMORY_PER_BYTE * hostile.sent.accepted_bytes
    honest.wait_bound()
    hostile.delete_all()
    check_as_before(tell, made_up, honest, before_s)


def storm(hostile: Hostile) -> None:
    """Send random objects until the server has accepted a thousand, spread over STORM_S; pods use some of them."""
    began_s = time.monotonic()
    for item in random_objects(SEED):
        accepted = hostile.sent.accepted.total()
        if accepted == OBJECTS:
            return
        assert time.monotonic() < began_s + STORM_MAX_S, f"after {STORM_MAX_S:g} s: {hostile.sent}"
        if hostile.send(item) and item.is_claim and accepted % USED == 0:
            hostile.use(item)
        time.sleep(max(0.0, began_s + STORM_S * accepted / OBJECTS - time.monotonic()))


def check_as_before(tell: Tell, cluster: MadeUpCluster, honest: Honest, before_s: list[float]) -> None:
    """Check that pods are served as before, and that in the end every device can be given to somebody."""
    check_served(tell, "when all is deleted", before_s, honest.ask_for(3))
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    cluster.api.send("DELETE", PODS, options)
    cluster.api.send("DELETE", CLAIMS)
    eventually(lambda: not cluster.api.items(CLAIMS), "all claims are gone", within_s=60, programs=cluster.programs)
    names = [node["metadata"]["name"] for node in cluster.api.items(NODES)]
    whole = [Pod(f"all-of-{name}", claims={"gpus": f"all-of-{name}"}) for name in names]
    for pod, name in zip(whole, names, strict=True):
        create_claim(cluster.api, pod.name, claim_spec(len(cluster.devices(name))))
        create_pod(cluster.api, pod)
    for pod in whole:
        cluster.wait_bound(pod, within_s=60)
    cluster.check()
