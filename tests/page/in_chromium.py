"""The page in a real headless Chromium. Run by `make page-test`, which fails where there is no Chromium.

PAGE_SCREENSHOTS=folder keeps what it looked like, in light and dark.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.adapters.reviews import Identity
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.views.snapshot import WaitingPod, Watched
from dracaena.demo.cluster import DemoCluster
from dracaena.demo.scenario import NODES, WAITING, load_manifests
from dracaena.process.clock import SystemClock
from page.chromium import TIMEOUT_S, Browser, browser
from support.allocation import allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice
from support.embedded_cluster import apply_in_order, wait_settled
from support.kube import wait_for
from support.page import PageCluster, serving_page
from support.reviews import ScriptedReviews
from support.workload import NAMESPACE, create_class, create_pod, create_template

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>\n&lt;b&gt;'


@pytest.fixture
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("PAGE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def named(place: str, pod_name: str) -> str:
    """Return an expression that is true when a pod is named there."""
    key = f"{NAMESPACE}/{pod_name}"
    return f"[...document.querySelectorAll('{place} button')].some((each) => each.textContent === '{key}')"


def check_is_well_behaved(tab: Browser, url: str) -> None:
    assert tab.errors == []
    assert tab.dialogs == []
    assert [each for each in tab.requests if not each.startswith(url)] == []


def test_the_demo_cluster_in_light_and_dark_and_a_pod_that_comes_to_run(tab: Browser, pictures: Path) -> None:
    with DemoCluster(NODES) as cluster:
        manifests = load_manifests()
        apply_in_order(cluster, manifests)
        pods = sum(document.get("kind") == "Pod" for manifest in manifests for document in manifest.documents)
        wait_settled(cluster, WAITING, pods=pods)
        url = cluster.page_url()
        assert url is not None
        tab.open(url)
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        waiting = sorted(f"{NAMESPACE}/{name}" for name in WAITING)
        tab.wait_for(f"[...document.querySelectorAll('#waiting button')].length === {len(waiting)}")
        shown = tab.value("[...document.querySelectorAll('#waiting button')].map((each) => each.textContent)")
        assert sorted(shown) == waiting
        tab.value("document.querySelectorAll('details.node').forEach((each) => { each.open = true; })")
        tab.wait_for("document.querySelectorAll('.gpu').length > 20")
        for scheme in ("light", "dark"):
            tab.prefer(scheme)
            tab.screenshot(pictures / f"cluster-{scheme}.png")
        check_is_well_behaved(tab, url)


def used_by_markup() -> PageCluster:
    four = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name=MARKUP)
    held = holding(claim("c"), "n", device_name(four, 1))
    assert held.status.allocation is not None
    document = msgspec.to_builtins(held.status.allocation)
    made = PageCluster()
    claims = (allocated(held, document, pod(MARKUP)),)
    waits = (WaitingPod("default", MARKUP, "unsatisfiable", f"0/1 nodes fit: {MARKUP}", 5.0),)
    made.watched = Watched((node("n"),), (pool_slice("n", four),), claims, waits)
    made.pods = {f"default/{MARKUP}": pod(MARKUP)}
    return made


def test_names_made_of_markup_are_shown_as_they_are_and_the_keyboard_reaches_everything(
    tab: Browser, pictures: Path
) -> None:
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
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.value("document.querySelector('details.node > summary').focus()")
        tab.press("Enter", 13)
        tab.wait_for("document.querySelectorAll('.gpu').length === 4")
        names = tab.value("[...document.querySelectorAll('button.name')].map((each) => each.textContent)")
        assert names == [f"default/{MARKUP}"] * 2
        tab.value("document.querySelector('#waiting button').focus()")
        tab.press("Enter", 13)
        tab.wait_for("document.getElementById('pod').open && !!document.getElementById('pod-state')")
        tab.screenshot(pictures / "pod.png")
        assert tab.value("document.getElementById('pod-title').textContent") == f"default/{MARKUP}"
        tab.press("Escape", 27)
        tab.wait_for("!document.getElementById('pod').open")
        assert tab.value("document.querySelectorAll('img, script:not([src]), b b').length") == 0
        check_is_well_behaved(tab, url)


def test_what_containers_use_is_shown_below_the_node_and_a_missing_exporter_is_told(
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
        tab.open(url)
        tab.wait_for("document.querySelectorAll('details.node').length === 2")
        tab.value("document.querySelectorAll('details.node').forEach((each) => { each.open = true; })")
        tab.wait_for("document.querySelectorAll('[data-node=n] .use tbody tr').length === 3")
        shown = tab.value("[...document.querySelectorAll('.use tbody tr')].map((row) => row.innerText.split('\\t'))")
        assert shown.pop() == ["GPU2", "no container has it", "97 % busy", "1.0 GiB", "3"]
        assert [row[0] for row in shown] == ["GPU0", "GPU1"]
        assert [row[2:] for row in shown] == [
            ["main", "not told", "not told", "not told"],
            ["main", "40 %", "3.0 GiB", "2"],
        ]
        marked = "[...document.querySelectorAll('.gpu.at-work')].map((box) => box.innerText.split('\\n'))"
        ((first, *_, last),) = tab.value(marked)
        assert first.startswith("GPU2 ")
        assert last == "at work, and no container has it"
        tab.screenshot(pictures / "use.png")
        answers["n"] = json.dumps({"node": "n", "driver": True, "pods": pods, "unowned": []}).encode()
        tab.wait_for("document.querySelectorAll('.at-work').length === 0")
        tab.wait_for("!!document.querySelector('[data-node=other] .use p')")
        told = tab.value("document.querySelector('[data-node=other] .use p').textContent")
        assert told == "no figures from node other: it hangs"
        assert tab.value("document.querySelectorAll('[data-node=other] .gpu').length") == 4, "nothing else breaks"
        check_is_well_behaved(tab, url)


def many_nodes(count: int, gpus: int, *held: str) -> Watched:
    one = machine("one", blocks(gpus, inside="NV18", outside="SYS"), product_name="NVIDIA H100 80GB HBM3")
    names = [f"node-{number:04}" for number in range(count)]
    page = pool_slice("n", one)

    def of(name: str) -> ResourceSlice:
        pool = msgspec.structs.replace(page.spec.pool, name=name)
        meta = msgspec.structs.replace(page.metadata, name=name)
        return msgspec.structs.replace(
            page, metadata=meta, spec=msgspec.structs.replace(page.spec, node_name=name, pool=pool)
        )

    claims = [holding(claim(f"of-{name}"), name, device_name(one, 0)) for name in held]
    return Watched([node(name) for name in names], [of(name) for name in names], claims)


def test_exporters_that_hang_hold_up_nothing_else_on_the_page(tab: Browser) -> None:
    answers = threading.Event()

    def read_of(node_name: str) -> bytes:
        assert answers.wait(TIMEOUT_S)
        return json.dumps({"node": node_name, "driver": True, "pods": []}).encode()

    cluster = PageCluster()
    cluster.watched = many_nodes(7, 4)  # a browser has six connections
    cluster.use = NodeUse(lambda name: name, read_of, SystemClock())
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/")
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.value("document.querySelectorAll('details.node').forEach((each) => { each.open = true; })")
        tab.wait_for("document.querySelectorAll('.gpu').length === 28")
        tab.value("window.began = performance.now(); 0")
        tab.wait_for("performance.now() > began + 6000")  # the time for another round has come
        cluster.watched = many_nodes(7, 4, "node-0003")
        tab.wait_for("document.querySelector('[data-node=node-0003] .sum').textContent === '3 of 4 free'")
        tab.wait_for("document.querySelector('[data-node=node-0003] .gpu.taken') !== null")
        asked = [each for each in tab.requests if "/api/use" in each]
        assert [each.partition("=")[2] for each in asked] == ["node-0000"]
        answers.set()
        tab.wait_for("document.querySelectorAll('.use p').length === 7")


def test_five_thousand_nodes_are_painted_within_a_second_of_the_summary(tab: Browser, pictures: Path) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(5_000, 8)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/"
        tab.open(url)
        tab.wait_for("document.querySelectorAll('details.node').length === 100")
        tab.errors = [each for each in tab.errors if "503" not in each]  # a machine that needs long for the first
        painted_ms = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        sys.stdout.write(f"5,000 nodes: first paint after {painted_ms:.0f} ms\n")
        bytes_ = tab.value("fetch('/api/summary').then((a) => a.text()).then((text) => text.length)")
        sys.stdout.write(f"5,000 nodes: the summary has {bytes_ / 1024:.0f} KiB\n")
        assert bytes_ < 1 << 18
        tab.screenshot(pictures / "many.png")
        check_is_well_behaved(tab, url)


def test_nodes_behind_the_first_are_kept_up_to_date_too(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(250, 4)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/")
        for wanted in (100, 200, 250):
            tab.wait_for(f"document.querySelectorAll('details.node').length === {wanted}")
            tab.value("document.getElementById('more').click()")
        cluster.watched = many_nodes(250, 4, "node-0150", "node-0249")
        for name in ("node-0150", "node-0249"):
            tab.wait_for(f"document.querySelector('[data-node={name}] .sum').textContent === '3 of 4 free'")
        assert tab.value("document.querySelector('[data-node=node-0248] .sum').textContent") == "4 of 4 free"


def test_a_refresh_that_fails_is_shown_and_made_up_for(tab: Browser) -> None:
    cluster = PageCluster()
    cluster.watched = many_nodes(1, 4)
    with serving_page(cluster, ScriptedReviews(), is_open=True) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/")
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.value(
            "window.real = window.fetch;"
            "window.fetch = (path, how) =>"
            " path.startsWith('/api/summary') ? Promise.reject(new Error('away')) : real(path, how); 0"
        )
        cluster.watched = many_nodes(1, 4, "node-0000")
        tab.wait_for("document.getElementById('live').textContent === 'not live: away'")
        tab.value("window.fetch = window.real; 0")
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.wait_for("document.querySelector('.sum').textContent === '3 of 4 free'")


def test_whoever_is_signed_out_leaves_nothing_behind_and_signs_in_once(tab: Browser) -> None:
    cluster, reviews = used_by_markup(), ScriptedReviews()
    reviews.tokens, reviews.rights = {"of-admin": Identity("admin")}, {("admin", "")}
    with serving_page(cluster, reviews) as endpoint:
        tab.open(f"http://127.0.0.1:{endpoint.port}/")
        sign_in = (
            "document.getElementById('token').value = 'of-admin'; document.getElementById('login').requestSubmit(); 0"
        )
        tab.wait_for("!document.getElementById('login').hidden")
        tab.value(sign_in)
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.value("document.querySelector('#waiting button').click()")
        tab.wait_for("document.getElementById('pod').open && !!document.getElementById('pod-state')")
        tab.value("window.real = window.fetch; window.fetch = async () => new Response('gone', { status: 401 }); 0")
        cluster.watched = Watched((), cluster.watched.slices, cluster.watched.claims)
        tab.wait_for("!document.getElementById('login').hidden")
        assert not tab.value("document.getElementById('pod').open")
        assert tab.value("document.querySelectorAll('button.name, details.node, #pod-state').length") == 0
        tab.value("window.fetch = window.real; 0")
        before = len([each for each in tab.requests if each.endswith("/api/events")])
        tab.value(sign_in + ";" + sign_in + ";" + sign_in)
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        cluster.watched = Watched((), (), ())
        tab.wait_for("document.querySelectorAll('details.node').length === 0 && document.body.dataset.shown === '3'")
        assert len([each for each in tab.requests if each.endswith("/api/events")]) == before + 1


def test_a_pod_that_waits_on_the_page_comes_to_run_on_it(tab: Browser) -> None:
    with DemoCluster(NODES[:1]) as cluster:
        create_class(cluster.client)
        gpus = 7 if NODES[0].machine == "7-gpu-box" else 8
        create_template(cluster.client, "all", gpus)
        url = wait_for(cluster.page_url, "the page", TIMEOUT_S)
        tab.open(url)
        create_pod(cluster.client, "first", template="all")
        tab.wait_for("document.querySelectorAll('details.node').length === 1")
        tab.value("document.querySelector('details.node').open = true")
        tab.wait_for(named(".gpu", "first"))
        create_pod(cluster.client, "second", template="all")
        tab.wait_for(named("#waiting", "second"))
        tab.value("document.querySelector('#waiting button').click()")
        tab.wait_for("document.getElementById('pod-state')?.textContent.startsWith('It waits')")
        cluster.client.delete(Pod, "first", namespace=NAMESPACE)
        tab.wait_for("document.getElementById('pod-state')?.textContent.startsWith('It runs')")
        check_is_well_behaved(tab, url)
