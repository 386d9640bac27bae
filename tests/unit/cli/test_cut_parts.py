"""What is drawn of GPUs that are cut on demand, for a claim that has parts of them."""

from __future__ import annotations

from typing import Any

import msgspec

from dracaena.api.resource_objects import ResourceClaim
from dracaena.cli.cut_parts import CutParts, devices_of
from support.allocation import DRIVER, blocks, machine
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100, MigPart

MADE = machine("pair", blocks(2, inside="NV12", outside="SYS"))
SLICES = mig_slices("n", MADE, [A100, A100])
LARGE, SMALL = MigPart("4g.40gb", 0, 4, 4), MigPart("1g.10gb", 6, 1, 1)


def holding(ordinal: int, *parts: MigPart, **result: Any) -> ResourceClaim:
    given = {"request": "r", "driver": DRIVER, "pool": "n", **result}
    results = [{**given, "device": part_name(MADE, ordinal, part)} for part in parts]
    document = {"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": {"devices": {"results": results}}}}
    return msgspec.convert(document, ResourceClaim)


def test_each_gpu_is_drawn_with_what_all_claims_have_of_it_and_named_with_what_this_one_has() -> None:
    asked = [("n", part_name(MADE, ordinal, SMALL)) for ordinal in (0, 1)]
    drawn = list(CutParts(DRIVER, SLICES, [holding(1, LARGE)]).lines(asked))
    assert drawn == [
        f"{MADE.gpus[0].uuid}  [·  ·  ·  ·  ·  ·  1g ·]  1g.10gb at 6",
        f"{MADE.gpus[1].uuid}  [4g───────── ·  ·  1g ·]  1g.10gb at 6",
    ]


def test_a_gpu_of_which_the_claim_has_no_part_is_not_drawn() -> None:
    parts = CutParts(DRIVER, SLICES, [holding(1, LARGE, SMALL)])
    assert list(parts.lines([("n", part_name(MADE, 0, SMALL))])) == [
        f"{MADE.gpus[0].uuid}  [·  ·  ·  ·  ·  ·  1g ·]  1g.10gb at 6"
    ]
    assert list(parts.lines([("n", "gpu-whole"), ("elsewhere", part_name(MADE, 1, SMALL))])) == []


def test_what_is_taken_one_after_the_other_is_drawn_so() -> None:
    parts = CutParts(DRIVER, SLICES, ())
    for part, drawn in ((SMALL, "[·  ·  ·  ·  ·  ·  1g ·]"), (LARGE, "[4g───────── ·  ·  1g ·]")):
        device = ("n", part_name(MADE, 1, part))
        parts.take([device])
        (line,) = parts.lines([device])
        assert drawn in line


def test_admin_access_and_devices_of_others_are_no_parts() -> None:
    assert list(devices_of(DRIVER, holding(1, LARGE, adminAccess=True))) == []
    assert list(devices_of("other.example.com", holding(1, LARGE))) == []
    assert list(devices_of(DRIVER, holding(1, LARGE))) == [("n", part_name(MADE, 1, LARGE))]
    assert list(devices_of(DRIVER, msgspec.convert({"metadata": {"name": "c"}, "spec": {}}, ResourceClaim))) == []


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    old = [msgspec.structs.replace(one, spec=replaced(one.spec, 0)) for one in mig_slices("n", MADE, [A100, None])]
    (line,) = CutParts(DRIVER, [*old, *SLICES], ()).lines([("n", part_name(MADE, 1, SMALL))])
    assert line.endswith("1g.10gb at 6")


def replaced(spec: Any, generation: int) -> Any:
    return msgspec.structs.replace(spec, pool=msgspec.structs.replace(spec.pool, generation=generation))
