from __future__ import annotations

from dracaena.api.node_status import PublishedNode, node_document, node_statuses, tree_lines
from support.allocation import DRIVER, blocks, claim, holding, machine, node, pool_slice
from support.passthrough import NO_GPUS
from support.vgpus import mediated, virtual_function, with_vgpus

HOST = with_vgpus(machine("host", blocks(1, inside="PIX", outside="SYS")), mediated(0), virtual_function(0))


def status() -> PublishedNode:
    held = holding(claim("vm"), "n", mediated(0).device_name)
    (found,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", HOST)], [held])
    return found


def test_vgpus_stand_below_the_tree_with_their_type_and_who_has_them() -> None:
    lines = list(tree_lines(status()))
    assert lines[0].endswith(", 2 GPUs: 1 free, 1 partly free (2 vGPUs, 1 of 2 vGPUs free)")
    free, had = lines[-2:]
    assert free == f"  {virtual_function(0).device_name}  H200X-1-18C  [free]"
    assert had.startswith(f"  {mediated(0).device_name}  A100-1-5C  [")
    assert "vm" in had.rpartition("[")[2]


def test_the_document_lists_them_apart_from_mig_devices() -> None:
    document = node_document(status())
    assert document["migDevices"] == []
    assert [(one["device"], one["type"], len(one["heldBy"])) for one in document["vgpus"]] == [
        (virtual_function(0).device_name, "H200X-1-18C", 0),
        (mediated(0).device_name, "A100-1-5C", 1),
    ]


def test_a_node_that_has_nothing_else_says_so_and_one_without_has_no_word_of_them() -> None:
    (only,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", with_vgpus(NO_GPUS, mediated(0)))], [])
    assert next(iter(tree_lines(only))) == "n: vGPUs only, 1 GPU: 0 free, 1 partly free (1 vGPU, 1 of 1 vGPUs free)"
    (none,) = node_statuses(
        DRIVER, [node("n")], [pool_slice("n", machine("host", blocks(1, inside="PIX", outside="SYS")))], []
    )
    assert "vgpus" not in node_document(none)
