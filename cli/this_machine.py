"""Reading this machine's own GPUs from the NVIDIA driver, for the verbs that can."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dracaena.host.adapters.nvml.library import Permission
    from dracaena.host.gpu_driver.thread import GpuDriverThread
    from dracaena.kubelet_plugin.discovery.build import Reading
    from dracaena.kubelet_plugin.node.live_machine import ReadingSource


def add_driver_root(parser: argparse.ArgumentParser) -> None:
    """Add the flag that this_machine needs."""
    parser.add_argument(
        "--driver-root",
        default="/",
        metavar="FOLDER",
        help="root folder of the NVIDIA driver, for example /run/nvidia/driver (default: %(default)s)",
    )


def add_nvml(choices: argparse._MutuallyExclusiveGroup, parser: argparse.ArgumentParser) -> None:
    """Let a verb read this machine: add a flag `nvml` to its other sources, and what this_machine needs."""
    choices.add_argument("--nvml", action="store_true", help="read this machine's own GPUs from the NVIDIA driver")
    add_driver_root(parser)


@contextmanager
def this_machine(
    arguments: argparse.Namespace,
    source: ReadingSource | None = None,
    permission: Permission | None = None,
    *,
    mig_profiles: bool = False,
    passthrough: bool = False,
) -> Iterator[Callable[[], Reading]]:
    """Return a function that reads this machine from its driver, with `mig_profiles` also how GPUs can be divided.

    With `passthrough` also which GPUs a VFIO driver or the vGPU manager has: where these have all of them, no NVIDIA
    driver is needed.
    All readings share one thread: while one hangs beyond its deadline the next ones fail at once, and start nothing.
    `permission` is asked before the driver is opened; None: it may be. A reading raises DracaenaError, also when the
    driver does not answer.
    """
    from dracaena.host.gpu_driver.thread import GpuDriverThread
    from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
    from dracaena.process.clock import SystemClock

    source = source or NvmlMachine.of_this_node(
        "this-machine",
        gpu_driver_root=arguments.driver_root,
        permission=permission,
        mig_profiles=mig_profiles,
        passthrough=passthrough,
        vgpus=passthrough,
    )
    gpu_driver = GpuDriverThread(SystemClock(), source.doing, source.close)
    gpu_driver.start()
    try:
        yield partial(_read, gpu_driver, source)
    finally:
        gpu_driver.stop()


def read_this_machine(
    arguments: argparse.Namespace, source: ReadingSource | None = None, *, mig_profiles: bool = False
) -> Reading:
    """Return this machine, read once. As this_machine()."""
    with this_machine(arguments, source, mig_profiles=mig_profiles) as read:
        return read()


def _read(gpu_driver: GpuDriverThread, source: ReadingSource) -> Reading:
    from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError
    from dracaena.kubelet_plugin.node.live_machine import READ_DEADLINE_S

    try:
        return gpu_driver.call("a reading", source.read_all, READ_DEADLINE_S)
    except GpuDriverNotReadyError as error:
        reason = str(error).removeprefix("waiting for the NVIDIA driver: ")  # a program waits, a command does not
        raise GpuDriverNotReadyError(
            f"the NVIDIA driver of this machine cannot be used: {reason}; "
            f"if the driver is not installed in /, name its root folder with --driver-root"
        ) from error
