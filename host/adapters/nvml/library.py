"""NVML's library: where it is, loading it into pynvml, and what its errors mean.

pynvml keeps the library and its functions in module variables, so a process has one NVML: one NvmlLibrary at a time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import pynvml

from dracaena.host.adapters.gpu_driver.root import LD_SO_CACHE, LIBRARY_FOLDERS, GpuDriverRoot
from dracaena.host.facts.machine import LASTING, LeftOut
from dracaena.host.facts.troubles import GpuDriverReleasedError, GpuDriverTroubleError, TroubleKind

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"

GPU_DRIVER: Final = "driver"
"""The device of calls that are about the driver, or about all GPUs together."""

NO_TEXT = "NO_TEXT"
"""Reason for an answer that cannot be decoded."""

GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
"""Errors that say that a GPU is gone."""

ERROR_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_") for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}
"""nvmlReturn_t → its name in nvml.h without the prefix."""


class NvmlError(GpuDriverTroubleError):
    """NVML refused a call that nothing works without. `code` is nvmlReturn_t, None for an answer that is not text."""

    def __init__(
        self,
        message: str,
        code: int | None = None,
        reason: TroubleKind = TroubleKind.READING_FAILED,
        *,
        call: str = "",
    ) -> None:
        super().__init__(message, reason)
        self.code = code
        self.call = call


class GpuDriverNotReadyError(NvmlError):
    """The driver is missing or not usable yet: wait for it."""


_REASONS = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: TroubleKind.NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: TroubleKind.LIBRARY_MISSING,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: TroubleKind.VERSION_MISMATCH,
}

_WHY_NOT_READY = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "its kernel module is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "its library cannot be loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and loaded kernel module are of different versions: "
    "reload the kernel module or restart the node",
    pynvml.NVML_ERROR_NO_PERMISSION: "this process may not open /dev/nvidiactl: this program must run privileged",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "its library is too old to be initialised",
}


def load_library(gpu_driver_root: str) -> object:
    """Return the NVML library below the driver root. Raises GpuDriverNotReadyError if it is missing or broken.

    With `/` the dynamic loader is used too: it knows folders that we do not.
    """
    root = GpuDriverRoot(gpu_driver_root)
    path = root.library(LIBRARY)
    if path is None and gpu_driver_root != "/":
        raise GpuDriverNotReadyError(
            f"waiting for the NVIDIA driver: no {LIBRARY} below {gpu_driver_root} "
            f"(searched {', '.join(LIBRARY_FOLDERS)}, {LD_SO_CACHE})",
            reason=TroubleKind.LIBRARY_MISSING,
        )
    try:
        return ctypes.CDLL(str(root.on_disk(path)) if path is not None else LIBRARY)
    except OSError as error:
        raise GpuDriverNotReadyError(
            f"waiting for the NVIDIA driver: {error}", reason=TroubleKind.LIBRARY_MISSING
        ) from error


class Permission(Protocol):
    """Allows NVML to be open (dracaena.kubelet_plugin.gpu_driver.release)."""

    def refusal(self) -> str | None:
        """Return why NVML must not be open now, None if it may be. Must be cheap: it is asked once a second."""
        ...

    def enter(self) -> None:
        """Record that NVML is about to be opened. Raises GpuDriverReleasedError if it must not be."""
        ...

    def leave(self) -> None:
        """Record that NVML is closed."""
        ...


class Always:
    """A permission that is never withdrawn: for a command that reads once."""

    def refusal(self) -> str | None:
        """See Permission."""
        return None

    def enter(self) -> None:
        """See Permission."""

    def leave(self) -> None:
        """See Permission."""


OnError = Callable[[str, str], None]
"""Called for each call that should have been answered and was not: the call, the name of the error."""

Refused = Callable[[LeftOut, int | None], None]
"""Called with a question that got no answer, and nvmlReturn_t, or None for an answer that cannot be decoded. May
raise."""


class NvmlLibrary:
    """Opens and closes NVML. `load` looks for the library at each opening, so a driver may come later or change.

    NVML is never opened without `permission`, and obey() closes it once that has been withdrawn. One thread opens and
    closes it. Calls may run in several threads at once, and any thread may call doing().
    """

    def __init__(
        self,
        load: Callable[[], object],
        on_error: OnError = lambda _call, _error: None,
        permission: Permission | None = None,
    ) -> None:
        self._load = load
        self._on_error = on_error
        self._permission = permission or Always()
        self._open = False
        self.before_close: Callable[[], None] = lambda: None
        """Called before each close(), while calls still work: everything else that uses the driver must stop."""
        self.session = 0
        """How often NVML was opened. Handles and event sets are valid for one opening."""
        self._doing: dict[int, str] = {}
        """Thread → the call that it is in, the oldest first."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._open

    def open(self) -> None:
        """Load and initialise once. Raises GpuDriverNotReadyError, or GpuDriverReleasedError like obey()."""
        self.obey()
        if self._open:
            return
        self._permission.enter()
        try:
            self._initialise()
        except BaseException:
            self._permission.leave()
            raise
        self._open = True
        self.session += 1

    def obey(self) -> None:
        """Close NVML and raise GpuDriverReleasedError if somebody asked us to release it."""
        refusal = self._permission.refusal()
        if refusal is not None:
            self.close()
            raise GpuDriverReleasedError(refusal)

    def _initialise(self) -> None:
        self._use(self._load())
        try:
            with self._calling("nvmlInit"):
                pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._use(None)
            self.note("nvmlInit", error_name(error))
            why = _WHY_NOT_READY.get(error.value, "it cannot be initialised")
            raise GpuDriverNotReadyError(
                f"waiting for the NVIDIA driver: {why} (nvmlInit says {error_name(error)})",
                error.value,
                _REASONS.get(error.value, TroubleKind.INIT_FAILED),
            ) from error

    def close(self) -> None:
        """Shut down, even if the driver is gone. All handles are invalid afterwards."""
        if not self._open:
            return
        self.before_close()
        self._open = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # what is gone needs no shutdown
        finally:
            self._use(None)
            self._permission.leave()

    def doing(self) -> str:
        """Return the call that began first of those that run now, and what it is about; empty if none runs."""
        return next(iter(list(self._doing.values())), "")

    def call(self, device: str, call: Callable[..., T], *arguments: Any, named: str = "") -> T:
        """Return the answer of one call about a device. Raises what pynvml raises. `named`: if `call` makes several."""
        with self._calling(f"{named or call.__name__} of {device}"):
            return call(*arguments)

    def ask(
        self,
        device: str,
        call: Callable[..., T],
        *arguments: Any,
        expected: AbstractSet[int] = frozenset(),
        refused: Refused = lambda _question, _code: None,
        named: str = "",
    ) -> T | None:
        """Return the answer of call(). None: there is none, which is counted and passed to `refused`, unless the error
        is an expected one.
        """
        try:
            return self.call(device, call, *arguments, named=named)
        except pynvml.NVMLError as error:
            if error.value in expected:
                return None
            reason, code = error_name(error), error.value
        except (UnicodeDecodeError, KeyError):  # an undecodable text, or a value of an unknown type
            reason, code = NO_TEXT, None
        question = LeftOut(device, named or call.__name__, reason)
        self.note(question.call, reason)
        refused(question, code)
        return None

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        me = threading.get_ident()
        self._doing[me] = what
        try:
            yield
        finally:
            del self._doing[me]

    def note(self, call: str, reason: str) -> None:
        """Count a call without an answer, unless hardware or driver can never give one."""
        if reason not in LASTING:
            self._on_error(call, reason)

    def needed(self, what: str, call: Callable[..., T], *arguments: Any) -> T:
        """Return the answer of an essential call. Raises NvmlError that says what could not be read."""
        name = call.__name__
        try:
            with self._calling(f"{name} ({what})"):
                return call(*arguments)
        except pynvml.NVMLError as error:
            code, reason, why = error.value, error_name(error), error_name(error)
        except UnicodeDecodeError:
            code, reason, why = None, NO_TEXT, "its answer is not text"
        self.note(name, reason)
        raise NvmlError(f"the NVIDIA driver does not report {what}: {why}", code, call=name)

    @staticmethod
    def _use(library: object | None) -> None:
        """Give pynvml another library, and drop the functions of the old one that it remembers."""
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - it has no public way


def error_name(error: pynvml.NVMLError) -> str:
    """Return the name of NVML's error. pynvml's own text asks the library, which may be what is broken."""
    return ERROR_NAMES.get(error.value, f"ERROR_{error.value}")


def gpu_handle(uuid: str) -> Any:
    """Return the handle of a GPU, valid until NVML is closed. Raises pynvml.NVMLError, with GPU_IS_LOST if it is lost.

    NVML finds no GPU by UUID while any GPU is lost: then the UUID of each is read.
    """
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = _handle_if_it_is(uuid, index)
            if handle is not None:
                return handle
        raise


def _handle_if_it_is(uuid: str, index: int) -> Any:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return handle if pynvml.nvmlDeviceGetUUID(handle) == uuid else None
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_GPU_IS_LOST:  # it is not known whether this is the one
            raise
        return None
