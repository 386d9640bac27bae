from __future__ import annotations

from dracaena.api.objects import ObjectMeta, PersistentVolume, PersistentVolumeClaim
from dracaena.controller.cache.storage import kept_volume, kept_volume_claim

SELECTED = {"volume.kubernetes.io/selected-node": "n"}


def test_of_storage_what_tells_where_it_can_be_is_kept() -> None:
    meta = ObjectMeta("x", "ns", "u", "5", labels={"zone": "a"}, annotations={**SELECTED, "note": "y" * 100})
    claim, volume = kept_volume_claim(PersistentVolumeClaim(meta)), kept_volume(PersistentVolume(meta))
    assert (claim.key, claim.metadata.uid, claim.metadata.resource_version) == ("ns/x", "u", "5")
    assert (claim.metadata.labels, claim.metadata.annotations) == ({}, SELECTED)
    assert (volume.metadata.labels, volume.metadata.annotations) == ({"zone": "a"}, SELECTED)
