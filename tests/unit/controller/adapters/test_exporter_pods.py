from __future__ import annotations

from typing import Any, cast

from dracaena.api.exporter_objects import AddressedPod, AddressedPodStatus
from dracaena.api.objects import ObjectMeta
from dracaena.controller.adapters.exporter_pods import ExporterPods
from dracaena.kube.client import KubeClient, Listing


class Lists:
    """Answers one list, and notes what was asked for."""

    def __init__(self, *statuses: AddressedPodStatus) -> None:
        self.asked: dict[str, Any] = {}
        self._pods = [AddressedPod(ObjectMeta(name=f"p{place}"), status=one) for place, one in enumerate(statuses)]

    def list(self, kind: type[AddressedPod], **asked: Any) -> Listing[AddressedPod]:
        self.asked = {"kind": kind, **asked}
        return Listing(tuple(self._pods), "1")

    def address(self) -> str | None:
        return ExporterPods(cast("KubeClient", self), "ns", "app.example/part=a,b=c").address("n")


def test_one_pod_of_the_node_is_asked_for_and_only_one_that_runs_has_an_address() -> None:
    lists = Lists(
        AddressedPodStatus("Failed", "10.0.0.1"),
        AddressedPodStatus("Running", "10.0.0.3"),
        AddressedPodStatus("Running", "10.0.0.2"),
        AddressedPodStatus("Running"),
    )
    assert lists.address() == "10.0.0.2"
    assert lists.asked == {
        "kind": AddressedPod,
        "namespace": "ns",
        "label_selector": "app.example/part=a,b=c",
        "field_selector": "spec.nodeName=n",
    }
    assert Lists(AddressedPodStatus("Pending", "10.0.0.2")).address() is None
