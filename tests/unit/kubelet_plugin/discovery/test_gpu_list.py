"""What GPUs are for: entries are refused with the reason, and any list means what a slow reading of its words means."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole, ListedGpus, read_gpus, refuse_combinations
from dracaena.kubelet_plugin.discovery.vm.pci_products import PCI_PRODUCTS
from support.gpu_lists import entry, gpu_list
from support.machines import plain_machine
from support.seeds import sampled

H100 = "NVIDIA H100 PCIe"
PRODUCTS = (H100, H100, "Tesla T4", None)
ADDRESSES = tuple(f"0000:{0x18 + number:02x}:00.0" for number in range(4))


def machine() -> Machine:
    """GPUs 0 and 1 of one product, 2 of another, 3 of none that is known."""
    made = plain_machine(4)
    gpus = zip(made.gpus, PRODUCTS, ADDRESSES, strict=True)
    return replace(made, gpus=tuple(replace(gpu, product_name=p, pci_bus_id=a) for gpu, p, a in gpus))


NODE = machine()
UUIDS = [gpu.uuid for gpu in NODE.gpus]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("all", "Expected `array`, got `str`"),
        ([{"select": "all"}], "Object missing required field `as` - at `$[0]`"),
        ([{"as": "shared"}], "Object missing required field `select` - at `$[0]`"),
        ([entry("divided")], "Invalid enum value 'divided' - at `$[0].as`"),
        ([entry("mig", sizes="1g")], "Object contains unknown field `sizes` - at `$[0]`"),
        ([{"select": 1.5, "as": "mig"}], "got `float` - at `$[0].select`"),
        ([{"select": [], "as": "mig"}], "entry 1 selects nothing"),
        ([entry("mig", "0"), entry("mig", "1,")], "entry 2 selects nothing"),
        ([entry("mig", "all,0")], "entry 1 combines `all` with other words"),
        ([entry("shared", "MIG-1234")], "entry 1 selects a MIG device"),
        ([entry("mig", bind="existing")], "entry 1 has `bind`, which `as: mig` does not have"),
        ([entry("shared", file="/x")], "entry 1 has `file`, `layout` or `condition`, which `as: shared` does not have"),
        ([entry("layout")], "entry 1 needs `file`, which names the file of MIG layouts"),
        ([entry("vgpu", condition=True)], "entry 1 has `layout` or `condition` without a `file`"),
        ([entry("vgpu", file="layouts.yaml")], "expected an absolute path"),
        ([entry("layout", "0", file="/x")], "entry 1 must select `all`: with `as: layout`"),
        ([entry("vgpu", "0")], "entry 1 must select `all`: with `as: vgpu`"),
        (
            [entry("passthrough", ADDRESSES[0], bind="existing")],
            "entry 1 must select `all`: with `as: passthrough, bind",
        ),
        ([entry("whole", "0"), entry("mig", "1,0")], "'0' is selected as whole and as mig: leave out one of them"),
        ([entry("layout", file="/x"), entry("layout", file="/y")], "`as: layout` appears twice"),
        ([entry("layout", file="/x"), entry("mig", "0")], "`as: layout` cannot be combined with `as: mig`: claims and"),
        ([entry("layout", file="/x"), entry("whole", "0")], "the file of layouts says itself which GPUs stay whole"),
        (
            [entry("vgpu", file="/x"), entry("layout", file="/y")],
            "`as: vgpu, file: …` cannot be combined with `as: layo",
        ),
        ([entry("passthrough"), entry("layout", file="/y")], "a layout divides GPUs while claims may get them"),
        ([entry("passthrough"), entry("shared", "0")], "'0' cannot be combined with `as: passthrough`: a GPU that is"),
        ([entry("passthrough", "GPU-1")], "'gpu-1' cannot be combined with `as: passthrough`"),
        ([entry("passthrough", "NVIDIA A9999")], "'nvidia a9999' cannot be combined with `as: passthrough`"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_the_reason(entries: Any, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_gpus(entries)
    assert words in str(caught.value)


def test_settings_that_exclude_each_other_are_refused_by_the_same_table() -> None:
    refuse_combinations(["machine", "as: mig", "as: shared", "as: shared"])
    for one, other in (("machine", "as: vgpu"), ("cc-mode-tool", "as: layout"), ("machine", "cc-mode-tool")):
        for pair in ([one, other], [other, one], [one, "as: shared", other]):
            with pytest.raises(BadInputError, match=f"`{pair[0]}` cannot be combined with `{pair[-1]}`: "):
                refuse_combinations(pair)


def test_a_gpu_may_be_for_several_things_and_is_then_for_what_claims_ask() -> None:
    found = read_gpus([entry("shared"), entry("mig"), entry("passthrough")])
    for role in (GpuRole.SHARED, GpuRole.MIG, GpuRole.PASSTHROUGH):
        assert found.listed(role, NODE) == ListedGpus(NODE.gpus)
    assert found.binds_function(ADDRESSES[0], 0x2331)


def test_the_closest_selection_holds() -> None:
    found = read_gpus([entry("shared"), entry("mig", H100), entry("whole", "1")])
    assert [gpu.index for gpu in found.listed(GpuRole.SHARED, NODE).gpus] == [2, 3]
    assert found.listed(GpuRole.MIG, NODE) == ListedGpus(NODE.gpus[:1], frozenset(UUIDS[:1]))
    assert [gpu.index for gpu in found.listed(GpuRole.WHOLE, NODE).gpus] == [1]


def test_a_gpu_that_two_names_make_whole_and_something_else_stays_whole_and_is_reported() -> None:
    found = read_gpus([entry("whole", UUIDS[0]), entry("shared", "0,1")]).listed(GpuRole.SHARED, NODE)
    assert [gpu.index for gpu in found.gpus] == [1]
    assert found.problems == {
        UUIDS[0]: f"GPU {UUIDS[0]} is selected equally closely as whole and as shared, by '0', "
        f"{UUIDS[0].lower()!r}: it stays whole"
    }


def test_what_a_virtual_machine_has_is_not_reported_as_missing() -> None:
    from support.passthrough import passthrough_gpu

    gpu = replace(passthrough_gpu(0), pci_bus_id=ADDRESSES[0], product_name=H100)
    left = replace(plain_machine(0), passthrough=(gpu,))
    found = read_gpus([entry("shared", ADDRESSES[0]), entry("passthrough", ADDRESSES[0]), entry("mig", H100)])
    assert (found.listed(GpuRole.SHARED, left), found.listed(GpuRole.MIG, left)) == (ListedGpus(), ListedGpus())


def test_a_function_is_bound_by_its_address_its_known_product_or_all_whatever_has_it() -> None:
    known = 0x2331
    assert PCI_PRODUCTS[known] == H100
    for words, unknown in ((ADDRESSES[0], True), (H100.upper(), False), ("all", True)):
        found = gpu_list(passthrough=words)
        assert (found.binds_function(ADDRESSES[0], known), found.binds_function(ADDRESSES[0], 1)) == (True, unknown)
    spared = read_gpus([entry("passthrough"), entry("shared", ADDRESSES[0]), entry("whole", "Tesla T4")])
    assert not spared.binds_function(ADDRESSES[0], known)
    assert not spared.binds_function(ADDRESSES[1], 0x1EB8)
    assert spared.bound_words() == frozenset()


WORDS = ("all", "0", "1", "3", "7", "-1", UUIDS[0], UUIDS[2].upper(), "GPU-none", H100, "tesla t4", "A100", "  1 ")
ADDRESSED = ("all", *ADDRESSES, "0000:99:00.0", H100, "Tesla T4")
ROLES = ("whole", "shared", "mig", "passthrough")


def some_list(rng: random.Random) -> list[dict[str, Any]]:
    words = rng.choice((WORDS, ADDRESSED, WORDS + ADDRESSES))
    roles = rng.choice((ROLES, ROLES[:3]))
    return [
        {"select": rng.sample(words, rng.randint(1, 3)) if rng.random() < 0.5 else rng.choice(words), "as": role}
        for role in rng.choices(roles, k=rng.randint(0, 4))
    ]


def slow_closest(entries: Sequence[dict[str, Any]], number: int) -> set[str]:
    """Return the roles of the entries that select a GPU most closely: each word is looked at for itself."""
    gpu, found = NODE.gpus[number], []
    for each in entries:
        words = each["select"] if isinstance(each["select"], list) else [each["select"]]
        for word in (str(one).strip().lower() for one in words):
            if word in (str(gpu.index), gpu.uuid.lower(), gpu.pci_bus_id):
                found.append((3, each["as"]))
            elif gpu.product_name is not None and word == gpu.product_name.lower():
                found.append((2, each["as"]))
            elif word == "all":
                found.append((1, each["as"]))
    closest = max((level for level, _ in found), default=0)
    return {role for level, role in found if level == closest}


@pytest.mark.parametrize("seed", sampled(range(40), few=2, some=8))
def test_each_gpu_has_the_roles_that_a_slow_reading_of_the_words_gives_it(seed: int) -> None:
    rng, taken, ambiguous = random.Random(seed), 0, 0
    for _ in range(2_000):
        entries = some_list(rng)
        try:
            found = read_gpus(entries)
        except BadInputError:
            continue
        taken += 1
        listed = {role: found.listed(GpuRole(role), NODE) for role in ROLES}
        for number, gpu in enumerate(NODE.gpus):
            closest = slow_closest(entries, number)
            is_unclear = "whole" in closest and len(closest) > 1
            ambiguous += is_unclear
            wanted = set() if is_unclear else closest - {"whole"}
            assert {role for role in ROLES[1:] if gpu in listed[role].gpus} == wanted, entries
            assert any(gpu.uuid in each.problems for each in listed.values()) == is_unclear, entries
            if number < 3:  # the product of the last is not known
                device = {H100: 0x2331, "Tesla T4": 0x1EB8}[str(gpu.product_name)]
                assert found.binds_function(str(gpu.pci_bus_id), device) == ("passthrough" in wanted), entries
        shuffled = read_gpus(rng.sample(entries, len(entries)))
        assert {role: shuffled.listed(GpuRole(role), NODE) for role in ROLES} == listed, "the order means nothing"
    assert taken > 500, "most lists are refused"
    assert ambiguous > 10


@pytest.mark.parametrize("seed", sampled(range(40), few=2, some=8))
def test_hostile_documents_end_in_one_line_or_a_list(seed: int) -> None:
    rng = random.Random(seed)

    def value(depth: int = 0) -> Any:
        if depth == 3 or rng.random() < 0.4:
            return rng.choice([None, True, -1, 1.5, 1 << 70, "", "all", "\x00", "GPU-", "ü" * 9, *ROLES, "vgpu"])
        made = [value(depth + 1) for _ in range(rng.randint(0, 3))]
        keys = ("select", "as", "file", "bind", "x", 3)
        return made if rng.random() < 0.5 else {rng.choice(keys): each for each in made}

    for _ in range(2_000):
        entries = some_list(rng)
        if entries and rng.random() < 0.7:
            rng.choice(entries)[rng.choice(["select", "as", "file", "layout", "condition", "bind", "other"])] = value()
        try:
            found = read_gpus(entries if rng.random() < 0.7 else value())
        except BadInputError as error:
            message = str(error)
        else:
            message = "a list"
            for role in GpuRole:
                found.listed(role, NODE)
        assert message.isprintable() or "\x00" in message, message
