"""`dracaena kubelet-plugin`."""

from __future__ import annotations

import argparse
import os

from dracaena.cli.commands import Commands, loading_extra
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.process.settings import add_arguments, read_layers

_EXAMPLES = """\
examples:
  On a node, with its own GPUs
      dracaena kubelet-plugin --node-name worker-1 --log-format text

  On a machine without GPUs, with those of a recorded machine
      dracaena kubelet-plugin --node-name worker-1 --machine hgx-h100
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "kubelet-plugin",
        help="run the program that serves the GPUs of one node",
        description="Publish the GPUs of this node and prepare them for kubelet. Flags override the environment, which "
        "overrides the section of --config that the node's label <driver-name>/settings names, which overrides the "
        "rest of --config, which overrides the defaults.",
        epilog=_EXAMPLES,
    )
    add_arguments(parser, PluginSettings)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    layers = read_layers(PluginSettings, arguments, os.environ, sectioned=True)
    with loading_extra("programs"):
        from dracaena.kubelet_plugin.program import run

    return run(layers)
