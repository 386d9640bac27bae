"""The mode of confidential computing and the ready state, by NVML. Its calls are about all GPUs of a node together."""

from __future__ import annotations

import pynvml

from dracaena.api.confidential import CC_ENABLED_MODES
from dracaena.host.adapters.nvml.library import GPU_DRIVER, NvmlLibrary
from dracaena.host.facts.machine import ConfidentialFacts
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState, cc_mode

_READY = {
    pynvml.NVML_CC_ACCEPTING_CLIENT_REQUESTS_FALSE: False,
    pynvml.NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE: True,
}


def confidential_state(library: NvmlLibrary) -> ConfidentialState:
    """Return the state as the driver reports it now, in two calls of microseconds. A refused answer is None, and so is
    the ready state in modes where it is meaningless, since the driver says "not ready" then. NVML must be open.
    """
    state = library.ask(GPU_DRIVER, pynvml.nvmlSystemGetConfComputeState)
    facts = ConfidentialFacts()
    if state is not None:
        facts = ConfidentialFacts(feature=int(state.ccFeature), dev_tools=int(state.devToolsMode))
    mode = cc_mode(facts)
    if mode not in CC_ENABLED_MODES:
        return ConfidentialState(mode)
    ready = library.ask(GPU_DRIVER, pynvml.nvmlSystemGetConfComputeGpusReadyState)
    return ConfidentialState(mode, None if ready is None else _READY.get(int(ready)))
