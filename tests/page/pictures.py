"""Pictures for the docs: `make pictures`. All are taken in a real headless Chromium.

The fleet and who waits are those of 245 made-up nodes (page.made_up_fleet), a node and a pod those of the demo's
cluster, whose machines are recorded. The dashboards are drawn by ourselves, for Grafana is no program that this
repository builds: their queries are answered by a real Prometheus, which is filled with three made-up hours.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import structlog

from dracaena.demo.cluster import DemoCluster
from dracaena.demo.scenario import NODES, WAITING, load_manifests
from page.chromium import Browser, browser
from page.drawn_dashboard import WIDTH, CannotDrawError, Source, draw
from page.filled_prometheus import FilledPrometheus, filled_prometheus
from page.made_up_fleet import OF_THE_DEPLOYMENT, OTHERS, MadeUpFleet
from page.made_up_hours import END, SHOWN, write_scrapes
from support.dashboards import NAMES, dashboard
from support.embedded_cluster import apply_in_order, wait_settled
from support.page import serving_page
from support.reviews import ScriptedReviews

MOST_BYTES: Final = 250_000
"""Of a picture: whoever clones the repository gets all that there ever were."""

NODE: Final = "h100-pcie"
POD: Final = "default/finetune"

CHOSEN: Final = {"node": {"node": "h100-a"}, "job": {"namespace": "research", "pod": "pretrain-0"}}
"""What the viewer of a dashboard has chosen; of the other variables all."""


def main(folder: Path) -> int:
    """Write the pictures into a folder and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # made-up GPUs get lost
    with browser() as tab:
        try:
            take_dashboards(tab, folder)
        except CannotDrawError as error:
            sys.stderr.write(f"pictures: {error}\n")
            return 1
    with serving_page(MadeUpFleet().page(), ScriptedReviews(), is_open=True) as endpoint, browser() as tab:
        open_page(tab, f"http://127.0.0.1:{endpoint.port}/")
        take_fleet(tab, folder)
    with DemoCluster(NODES) as cluster, browser() as tab:
        manifests = load_manifests()
        apply_in_order(cluster, manifests)
        pods = sum(document.get("kind") == "Pod" for manifest in manifests for document in manifest.documents)
        wait_settled(cluster, WAITING, pods=pods)
        url = cluster.page_url()
        assert url is not None
        open_page(tab, url)
        take_drawers(tab, folder)
    too_large = [path.name for path in sorted(folder.glob("*.png")) if path.stat().st_size > MOST_BYTES]
    if too_large:
        sys.stderr.write(f"pictures: {', '.join(too_large)} of {folder} have more than {MOST_BYTES} bytes\n")
    return 1 if too_large else 0


def open_page(tab: Browser, url: str) -> None:
    """Open the page as all pictures show it: sizes are fixed, so that a picture replaces another without moving the
    text around it."""
    tab.open(url, width=WIDTH, height=1000)
    tab.prefer("light", motion="reduce")
    tab.wait_for("document.getElementById('live').textContent === 'live'")


def take_fleet(tab: Browser, folder: Path) -> None:
    """Take all nodes, and who waits."""
    tab.wait_for(f"document.getElementById('n-waiting').textContent === '{OF_THE_DEPLOYMENT + OTHERS}'")
    free = "document.querySelector('#numbers b').textContent"
    tab.wait_for(f"document.querySelector('#bar .sum').textContent.includes({free})")
    tab.screenshot(folder / "page.png", of="body", size=(WIDTH, 1000))
    show(tab, "#/waiting", "document.querySelectorAll('.card').length > 0")
    tab.screenshot(folder / "waiting.png", of="#waiting", size=(WIDTH, 900))


def take_drawers(tab: Browser, folder: Path) -> None:
    """Take a node and a pod."""
    tab.wait_for(f"document.getElementById('n-waiting').textContent === '{len(WAITING)}'")  # it shows what has settled
    show(tab, f"#/fleet?open=node%2F{NODE}", "document.querySelectorAll('#drawer .gpu').length === 8")
    tab.screenshot(folder / "node.png", of="#drawer", size=(481, 890))
    show(tab, f"#/fleet?open=pod%2F{POD.replace('/', '%2F')}", "!!document.getElementById('pod-state')")
    tab.screenshot(folder / "pod.png", of="#drawer", size=(481, 400))


def show(tab: Browser, fragment: str, shown: str) -> None:
    """Follow a link within the page, and wait until it shows what it leads to."""
    tab.value(f"location.hash = '{fragment}'; 0")
    tab.wait_for(shown)


def take_dashboards(tab: Browser, folder: Path) -> None:
    """Take each dashboard, drawn. Raises CannotDrawError where a panel has no data."""
    with tempfile.TemporaryDirectory() as files:
        samples = Path(files) / "samples.txt"
        write_scrapes(samples)
        begin_s, end_s = (END - SHOWN).timestamp(), END.timestamp()
        with filled_prometheus(samples, Path(files), begin_s=begin_s, end_s=end_s) as server:
            for name in NAMES:
                made = dashboard(name)
                drawing = Path(files) / f"{name}.html"
                source = Source(begin_s, end_s, server.ask)
                subtitle = ", ".join(f"{variable} {value}" for variable, value in CHOSEN.get(name, {}).items())
                page = draw(made, chosen(name, made, server), source, subtitle=subtitle)
                drawing.write_text(page, encoding="utf-8")
                tab.open(drawing.as_uri(), width=WIDTH)
                tab.screenshot(folder / f"dashboard-{name}.png", of="body")


def chosen(name: str, made: Any, server: FilledPrometheus) -> dict[str, str]:
    """Return a value for each variable of a dashboard. Raises CannotDrawError where it offers none to choose."""
    values: dict[str, str] = {}
    for variable in made["templating"]["list"]:
        if variable["type"] != "query":
            continue
        offered = server.label_values(variable["query"]["query"].replace("$namespace", ".+"))
        wanted = CHOSEN.get(name, {}).get(variable["name"])
        if not offered or wanted not in (None, *offered):
            raise CannotDrawError(f"{name}: the variable {variable['name']} offers {offered}, not {wanted}")
        values[variable["name"]] = wanted or "|".join(offered)
    return values


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
