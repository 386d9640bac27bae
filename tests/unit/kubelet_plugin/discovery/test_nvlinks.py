"""The NVLinks of a pair from the reports of both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.host.facts.machine import FabricFacts, GpuFacts, NvLinkFacts
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.nvlinks import active_count, fabric_clique, generation, link_reports, pair_count
from dracaena.kubelet_plugin.discovery.nvml_words import REMOTE_CPU, REMOTE_GPU, REMOTE_SWITCH

A, B, ELSEWHERE = (PciAddress(0, bus, 0, 0) for bus in (0x18, 0x2A, 0x99))
UNKNOWN_TYPE = 255


def gpu(index: int, address: PciAddress | None, *links: NvLinkFacts) -> GpuFacts:
    numbered = tuple(replace(link, link=number) for number, link in enumerate(links))
    return GpuFacts(index=index, uuid=f"GPU-{index}", address=address, nvlinks=numbered)


def to(remote: PciAddress | None, remote_type: int | None = REMOTE_GPU, *, active: bool | None = True) -> NvLinkFacts:
    return NvLinkFacts(0, active=active, remote_type=remote_type, remote_address=remote)


SWITCH = to(None, REMOTE_SWITCH)
SILENT = NvLinkFacts(0, active=None)


def count(one: GpuFacts, other: GpuFacts) -> int | None:
    forth, back = link_reports((one, other))
    assert pair_count(forth, back) == pair_count(back, forth)
    return pair_count(forth, back)


@pytest.mark.parametrize(
    ("of_a", "of_b", "expected"),
    [
        ([], [], 0),
        ([to(B), to(B)], [to(A), to(A)], 2),
        ([to(B), to(ELSEWHERE)], [to(A), to(None, REMOTE_CPU)], 1),
        ([to(B), to(B, active=False)], [to(A), to(A)], 1),
        ([to(B), SILENT], [to(A), to(A)], 2),
        ([to(B), SILENT], [to(A), SILENT], None),
        ([to(B), to(None)], [to(A)], 1),
        ([to(B, None)], [to(A, UNKNOWN_TYPE)], 1),
        ([to(ELSEWHERE, None)], [to(A)], 1),
        ([to(ELSEWHERE, None)], [to(None, None)], None),
        ([SWITCH] * 18, [SWITCH] * 18, 18),
        ([SWITCH] * 18, [SWITCH] * 17, 17),
        ([SWITCH] * 18, [], 0),
        ([SWITCH] * 18, [SWITCH] * 17 + [SILENT], None),
        ([SWITCH] * 2 + [to(B)], [SWITCH] * 2 + [to(A)], 3),
    ],
)
def test_links_of_a_pair(of_a: list[NvLinkFacts], of_b: list[NvLinkFacts], expected: int | None) -> None:
    assert count(gpu(0, A, *of_a), gpu(1, B, *of_b)) == expected


def test_a_gpu_that_cannot_say_leaves_it_to_the_other_end() -> None:
    mute = replace(gpu(0, A), nvlinks=None)
    assert count(mute, gpu(1, B, to(A))) == 1
    assert count(mute, gpu(1, B, SWITCH)) is None
    assert count(mute, replace(mute, index=1, uuid="GPU-1", address=B)) is None


def test_without_its_address_a_gpu_still_tells_what_it_has() -> None:
    assert count(gpu(0, None, to(B)), gpu(1, B, to(A))) == 1


def test_switch_links_do_not_join_two_cliques() -> None:
    fabric = FabricFacts(state=3, status=0, cluster_uuid="6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f", clique_id=1)
    one = replace(gpu(0, A, SWITCH), fabric=fabric)
    other = replace(gpu(1, B, SWITCH), fabric=replace(fabric, clique_id=2))
    assert count(one, other) == 0
    assert count(one, replace(other, fabric=fabric)) == 1
    assert count(one, replace(other, fabric=None)) == 1


@pytest.mark.parametrize(
    ("fabric", "clique"),
    [
        (
            FabricFacts(3, 0, "6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f", 32766),
            "6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f.32766",
        ),
        (FabricFacts(2, 0, "6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f", 1), None),
        (FabricFacts(3, 999, "6d1c0ee1-7a4f-4f3a-9e3b-0a1b2c3d4e5f", 1), None),
        (FabricFacts(3, 0, "00000000-0000-0000-0000-000000000000", 0), None),
        (None, None),
    ],
)
def test_only_a_joined_fabric_is_a_clique(fabric: FabricFacts | None, clique: str | None) -> None:
    assert fabric_clique(replace(gpu(0, A), fabric=fabric)) == clique


def test_the_count_of_a_gpu_is_unknown_when_one_link_is() -> None:
    assert active_count(gpu(0, A, to(B), to(B, active=False))) == 1
    assert active_count(gpu(0, A, to(B), SILENT)) is None
    assert active_count(gpu(0, A)) == 0


@pytest.mark.parametrize(("versions", "expected"), [((6, 6), 4), ((3, 2), 2), ((0, 6), 4), ((99,), None), ((), None)])
def test_generation_is_that_of_the_active_links(versions: tuple[int, ...], expected: int | None) -> None:
    links = [NvLinkFacts(0, active=True, version=version) for version in versions]
    assert generation(gpu(0, A, *links, NvLinkFacts(0, active=False, version=1))) == expected
