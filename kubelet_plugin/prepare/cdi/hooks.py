"""What NVIDIA's hook tool does in a container, as CDI hooks: what mounts and device nodes alone cannot do.

The tool is nvidia-cdi-hook of the NVIDIA container toolkit, or `nvidia-ctk hook` of older ones. Container runtimes run
it on the host, so it is searched for there, wherever the driver is. Versions differ in the commands that they know, and
some fail on an unknown one (1.17.4 does, and the container with it), so only known commands are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dracaena.kubelet_plugin.prepare.cdi.spec import CREATE_CONTAINER, CREATE_RUNTIME, Hook

HOOK_NAMES = ("nvidia-cdi-hook", "nvidia-ctk")
"""File names of the tool, the newer first."""
COMMANDS_ON_PATH = "hook"
"""The subcommand of nvidia-ctk that has the commands."""

CREATE_SYMLINKS = "create-symlinks"
UPDATE_LDCACHE = "update-ldcache"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
DISABLE_DEVICE_NODES = "disable-device-node-modification"
APPLICATION_PROFILE = "update-application-profile"
CUDA_MEMORY_LIMITS = "apply-cuda-memory-limits"

FIRST_COMMANDS = frozenset({CREATE_SYMLINKS, UPDATE_LDCACHE})
"""What every version knows."""
COMMANDS = FIRST_COMMANDS | {ENABLE_CUDA_COMPAT, DISABLE_DEVICE_NODES, APPLICATION_PROFILE, CUDA_MEMORY_LIMITS}

WITHOUT_HOOKS = (
    "containers get the driver's libraries by mounts alone: images with a CUDA newer than the driver do not use "
    "their compatibility libraries, and libraries in folders that the image's loader does not search are not found"
)
"""What is lost if the tool is not on the host."""

_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)


@dataclass(frozen=True, slots=True)
class HookTool:
    """The tool on the host."""

    path: str
    commands: frozenset[str] = FIRST_COMMANDS
    """What this version knows."""


@dataclass(frozen=True, slots=True, order=True)
class SymbolicLink:
    """A symbolic link in the container."""

    path: str
    target: str


def gpu_driver_hooks(
    tool: HookTool, version: str, links: Sequence[SymbolicLink], library_folders: Sequence[str]
) -> tuple[Hook, ...]:
    """Return the hooks of every container with a GPU, in the order in which they must run: after the cache come only
    hooks that need no libraries, because the cache picks up links and the folder of the compatibility libraries.
    """
    folders = [argument for folder in library_folders for argument in ("--folder", folder)]
    wanted: tuple[tuple[str, list[str]] | None, ...] = (
        (CREATE_SYMLINKS, _link_arguments(links)) if links else None,
        (ENABLE_CUDA_COMPAT, [f"--host-driver-version={version}"]),
        (UPDATE_LDCACHE, folders) if folders else None,
        (DISABLE_DEVICE_NODES, []),
        (APPLICATION_PROFILE, []),
    )
    made = (_hook(tool, *each) for each in wanted if each is not None)
    return tuple(hook for hook in made if hook is not None)


def device_hooks(
    tool: HookTool, links: Sequence[SymbolicLink], gpu_uuid: str | None, gpu_driver_root: str
) -> tuple[Hook, ...]:
    """Return the hooks of one device. `gpu_uuid` is the UUID of a whole GPU, None for a part of one.

    The second lets a container limit its own CUDA memory by NVIDIA_GPU_MEMORY_REQUEST and _LIMIT; without them it does
    nothing.
    """
    limits = ["--driver-root", gpu_driver_root, "--gpu-id", gpu_uuid] if gpu_uuid is not None else []
    made = (
        _hook(tool, CREATE_SYMLINKS, _link_arguments(links)) if links else None,
        _hook(tool, CUDA_MEMORY_LIMITS, limits, CREATE_RUNTIME) if limits else None,
    )
    return tuple(hook for hook in made if hook is not None)


def _hook(tool: HookTool, command: str, arguments: Sequence[str], stage: str = CREATE_CONTAINER) -> Hook | None:
    if command not in tool.commands:
        return None
    name = tool.path.rpartition("/")[2]
    program = (name, COMMANDS_ON_PATH) if name == HOOK_NAMES[1] else (name,)
    return Hook(stage, tool.path, (*program, command, *arguments), _ENVIRONMENT)


def _link_arguments(links: Sequence[SymbolicLink]) -> list[str]:
    return [argument for link in sorted(links) for argument in ("--link", f"{link.target}::{link.path}")]
