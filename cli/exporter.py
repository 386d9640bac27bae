"""`dracaena exporter`."""

from __future__ import annotations

import argparse
import os

from dracaena.cli.commands import Commands, loading_extra
from dracaena.exporter.settings import ExporterSettings
from dracaena.process.settings import add_arguments, load

_DESCRIPTION = """\
Serve Prometheus metrics about the GPUs of this node: what they do and which containers have them, under the names of
dcgm-exporter's default counters and some of our own. What GPUs do comes from NVML, who has them from the kubelet
plugin's podlist.json, and who uses them from the cgroups of processes. It asks the API server for nothing.

Flags override the environment, which overrides --config, which overrides the defaults.
"""

_EXAMPLES = """\
examples:
  On a node, as root, in the host's PID namespace
      dracaena exporter --node-name worker-1 --log-format text
      curl http://127.0.0.1:9400/metrics

  With the fields listed in a file of dcgm-exporter's format
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
    with loading_extra("programs"):
        from dracaena.exporter.program import run

    return run(settings)
