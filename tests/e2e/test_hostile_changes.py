"""One tenant's claim that many pods name, changed over and over or cleared: others do not notice, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.made_up import FOUR, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, create_pod

COUNT = 300
"""Pods that name the claim."""

CHANGES = 400
"""So many changes may be sent while a pod of others waits, at 25 a second: the old code served none within 750."""


def crowd(made_up: MadeUpCluster, claim: str, **requests: str) -> None:
    for number in range(COUNT):
        create_pod(made_up.api, Pod(f"crowd-{number}", claims={"g": claim}, requests=requests))


def is_allocated(made_up: MadeUpCluster, name: str) -> bool:
    return bool(devices_of(made_up.api.get(f"{CLAIMS}/{name}")))


@contextmanager
def changing(made_up: MadeUpCluster, claim: str) -> Iterator[list[int]]:
    """Change labels of a claim 25 times a second; yield how many changes were sent."""
    ended, sent = threading.Event(), [0]

    def change() -> None:
        while not ended.is_set():
            sent[0] += 1
            made_up.api.patch(f"{CLAIMS}/{claim}", {"metadata": {"labels": {"x": str(sent[0])}}})
            ended.wait(0.04)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()


def test_a_claim_that_is_changed_all_the_time_stops_nobody(made_up: MadeUpCluster) -> None:
    made_up.add_nodes(["n0", "n1"], FOUR)
    create_claim(made_up.api, "s", claim_spec(9))
    crowd(made_up, "s")
    with changing(made_up, "s") as sent:
        while sent[0] < 25:
            threading.Event().wait(0.04)
        for number in range(3):
            name, before = f"other-{number}", sent[0]
            create_claim(made_up.api, name, claim_spec(1))
            create_pod(made_up.api, Pod(name, claims={"g": name}))
            while not is_allocated(made_up, name):
                assert sent[0] - before < CHANGES, "it is not decided for while the claim is changed"


def test_clearing_a_claim_that_many_pods_name_stops_nobody(made_up: MadeUpCluster) -> None:
    made_up.add_nodes(["n0", "n1"], FOUR)
    create_claim(made_up.api, "s", claim_spec(1))
    create_pod(made_up.api, Pod("first", claims={"g": "s"}))
    made_up.wait_bound(Pod("first"))
    crowd(made_up, "s", cpu="100")
    delete = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    made_up.api.send("DELETE", f"{PODS}/first", delete)
    for number in range(3):
        name = f"other-{number}"
        create_claim(made_up.api, name, claim_spec(1))
        create_pod(made_up.api, Pod(name, claims={"g": name}))
        made_up.wait_bound(Pod(name))
