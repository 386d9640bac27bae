from __future__ import annotations

from dracaena.api.gpu_states import FREE, PARTS
from dracaena.api.node_status import PublishedNode, node_statuses
from dracaena.controller.views.details import node_view
from dracaena.controller.views.names import without_names
from dracaena.controller.views.node_line import node_line, pool_line
from support.allocation import DRIVER, blocks, claim, holding, machine, node, pool_slice
from support.vgpus import mediated, virtual_function, with_vgpus

HOST = with_vgpus(machine("host", blocks(1, inside="PIX", outside="SYS")), mediated(0), virtual_function(0))


def status() -> PublishedNode:
    held = holding(claim("vm"), "n", mediated(0).device_name)
    (found,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", HOST)], [held])
    return found


def test_the_page_shows_them_and_hides_who_has_them_from_who_may_not_see() -> None:
    hidden = without_names(status(), lambda _namespace: False)
    assert [holder.claim for one in hidden.vgpus for holder in one.holders] == [""]
    pages = [pool_slice("n", HOST)]
    line = node_line("n", pool_line(DRIVER, pages, node("n")), {("n", mediated(0).device_name): ()})
    shown = node_view(status(), line, lambda _namespace: True)["migs"]
    assert [(one["device"], one["profile"]) for one in shown] == [
        (virtual_function(0).device_name, "H200X-1-18C"),
        (mediated(0).device_name, "A100-1-5C"),
    ]
    assert line.cells == FREE + PARTS, "both vGPUs are of one GPU"
