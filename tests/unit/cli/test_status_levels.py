"""What `dracaena status` says of the racks and blocks that a node is in."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from dracaena.api.mig_layout import ConditionedNode
from dracaena.api.objects import ObjectMeta
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.cli.installation_reader import read_levels
from dracaena.cli.status import StatusObjects, Wanted, status_lines
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ForbiddenError, NotFoundError
from support.allocation import DRIVER, blocks, machine, pool_slice

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
LEVELS = TopologyLevels(("example.com/block", "rack"))


def shown(wanted: Wanted) -> list[str]:
    nodes = [
        ConditionedNode(metadata=ObjectMeta(name="a", labels={"example.com/block": "b3", "rack": "r7"})),
        ConditionedNode(metadata=ObjectMeta(name="b")),
    ]
    pages = [pool_slice(one.metadata.name, FOUR) for one in nodes]
    return list(status_lines(wanted, StatusObjects(nodes, pages, (), (), ()), lambda _: pytest.fail("no Events")))


def test_a_tree_says_what_the_node_is_in() -> None:
    lines = shown(Wanted(DRIVER, (), levels=LEVELS))
    assert lines[1] == "  in block b3, rack r7"
    assert sum(line.startswith("  in ") for line in lines) == 1
    assert not any(line.startswith("  in ") for line in shown(Wanted(DRIVER, (), levels=DEFAULT_LEVELS)))


def test_programs_read_it_as_a_list_from_the_top() -> None:
    document = json.loads("\n".join(shown(Wanted(DRIVER, (), as_json=True, levels=LEVELS))))
    assert [node["levels"] for node in document["nodes"]] == [
        [{"level": "block", "name": "b3"}, {"level": "rack", "name": "r7"}],
        [],
    ]


def controller(levels: str | None) -> bytes:
    annotations = {} if levels is None else {f"{DRIVER}/topology-levels": levels}
    labels = {"app.kubernetes.io/component": "controller"}
    return json.dumps(
        {"items": [{"metadata": {"labels": labels, "annotations": annotations}}, {"metadata": 7}]}
    ).encode()


KUEUES = b'{"items": [{"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": "rack"}, 7]}}]}'
MISSING = NotFoundError("GET", 404, "NotFound", "no")


@pytest.mark.parametrize(
    ("answers", "levels"),
    [
        ({"v1/deployments": controller('["example.com/block", "rack"]')}, LEVELS),
        ({"v1/deployments": controller(None)}, DEFAULT_LEVELS),
        ({"v1/deployments": controller("nonsense")}, DEFAULT_LEVELS),
        ({"v1/deployments": b"nonsense"}, DEFAULT_LEVELS),
        ({"v1/deployments": ForbiddenError("GET", 403, "Forbidden", "no")}, DEFAULT_LEVELS),
        (
            {"v1/deployments": controller('["kueue"]'), "v1beta2/topologies": KUEUES},
            TopologyLevels(("rack",), is_kueues=True),
        ),
        (
            {"v1/deployments": controller('["kueue"]'), "v1beta1/topologies": KUEUES},
            TopologyLevels(("rack",), is_kueues=True),
        ),
        ({"v1/deployments": controller('["kueue"]')}, TopologyLevels(is_kueues=True)),
    ],
)
def test_the_levels_are_those_of_the_controller_if_the_user_may_read_them(
    answers: dict[str, bytes | Exception], levels: TopologyLevels
) -> None:
    class Server:
        def get_raw(self, path: str, _query: Any) -> bytes:
            answer = answers.get("/".join(path.split("/")[-2:]), MISSING)
            if isinstance(answer, Exception):
                raise answer
            return answer

    assert read_levels(cast(KubeClient, Server()), DRIVER) == levels
