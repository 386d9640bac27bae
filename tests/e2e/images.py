"""The one container image of these tests, made by hand: no registry is asked, nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROBE_IMAGE = "docker.io/local/probe:1"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_image(probe: Path, names: Sequence[str], target: Path) -> None:
    """Write an OCI image layout as a tar file, known under all `names`, that `ctr images import` takes."""
    layer = _layer(probe)
    blobs: dict[str, bytes] = {}
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/probe"], "Cmd": ["wait"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _keep(blobs, _CONFIG, _json(config)),
        "layers": [_keep(blobs, _LAYER, layer)],
    }
    entry = _keep(blobs, _MANIFEST, _json(manifest))
    index = {
        "schemaVersion": 2,
        "manifests": [{**entry, "annotations": {"io.containerd.image.name": name}} for name in names],
    }
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        for digest, blob in sorted(blobs.items()):
            _add(archive, f"blobs/{digest.replace(':', '/')}", blob)


def _layer(probe: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, "probe", probe.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _keep(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
