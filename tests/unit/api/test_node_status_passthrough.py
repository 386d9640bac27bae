from __future__ import annotations

import pytest

from dracaena.api.holders import holders_of
from dracaena.api.node_status import PublishedNode, node_document, node_statuses, tree_lines
from dracaena.controller.views.node_line import node_line, pool_line
from support.allocation import DRIVER, blocks, claim, holding, machine, node, pool_slice
from support.passthrough import on_demand, on_demand_slices, passthrough_gpu, with_passthrough

BOTH = with_passthrough(
    machine("host", blocks(1, inside="PIX", outside="SYS")), [passthrough_gpu(0), passthrough_gpu(1)]
)


def status() -> PublishedNode:
    held = holding(claim("vm"), "n", passthrough_gpu(1).device_name)
    (found,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", BOTH)], [held])
    return found


def test_the_tree_tells_gpus_for_virtual_machines_from_the_others_and_says_who_has_them() -> None:
    lines = list(tree_lines(status()))
    assert lines[0].endswith(", 3 GPUs: 1 free, 1 free for virtual machines, 1 used")
    labels = [line.partition("[")[2] for line in lines if "GPU" in line.partition("[")[0] and "[" in line]
    assert labels[0] == "free]"
    assert labels[1] == "for virtual machines, 0000:20:00.0: free]"
    assert labels[2].startswith("for virtual machines, 0000:21:00.0: ")
    assert "vm" in labels[2].rpartition(": ")[2]


def test_the_document_names_them_by_address() -> None:
    last = node_document(status())["gpus"][-1]
    assert (last["device"], last["uuid"], last["index"]) == (passthrough_gpu(1).device_name, "0000:21:00.0", 2)


TWO_WAYS = on_demand(machine("host", blocks(2, inside="PIX", outside="SYS"), product_name="NVIDIA H100"))
WHOLE = f"gpu-{TWO_WAYS.gpus[0].uuid.removeprefix('GPU-')}"


@pytest.mark.parametrize(
    ("held", "labels"),
    [
        (None, ["free", "free", "20:00.0: the same GPU as above", "21:00.0: the same GPU as above"]),
        (WHOLE, ["default/c, no pod", "free", "20:00.0: the same GPU as above", "21:00.0: the same GPU as above"]),
        (
            passthrough_gpu(0).device_name,
            ["given to a virtual machine", "free", "20:00.0: default/c, no pod", "21:00.0: the same GPU as above"],
        ),
    ],
)
def test_a_gpu_that_goes_to_containers_or_to_machines_is_one_gpu(held: str | None, labels: list[str]) -> None:
    claims = [] if held is None else [holding(claim("c"), "n", held)]
    slices = on_demand_slices("n", TWO_WAYS)
    (found,) = node_statuses(DRIVER, [node("n")], slices, claims)
    assert ("".join(gpu.sign for gpu in found.states), found.product) == (".." if held is None else "#.", "NVIDIA H100")
    told = [line.partition("[")[2].rstrip("]") for line in tree_lines(found) if line.endswith("]")]
    assert [one.removeprefix("for virtual machines, 0000:") for one in told] == labels
    line = node_line("n", pool_line(DRIVER, slices, node("n")), holders_of(DRIVER, claims))
    assert line.product == found.product
    assert line.cells == (".." if held is None else "#.")
