"""Refuse an uninstall while claims hold devices of a driver: name them, and say what to do. Exit code 1 if any do."""

import sys

from dracaena.api.errors import DracaenaError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport

SHOWN = 20
"""Claims named; the rest is counted."""


def main(driver: str) -> int:
    """Print what holds devices and return the exit code."""
    try:
        client = KubeClient(Transport.from_kubeconfig(None, user_agent="dracaena-uninstall-check"))
        claims = client.list(ResourceClaim).items
    except DracaenaError as error:
        sys.stdout.write(f"the claims cannot be read: {error}\n")
        return 1
    held = sorted(claim.key for claim in claims if _holds(claim, driver))
    for key in held[:SHOWN]:
        sys.stdout.write(f"ResourceClaim {key} holds devices of {driver}\n")
    if held:
        more = f", {len(held) - SHOWN} of them not shown" if len(held) > SHOWN else ""
        sys.stdout.write(
            f"not uninstalled: {len(held)} claims in use{more}. Without the plugin their pods could not end. Delete "
            "the pods first (and what makes them), or run helm uninstall --no-hooks\n"
        )
    return 1 if held else 0


def _holds(claim: ResourceClaim, driver: str) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and any(result.driver == driver for result in allocation.devices.results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
