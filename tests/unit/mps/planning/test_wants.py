"""What the requests come to. Stories with a supervisor are in test_supervisor.py."""

from __future__ import annotations

from dataclasses import fields

from dracaena.api.mps import MpsShareRequest, share_name
from dracaena.mps.planning.state import WantedGpu
from dracaena.mps.planning.wants import ReadRequest, wants
from dracaena.mps.protocol.seen import ShareLimits
from dracaena.mps.settings import MpsSettings

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def read(claim: str, uid: int | None = None, boot: str = "b") -> tuple[str, ReadRequest]:
    request = MpsShareRequest(boot_id=boot, gpu=GPU, claim_uid=claim, thread_percentage=10, client_uid=uid)
    return share_name(GPU, claim, ""), ReadRequest("d", request)


def test_shares_are_gathered_by_gpu() -> None:
    requests = dict([read("a"), read("b")])
    found = wants(requests, boot_id="b", multi_user=True)
    assert found.refusals == {}
    assert found.gpus == {GPU: WantedGpu(dict.fromkeys(sorted(requests), ShareLimits(10, None)))}


def test_a_gpu_whose_every_request_is_refused_is_not_wanted() -> None:
    requests = dict([read("a", boot="earlier"), ("s_0123456789abcdef", ReadRequest("", None, "torn"))])
    found = wants(requests, boot_id="b", multi_user=True)
    assert found.gpus == {}
    assert sorted(found.refusals) == sorted(requests)
    assert wants(dict([read("of nobody")]), boot_id="b", multi_user=False).gpus == {}


def test_refusals_name_the_setting_that_would_help() -> None:
    """As it is called in the chart: mps.settings holds the flags of the command."""
    requests = dict([read("a", 1000), read("b", 2000), read("c")])
    found = wants(requests, boot_id="b", multi_user=False)
    assert len(found.refusals) == 2
    setting = next(each.name for each in fields(MpsSettings) if each.name == "multi_user").replace("_", "-")
    assert all(f"mps.settings.{setting}=true" in why for why in found.refusals.values())


def test_the_user_who_was_there_first_keeps_the_gpu() -> None:
    (one, first), (other, second) = read("a", 1000), read("b", 2000)
    for admitted, uid in ((one, 1000), (other, 2000)):
        found = wants({one: first, other: second}, boot_id="b", multi_user=False, admitted=frozenset({admitted}))
        assert found.gpus[GPU].uid == uid
        assert list(found.gpus[GPU].shares) == [admitted]
