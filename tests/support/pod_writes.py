"""The world changing its mind while a controller is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dracaena.api.objects import Pod
from dracaena.kube.client import KubeClient


class PodWrites:
    """Counts what a client does with pods from now on; right after the first time `change` happens.

    `method` is the client's that is counted: "create" or "delete".
    """

    def __init__(self, client: KubeClient, method: str, change: Callable[[], Any]) -> None:
        self.count = 0
        write = getattr(client, method)

        def counted(kind: Any, *arguments: Any, **options: Any) -> Any:
            written = write(kind, *arguments, **options)
            if kind is Pod:
                self.count += 1
                if self.count == 1:
                    change()
            return written

        setattr(client, method, counted)
