"""Sets the time slices of shared GPUs and restores the earlier setting (device_kinds.time_slice_effects)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import PermanentError
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.effects.time_slice_records import TimeSliceRecords
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError, TimeSliceSetter
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.time_slices import TimeSliceRecord

log = structlog.get_logger()


class TimeSlicesBefore:
    """Implements EffectMeans for TIME_SLICE_BEFORE: making it records the interval from before the first share; undoing
    it with the last share restores that. From any thread; keeps no state. A file records it as well, for claims whose
    checkpoint breaks.
    """

    def __init__(self, setter: TimeSliceSetter, records: TimeSliceRecords) -> None:
        self._setter = setter
        self._records = records

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. What another share found counts: by now the interval is the one that the shares set."""
        known = (other.outcome for other in (effect, *others))
        outcome = next((outcome for outcome in known if outcome is not None), None)
        record = self._records.of(effect.gpu)
        if outcome is None:
            now = self._now(effect)
            if record is not None and now is not None and now not in record.ours:
                record = None  # somebody else has set it since
            before = record.before if record is not None else now or TimeSliceInterval.DEFAULT
        else:
            before = _before(outcome)
        ours = _ours(effect, record)
        self._records.note(effect.gpu, TimeSliceRecord(self._records.boot_id, _gpu(effect), before, ours))
        return {"before": before.value} if outcome is None else outcome

    def _now(self, effect: Effect) -> TimeSliceInterval | None:
        """Return the interval of the GPU, None if it cannot be read."""
        try:
            return self._setter.read(_gpu(effect))
        except NotOfferedError:
            return None

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. A value that somebody else has set since is kept; a lost GPU has lost its setting.

        A share without an outcome never set the interval: it does not restore it, nor keep others from doing so.
        """
        if effect.outcome is None or any(other.outcome is not None for other in others):
            return
        gpu, ours = _gpu(effect), _ours(effect, self._records.of(effect.gpu))
        try:
            self._put_back(gpu, _before(effect.outcome), ours)
        except (GpuGoneError, NotOfferedError) as error:
            log.info("time slices cannot be restored, and need not be", gpu=gpu, reason=str(error))
        self._records.forget(effect.gpu)

    def restore(self, device: DeviceName) -> bool:
        """Restore what the record of a GPU says, for claims of which nothing else is left; return whether an interval
        of ours was set. Raises DracaenaError. The caller holds the GPU.
        """
        record, was_set = self._records.of(device), False
        if record is not None:
            try:
                was_set = self._put_back(record.gpu, record.before, record.ours)
            except NotOfferedError as error:
                log.info("time slices cannot be restored, and need not be", gpu=record.gpu, reason=str(error))
        self._records.forget(device)
        return was_set

    def _put_back(self, gpu: str, before: TimeSliceInterval, ours: Collection[TimeSliceInterval]) -> bool:
        """Restore the interval from before; return whether it was ours, as far as that can be read."""
        now = self._setter.read(gpu)
        if now is not None and (now not in ours or now is before):
            return False
        self._setter.set(gpu, before)
        return True


class TimeSlices:
    """Implements EffectMeans for TIME_SLICE. From any thread; keeps no state."""

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def apply(self, effect: Effect, _others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. Raises PermanentError if time slices are required and the product or driver has none."""
        interval = _interval(effect)
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


def _before(outcome: Mapping[str, Scalar]) -> TimeSliceInterval:
    return TimeSliceInterval(str(outcome["before"]))


def _ours(effect: Effect, record: TimeSliceRecord | None) -> frozenset[TimeSliceInterval]:
    """Return the intervals that shares of a GPU have set or are about to set, with those of lost claims."""
    return frozenset({_interval(effect)}) | (frozenset() if record is None else record.ours)


def _interval(effect: Effect) -> TimeSliceInterval:
    return TimeSliceInterval(str(effect.parameters["interval"]))


def _gpu(effect: Effect) -> str:
    return str(effect.parameters["gpu"])
