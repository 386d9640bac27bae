"""A real plugin process below kubelet's stand-in, in what only kubelet decides."""

from __future__ import annotations

import pytest

from dracaena.api.resource_objects import ResourceSlice
from dracaena.demo.cluster import DemoCluster, DemoNode
from dracaena.demo.observation import Observation
from dracaena.demo.programs import ProgramEndedError
from support.embedded_cluster import wait_observed, wait_settled
from support.forked_programs import begin_forked
from support.workload import create_class, create_pod, create_template

NODE = DemoNode("dgx-1v", "dgx-1v")


def test_a_kubelet_that_knows_only_v1beta1_prepares_too() -> None:
    with DemoCluster([NODE], dra_versions=["v1beta1.DRAPlugin"], begin=begin_forked) as cluster:
        create_class(cluster.client)
        create_template(cluster.client, "t", count=2)
        create_pod(cluster.client, "p1", template="t")
        wait_settled(cluster, pods=1)


def test_slices_of_a_killed_plugin_are_wiped_and_come_back_with_it() -> None:
    with DemoCluster([NODE], wipe_after_s=0.5, begin=begin_forked) as cluster:
        create_class(cluster.client)
        create_template(cluster.client, "t", count=1)
        create_pod(cluster.client, "p1", template="t")
        before = wait_settled(cluster, pods=1)
        cluster.plugins[NODE.name].kill()  # its sockets stay, only the connection breaks

        def any_left(_observation: Observation) -> str | None:
            items = cluster.client.list(ResourceSlice).items
            return f"{len(items)} slices" if items else None

        wait_observed(cluster, "the slices to be wiped", any_left)
        cluster.plugins[NODE.name].start()
        cluster.wait_published()
        after = wait_settled(cluster, pods=1)
        assert after.pods[0].uuids == before.pods[0].uuids


def test_a_program_that_cannot_start_ends_the_cluster_with_its_last_words() -> None:
    with pytest.raises(ProgramEndedError, match=r"(?s)plugin of n1 ended with 2.*no-such-machine") as caught:
        DemoCluster([DemoNode("n1", "no-such-machine")]).__enter__()
    assert "Traceback" not in str(caught.value)
