"""Check the built site: each link and picture leads to a file and an anchor of it, and nothing loads from elsewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

SITE = Path(__file__).resolve().parents[1] / "dist" / "site"
NOT_LOADED = frozenset({"canonical", "alternate", "next", "prev"})
"""Relations of a `link` element that only name another page."""


class Page(HTMLParser):
    """What a page loads, where it leads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and anchors of one element."""
        named = {key: value for key, value in attrs if value}
        self.anchors.update(named[key] for key in ("id", "name") if key in named)
        if "src" in named:
            self.loaded.append(named["src"])
        if "href" in named:
            is_loaded = tag == "link" and not NOT_LOADED & set(named.get("rel", "").split())
            (self.loaded if is_loaded else self.links).append(named["href"])


def main() -> int:
    """Print what is wrong and return 1, 0 if nothing is."""
    pages = read(SITE)
    found = faults(SITE, pages)
    sys.stdout.writelines(f"site: {fault}\n" for fault in found)
    sys.stdout.write(f"site: {len(pages)} pages in {SITE}, {len(found)} faults\n")
    return int(bool(found) or not pages)


def read(site: Path) -> dict[Path, Page]:
    """Return each page by its file; not the page for missing ones, which is served at any address."""
    return {
        path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html")) if path.name != "404.html"
    }


def faults(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Return what is wrong with the pages of a site."""
    found = []
    for path, page in pages.items():
        here = "/" + path.relative_to(site).as_posix()
        found += [f"{here}: loads {each}" for each in page.loaded if _is_elsewhere(each)]
        for each in (*page.loaded, *page.links):
            if _is_elsewhere(each) or each.startswith(("mailto:", "data:", "javascript:")):
                continue
            address, anchor = urldefrag(urljoin(here, each))
            target = site / unquote(address).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{here}: {each} leads nowhere")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                found.append(f"{here}: {each} has no such anchor")
    return found


def _is_elsewhere(address: str) -> bool:
    return "://" in address or address.startswith("//")


if __name__ == "__main__":
    sys.exit(main())
