"""Has the GPUs read at once when a label of the Node changes that the last reading depended on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dracaena.kubelet_plugin.gpu_driver.release import asking_labels
from dracaena.kubelet_plugin.node.devices import labels_of_modes


class LabelReadings:
    """Labels name modes of confidential computing, and may ask us to release the GPU driver. For one thread."""

    def __init__(self, driver: str, at_start: Mapping[str, str], read_soon: Callable[[], None]) -> None:
        """`at_start` are the labels as read before the watch, for which the driver may be released already; modes are
        taken from the watch alone. `read_soon`: see LiveMachine.
        """
        self._driver = driver
        self._read_soon = read_soon
        self._last: Mapping[str, str] = asking_labels(driver, at_start)

    def take(self, labels: Mapping[str, str]) -> None:
        """Compare the labels that the Node has now. Never blocks."""
        now = {**labels_of_modes(labels, self._driver), **asking_labels(self._driver, labels)}
        if now != self._last:
            self._last = now
            self._read_soon()
