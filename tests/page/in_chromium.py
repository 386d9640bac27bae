"""The page in a real headless Chromium. Run by `make page-test`, which fails where there is no Chromium.

PAGE_SCREENSHOTS=folder keeps what it looked like, in light and dark.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.objects import Namespace, ObjectMeta, OwnerReference, Pod, Taint
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.adapters.reviews import Identity
from dracaena.controller.allocation.explanation import Reason, Reasons, Unsatisfied
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.views.snapshot import WaitingPod, Watched
from dracaena.demo.cluster import DemoCluster
from dracaena.demo.scenario import NODES, WAITING, load_manifests
from dracaena.process.clock import SystemClock
from page.chromium import TIMEOUT_S, Browser, browser
from page.made_up_fleet import MadeUpFleet
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice
from support.embedded_cluster import apply_in_order, wait_settled
from support.kube import wait_for
from support.page import PageCluster, serving_page
from support.reviews import ScriptedReviews
from support.workload import NAMESPACE, create_class, create_pod, create_template

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>\n&lt;b&gt;'
LIVE = "document.getElementById('live').textContent === 'live'"
SUM = "document.querySelector('#bar .sum')?.textContent"
TITLE = "document.getElementById('drawer-title')?.textContent"
DRAWN = f"!document.getElementById('drawer').hidden && {TITLE} === '{{}}'"


@pytest.fixture
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("PAGE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_is_well_behaved(tab: Browser, url: str) -> None:
    assert tab.errors == []
    assert tab.dialogs == []
    assert [each for each in tab.requests if not each.startswith(url)] == []


def open_live(tab: Browser, url: str, **size: int) -> None:
    tab.open(url, **size)
    tab.wait_for(LIVE)


def go(tab: Browser, fragment: str) -> None:
    """Follow a link to another part of the page."""
    tab.value(f"location.hash = {json.dumps(fragment)}; 0")
    tab.wait_for(f"location.hash === {json.dumps(fragment)}")


def drawn(tab: Browser, title: str) -> None:
    """Wait until the drawer shows this."""
    tab.wait_for(DRAWN.format(title))


def text_of(tab: Browser, place: str) -> str:
    return str(tab.value(f"document.querySelector({json.dumps(place)})?.textContent ?? ''"))


def many_nodes(count: int, gpus: int, *held: str, failed: dict[str, str] | None = None) -> Watched:
    """Return nodes of one kind: the first GPU of some is held, and of some has a taint of the driver's domain."""
    one = machine("one", blocks(gpus, inside="NV18", outside="SYS"), product_name="NVIDIA H100 80GB HBM3")
    names = [f"node-{number:04}" for number in range(count)]
    page = pool_slice("n", one)

    def of(name: str) -> ResourceSlice:
        made = page
        if failed and name in failed:
            key, _, value = failed[name].partition("=")
            made = pool_slice("n", one, foreign={0: [Taint(key=f"{DRIVER}/{key}", value=value, effect="NoSchedule")]})
        pool = msgspec.structs.replace(made.spec.pool, name=name)
        meta = msgspec.structs.replace(made.metadata, name=name)
        return msgspec.structs.replace(
            made, metadata=meta, spec=msgspec.structs.replace(made.spec, node_name=name, pool=pool)
        )

    claims = [holding(claim(f"of-{name}"), name, device_name(one, 0)) for name in held]
    return Watched([node(name) for name in names], [of(name) for name in names], claims)


def test_the_demo_cluster_in_light_and_dark(tab: Browser, pictures: Path) -> None:
    with DemoCluster(NODES) as cluster:
        manifests = load_manifests()
        apply_in_order(cluster, manifests)
        pods = sum(document.get("kind") == "Pod" for manifest in manifests for document in manifest.documents)
        wait_settled(cluster, WAITING, pods=pods)
        url = cluster.page_url()
        assert url is not None
        open_live(tab, url)
        go(tab, "#/waiting")
        tab.wait_for(f"document.querySelectorAll('.card').length === {len(WAITING)}")
        shown = tab.value("[...document.querySelectorAll('.card h3')].map((each) => each.textContent)")
        assert sorted(shown) == sorted(WAITING)
        for scheme in ("light", "dark"):
            tab.prefer(scheme)
            tab.screenshot(pictures / f"waiting-{scheme}.png")
        go(tab, f"#/fleet?open=node%2F{NODES[0].name}")
        drawn(tab, f"Node {NODES[0].name}")
        for scheme in ("light", "dark"):
            tab.prefer(scheme)
            tab.screenshot(pictures / f"fleet-{scheme}.png")
        go(tab, "#/teams")
        tab.wait_for("document.querySelectorAll('.teams tbody tr').length > 0")
        check_is_well_behaved(tab, url)


def used_by_markup() -> PageCluster:
    four = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name=MARKUP)
    held = holding(claim("c"), "n", device_name(four, 1))
    assert held.status.allocation is not None
    document = msgspec.to_builtins(held.status.allocation)
    made = PageCluster()
    claims = (allocated(held, document, pod(MARKUP)),)
    waits = (WaitingPod("default", MARKUP, "unsatisfiable", Reasons(f"0/1 nodes fit: {MARKUP}"), 5.0),)
    quota = Namespace(ObjectMeta("default", annotations={f"{DRIVER}/quota": '{"gpus": 4}'}))
    made.watched = Watched((node("n"),), (pool_slice("n", four),), claims, waits, namespaces=(quota,))
    made.pods = {f"default/{MARKUP}": pod(MARKUP)}
    return made


def test_names_made_of_markup_are_shown_as_they_are_in_every_view(tab: Browser, pictures: Path) -> None:
    reviews = ScriptedReviews()
    reviews.tokens, reviews.rights = {"of-admin": Identity(MARKUP)}, {(MARKUP, "")}
    with serving_page(used_by_markup(), reviews) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        tab.open(url)
        tab.wait_for("!document.getElementById('login').hidden")
        assert tab.errors, "a browser logs the 401"
        tab.errors.clear()
        tab.screenshot(pictures / "login.png")
        assert tab.value("document.activeElement.id") == "token"
        tab.value("document.getElementById('token').value = 'of-admin'")
        tab.press("Enter", 13)
        tab.wait_for(LIVE)
        for fragment in (
            "#/fleet?as=list",
            "#/waiting",
            "#/waiting?by=reason",
            "#/teams",
            "#/fleet?open=team%2Fdefault",
        ):
            go(tab, fragment)
            tab.wait_for("document.querySelectorAll('#fleet tr, .card, .teams tr, #drawer .box').length > 0")
        go(tab, "#/fleet?open=node%2Fn")
        drawn(tab, "Node n")
        assert tab.value("document.querySelectorAll('#drawer .gpu').length") == 4
        assert MARKUP in tab.value("[...document.querySelectorAll('#drawer .gpu a')].map((each) => each.textContent)")
        tab.value("document.querySelector('#drawer .gpu a').click()")
        tab.wait_for("!!document.getElementById('pod-state')")
        assert tab.value(TITLE) == f"Pod default/{MARKUP}"
        tab.screenshot(pictures / "pod.png")
        assert tab.value("document.querySelectorAll('img, script:not([src]), b b').length") == 0
        check_is_well_behaved(tab, url)


def test_each_limit_of_a_quota_is_shown_even_one_of_nothing_and_what_cannot_be_read(tab: Browser) -> None:
    four = machine("four", blocks(4, inside="NV12", outside="SYS"))
    limits = {
        "a-idle": '{"gpus": 0}',
        "b-unlimited": "{}",
        "c-product": json.dumps({"gpusByProduct": {"<img src=x onerror=alert(1)>": 4}}),
        "d-cores": '{"shareCores": 400}',
        "e-profile": '{"migDevicesByProfile": {"1g.10gb": 2}}',
        "f-misspelt": '{"gpu": 1}',
    }
    teams = [Namespace(ObjectMeta(name, annotations={f"{DRIVER}/quota": text})) for name, text in limits.items()]
    cluster = PageCluster()
    cluster.watched = Watched((node("n"),), (pool_slice("n", four),), (), (), namespaces=tuple(teams))
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        open_live(tab, url)
        go(tab, "#/teams")
        tab.wait_for(f"document.querySelectorAll('.teams tbody tr').length === {len(limits)}")
        assert tab.value("[...document.querySelectorAll('.teams td.bar')].map((cell) => cell.textContent)") == [
            "",
            "no limit",
            "0 of 4 GPUs, <img src=x onerror=alert(1)>",
            "0 % of 400 % cores in shares of GPUs",
            "0 of 2 MIG devices, 1g.10gb",
            "cannot be read",
        ]
        assert tab.value("document.querySelector('.teams .meter').ariaLabel") == "0 of the quota of 0"
        go(tab, "#/teams?open=team%2Fd-cores")
        drawn(tab, "Team d-cores")
        assert text_of(tab, "#drawer .box tr") == "cores in shares of GPUs0 % of 400 %"
        go(tab, "#/teams?open=team%2Ff-misspelt")
        drawn(tab, "Team f-misspelt")
        assert text_of(tab, "#drawer .remark").startswith("The quota cannot be read: gpu: unknown, expected")
        check_is_well_behaved(tab, url)


def test_the_keyboard_alone_finds_a_node_opens_it_and_returns(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(40, 8)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/")
        tab.value("document.querySelector('#fleet a[data-key=cursor]').focus()")
        said = "document.activeElement.getAttribute('aria-label')"
        assert tab.value(said).startswith("node-0000, NVIDIA H100 80GB HBM3, no rack, 8 GPUs: 8 free")
        tab.press("ArrowRight", 39)
        assert tab.value(said).startswith("node-0001, ")
        tab.press("End", 35)
        assert tab.value(said).startswith("node-0039, ")
        tab.press("Enter", 13)
        drawn(tab, "Node node-0039")
        assert tab.value("document.activeElement.id") == "drawer-title"
        tab.press("Escape", 27)
        tab.wait_for("document.getElementById('drawer').hidden")
        assert tab.value("document.activeElement.dataset.key") == "cursor"
        tab.press("x", 88)
        assert tab.value("location.hash") in ("#/fleet", ""), "no letter alone does anything"
        tab.value("document.getElementById('q').focus(); document.getElementById('q').value = '0017'; 0")
        tab.value("document.getElementById('q').dispatchEvent(new Event('input')); 0")
        tab.wait_for("document.querySelectorAll('#hits li').length === 1")
        assert tab.value(SUM).startswith("1 node "), "the grid shows what is searched at once"
        tab.press("Enter", 13)
        drawn(tab, "Node node-0017")


def test_each_filter_shows_what_the_answer_says_and_a_link_holds_it(tab: Browser) -> None:
    cluster = PageCluster()
    watched = many_nodes(30, 8, *(f"node-{number:04}" for number in range(4)), failed={"node-0029": "xid=79"})
    cluster.watched = watched
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        open_live(tab, url)
        assert text_of(tab, "#numbers").startswith("235 of 240 GPUs free")
        assert "1 GPU failed" in text_of(tab, "#numbers")
        for fragment, words in (
            ("#/fleet?free=8", "25 nodes · 200 of 200 GPUs free"),
            ("#/fleet?show=failed", "1 node · 7 of 8 GPUs free · 1 failed"),
            ("#/fleet?team=default", "4 nodes · 28 of 32 GPUs free · default holds 4 whole GPUs"),
            ("#/fleet?team=default&free=8", "0 nodes · 0 of 0 GPUs free · default holds 0 whole GPUs"),
            ("#/fleet?show=failed&show=closed", "1 node · 7 of 8 GPUs free · 1 failed"),
            ("#/fleet?product=no+such", "0 nodes · 0 of 0 GPUs free"),
            ("#/fleet?nonsense=1&free=x", "30 nodes · 235 of 240 GPUs free · 1 failed"),
        ):
            go(tab, fragment)
            tab.wait_for(f"{SUM} === {json.dumps(words)}")
        go(tab, "#/fleet")
        tab.value("document.querySelector('#rail input[value=failed]').click()")
        tab.wait_for("location.hash === '#/fleet?show=failed'")
        tab.value("history.back(); 0")
        tab.wait_for("location.hash === '#/fleet'")
        go(tab, "#/fleet?open=node%2Fnode-0029")
        drawn(tab, "Node node-0029")
        assert text_of(tab, "#drawer .fault") == "GPU0: XID 79 (no new pod gets it)"
        assert tab.value("document.title") == "node-0029 · Fleet · Dracaena"
        check_is_well_behaved(tab, url)


def test_the_pods_of_one_deployment_are_one_row_in_sight(tab: Browser) -> None:
    def owned(name: str) -> Pod:
        owner = OwnerReference(uid="u", kind="ReplicaSet", name="web-7f", controller=True)
        labels = {"pod-template-hash": "7f"}
        return msgspec.structs.replace(
            pod(name), metadata=ObjectMeta(name, "default", owner_references=[owner], labels=labels)
        )

    cluster = PageCluster()
    names = [f"web-7f-{number:02}" for number in range(69)]
    whole = many_nodes(245, 8)
    busy = Reason("with 4 or more GPUs, fewer than 4 of them free", 171, nodes=("node-0000", "node-0001", "node-0002"))
    cordoned = Reason("cordoned", 74, nodes=("node-0200",), lasting=True)
    why = Reasons(Unsatisfied(245, (busy, cordoned), notes=("a note",)))
    waits = tuple(WaitingPod("default", name, "no-node", why, 5.0) for name in names)
    cluster.watched = Watched(whole.nodes, whole.slices, (), waits)
    cluster.pods = {f"default/{name}": owned(name) for name in names}
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/#/waiting", width=1440, height=900)
        tab.wait_for("document.querySelectorAll('.card').length === 1")
        assert text_of(tab, ".card h3") == "web"
        assert text_of(tab, ".card .many") == "69"
        assert tab.value("[...document.querySelectorAll('.obs li')].map((each) => each.textContent)") == [
            "171 with 4 or more GPUs, fewer than 4 of them free: node-0000, node-0001, node-0002, …",
            "74 cordoned (waiting does not help): node-0200, …",
        ]
        assert text_of(tab, ".card .why + p") == "a note"
        shares = tab.value(
            "[...document.querySelectorAll('.obs .meter')].map((each) => each.firstChild.getBoundingClientRect().width"
            " / (each.getBoundingClientRect().width - 2))"
        )
        assert [round(245 * share) for share in shares] == [171, 74], "the bars say of how many nodes"
        assert tab.value("[...document.querySelectorAll('.obs .meter')].map((each) => each.className)") == [
            "meter",
            "meter lasting",
        ]
        tab.value("document.querySelector('.obs a').click()")
        drawn(tab, "Node node-0000")
        go(tab, "#/waiting")
        tab.value("document.querySelector('.card summary').click()")
        tab.wait_for("document.querySelectorAll('.card .podlist li').length === 20")
        assert "49 more pods of this workload wait" in text_of(tab, ".card details")
        tab.value("document.querySelector('.card .podlist li:last-child a').focus()")
        shown = int(tab.value("document.body.dataset.shown"))
        cluster.watched = Watched(whole.nodes, whole.slices, (), waits[1:])
        tab.wait_for(f"Number(document.body.dataset.shown) > {shown}")
        tab.wait_for("document.querySelector('.card .many').textContent === '68'")
        assert tab.value("document.querySelectorAll('.card .podlist li').length") == 20, "it stays unfolded"
        assert tab.value("document.activeElement.textContent") == names[19], "and the focus on its pod"
        go(tab, "#/fleet")
        tab.wait_for("!document.querySelector('.grid').hidden")
        assert tab.value("document.querySelector('.grid').getBoundingClientRect().top") < 450


def test_what_is_wrong_in_a_cluster_of_245_nodes_is_seen_without_scrolling(tab: Browser) -> None:
    with structlog.testing.capture_logs():  # 500 decisions
        cluster = MadeUpFleet().page()
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        open_live(tab, url, width=1920, height=1080)
        tab.wait_for(f"{SUM} === '245 nodes · 138 of 1,840 GPUs free · 7 failed'")
        assert tab.value("document.getElementById('numbers').getBoundingClientRect().bottom") < 300
        numbers = text_of(tab, "#numbers")
        for words in (
            "7 GPUs failed4 × XID 79, 2 × lost, 1 × row remap failed",
            "1,622 used, 0 partly free, 72 closed",
            "99 pods wait",
            "No node fits (81), Quota is used up (13)",
        ):
            assert words in numbers
        products = tab.value("[...document.querySelectorAll('#rail label')].map((each) => each.textContent)")
        assert "H100 80GB HBM30 of 1,120" in products
        longest = "document.querySelector('#side li')"
        assert tab.value(f"{longest}.textContent").startswith("69 × embed search, ")
        assert "wait until pods leave node" in tab.value(f"{longest}.textContent")
        assert tab.value(f"{longest}.getBoundingClientRect().height") < 120, "in short: all of it is on Waiting"
        tab.value("document.querySelector('#numbers .bad a').click()")
        tab.wait_for(f"{SUM}.startsWith('6 nodes · ')")
        check_is_well_behaved(tab, url)


HELPS = (
    "Wait until 4 GPUs of one node are free: 171 nodes have 4 or more",
    f"Repair {MARKUP}",
    f"Allow {'a' * 240} too: 3 pods fit now",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_would_help_is_a_list_of_text_that_can_be_read_on_a_phone(
    tab: Browser, pictures: Path, scheme: str
) -> None:
    cluster = PageCluster()
    whole = many_nodes(3, 8)
    busy = Reason(f"with 4 or more GPUs, fewer than 4 of them {MARKUP}", 3, nodes=("node-0000", "node-0001"))
    why = Reasons(Unsatisfied(3, (busy,)), HELPS)
    cluster.watched = Watched(whole.nodes, whole.slices, (), (WaitingPod("default", "p", "no-node", why, 5.0),))
    cluster.pods = {"default/p": pod("p", "not-there")}
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        for fragment, place in (("#/waiting", ".card"), ("#/waiting?open=pod%2Fdefault%2Fp", "#drawer")):
            open_live(tab, url + fragment, width=390, height=900)
            tab.prefer(scheme)
            tab.wait_for(f"document.querySelectorAll('{place} .helps li').length === {len(HELPS)}")
            items = f"[...document.querySelectorAll('{place} .helps li')]"
            shown = [text.replace("\n", "\N{REPLACEMENT CHARACTER}") for text in HELPS]
            assert tab.value(f"{items}.map((each) => each.textContent)") == shown
            heads = tab.value(f"[...document.querySelectorAll('{place} h4')].map((each) => each.textContent)")
            assert heads[0] == "What would help", "before the reasons"
            assert tab.value(f"{items}.every((each) => each.scrollWidth <= each.clientWidth)"), "words are wrapped"
            assert tab.value(f"{items}.every((each) => each.getBoundingClientRect().right <= 390)")
            assert tab.value("document.documentElement.scrollWidth") <= 390
            for part in (f"{place} .helps li", f"{place} h4"):
                paper = colour_behind(tab, part)
                assert contrast(colour_of(tab, part), paper) >= 4.5, part
            arrow = f"getComputedStyle(document.querySelector('{place} .helps li'), '::before').color"
            assert contrast(hexadecimal(tab.value(arrow)), colour_behind(tab, f"{place} .helps li")) >= 3
            tab.screenshot(pictures / f"help-{place.strip('.#')}-{scheme}.png")
        assert tab.value("document.querySelectorAll('img, script:not([src])').length") == 0
        check_is_well_behaved(tab, url)


def hexadecimal(colour: str) -> str:
    """Return a computed colour without transparency, `rgb(1, 2, 3)`, as a style sheet writes it."""
    red, green, blue = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour).groups()  # type: ignore[union-attr]
    return f"#{int(red):02x}{int(green):02x}{int(blue):02x}"


def colour_of(tab: Browser, place: str) -> str:
    return hexadecimal(tab.value(f"getComputedStyle(document.querySelector({json.dumps(place)})).color"))


def colour_behind(tab: Browser, place: str) -> str:
    """Return the background that is seen behind an element: the nearest one that is not transparent."""
    return hexadecimal(
        tab.value(
            f"(() => {{ let each = document.querySelector({json.dumps(place)}); let found = 'rgba(0, 0, 0, 0)';"
            " for (; each && found === 'rgba(0, 0, 0, 0)'; each = each.parentElement)"
            " found = getComputedStyle(each).backgroundColor;"
            " return found; })()"
        )
    )


def test_what_containers_use_is_shown_in_the_drawer_and_a_missing_exporter_is_named(
    tab: Browser, pictures: Path
) -> None:
    uses = {"main": [{"gpu": 1, "processes": 2, "memory_bytes": 3 << 30, "sm_ratio": 0.4}, {"gpu": 0}]}
    pods = [{"namespace": "default", "pod": MARKUP, "containers": uses}]
    unowned = [{"gpu": 2, "processes": 3, "memory_bytes": 1 << 30, "busy_ratio": 0.97}, {"gpu": 3, "processes": 0}]
    answers = {"n": json.dumps({"node": "n", "driver": True, "pods": pods, "unowned": unowned}).encode()}

    def read_of(node_name: str) -> bytes:
        if node_name not in answers:
            raise TemporaryError("it hangs")
        return answers[node_name]

    cluster = used_by_markup()
    slices = [*cluster.watched.slices, pool_slice("other", machine("four", blocks(2, 2, inside="NV12", outside="SYS")))]
    cluster.watched = Watched((node("n"), node("other")), slices, cluster.watched.claims)
    cluster.use = NodeUse(lambda name: name, read_of, SystemClock())
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        open_live(tab, f"{url}#/fleet?open=node%2Fn")
        tab.wait_for("document.querySelectorAll('#use tbody tr').length === 3")
        shown = tab.value("[...document.querySelectorAll('#use tbody tr')].map((row) => row.innerText.split('\\t'))")
        assert shown.pop() == ["GPU2", "no container has it", "97 % busy", "1.0 GiB", "3"]
        assert [row[0] for row in shown] == ["GPU0", "GPU1"]
        assert [row[2:] for row in shown] == [
            ["main", "not reported", "not reported", "not reported"],
            ["main", "40 %", "3.0 GiB", "2"],
        ]
        assert tab.value("[...document.querySelectorAll('.gpu:has(.at-work)')].map((box) => box.dataset.gpu)") == ["2"]
        tab.screenshot(pictures / "use.png")
        answers["n"] = json.dumps({"node": "n", "driver": True, "pods": pods, "unowned": []}).encode()
        tab.wait_for("document.querySelectorAll('.at-work').length === 0")
        go(tab, "#/fleet?open=node%2Fother")
        tab.wait_for("document.querySelector('#use p')?.textContent === 'no figures from node other: it hangs'")
        assert tab.value("document.querySelectorAll('#drawer .gpu').length") == 4, "nothing else breaks"
        check_is_well_behaved(tab, url)


def test_an_exporter_that_hangs_holds_up_nothing_else_on_the_page(tab: Browser) -> None:
    answers = threading.Event()

    def read_of(node_name: str) -> bytes:
        assert answers.wait(TIMEOUT_S)
        return json.dumps({"node": node_name, "driver": True, "pods": []}).encode()

    cluster = PageCluster()
    cluster.watched = many_nodes(7, 4)
    cluster.use = NodeUse(lambda name: name, read_of, SystemClock())
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/#/fleet?open=node%2Fnode-0003")
        drawn(tab, "Node node-0003")
        cluster.watched = many_nodes(7, 4, "node-0003")
        tab.wait_for("document.querySelector('#drawer .gpu.taken') !== null")
        asked = [each for each in tab.requests if "/api/use" in each]
        assert [each.partition("=")[2] for each in asked] == ["node-0003"], "one question at a time"
        answers.set()
        tab.wait_for("document.querySelector('#use p')?.textContent === 'No container has a GPU of it.'")


FRAMES = """new Promise((done) => {
  const frames = [];
  let last = performance.now();
  scrollTo(0, 0);
  requestAnimationFrame(function step(now) {
    frames.push(now - last);
    last = now;
    scrollBy(0, 60);
    if (frames.length < 121) requestAnimationFrame(step); else done(frames.slice(1).sort((a, b) => a - b));
  });
})"""
"""Milliseconds of 120 frames in which the page is scrolled, the shortest first."""


def many_waiting(count: int, of_a_deployment: int) -> tuple[tuple[WaitingPod, ...], dict[str, Pod]]:
    """Return pods of Deployments that wait, and the pods by key."""
    busy = Reason("with 4 or more GPUs, fewer than 4 of them free", 4_990, nodes=("node-0000", "node-0001"))
    why = Reasons(Unsatisfied(5_000, (busy, Reason("cordoned", 10, nodes=("node-0002",)))), HELPS)
    waits, pods = [], {}
    for number in range(count):
        owner = f"web-{number // of_a_deployment:03}"
        name = f"{owner}-7f-{number:04}"
        metadata = ObjectMeta(
            name,
            "default",
            owner_references=[OwnerReference(uid="u", kind="ReplicaSet", name=f"{owner}-7f", controller=True)],
            labels={"pod-template-hash": "7f"},
        )
        waits.append(WaitingPod("default", name, "no-node", why, 5.0))
        pods[f"default/{name}"] = msgspec.structs.replace(pod(name), metadata=metadata)
    return tuple(waits), pods


def test_five_thousand_nodes_and_waiting_pods_are_painted_and_scrolled_with_few_elements(
    tab: Browser, pictures: Path
) -> None:
    cluster = PageCluster()
    waits, cluster.pods = many_waiting(5_000, 20)
    cluster.watched = dataclasses.replace(many_nodes(5_000, 8, failed={"node-2500": "gpu-lost"}), waiting=waits)
    shown = f"{SUM} === '5,000 nodes · 39,999 of 40,000 GPUs free · 1 failed'"
    elements = "document.querySelectorAll('*').length"
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        tab.open(url, width=1440, height=900)
        # The first snapshot takes two seconds of a core, and rests as long as it works.
        tab.wait_for(shown, within_s=5 * TIMEOUT_S)
        tab.errors.clear()  # of answers that came too early for the first snapshot
        for _ in range(5):
            tab.open(url, width=1440, height=900)
            tab.wait_for(shown)
            paint, nodes = tab.value(
                "[performance.getEntriesByName('first-contentful-paint')[0], performance.getEntriesByName('shown')[0]]"
                ".map((each) => each.startTime)"
            )
            sys.stdout.write(f"5,000 nodes: first paint after {paint:.0f} ms, all nodes after {nodes:.0f} ms\n")
        size = tab.value("fetch('/api/fleet').then((a) => a.text()).then((text) => text.length)")
        sys.stdout.write(f"5,000 nodes: the fleet has {size / 1024:.0f} KiB\n")
        assert size < 1 << 20
        assert tab.value(elements) < 3_000
        for fragment in ("#/fleet", "#/fleet?as=list", "#/waiting"):
            go(tab, fragment)
            if fragment == "#/waiting":
                tab.wait_for("document.querySelectorAll('.card').length === 200")
                assert "50 more workloads" in text_of(tab, "#waiting .head")
            frames = tab.value(FRAMES)
            sys.stdout.write(
                f"{fragment}: a frame takes {frames[60]:.0f} ms, p95 {frames[114]:.0f} ms, at most {frames[-1]:.0f} ms;"
                f" {tab.value(elements):,} elements\n"
            )
            tab.value("scrollTo(0, 1e9); 0")
            tab.wait_for("scrollY > 1000")
            assert tab.value(elements) < (10_000 if fragment == "#/waiting" else 3_000)
            tab.value("scrollTo(0, 0); 0")
            tab.wait_for("scrollY === 0")
            name = re.sub("[^a-z]+", "-", fragment).strip("-")
            tab.screenshot(pictures / f"many-{name}.png", of="body", size=(1440, 900))
        check_is_well_behaved(tab, url)


def test_nothing_moves_by_itself_while_nodes_change(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(1_000, 8)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/#/fleet?group=none&free=8")
        tab.value("scrollTo(0, 300); 0")
        tab.wait_for("scrollY === 300")
        shown = int(tab.value("document.body.dataset.shown"))
        cluster.watched = many_nodes(1_000, 8, *(f"node-{number:04}" for number in range(100)))
        tab.wait_for(f"Number(document.body.dataset.shown) > {shown}")
        tab.wait_for("document.querySelector('#numbers').textContent.startsWith('7,900 of 8,000')")
        assert tab.value("scrollY") == 300
        # A node that no longer matches stays until the reader touches the filters. What is free of it is counted.
        tab.wait_for(f"{SUM} === '1,000 nodes · 7,900 of 8,000 GPUs free'")
        go(tab, "#/fleet?group=none")
        go(tab, "#/fleet?group=none&free=8")
        tab.wait_for(f"{SUM} === '900 nodes · 7,200 of 7,200 GPUs free'")
        go(tab, "#/fleet")
        heading = "document.querySelector('#fleet h3 span')?.textContent"
        tab.wait_for(f"{heading} === '1,000 nodes · 7,900 of 8,000 GPUs free'")
        cluster.watched = many_nodes(1_000, 8, "node-0000")
        tab.wait_for(f"{heading} === '1,000 nodes · 7,999 of 8,000 GPUs free'")


def test_a_refresh_that_fails_is_shown_and_made_up_for(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(1, 4)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/")
        tab.value(
            "window.real = window.fetch;"
            "window.fetch = (path, how) =>"
            " path.startsWith('/api/summary') ? Promise.reject(new Error('away')) : real(path, how); 0"
        )
        cluster.watched = many_nodes(1, 4, "node-0000")
        tab.wait_for("document.getElementById('live').textContent === 'not live: away'")
        tab.value("window.fetch = window.real; 0")
        tab.wait_for(LIVE)
        tab.wait_for("document.querySelector('#numbers').textContent.startsWith('3 of 4')")


def test_a_tab_that_nobody_sees_gives_its_connection_back_and_catches_up(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(2, 4)
    seen = "window.away = {}; window.dispatchEvent(new Event('visibilitychange')); 0"
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        open_live(tab, f"http://127.0.0.1:{endpoint.port}/")
        tab.value("Object.defineProperty(document, 'hidden', { get: () => window.away }); 0")
        tab.value(seen.format("true"))
        wait_for(lambda: not endpoint._followers.any(), "the end of the stream", TIMEOUT_S)
        tab.wait_for("document.getElementById('live').textContent === 'connecting again'")
        asked, looks = len(tab.requests), cluster.looks
        cluster.watched = many_nodes(2, 4, "node-0000")
        wait_for(lambda: cluster.looks > looks + 1, "two looks at what changed", TIMEOUT_S)
        tab.wait_for("document.querySelector('#numbers').textContent.startsWith('8 of 8')")
        assert len(tab.requests) == asked, "it asks for nothing"
        tab.value(seen.format("false"))
        tab.wait_for(LIVE)
        tab.wait_for("document.querySelector('#numbers').textContent.startsWith('7 of 8')")


def test_whoever_is_signed_out_leaves_nothing_behind_and_signs_in_once(tab: Browser) -> None:
    cluster, reviews = used_by_markup(), ScriptedReviews()
    reviews.tokens, reviews.rights = {"of-admin": Identity("admin")}, {("admin", "")}
    with serving_page(cluster, reviews) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/#/fleet?open=node%2Fn")
        sign_in = (
            "document.getElementById('token').value = 'of-admin'; document.getElementById('login').requestSubmit(); 0"
        )
        tab.wait_for("!document.getElementById('login').hidden")
        tab.value(sign_in)
        tab.wait_for(LIVE)
        drawn(tab, "Node n")
        tab.value("window.real = window.fetch; window.fetch = async () => new Response('gone', { status: 401 }); 0")
        cluster.watched = Watched((), cluster.watched.slices, cluster.watched.claims)
        tab.wait_for("!document.getElementById('login').hidden")
        for word in ("default", "img src", "Node n"):
            assert word not in str(tab.value("document.body.textContent")), word
        assert tab.value("document.getElementById('drawer').hidden")
        tab.value("window.fetch = window.real; 0")
        before = len([each for each in tab.requests if each.endswith("/api/events")])
        tab.value(sign_in + ";" + sign_in + ";" + sign_in)
        tab.wait_for(LIVE)
        cluster.watched = Watched((), (), ())
        tab.wait_for("document.querySelector('#fleet .empty h3')?.textContent.startsWith('No node publishes')")
        assert len([each for each in tab.requests if each.endswith("/api/events")]) == before + 1


def test_a_pod_that_waits_on_the_page_comes_to_run_on_it(tab: Browser) -> None:
    with DemoCluster(NODES[:1]) as cluster:
        create_class(cluster.client)
        gpus = 7 if NODES[0].machine == "7-gpu-box" else 8
        create_template(cluster.client, "all", gpus)
        url = wait_for(cluster.page_url, "the page", TIMEOUT_S)
        open_live(tab, url)
        create_pod(cluster.client, "first", template="all")
        tab.wait_for(f"document.querySelector('#numbers').textContent.startsWith('0 of {gpus}')")
        create_pod(cluster.client, "second", template="all")
        tab.wait_for("document.getElementById('n-waiting').textContent === '1'")  # until then there is no such pod
        go(tab, f"#/waiting?open=pod%2F{NAMESPACE}%2Fsecond")
        tab.wait_for("document.getElementById('pod-state')?.textContent.startsWith('It waits')")
        cluster.client.delete(Pod, "first", namespace=NAMESPACE)
        tab.wait_for("document.getElementById('pod-state')?.textContent.startsWith('It runs')")
        check_is_well_behaved(tab, url)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.1, 1.4.3."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


INKS = ("text", "quiet", "link", "accent", "free-line", "taken", "part", "bad", "closed", "edge", "focus")
PAPERS = ("back", "panel", "soft", "bad-soft", "warn")
"""Names of the style sheet's colours."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_shapes_have_the_contrast_that_wcag_aa_asks_for(tab: Browser, scheme: str) -> None:
    with serving_page(PageCluster(), ScriptedReviews(), is_open=True) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/")
        tab.prefer(scheme)
        style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        names = [*INKS, *PAPERS]
        found: dict[str, Any] = {name: tab.value(style.format(name)) for name in names}
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in found.values()), found
        texts = [(ink, paper) for ink in ("text", "quiet", "link") for paper in ("back", "panel")]
        texts += [("text", "soft"), ("quiet", "soft"), ("text", "bad-soft"), ("text", "warn"), ("panel", "accent")]
        shapes = [(ink, "panel") for ink in ("free-line", "taken", "part", "bad", "closed", "edge", "focus", "accent")]
        low = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in texts}
        assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}
        low = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in shapes}
        assert {pair: ratio for pair, ratio in low.items() if ratio < 3} == {}


@pytest.mark.parametrize("width", [320, 390, 720, 1100])
def test_nothing_scrolls_sideways(tab: Browser, width: int) -> None:
    with serving_page(used_by_markup(), ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        for fragment in ("#/fleet", "#/fleet?as=list", "#/waiting", "#/teams", "#/fleet?open=node%2Fn"):
            open_live(tab, url + fragment, width=width, height=900)
            tab.wait_for("document.body.dataset.shown !== undefined")
            assert tab.value("document.documentElement.scrollWidth") <= width, fragment
