"""DeviceClasses. Left out: CEL expressions that do not compile, which the embedded server stores."""

from __future__ import annotations

from transcripts.scenarios.documents import CLASSES, device_class, opaque
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
