"""GPU Performance Monitoring: means over the time between two samples of a GPU. Hopper and later."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from dracaena.exporter.series.readings import GpuQuantity

METRICS: Mapping[int, GpuQuantity] = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: GpuQuantity.GRAPHICS_ACTIVE_PERCENT,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: GpuQuantity.TENSOR_ACTIVE_PERCENT,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: GpuQuantity.DRAM_ACTIVE_PERCENT,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: GpuQuantity.PCIE_SENT_MIB_PER_S,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: GpuQuantity.PCIE_RECEIVED_MIB_PER_S,
}


@dataclass(frozen=True, slots=True)
class GpmTarget:
    """The target of a sample: a GPU, or one of its GPU instances."""

    key: str
    handle: Any
    gpu_instance_id: int | None = None


class GpmSamples:
    """Keeps the last sample of each target. Valid for one session of NVML: forget() before it is closed."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def read(self, target: GpmTarget) -> dict[GpuQuantity, float]:
        """Take a sample and return the means since the last one; nothing the first time. Raises NVMLError."""
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            if target.gpu_instance_id is None:
                pynvml.nvmlGpmSampleGet(target.handle, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(target.handle, target.gpu_instance_id, sample)
        except BaseException:
            _free(sample)
            raise
        last = self._last.get(target.key)
        self._last[target.key] = sample
        if last is None:
            return {}
        try:
            return _means(last, sample)
        finally:
            _free(last)

    def keep(self, keys: frozenset[str]) -> None:
        """Forget all targets but these."""
        for key in self._last.keys() - keys:
            _free(self._last.pop(key))

    def forget(self) -> None:
        """Free all samples."""
        self.keep(frozenset())


def _free(sample: Any) -> None:
    with suppress(pynvml.NVMLError):  # then it goes with the session
        pynvml.nvmlGpmSampleFree(sample)


def _means(first: Any, second: Any) -> dict[GpuQuantity, float]:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics, asked.sample1, asked.sample2 = len(METRICS), first, second
    for place, metric in enumerate(METRICS):
        asked.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    answers = (asked.metrics[place] for place in range(len(METRICS)))
    return {
        METRICS[answer.metricId]: float(answer.value) for answer in answers if answer.nvmlReturn == pynvml.NVML_SUCCESS
    }
