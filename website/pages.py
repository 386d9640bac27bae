"""Gather the pages of the site in one folder, and find what is wrong with them before they are built.

Run by `make site`. In the repository every link works as it is written. On the site docs/ is the root, so links between
docs/ and other pages change; a link to source keeps its text alone.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "dist" / "pages"
CONFIG = Path(__file__).with_name("mkdocs.yml")
PAGES = ("docs/**/*.md", "deploy/**/*.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINKED = ("docs/pictures/*", "docs/schemas/*", "deploy/**/*.yaml", "LICENSE")
"""Files that pages may show or link to, next to the pages themselves."""

_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_IN_NAV = re.compile(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", re.MULTILINE)
_RUN_TOGETHER = re.compile(r"^(?! *(?:[*|#-]|\d+\. |<!--)|  )\S.*\n(?=[*-] |\d+\. |\| )(.*)$", re.MULTILINE)
"""A list or table right below a line of text: GitHub shows one, the site shows a paragraph."""
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_FETCHED = re.compile(r"""!\[[^\]]*\]\((?:https?:)?//[^)]*\)|<(?:img|script|link|iframe|source|video)\b[^>]*//[^>]*>""")


def main() -> int:
    """Write the pages; return 1 and write nothing if one is wrong."""
    texts = read(ROOT)
    found = faults(ROOT, texts, CONFIG.read_text(encoding="utf-8"))
    sys.stderr.writelines(f"site: {fault}\n" for fault in found)
    if found:
        return 1
    shutil.rmtree(OUTPUT, ignore_errors=True)
    files = _files(ROOT)
    for path in files:
        target = OUTPUT / on_site(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    for page, text in texts.items():
        target = OUTPUT / on_site(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(moved(page, text, {*files, *texts}), encoding="utf-8")
    return 0


def read(root: Path) -> Mapping[str, str]:
    """Return the text of each page by its path in the repository."""
    paths = sorted({path for pattern in PAGES for path in root.glob(pattern)})
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def on_site(path: str) -> str:
    """Return the path on the site of a file of the repository."""
    return path.removeprefix("docs/")


def faults(root: Path, texts: Mapping[str, str], config: str) -> list[str]:
    """Return what is wrong: pages missing or repeated in the navigation, dead links, assets of other hosts."""
    named = Counter(_IN_NAV.findall(config.partition("\nnav:\n")[2]))
    pages = {on_site(page) for page in texts}
    found = [
        f"{page}: {named[page]} times in the navigation, expected once"
        for page in sorted(pages | set(named))
        if named[page] != 1
    ]
    found += [f"{page}: no such page, but the navigation has it" for page in sorted(set(named) - pages)]
    for page, text in texts.items():
        found += [f"{page}: {shown[0]} is fetched from another host" for shown in _FETCHED.finditer(_prose(text))]
        found += [f"{page}: no empty line before {first!r}" for first in _RUN_TOGETHER.findall(_prose(text))]
        for link in _links(text):
            target, anchor = _target(page, link), (link[4] or "")[1:]
            if not (root / target).exists():
                found.append(f"{page}: {link[3]} leads nowhere")
            elif anchor and target in texts and anchor not in anchors(texts[target]):
                found.append(f"{page}: {link[3]}{link[4]}: the page has no such heading")
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_prose(text)):
        plain = re.sub(r"[^\w\- ]", "", _LINK.sub(r"\2", heading).lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


def moved(page: str, text: str, files: AbstractSet[str]) -> str:
    """Return a page with its links as they are on a site that has these files of the repository."""

    def link(found: re.Match[str]) -> str:
        if not _is_local(found):
            return found[0]
        target = _target(page, found)
        for path in (target, posixpath.join(target, "README.md")):
            if path in files:
                there = posixpath.relpath(on_site(path), posixpath.dirname(on_site(page)) or ".")
                return f"{found[1]}[{found[2]}]({there}{found[4] or ''})"
        return found[2]

    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]  # between them is code
    return "".join(parts)


def _files(root: Path) -> list[str]:
    found = (path for pattern in LINKED for path in root.glob(pattern) if "templates" not in path.parts)
    return sorted(path.relative_to(root).as_posix() for path in found)


def _prose(text: str) -> str:
    return "".join(_FENCED.split(text)[::2])


def _links(text: str) -> Iterator[re.Match[str]]:
    return (found for found in _LINK.finditer(_prose(text)) if _is_local(found))


def _is_local(link: re.Match[str]) -> bool:
    return ":" not in link[3] and not link[3].startswith("//") and bool(link[3] or link[4])


def _target(page: str, link: re.Match[str]) -> str:
    """Return the path in the repository that a link of a page leads to: its own for an anchor alone."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link[3])) if link[3] else page


if __name__ == "__main__":
    sys.exit(main())
