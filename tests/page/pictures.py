"""Pictures of the page for the docs: `make pictures`. It shows the demo's cluster in a real headless Chromium.

The dashboards have none: only Grafana draws them, and it is no program that this repository builds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from dracaena.demo.cluster import DemoCluster
from dracaena.demo.scenario import NODES, WAITING, load_manifests
from page.chromium import Browser, browser
from support.embedded_cluster import apply_in_order, wait_settled

WIDTH: Final = 1100
"""CSS pixels of the window: what a page of docs shows without making it smaller is about 900."""

MOST_BYTES: Final = 150_000
"""Of a picture: whoever clones the repository gets all that there ever were."""

NODE: Final = "h100-pcie"
POD: Final = "default/finetune"


def main(folder: Path) -> int:
    """Write the pictures into a folder and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    with DemoCluster(NODES) as cluster, browser() as tab:
        manifests = load_manifests()
        apply_in_order(cluster, manifests)
        pods = sum(document.get("kind") == "Pod" for manifest in manifests for document in manifest.documents)
        wait_settled(cluster, WAITING, pods=pods)
        url = cluster.page_url()
        assert url is not None
        tab.open(url, width=WIDTH, height=1000)
        tab.prefer("light")
        tab.wait_for("document.getElementById('live').textContent === 'live'")
        tab.wait_for(f"document.querySelectorAll('#waiting button').length === {len(WAITING)}")
        take(tab, folder)
    too_large = [path.name for path in sorted(folder.glob("*.png")) if path.stat().st_size > MOST_BYTES]
    if too_large:
        sys.stderr.write(f"pictures: {', '.join(too_large)} of {folder} have more than {MOST_BYTES} bytes\n")
    return 1 if too_large else 0


def take(tab: Browser, folder: Path) -> None:
    """Take all of them: sizes are fixed, so that a picture replaces another without moving the text around it."""
    tab.screenshot(folder / "page.png", of="body", size=(WIDTH, 940))
    tab.value(f"document.querySelector('[data-node={NODE}]').open = true")
    tab.wait_for(f"document.querySelectorAll('[data-node={NODE}] .gpu').length === 8")
    tab.screenshot(folder / "node.png", of=f"[data-node={NODE}]", size=(1024, 680))
    tab.value(f"[...document.querySelectorAll('.gpu button')].find((each) => each.textContent === '{POD}').click()")
    tab.wait_for("document.getElementById('pod').open && !!document.getElementById('pod-state')")
    tab.screenshot(folder / "pod.png", of="#pod", size=(830, 720))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
