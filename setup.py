"""Refuse to build when a linked package is missing; all else stands in pyproject.toml.

The import root src/dracaena holds relative links to the top-level folders. A checkout without working links
(an archive tool or a file system that drops them) would otherwise build an empty wheel without a word.
"""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent / "src" / "dracaena"
LINKED = (
    *("api", "cel", "cli", "controller", "demo", "exporter", "host", "kube", "kubelet_plugin", "mps", "process"),
    *("proto", "validation"),
)

missing = [name for name in LINKED if not (ROOT / name / "__init__.py").is_file()]
if missing:
    raise SystemExit(
        f"dracaena: src/dracaena/{{{','.join(missing)}}} lead to no package: this checkout lost its links. "
        "Clone with git on a file system that has symbolic links, then build again."
    )

setup()
