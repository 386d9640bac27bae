from __future__ import annotations

from dracaena.api.node_status import PublishedNode, node_document, node_statuses, tree_lines
from support.allocation import DRIVER, blocks, claim, holding, machine, node, pool_slice
from support.passthrough import passthrough_gpu, with_passthrough

BOTH = with_passthrough(
    machine("host", blocks(1, inside="PIX", outside="SYS")), [passthrough_gpu(0), passthrough_gpu(1)]
)


def status() -> PublishedNode:
    held = holding(claim("vm"), "n", passthrough_gpu(1).device_name)
    (found,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", BOTH)], [held])
    return found


def test_the_tree_tells_gpus_for_virtual_machines_from_the_others_and_says_who_has_them() -> None:
    lines = list(tree_lines(status()))
    assert lines[0].startswith("n: 2 of 3 devices free")
    labels = [line.partition("[")[2] for line in lines if "GPU" in line.partition("[")[0] and "[" in line]
    assert labels[0] == "free]"
    assert labels[1] == "for virtual machines, 0000:20:00.0: free]"
    assert labels[2].startswith("for virtual machines, 0000:21:00.0: ")
    assert "vm" in labels[2].rpartition(": ")[2]


def test_the_document_names_them_by_address() -> None:
    last = node_document(status())["gpus"][-1]
    assert (last["device"], last["uuid"], last["index"]) == (passthrough_gpu(1).device_name, "0000:21:00.0", 2)
