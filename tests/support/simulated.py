"""What `dracaena simulate` is given in tests, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

CLASSES = Path(__file__).parents[2] / "deploy" / "deviceclasses"

Run = Callable[..., SimpleNamespace]


def claim(name: str, count: int, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": claim_spec(count),
    }


def claim_spec(count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.dracaena.dev", "count": count}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def template(name: str, count: int) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim_spec(count)},
    }


def pod(name: str, *entries: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"resourceClaims": list(entries), "containers": [{"name": "main"}], **spec},
    }


def named(claim_name: str) -> dict[str, str]:
    return {"name": "gpus", "resourceClaimName": claim_name}


def generated(template_name: str) -> dict[str, str]:
    return {"name": "gpus", "resourceClaimTemplateName": template_name}


def written(path: Path, *objects: dict[str, Any]) -> Path:
    path.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return path


def outcomes(run: Run, *paths: Path) -> list[dict[str, Any]]:
    options = [option for path in (CLASSES, *paths) for option in ("-f", path)]
    result = run("simulate", *options, "-o", "json")
    assert result.code == 0, result.err
    decided: list[dict[str, Any]] = json.loads(result.out)
    return decided


def devices(outcome: dict[str, Any]) -> set[str]:
    return {result["device"] for result in outcome["devices"]}
