"""DeviceClasses, and the CEL expressions that classes and claims share.

Left out: syntax errors but for an early end, because kube-apiserver's words for them are those of its generated parser,
and expressions that are refused for what they are estimated to cost.
"""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import CLAIMS, CLASSES, TEMPLATES, claim, device_class, exactly, opaque, template
from transcripts.session import Session

TRUE = {"cel": {"expression": "true"}}


def classes(api: Session) -> None:
    """A class is mutable."""
    spec = {"selectors": [TRUE], "config": [opaque({"z": 1, "a": [1, {"b": None}]})]}
    api.create("a class", CLASSES, device_class("gpu", **spec, extendedResourceName="example.com/gpu"))
    api.merge("its spec changes", f"{CLASSES}/gpu", {"spec": {"extendedResourceName": None}})
    api.delete("its deletion", f"{CLASSES}/gpu")


def class_validation(api: Session) -> None:
    """Classes that are refused, all causes at once."""
    config = [{}, opaque(None, driver=""), opaque("text"), opaque({"a": "x" * 10300})]
    spec = {"selectors": [{}], "config": config, "extendedResourceName": "cpu"}
    api.create("a bad class", CLASSES, device_class("gpu", **spec))
    many = {"selectors": [TRUE] * 33, "config": [opaque({})] * 33}
    api.create("33 selectors and configs", CLASSES, device_class("gpu", **many))
    long = {"cel": {"expression": f'"{"x" * 10240}" == ""'}}
    api.create("an expression of more than 10 KiB", CLASSES, device_class("gpu", selectors=[long]))
    api.create("a bad name", CLASSES, device_class("A_"))


def classes_with_mistakes_of_both_kinds(api: Session) -> None:
    """Mistakes that 1.37 finds by declared checks among others that it does not: which of them are told first."""
    config = [opaque("text", driver="X_"), opaque({}, driver="x" * 64)]
    api.create("a bad name and configs", CLASSES, device_class("A_", config=config, selectors=[{}]))
    api.create("33 selectors and a bad config", CLASSES, device_class("gpu", config=config, selectors=[TRUE] * 33))
    names = (
        "cpu",
        "kubernetes.io/gpu",
        "a.kubernetes.io/gpu",
        "requests.example.com/gpu",
        "a/b/c",
        "example.com/_",
        "",
    )
    for name in names:
        refused = device_class("gpu", config=config[:1], extendedResourceName=name)
        api.create(f'the extended resource "{name}"', CLASSES, refused)


def expressions_that_do_not_compile(api: Session) -> None:
    """A selector has to compile, and to give a bool or what only a device can tell."""
    for expression in (
        "device.driver == ",
        "device.drivr == 'x'",
        "devices.driver == 'x'",
        "device.driver == 1",
        "device.driver",
        "device.driver == 'x' ? 1 : 2",
        "1 + 'a' == 2",
        "device.driver.lowerAsci() == 'x'",
        "device.driver.startsWith(1)",
        "device.driver.matches('[')",
        "device.capacity['gpu.example.com'].memory > quantity('1Gi')",
        "device.attributes[1]",
        "device.attributes.exists(a, a.exists(b, b == 'x'))",
        "[1, 2].exists(x, y)",
        "device.attributes['gpu.example.com'].model in [1, 'a']",
        "has(device)",
        "\n\nfoo &&\n  bar",
    ):
        api.create(repr(expression), CLASSES, device_class("gpu", selectors=[_selector(expression)]))
    for name, expression in enumerate(
        (
            "device.attributes['gpu.example.com'].model",
            "device.attributes['gpu.example.com'].model == 'a'",
            "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('x'))",
        )
    ):
        good = device_class(f"gpu-{name}", selectors=[_selector(expression)])
        api.create(f"{expression!r} compiles", CLASSES, good)
    api.create("a class", CLASSES, device_class("gpu", selectors=[TRUE]))
    api.merge("another expression", f"{CLASSES}/gpu", {"spec": {"selectors": [_selector("device")]}})
    bad = [TRUE, _selector("foo"), {}, _selector("bar")]
    api.create("a class with more mistakes", CLASSES, device_class("A_", selectors=bad, config=[opaque("text")]))
    request = exactly("a", selectors=bad)
    either = {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "gpu", "selectors": bad[1:2]}]}
    api.create("a claim", CLAIMS, claim("c", requests=[request, either, exactly("a")]))
    api.create("a template", TEMPLATES, template("t", {"requests": [request]}))


def _selector(expression: str) -> dict[str, Any]:
    return {"cel": {"expression": expression}}
