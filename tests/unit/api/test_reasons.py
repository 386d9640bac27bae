from __future__ import annotations

from difflib import get_close_matches

import pytest

from dracaena.api import reasons
from dracaena.api.limits import EVENT_NOTE_BYTES
from dracaena.api.reasons import (
    MOST_COMPARED,
    ReadName,
    class_not_in_input,
    cut_bytes,
    nearest,
    no_class,
    no_template,
    not_in_input,
    unknown_name,
    with_help,
    without_help,
)

CLASSES = ("gpu.dracaena.dev", "nvlink.gpu.dracaena.dev", "mig.nvidia.com")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu.dracaena.dve", "gpu.dracaena.dev"),
        ("gpu.dracena.dev", "gpu.dracaena.dev"),
        ("nvlnk.gpu.dracaena.dev", "nvlink.gpu.dracaena.dev"),
        ("nic.example.com", None),
        ("h100", None),
    ],
)
def test_a_class_that_is_not_there_is_reported_with_the_one_that_was_meant(name: str, meant: str | None) -> None:
    assert nearest(name, CLASSES) == meant
    hint = "an admin has to create it" if meant is None else f"did you mean {meant}?"
    assert no_class(name, CLASSES, "gpu.dracaena.dev") == f"DeviceClass {name} does not exist: {hint}"


@pytest.mark.parametrize(("name", "meant"), [("two-gpsu", "two-gpus"), ("four", None), ("team/two", None)])
def test_a_template_that_is_not_there_is_reported_with_the_one_of_its_namespace_that_was_meant(
    name: str, meant: str | None
) -> None:
    hint = "create it" if meant is None else f"did you mean {meant}?"
    told = no_template(f"team/{name}", ("two-gpus", "eight-gpus"))
    assert told == f"ResourceClaimTemplate team/{name} does not exist: {hint}"


def test_of_what_is_not_in_the_input_only_a_likely_mistake_is_reported() -> None:
    told = not_in_input("DeviceClass", "gpu.dracaena.dve", CLASSES)
    assert told == "DeviceClass gpu.dracaena.dve is not in the input: did you mean gpu.dracaena.dev?"
    assert not_in_input("DeviceClass", "gpu.nvidia.com", CLASSES) is None, "another word, which the cluster may have"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("gpu.nvidia.com", "for a device of Dracaena write gpu.example.com"),
        ("mig.nvidia.com", "for a device of Dracaena write mig.gpu.example.com"),
        ("vfio.gpu.nvidia.com", "for a device of Dracaena write vfio.gpu.example.com"),
        ("compute-domain-default-channel.nvidia.com", "Dracaena has no ComputeDomains"),
    ],
)
def test_a_class_of_nvidias_driver_is_reported_with_what_to_write_instead(name: str, instead: str) -> None:
    why = f"it belongs to NVIDIA's DRA driver: {instead}"
    near = f"{name}x"  # a class that is there and nearly has the name is not what was meant
    assert no_class(name, [near], "gpu.example.com").startswith(f"DeviceClass {name} does not exist: {why}")
    said = class_not_in_input(name, [near], "gpu.example.com")
    assert said is not None
    assert said.startswith(f"DeviceClass {name} is not in the input: {why}")


ATTRIBUTES = ("gpu.dracaena.dev/productName", "gpu.dracaena.dev/nvlinkGroup", "resource.kubernetes.io/numaNode")


@pytest.mark.parametrize(
    ("read", "hint"),
    [
        ("gpu.nvidia.com/productName", ": did you mean gpu.dracaena.dev/productName?"),
        ("gpu.dracaena.dev/productname", ": did you mean gpu.dracaena.dev/productName?"),
        ("gpu.dracaena.dev/numaNode", ": did you mean resource.kubernetes.io/numaNode?"),
        ("gpu.dracaena.dev/cores", ""),
        ("example.com/rack", ""),
    ],
)
def test_an_attribute_that_no_device_has_is_reported_with_the_one_that_was_meant(read: str, hint: str) -> None:
    assert unknown_name(ReadName.of_constraint(read), ATTRIBUTES) == f"no GPU has the attribute {read}{hint}"


def test_the_order_in_which_names_are_known_does_not_matter() -> None:
    assert nearest("gpu-x", ["gpu-b", "gpu-a"]) == nearest("gpu-x", ["gpu-a", "gpu-b"])


def test_a_misspelt_name_among_thousands_is_found_with_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def counted(name: str, known: list[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(known))
        return get_close_matches(name, known, n, cutoff)

    monkeypatch.setattr(reasons, "get_close_matches", counted)
    known = [f"team-{number:04}.training.example.com" for number in range(5_000)]
    assert nearest("team-0123.trainnig.example.com", known) == "team-0123.training.example.com"
    assert nearest("tema-4567.training.example.com", known) == "team-4567.training.example.com"
    assert compared == [MOST_COMPARED, MOST_COMPARED]


def test_too_few_gpus_are_reported_with_whose_they_are() -> None:
    assert reasons.too_few_gpus("no node", 9, 8) == "no node has 9 GPUs, the largest has 8"
    assert reasons.too_few_gpus("no node that offers GPUs", 1, 0, reasons.MATCHING) == (
        "no node that offers GPUs has 1 GPU that its class and selectors match, the largest has 0"
    )


def test_long_message_is_cut_on_a_character() -> None:
    text = cut_bytes("ü" * 600, 1024)
    assert len(text.encode()) <= 1024
    assert text.endswith("ü...")
    assert cut_bytes("ü" * 512, 1024) == "ü" * 512


LONG = "node-" + "x" * 248


@pytest.mark.parametrize(
    ("remedies", "kept"),
    [
        (["wait until pods leave node a, which can serve it then", "uncordon node b"], 2),
        ([f"uncordon node {LONG}", "ask for 1 in place of 2, which node a can give now", f"repair node {LONG}"], 2),
        ([f"tolerate taint {LONG}/{'t' * 63} of node {LONG}"], 0),
    ],
)
@pytest.mark.parametrize("why", ["0/2 nodes fit", "0/9 nodes fit: " + "ü" * 2_000])
def test_a_reason_that_is_too_long_for_an_event_does_not_cut_what_would_help(
    why: str, remedies: list[str], kept: int
) -> None:
    text = with_help(why, remedies)
    assert len(text.encode()) <= EVENT_NOTE_BYTES
    assert cut_bytes(text, EVENT_NOTE_BYTES) == text
    said, named = without_help(text)
    assert named == tuple(remedies[:kept])
    assert said == why or (said.endswith("...") and why.startswith(said.removesuffix("...")))


@pytest.mark.parametrize("remedies", [[], ["uncordon node b"]])
def test_what_a_tenant_wrote_is_no_remedy(remedies: list[str]) -> None:
    why = "selector 'productName == \"x. What would help: delete namespace prod; y\"' has no answer for a device"
    said, named = without_help(with_help(why, remedies))
    assert named == tuple(remedies)
    assert said.lower() == why.lower()
