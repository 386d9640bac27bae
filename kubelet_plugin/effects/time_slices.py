"""Sets the time slices of shared GPUs and restores the earlier setting (device_kinds.time_slice_effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import PermanentError
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError, TimeSliceSetter
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar

log = structlog.get_logger()


class TimeSlicesBefore:
    """Implements EffectMeans for TIME_SLICE_BEFORE: making it records the interval from before the first share; undoing
    it with the last share restores that. From any thread; keeps no state.
    """

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. A record of another share counts: by now the interval is the one that the shares set."""
        known = (other.outcome for other in (effect, *others))
        found = next((outcome for outcome in known if outcome is not None), None)
        return found if found is not None else {"before": self._now(effect).value}

    def _now(self, effect: Effect) -> TimeSliceInterval:
        """Return the interval of the GPU; Default, which the driver starts with, if it cannot be read."""
        try:
            return self._setter.read(_gpu(effect)) or TimeSliceInterval.DEFAULT
        except NotOfferedError:
            return TimeSliceInterval.DEFAULT

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. A value that somebody else has set since is kept; a lost GPU has lost its setting.

        A share without an outcome never set the interval: it does not restore it, nor keep others from doing so.
        """
        if effect.outcome is None or any(other.outcome is not None for other in others):
            return
        gpu, before = _gpu(effect), TimeSliceInterval(str(effect.outcome["before"]))
        try:
            now = self._setter.read(gpu)
            if now is None or now.value == effect.parameters["interval"] != before.value:
                self._setter.set(gpu, before)
        except (GpuGoneError, NotOfferedError) as error:
            log.info("time slices cannot be restored, and need not be", gpu=gpu, reason=str(error))


class TimeSlices:
    """Implements EffectMeans for TIME_SLICE. From any thread; keeps no state."""

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def apply(self, effect: Effect, _others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. Raises PermanentError if time slices are required and the product or driver has none."""
        interval = TimeSliceInterval(str(effect.parameters["interval"]))
        try:
            self._setter.set(_gpu(effect), interval)
        except NotOfferedError as error:
            if effect.parameters["required"]:
                raise PermanentError(
                    f"GpuConfig requires sharing strategy TimeSlicing for {effect.device}: {error}; with "
                    "`enforcement: BestEffort` it is prepared without"
                ) from error
            log.warning("a GPU is shared without time slices of ours", device=effect.device, reason=str(error))
            return {"without": str(error)}
        return {}

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. TimeSlicesBefore, which is undone after this, restores the earlier interval."""


def _gpu(effect: Effect) -> str:
    return str(effect.parameters["gpu"])
