"""Lists of what GPUs are for, as the setting `gpus` has them."""

from __future__ import annotations

from typing import Any

from dracaena.kubelet_plugin.discovery.gpu_list import GpuList, read_gpus


def gpu_list(**words: str) -> GpuList:
    """Return a list from roles and the words that select GPUs for each, with commas; no words: no entry."""
    return read_gpus([entry(role, select) for role, select in words.items() if select])


def entry(role: str, select: str = "all", **more: Any) -> dict[str, Any]:
    """Return one entry as an admin writes it; words have commas between them."""
    return {"select": [word.strip() for word in select.split(",")], "as": role, **more}


def flag(role: str, select: str = "all", **more: Any) -> str:
    """Return the flag with one entry."""
    words = ", ".join(f"{key}: {value}" for key, value in more.items())
    return f"--gpus=[{{select: [{select}], as: {role}{', ' * bool(words)}{words}}}]"
