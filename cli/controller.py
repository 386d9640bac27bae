"""`dracaena controller`."""

from __future__ import annotations

import argparse
import os

from dracaena.cli.commands import Commands, loading_extra
from dracaena.controller.settings import ControllerSettings
from dracaena.process.settings import add_arguments, load

_EXAMPLES = """\
examples:
  From a shell, on the cluster that kubectl reaches
      dracaena controller --log-format text

  With settings from a file, but another port
      dracaena controller --config controller.yaml --http-address 127.0.0.1:8080
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "controller",
        help="run the program that allocates the GPUs of the cluster",
        description="Decide for each pending pod which GPUs of which node its claims get, and write the allocations. "
        "One replica works at a time. Flags override the environment, which overrides --config, which overrides the "
        "defaults.",
        epilog=_EXAMPLES,
    )
    add_arguments(parser, ControllerSettings)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = load(ControllerSettings, arguments, os.environ)
    with loading_extra("programs"):
        from dracaena.controller.program import run

    return run(settings)
