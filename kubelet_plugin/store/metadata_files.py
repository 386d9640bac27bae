"""Keeps the files that tell containers which devices they got (prepare.device_metadata), behind a setting.

A claim's checkpoint says whether it has such files. So a claim gets the same answer for as long as it is prepared, even
if the setting changes, and files that were written with the setting on are removed with it off.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import structlog

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.ports import DocumentStore, ReadPool
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken, Checkpoint
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.device_metadata import (
    Attributes,
    claim_of_document,
    claim_of_spec_name,
    document,
    document_name,
    requests,
    spec,
    spec_name,
    spec_prefix,
)

log = structlog.get_logger()


class MetadataFiles:
    """Writes and removes them. Callers hold the node's lock; all methods raise DracaenaError naming the path.

    A document is named after its claim, not after the claim's UID. A claim may take over the name, and so the document,
    of one that has not been unprepared yet; hence we check whose a document is before removing it.
    """

    def __init__(
        self, *, driver: str, documents: DocumentStore, folder: str, specs: DocumentStore, enabled: bool
    ) -> None:
        """`folder` is the path of `documents` on the host."""
        self._driver = driver
        self._documents = documents
        self._folder = folder
        self._specs = specs
        self.is_wanted = enabled
        """Whether claims that are prepared from now on get such files."""

    def write(self, prepared: PreparedClaim, attributes: Attributes) -> None:
        """Write all files of a claim: each document before what mounts it."""
        for request in requests(prepared) if prepared.metadata is not None else ():
            self._documents.write(
                document_name(prepared.claim, request), document(prepared, request, self._driver, attributes)
            )
            self._write_spec(prepared, request)

    def restore(self, prepared: PreparedClaim, read_pool: ReadPool) -> None:
        """Rewrite lost files of a prepared claim. Raises TemporaryError while the GPUs are not known yet."""
        for request in requests(prepared) if prepared.metadata is not None else ():
            name = document_name(prepared.claim, request)
            if self._documents.read(name) is None:
                self._documents.write(name, document(prepared, request, self._driver, read_pool().attributes))
                log.warning("device metadata was gone, written again", file=name)
            if self._specs.read(spec_name(self._driver, prepared.claim.uid, request)) is None:
                self._write_spec(prepared, request)

    def remove(self, checkpoint: Checkpoint | Broken) -> None:
        """Remove all files of a claim. A broken checkpoint does not say which, so we look for those with its UID."""
        if isinstance(checkpoint, Broken):
            self._remove(lambda uid: uid == checkpoint.uid)
            return
        prepared = checkpoint.prepared
        for request in requests(prepared) if prepared.metadata is not None else ():
            self._specs.remove(spec_name(self._driver, prepared.claim.uid, request))
            name = document_name(prepared.claim, request)
            found = self._documents.read(name)
            if found is None or claim_of_document(found) == prepared.claim.uid:
                self._documents.remove(name)

    def remove_strays(self, known: AbstractSet[ClaimUid]) -> int:
        """Remove the files of all other claims; return how many there were."""
        return self._remove(lambda uid: uid not in known)

    def _remove(self, unwanted: Callable[[ClaimUid], bool]) -> int:
        specs = [
            name
            for name in self._specs.names(".json")
            if name.startswith(spec_prefix(self._driver))
            and (uid := claim_of_spec_name(self._driver, name)) is not None
            and unwanted(uid)
        ]
        for name in specs:
            self._specs.remove(name)
        documents = [name for name in self._documents.names(".json") if unwanted(self._claim_of(name))]
        for name in documents:
            self._documents.remove(name)
        return len(specs) + len(documents)

    def _claim_of(self, name: str) -> ClaimUid:
        """Return the UID of the claim that owns this document, empty if none does."""
        return claim_of_document(self._documents.read(name) or b"") or ClaimUid("")

    def _write_spec(self, prepared: PreparedClaim, request: str) -> None:
        name = spec_name(self._driver, prepared.claim.uid, request)
        self._specs.write(name, spec(prepared, request, self._driver, self._folder))
