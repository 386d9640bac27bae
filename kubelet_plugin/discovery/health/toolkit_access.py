"""Whether NVIDIA's container runtime gives GPUs to containers that have no claim for them.

A container that runs by NVIDIA's runtime and has NVIDIA_VISIBLE_DEVICES in its environment gets the GPUs that this
names, `all` of them for example, whoever has them. NVIDIA's device plugin relies on it; claims never do, because their
devices come by CDI. Source: NVIDIA container toolkit 1.20, api/config/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

ENVIRONMENT: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
"""Whether the variable of any container counts; the toolkit's default is that it does."""
MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
"""Whether mounts of /dev/null below /var/run/nvidia-container-devices count; not by default."""

PROGRAM: Final = "nvidia-container-runtime"
"""What the names of NVIDIA's runtime programs begin with."""

Document = Mapping[str, Any]
"""A TOML file."""


@dataclass(frozen=True, slots=True)
class NvidiaRuntime:
    """A runtime of containerd or CRI-O that is NVIDIA's."""

    name: str
    """By which a RuntimeClass chooses it, as its handler."""
    program: str
    """Path on the host."""
    is_default: bool
    """Whether containers of pods without a RuntimeClass run by it."""


@dataclass(frozen=True, slots=True)
class ToolkitConfig:
    """The file in which NVIDIA's runtime is configured."""

    path: str
    document: Document
    """Empty: there is no such file, so all is as by default."""


def nvidia_runtimes(documents: Iterable[Document]) -> tuple[NvidiaRuntime, ...]:
    """Return NVIDIA's runtimes by name, from the files of containerd or CRI-O in the order in which they count."""
    programs: dict[str, str] = {}
    default = ""
    for document in documents:
        for table in _tables(document):
            default = next((table[key] for key in _DEFAULT if isinstance(table.get(key), str)), default)
            for name, runtime in _runtimes(table):
                programs[name] = _program(runtime) or programs.get(name, "")
    return tuple(
        NvidiaRuntime(name, program, is_default=name == default)
        for name, program in sorted(programs.items())
        if program.rpartition("/")[2].startswith(PROGRAM)
    )


_DEFAULT: Final = ("default_runtime_name", "default_runtime")
"""Of containerd, of CRI-O."""


def _tables(value: Any) -> Iterator[Document]:
    """Yield a table and all in it, whatever they are called: versions of containerd have different plugins."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _tables(item)


def _runtimes(table: Document) -> Iterator[tuple[str, Document]]:
    runtimes = table.get("runtimes")
    if isinstance(runtimes, dict):
        yield from ((name, runtime) for name, runtime in runtimes.items() if isinstance(runtime, dict))


def _program(runtime: Document) -> str:
    options = runtime.get("options")
    found = options.get("BinaryName") if isinstance(options, dict) else runtime.get("runtime_path")
    return found if isinstance(found, str) else ""


def why_open(runtimes: Iterable[NvidiaRuntime], config_of: Callable[[str], ToolkitConfig]) -> str:
    """Return how a container without a claim comes to GPUs, in words; empty if it does not. `config_of` returns the
    configuration of a runtime's program."""
    told = []
    for runtime in runtimes:
        config = config_of(runtime.program)
        settings = [name for name, default in _SETTINGS if config.document.get(name, default) is not False]
        if settings:
            who = (
                "any container" if runtime.is_default else f"a container of a RuntimeClass with handler {runtime.name}"
            )
            where = config.path if config.document else f"{config.path}, which is not there"
            told.append(f"{who} gets the GPUs that it names ({' and '.join(settings)} in {where})")
    return "; ".join(dict.fromkeys(told))


_SETTINGS: Final = ((ENVIRONMENT, True), (MOUNTS, False))
