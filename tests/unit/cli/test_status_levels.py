"""What `dracaena status` says of the racks and blocks that a node is in."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from dracaena.api.mig_layout import ConditionedNode
from dracaena.api.objects import ObjectMeta
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.cli.installation_reader import controller_deployments
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


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b'{"items": [{"metadata": {"labels": {"app.kubernetes.io/component": "controller"}}}, {"metadata": 7}]}', 1),
        (b"nonsense", 0),
        (ForbiddenError("GET /apis/apps/v1/deployments", 403, "Forbidden", "no"), 0),
        (NotFoundError("GET /apis/apps/v1/deployments", 404, "NotFound", "no"), 0),
    ],
)
def test_a_user_who_may_not_read_deployments_sees_the_default_level(answer: bytes | Exception, count: int) -> None:
    class Server:
        def get_raw(self, path: str, _query: Any) -> bytes:
            assert path == "/apis/apps/v1/deployments"
            if isinstance(answer, Exception):
                raise answer
            return answer

    assert len(controller_deployments(cast(KubeClient, Server()), DRIVER)) == count
