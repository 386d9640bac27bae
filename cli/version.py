"""`dracaena version`."""

from __future__ import annotations

import argparse

from dracaena import __version__
from dracaena.cli.commands import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("version", help="print the version", description="Print the version.")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    print(f"dracaena {__version__}")
    return 0
