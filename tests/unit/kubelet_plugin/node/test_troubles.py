"""Each trouble is told once for each time that it begins, whoever finds it and however its words change."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from dracaena.host.facts.troubles import MENDING, Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from support.seeds import sampled

LOST = trouble(TroubleKind.GPU_MISSING, "GPU 3 is gone", "0000:18:00.0")


class Node:
    """Troubles, and the Events that they made."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.metrics = PluginMetrics(CollectorRegistry())
        self.troubles = NodeTroubles(self.metrics, lambda *event: self.events.append(event))

    def count(self, reason: TroubleKind) -> float:
        return float(self.metrics.node.troubles.labels(reason.value)._value.get())


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_trouble_is_told_when_it_begins_with_the_command_that_shows_it(node: Node) -> None:
    node.troubles.update("reading", [LOST])
    ((kind, reason, text),) = node.events
    assert (kind, reason) == ("Warning", "GpuMissing")
    assert text.startswith("GPU 3 is gone; on the node: `nvidia-smi -q -i 0000:18:00.0`, `dmesg")
    assert (node.count(TroubleKind.GPU_MISSING), node.troubles.words()) == (1, "GpuMissing: GPU 3 is gone")
    node.troubles.update("reading", [])
    assert (node.count(TroubleKind.GPU_MISSING), node.troubles.words(), len(node.events)) == (0, None, 1)


def test_other_words_for_the_same_are_not_told_again_and_shown(node: Node) -> None:
    node.troubles.update("reading", [trouble(TroubleKind.SILENT, "nothing for 10 s")])
    node.troubles.update("reading", [trouble(TroubleKind.SILENT, "nothing for 20 s")])
    assert len(node.events) == 1
    assert node.troubles.words() == "DriverSilent: nothing for 20 s"


def test_two_of_a_kind_are_two(node: Node) -> None:
    node.troubles.update("reading", [LOST, trouble(TroubleKind.GPU_MISSING, "GPU 4 is gone", "0000:19:00.0")])
    assert (len(node.events), node.count(TroubleKind.GPU_MISSING)) == (2, 2)


def test_a_release_is_no_warning(node: Node) -> None:
    node.troubles.update("health", [trouble(TroubleKind.RELEASED, "asked for by a label")])
    assert node.events[0][:2] == ("Normal", "DriverReleased")


@pytest.mark.parametrize("reason", TroubleKind)
def test_each_kind_has_a_command_unless_it_depends_on_what_is_wrong(reason: TroubleKind) -> None:
    assert ("`" in MENDING[reason]) is (reason is not TroubleKind.NOT_RESTORED)
    assert "{" not in trouble(reason, "text", "subject").advice


@pytest.mark.parametrize("seed", sampled(range(200), 4, 40))
def test_one_event_an_occurrence_whichever_sources_have_it(seed: int) -> None:
    rng, node = random.Random(seed), Node()
    pool = [trouble(reason, "", subject) for reason in list(TroubleKind)[:4] for subject in ("", "a")]
    having: dict[str, set[Trouble]] = {"reading": set(), "health": set(), "devices": set()}
    expected: Counter[str] = Counter()
    for _ in range(300):
        source = rng.choice(sorted(having))
        before = set().union(*having.values())
        having[source] = set(rng.sample(pool, rng.randrange(4)))
        expected.update(found.reason for found in set().union(*having.values()) - before)
        node.troubles.update(source, having[source])
        assert Counter(reason for _, reason, _ in node.events) == expected
