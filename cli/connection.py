"""What commands that read a cluster share: how to reach it, and which namespace is meant."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dracaena.cli.commands import add_driver_name

if TYPE_CHECKING:
    from dracaena.kube.client import KubeClient


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add --kubeconfig, --context and --driver-name."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the cluster (default: the pod's ServiceAccount, else KUBECONFIG or ~/.kube/config)",
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    add_driver_name(parser)


def connect(arguments: argparse.Namespace) -> KubeClient:
    """Return a client. Raises BadInputError when the kubeconfig cannot be read."""
    from dracaena.kube.client import KubeClient
    from dracaena.kube.transport import Transport
    from dracaena.process.logs import configure_logs

    configure_logs("warning", "text")  # an object that does not decode is left out, and named on standard error
    return KubeClient(
        Transport.from_kubeconfig(arguments.kubeconfig, user_agent="dracaena-cli", context=arguments.context)
    )


def namespace_of(arguments: argparse.Namespace) -> str:
    """Return the namespace that was given, else the kubeconfig's."""
    from dracaena.kube.transport import context_namespace

    return str(arguments.namespace or context_namespace(arguments.kubeconfig, arguments.context))
