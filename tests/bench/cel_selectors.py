"""A typical selector: compiled, evaluated and remembered, beside cel-expr-python (cel-cpp) and cel-python.

Neither of the two knows Kubernetes' environment: they are given the device as nested maps, and lack quantities and
versions, so the selector is one that all three understand. Times are CPU time of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import celpy
import celpy.adapter
from cel_expr_python import cel

from bench.report import Progress, Row, Section, as_text
from dracaena.cel import MATCH, DeviceView, SelectorMemo, compile_selector

SELECTOR: Final = """
device.driver == "gpu.example.com" &&
device.attributes["gpu.example.com"].productName == "NVIDIA H100 80GB HBM3" &&
device.attributes["gpu.example.com"].index < 4
"""
ATTRIBUTES: Final[dict[str, str | int]] = {"productName": "NVIDIA H100 80GB HBM3", "index": 3, "uuid": "GPU-0"}

# CPU time one figure is measured for, in seconds; the best of three is kept, as the machine does other things too.
MEASURED_S: Final = 0.3


def rows(progress: Progress) -> Section:
    """Measure everything in one run and return the rows."""
    device = DeviceView.of_names("gpu.example.com", dict(ATTRIBUTES))
    selector = compile_selector(SELECTOR)
    assert selector.evaluate(device) == MATCH
    memo = SelectorMemo()
    remembered = memo.compile(SELECTOR)
    progress("CEL: our selectors")
    compiled_us = _microseconds(lambda: compile_selector(SELECTOR))
    evaluated = _a_second(lambda: selector.evaluate(device))
    from_memory = _a_second(lambda: memo.evaluate(remembered, device))
    progress("CEL: cel-expr-python")
    cpp_compile, cpp_evaluate = _cel_cpp()
    cpp_compiled_us, cpp_evaluated = _microseconds(cpp_compile), _a_second(cpp_evaluate)
    progress("CEL: cel-python")
    py_compile, py_evaluate = _cel_python()
    py_compiled_us, py_evaluated = _microseconds(py_compile), _a_second(py_evaluate)
    cpp, python = "cel-expr-python", "cel-python"
    return Section(
        title="CEL: one selector of three terms",
        rows=(
            Row("compile", compiled_us, cpp_compiled_us, "µs", against=cpp),
            Row("compile", compiled_us, py_compiled_us, "µs", against=python),
            Row("evaluate", evaluated, cpp_evaluated, "/s", more_is_better=True, against=cpp),
            Row("evaluate", evaluated, py_evaluated, "/s", more_is_better=True, against=python),
            Row("evaluate, remembered", from_memory, cpp_evaluated, "/s", more_is_better=True, against=cpp),
            Row("evaluate, remembered", from_memory, py_evaluated, "/s", more_is_better=True, against=python),
        ),
        notes=("A selector is compiled once and kept; the others remember nothing, so theirs is a plain evaluation.",),
    )


def _plain_device() -> dict[str, Any]:
    return {"driver": "gpu.example.com", "attributes": {"gpu.example.com": dict(ATTRIBUTES)}}


def _cel_cpp() -> tuple[Callable[[], object], Callable[[], object]]:
    environment = cel.NewEnv(variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})
    expression = environment.compile(SELECTOR)
    data = {"device": _plain_device()}
    assert expression.eval(data=data).value() is True
    return lambda: environment.compile(SELECTOR), lambda: expression.eval(data=data)


def _cel_python() -> tuple[Callable[[], object], Callable[[], object]]:
    environment = celpy.Environment()
    program = environment.program(environment.compile(SELECTOR))
    activation = {"device": celpy.adapter.json_to_cel(_plain_device())}
    assert program.evaluate(activation)
    return lambda: environment.program(environment.compile(SELECTOR)), lambda: program.evaluate(activation)


def _a_second(call: Callable[[], object]) -> float:
    return 1 / _seconds(call)


def _microseconds(call: Callable[[], object]) -> float:
    return _seconds(call) * 1e6


def _seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call, the best of three measurements of many."""
    return min(_measured(call) for _ in range(3))


def _measured(call: Callable[[], object]) -> float:
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < MEASURED_S:
        for _ in range(20):
            call()
        calls += 20
    return spent / calls


if __name__ == "__main__":
    print(as_text(rows(print)), end="")
