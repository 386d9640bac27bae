"""What the watches report, and what becomes of it where no other test of the state's parts says so."""

from __future__ import annotations

from support.allocation import blocks, claim, device_name, holding, machine
from support.reconciling import Bench

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


def test_a_claim_that_could_not_be_taken_in_keeps_what_it_held_and_what_it_holds() -> None:
    """Until its change comes again nobody knows which of them it has."""
    bench = Bench(n=FOUR)
    before = holding(claim("c"), "n", device_name(FOUR, 0))
    after = holding(claim("c", resource_version="2"), "n", device_name(FOUR, 1))
    bench.claim_changed(None, before)
    bench.cluster.intake.claim_set_aside(after)
    inventory = bench.cluster._state.inventory
    assert inventory.holdings.taken("n") == {device_name(FOUR, 0): (2,), device_name(FOUR, 1): (2,)}
    bench.claim_changed(before, after)
    assert inventory.holdings.taken("n") == {device_name(FOUR, 1): (1,)}
