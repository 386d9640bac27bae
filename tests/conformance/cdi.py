"""Hosts as driver packages make them, with the CDI specs that NVIDIA's own generator writes for them.

The hosts are ours (tests/support/driver_trees.py). cdi_reference, a page of Go on the library behind
`nvidia-ctk cdi generate --mode=nvml`, answers for each; as root, because device nodes are made and each host is taken
as root of a process:

    cd tests/conformance/cdi_reference && go build -o /tmp/cdi-reference .
    PYTHONPATH=tests python -m conformance.cdi /tmp/cdi-reference            # compare ours, it and what was recorded
    PYTHONPATH=tests python -m conformance.cdi /tmp/cdi-reference --record   # write its answers to cdi_vectors.json

A spec is compared as a set of facts, one a line: what stands where, with links on the host followed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dracaena.api.names import ClaimUid, cdi_device_name
from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.device_kinds.cdi_spec import claim_spec
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.driver_trees import HOOK, LAYOUTS, Layout, installation_of, make_host, nodes_of, real_node

VECTORS = Path(__file__).parent / "cdi_vectors.json"
DRIVER = "gpu.dracaena.dev"
UID = ClaimUid("claim-uid")

Facts = frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Facts in which ours and the reference's may differ, and why."""

    facts: str
    """A regular expression that fits the whole of a fact, with `+` in front when only ours has it, else `-`."""
    why: str


DIFFERENCES = (
    Difference(
        r"-((GPU|MIG)-\S+ )?node \S+ has (major|minor|permissions) \S+",
        "left to the container runtime, which reads the numbers from the host's node when a container starts and "
        "allows rwm: the driver may be loaded anew, with another major for nvidia-uvm, while a claim stays prepared",
    ),
    Difference(
        r"-((GPU|MIG)-\S+ )?(node /dev/\S+ has (fileMode|gid) \d+|groups have \d+)",
        "a runtime makes a node without a mode open to all users of the container, so none must join a group of the "
        "host, whose number may mean something else to the files of other volumes",
    ),
    Difference(
        r"\+hook \S+ create-symlinks (\S+)\.so\.[\d.]+::\S+\1\.so[.\d]*",
        "the link by SONAME, which update-ldcache makes in the same folder anyway; ours does not depend on a link that "
        "the host may lack",
    ),
    Difference(
        r"-(GPU|MIG)-\S+ hook \S+ create-symlinks \S+::/run/nvidia/driver/dev/dri/by-path/\S+",
        "the reference puts the dev root of the host into a path of the container, where nothing looks for it",
    ),
    Difference(
        r"\+(GPU|MIG)-\S+ hook \S+ create-symlinks \.\./\S+::/dev/dri/by-path/\S+",
        "the same link where containers look for it",
    ),
)


def our_facts(host: Path, layout: Layout) -> Facts:
    """Return what our spec for a claim of all devices says. The nodes of the host are text."""
    devices = [device for gpu in layout.gpus for device in gpu.devices()]
    prepared = PreparedClaim(ClaimReference("default", "claim", UID), tuple(devices))
    spec = claim_spec(prepared, DRIVER, nodes_of(host, layout).of_claim(devices), installation_of(host, layout).edits())
    names = {cdi_device_name(UID, device.device): device.uuid for device in devices}
    return spec_facts(json.loads(spec), names, host)


def spec_facts(spec: Mapping[str, Any], names: Mapping[str, str], host: Path) -> Facts:
    """Return the facts of a spec; `names` are the UUIDs of its devices, where they are called otherwise."""
    facts = set(_edits_facts(spec["containerEdits"], host))
    for device in spec["devices"]:
        uuid = names.get(device["name"], device["name"])
        facts |= {f"{uuid} {fact}" for fact in _edits_facts(device["containerEdits"], host)}
    return frozenset(facts)


def _edits_facts(edits: Mapping[str, Any], host: Path) -> Iterator[str]:
    root = GpuDriverRoot(str(host))
    for variable in edits.get("env", ()):
        yield f"env {variable}"
    for node in edits.get("deviceNodes", ()):
        yield f"node {node['path']} is {node.get('hostPath', node['path'])}"
        told = sorted(node.keys() - {"path", "hostPath"})
        yield from (f"node {node['path']} has {key} {node[key]}" for key in told)
    yield from (f"groups have {group}" for group in edits.get("additionalGids", ()))
    for mount in edits.get("mounts", ()):
        real_path = root.resolve(mount["hostPath"])
        yield f"mount {mount['containerPath']} is {real_path} {','.join(mount['options'])}"
    for hook in edits.get("hooks", ()):
        program, command, *arguments = hook["args"]
        begin = f"hook {hook['hookName']} {command}"
        yield f"{begin} by {hook['path']} as {program} with {','.join(hook['env'])}"
        yield from (f"{begin} {argument}" for argument in arguments if not argument.startswith("--") or "=" in argument)


def unexplained(ours: Facts, reference: Facts) -> tuple[str, ...]:
    """Return the facts in which the two differ and for which there is no reason, sorted."""
    different = [*(f"+{fact}" for fact in ours - reference), *(f"-{fact}" for fact in reference - ours)]
    return tuple(sorted(fact for fact in different if not any(re.fullmatch(d.facts, fact) for d in DIFFERENCES)))


def recorded() -> Mapping[str, Facts]:
    """Return the reference's facts for each layout."""
    return {name: frozenset(facts) for name, facts in json.loads(VECTORS.read_text()).items()}


def ask(reference: str, hosts: Mapping[str, Path]) -> Mapping[str, Facts]:
    """Return what the reference says now of hosts with real device nodes."""
    requests = [json.dumps(_request(host, LAYOUTS[name])) for name, host in hosts.items()]
    done = subprocess.run([reference], input="\n".join(requests), capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        name: frozenset({answer["error"]}) if "error" in answer else spec_facts(answer, {}, host)
        for (name, host), answer in zip(hosts.items(), answers, strict=True)
    }


def _request(host: Path, layout: Layout) -> Mapping[str, Any]:
    return {
        "host": str(host),
        "driverRoot": layout.driver_root,
        "devRoot": layout.dev_root,
        "hook": HOOK,
        "version": layout.version,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "minor": gpu.minor,
                "address": gpu.address,
                "parts": [
                    {"uuid": part.uuid, "gpuInstance": part.gpu_instance, "graphics": part.graphics}
                    for part in gpu.parts
                ],
            }
            for gpu in layout.gpus
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 when something differs without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        hosts = {name: Path(folder) / "real" / name for name in LAYOUTS}
        for name, host in hosts.items():
            make_host(host, LAYOUTS[name], real_node)
        answers = ask(given.reference, hosts)
        if given.record:
            document = {name: sorted(facts) for name, facts in answers.items()}
            VECTORS.write_text(json.dumps(document, indent=1) + "\n")
        known, failed = recorded(), False
        for name, layout in LAYOUTS.items():
            host = Path(folder) / "text" / name
            make_host(host, layout)
            found = unexplained(our_facts(host, layout), answers[name])
            moved = answers[name] ^ known.get(name, frozenset())
            failed = failed or bool(found or moved)
            sys.stdout.write(f"{name}: {len(answers[name])} facts, {len(found)} without a reason, {len(moved)} new\n")
            sys.stdout.writelines(
                f"  {fact}\n" for fact in (*found, *sorted(f"recorded otherwise: {m}" for m in moved))
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
