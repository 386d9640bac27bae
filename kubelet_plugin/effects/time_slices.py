"""Sets the time slices of shared GPUs and puts back what was there before (device_kinds.time_slice_effects)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import PermanentError
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError, TimeSliceSetter
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar

log = structlog.get_logger()


class TimeSlicesBefore:
    """Implements EffectMeans for TIME_SLICE_BEFORE: made, it knows the interval of before the first share; undone with
    the last share, it has put that back. From any thread; holds nothing.
    """

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. What another share of the GPU found counts: by now the interval is that of the shares."""
        known = (other.outcome for other in (effect, *others))
        found = next((outcome for outcome in known if outcome is not None), None)
        return found if found is not None else {"before": self._now(effect).value}

    def _now(self, effect: Effect) -> TimeSliceInterval:
        """Return the interval of the GPU; Default, as the driver sets it, where nobody can tell."""
        try:
            return self._setter.read(_gpu(effect)) or TimeSliceInterval.DEFAULT
        except NotOfferedError:
            return TimeSliceInterval.DEFAULT

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. What somebody else has set since is theirs; what a lost GPU had is gone with it.

        A share without an outcome has never set the interval: it neither puts it back nor leaves that to be done.
        """
        if effect.outcome is None or any(other.outcome is not None for other in others):
            return
        gpu, before = _gpu(effect), TimeSliceInterval(str(effect.outcome["before"]))
        try:
            now = self._setter.read(gpu)
            if now is None or now.value == effect.parameters["interval"] != before.value:
                self._setter.set(gpu, before)
        except (GpuGoneError, NotOfferedError) as error:
            log.info("time slices cannot be put back, and need not", gpu=gpu, reason=str(error))


class TimeSlices:
    """Implements EffectMeans for TIME_SLICE. From any thread; holds nothing."""

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def apply(self, effect: Effect, _others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. Raises PermanentError where product or driver cannot, and that is required."""
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
        """See EffectMeans. TimeSlicesBefore, which is undone after this, puts back what was there."""


def _gpu(effect: Effect) -> str:
    return str(effect.parameters["gpu"])
