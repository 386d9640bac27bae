from __future__ import annotations

import json
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.limits import DNS_SUBDOMAIN_BYTES
from dracaena.controller.views.node_use import MOST_USES, no_use_view, read_usage, use_view

MARKUP = '"><script>\n'


def served(**changes: Any) -> bytes:
    uses = [{"gpu": 1, "uuids": ["GPU-b"], "processes": 2, "memory_bytes": 5, "sm_ratio": 0.256}, {"gpu": 0}]
    pods = [
        {"namespace": "team", "pod": MARKUP, "uid": "u", "containers": {"main": uses}},
        {"namespace": "secret", "pod": "theirs", "uid": "v", "containers": {"": [{"gpu": 0, "sm_ratio": 7}]}},
    ]
    return json.dumps({"node": "n", "driver": True, "pods": pods, "new": 1, **changes}).encode()


def test_uses_come_by_gpu_and_names_only_to_those_who_may_see_them() -> None:
    view = use_view("n", read_usage("n", served()), lambda namespace: namespace == "team")
    assert view["trouble"] is None
    told = {"namespace": "team", "pod": MARKUP.replace("\n", "\N{REPLACEMENT CHARACTER}"), "container": "main"}
    nothing = {"processes": None, "memoryBytes": None, "smPercent": None}
    assert view["uses"] == [
        {"gpu": 0, "hidden": True, **nothing, "smPercent": 100},
        {"gpu": 0, **told, **nothing},
        {"gpu": 1, **told, "processes": 2, "memoryBytes": 5, "smPercent": 26},
    ]
    assert view["unowned"] == [], "an exporter of before tells of none"
    assert "theirs" not in json.dumps(view)
    assert "secret" not in json.dumps(view)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot be read"),
        (b"<html>", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (served(pods=[{"namespace": 1}]), "cannot be read"),
        (served(node="m\n"), "it belongs to node m\N{REPLACEMENT CHARACTER}"),
        (served(driver=False, pods=[]), "the GPU driver does not answer"),
    ],
)
def test_an_answer_that_says_nothing_is_reported_in_words(data: bytes, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        read_usage("n", data)


def test_devices_that_no_container_has_are_reported_where_something_runs_on_them() -> None:
    unowned = [
        {"gpu": 3, "uuids": ["GPU-d"], "processes": 0, "memory_bytes": 4, "busy_ratio": 0.0},
        {"gpu": 2, "uuids": ["MIG-c"], "profile": MARKUP, "processes": 1},
        {"gpu": 0, "uuids": ["GPU-a"], "processes": 0, "memory_bytes": 7, "busy_ratio": 0.304},
    ]
    view = use_view("n", read_usage("n", served(unowned=unowned)), lambda _: False)
    assert view["unowned"] == [
        {"gpu": 0, "profile": None, "processes": 0, "memoryBytes": 7, "busyPercent": 30},
        {
            "gpu": 2,
            "profile": MARKUP.replace("\n", "\N{REPLACEMENT CHARACTER}"),
            "processes": 1,
            "memoryBytes": None,
            "busyPercent": None,
        },
    ]


def test_more_devices_than_a_node_has_and_long_profiles_are_refused() -> None:
    with pytest.raises(BadInputError, match="no node has more"):
        read_usage("n", served(unowned=[{"gpu": 0}] * (MOST_USES + 1)))
    with pytest.raises(BadInputError, match="reports a name of"):
        read_usage("n", served(unowned=[{"gpu": 0, "profile": "x" * (DNS_SUBDOMAIN_BYTES + 1)}]))


def of_containers(uses: int, **names: str) -> bytes:
    """Return an answer with so many uses, in two containers."""
    name = names.pop("container", "b")
    containers = {"a": [{"gpu": 0}], name: [{"gpu": 0}] * (uses - 1)}
    return served(pods=[{"namespace": "team", "pod": "p", "containers": containers, **names}])


def test_as_many_uses_are_shown_as_a_node_may_have_and_no_more() -> None:
    assert len(read_usage("n", of_containers(MOST_USES)).uses) == MOST_USES
    with pytest.raises(BadInputError, match=f"^its exporter reports {MOST_USES + 1} uses of GPUs; no node has more"):
        read_usage("n", of_containers(MOST_USES + 1))


@pytest.mark.parametrize("field", ["namespace", "pod", "container"])
def test_names_are_as_long_as_the_api_server_lets_them_be_and_no_longer(field: str) -> None:
    assert read_usage("n", of_containers(2, **{field: "x" * DNS_SUBDOMAIN_BYTES})).uses
    with pytest.raises(BadInputError, match=r"^its exporter reports a name of 254 characters; none has more than 253$"):
        read_usage("n", of_containers(2, **{field: "x" * (DNS_SUBDOMAIN_BYTES + 1)}))


def test_no_figures_name_the_node() -> None:
    assert no_use_view("n", "it\nhangs")["trouble"] == "no figures from node n: it\N{REPLACEMENT CHARACTER}hangs"
