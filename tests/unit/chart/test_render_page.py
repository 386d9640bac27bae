"""What helm makes of the chart for the page of the controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dracaena.controller.adapters.exporters import ExportersUrl
from support.chart import needs_helm, objects, render

pytestmark = needs_helm


def reviews_of(rendered: str) -> list[Any]:
    roles = (one for one in objects(rendered, "ClusterRole") if one["metadata"]["name"].startswith("controller."))
    rules = (rule for role in roles for rule in role["rules"])
    return [rule for rule in rules if {"tokenreviews", "subjectaccessreviews"} & set(rule["resources"])]


def test_the_page_brings_its_port_service_and_rights_and_is_on_by_default(tmp_path: Path) -> None:
    off, on = render(tmp_path, "--set=controller.page.enabled=false"), render(tmp_path)
    assert reviews_of(off) == []
    assert [rule["verbs"] for rule in reviews_of(on)] == [["create"], ["create"]]
    assert "PAGE_ADDRESS" not in off
    (deployment,) = objects(on, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRACAENA_PAGE_ADDRESS", "value": "$(POD_IP):8082"} in container["env"]
    assert {"name": "page", "containerPort": 8082} in container["ports"]
    (service,) = (one for one in objects(on, "Service") if one["metadata"]["name"].endswith("-page"))
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    assert not [one for one in objects(off, "Service") if one["metadata"]["name"].endswith("-page")]


def test_the_page_is_reached_by_those_whom_its_value_names_and_by_nobody_else(tmp_path: Path) -> None:
    peer = {"podSelector": {"matchLabels": {"app": "ingress"}}}
    peers = f"--set-json=controller.page.from={json.dumps([peer])}"
    off = "--set=controller.page.enabled=false"
    for arguments, wanted in (([], []), ([peers], [[peer]]), ([off, peers], [])):
        rendered = render(tmp_path, *arguments)
        rules = [
            rule
            for policy in objects(rendered, "NetworkPolicy")
            for rule in policy["spec"].get("ingress", ())
            if rule["ports"][0]["port"] == 8082
        ]
        assert [rule["from"] for rule in rules] == wanted


def test_the_page_asks_the_exporters_of_the_release_and_gets_through_to_them(tmp_path: Path) -> None:
    on = "--set=exporter.enabled=true"
    without, asks = render(tmp_path, f"{on},controller.page.exporters="), render(tmp_path, on)
    assert "PAGE_EXPORTERS" not in without
    (deployment,) = objects(asks, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = {each["name"]: each.get("value") for each in container["env"]}
    url = ExportersUrl.parse(str(settings["DRACAENA_PAGE_EXPORTERS"]))
    assert (url.namespace, url.port, url.has_tls) == (deployment["metadata"]["namespace"], 9400, False)
    (exporter,) = (one for one in objects(asks, "DaemonSet") if one["metadata"]["name"].endswith("exporter"))
    pod_labels = exporter["spec"]["template"]["metadata"]["labels"]
    assert dict(term.split("=") for term in url.selector.split(",")).items() <= pod_labels.items()
    let_in = [
        peer["podSelector"]["matchLabels"]
        for policy in objects(asks, "NetworkPolicy")
        for rule in policy["spec"].get("ingress", ())
        for peer in rule["from"]
        if rule["ports"][0]["port"] == 9400 and "podSelector" in peer
    ]
    assert [labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items() for labels in let_in] == [
        True
    ]
    assert "PAGE_EXPORTERS" not in render(tmp_path)
    assert " https://gpu-system:9400/" in render(tmp_path, f"{on},controller.page.exporters=https")
