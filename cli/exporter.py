"""`dracaena exporter`."""

from __future__ import annotations

import argparse
import os

from dracaena.cli.commands import Commands
from dracaena.exporter.settings import ExporterSettings
from dracaena.process.loading import loading
from dracaena.process.settings import add_arguments, load

_DESCRIPTION = """\
Serve what the GPUs of this node do, and which container has them, as Prometheus metrics: under the names of
dcgm-exporter's default counters, and some of our own. NVML tells what GPUs do, podlist.json of the kubelet plugin who
has them, and the cgroups of processes who uses them. It asks the API server for nothing.

A flag wins over the environment, that over --config, that over the default.
"""

_EXAMPLES = """\
examples:
  On a node, as root, in the host's process id namespace
      dracaena exporter --node-name worker-1 --log-format text
      curl http://127.0.0.1:9400/metrics

  With the fields of a file in dcgm-exporter's form
      dracaena exporter --node-name worker-1 --collectors default-counters.csv
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "exporter",
        help="serve metrics of one node's GPUs with the containers that have them",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_arguments(parser, ExporterSettings)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    settings = load(ExporterSettings, arguments, os.environ)
    with loading():
        from dracaena.exporter.program import run

    return run(settings)
