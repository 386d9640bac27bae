"""The folders of this node in which prepared claims have files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dracaena.api.names import ClaimUid
from dracaena.api.podlist import PODLIST
from dracaena.host.adapters.files.whole_files import DocumentFolder, DocumentTree
from dracaena.host.paths import PluginPaths
from dracaena.kubelet_plugin.device_kinds.cdi_spec import spec_file_name
from dracaena.kubelet_plugin.prepare.reports.device_metadata import spec_prefix
from dracaena.kubelet_plugin.settings import PluginSettings

CDI_SPEC_MODE = 0o644
CHECKPOINT_MODE = 0o600


@dataclass(frozen=True, slots=True)
class ClaimFolders:
    """The folders that hold files of each prepared claim."""

    checkpoints: DocumentFolder
    ledger: DocumentFolder
    marks: DocumentFolder
    podlist: DocumentFolder
    jobs: DocumentFolder | None
    specs: DocumentFolder
    metadata: DocumentTree

    def written(self, driver: str) -> tuple[tuple[DocumentFolder | DocumentTree, str], ...]:
        """Return each folder with the prefix of our file names there."""
        return (
            (self.checkpoints, ""),
            (self.ledger, ""),
            (self.marks, ""),
            (self.metadata, ""),
            (self.specs, spec_prefix(driver)),
            (self.podlist, PODLIST),
            (self.specs, spec_file_name(driver, ClaimUid("")).removesuffix(".json")),  # other vendors write there too
            *([(self.jobs, "")] if self.jobs is not None else []),
        )


def claim_folders(settings: PluginSettings, paths: PluginPaths) -> ClaimFolders:
    """Return the folders that the settings name. Creates and reads nothing."""
    return ClaimFolders(
        checkpoints=DocumentFolder(paths.checkpoints, mode=CHECKPOINT_MODE, synced=False, in_place_if_full=True),
        ledger=DocumentFolder(paths.ledger, mode=CHECKPOINT_MODE, synced=False, in_place_if_full=True),
        marks=DocumentFolder(paths.checkpoints.parent, synced=False),
        podlist=DocumentFolder(paths.podlist, synced=False, in_place=settings.podlist_in_place),
        jobs=DocumentFolder(Path(settings.job_mapping_dir), synced=False) if settings.job_mapping_dir else None,
        specs=DocumentFolder(Path(settings.cdi_root), mode=CDI_SPEC_MODE, synced=False),
        metadata=DocumentTree(paths.metadata, synced=False),
    )
