"""Label selectors as the words of the API go, and random ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any


def app(*names: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": list(names)}]}


def selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", []):
        value, values = labels.get(rule["key"]), rule.get("values", [])
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[rule["operator"]]:
            return False
    return True


def random_selector(rng: random.Random) -> dict[str, Any]:
    key, values = rng.choice([("app", "abc"), ("tier", "xy")])
    few = sorted(rng.sample(values, rng.randint(1, 2)))
    expression: dict[str, Any] = {"key": key, "operator": rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])}
    if expression["operator"] in ("In", "NotIn"):
        expression["values"] = few
    return rng.choice([{}, {"matchLabels": {key: few[0]}}, {"matchExpressions": [expression]}, app(*few)])


def random_labels(rng: random.Random) -> dict[str, str]:
    labels = {"app": rng.choice("abc"), "tier": rng.choice("xy")}
    return {key: value for key, value in labels.items() if rng.random() < 0.8}
