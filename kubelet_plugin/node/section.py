"""Which section of the settings file applies to this node: a label of its Node names it.

The label is read at the start and followed from then on. Settings are only applied at a start: if a new label means
other settings, the program says so and ends, and kubelet restarts it. Pods keep running meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import settings_label
from dracaena.api.objects import Node
from dracaena.host.paths import LAST_ASKING
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.events import EventType
from dracaena.kube.reflector import Kept, Reflector
from dracaena.kubelet_plugin.gpu_driver.release import asking_labels
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.process.clock import Clock
from dracaena.process.settings import Layers

LAST_SECTION = "settings-section"
"""File with the label as last seen, for a start while the API server is away."""

Tell = Callable[[EventType, str, str], None]
"""Writes an Event on this node: type, reason, text."""

log = structlog.get_logger()


class NodeSection:
    """Chooses the settings once, then watches. Call choose() before start()."""

    def __init__(
        self,
        layers: Layers[PluginSettings],
        client: KubeClient,
        files: DocumentStore,
        lock: NodeLock,
        clock: Clock,
        *,
        end: Callable[[], None],
    ) -> None:
        """`end` makes the program end; it is called from a thread of this object."""
        self._layers = layers
        self._client = client
        self._files = files
        self._lock = lock
        self._end = end
        self._general = layers.resolve()
        self._label = settings_label(self._general.driver_name)
        self._settings = self._general
        self._section = ""
        self.labels: Mapping[str, str] = {}
        """The node's labels as choose() read them; without the API server, those that last asked for a release."""
        self._asking: dict[str, str] | None = None
        self._follow: Callable[[Mapping[str, str]], None] = lambda _labels: None
        self._tell: Tell = lambda _type, _reason, _text: None
        self._metrics: PluginMetrics | None = None
        self._node: Reflector[Node] = Reflector(
            client,
            Node,
            clock=clock,
            on_change=self._node_changed,
            kept=Kept(field_selector=f"metadata.name={self._general.node_name}"),
        )

    def choose(self) -> PluginSettings:
        """Return the settings that apply to this node.

        Raises TemporaryError if the section is not known: the API server does not answer, and no earlier start has
        recorded it. If the file has no such section, the general settings apply, and start() says so.
        """
        self._section = self._read_label()
        self._settings = self._layers.resolve(self._section)
        overruled = self._layers.overruled(self._section)
        if overruled:
            log.warning("environment or flags override the section", section=self._section, settings=overruled)
        if self._known(self._section):
            log.info("settings of this node", section=self._section or None)
        return self._settings

    def start(
        self,
        tell: Tell,
        metrics: PluginMetrics,
        follow: Callable[[Mapping[str, str]], None] = lambda _labels: None,
    ) -> None:
        """Begin to follow the label. `follow` gets all labels of the node each time the node changes."""
        self._follow = follow
        self._tell = tell
        self._metrics = metrics
        self._judge(self._section)
        self._node.start()

    @property
    def cache(self) -> Reflector[Node]:
        """The cache that follows the Node: while it is not fresh, a change of label goes unnoticed."""
        return self._node

    def stop(self) -> None:
        """End the watch."""
        self._node.stop()

    def _read_label(self) -> str:
        try:
            node = self._client.get(Node, self._general.node_name)
        except KubeError as error:
            self.labels = self._last_asking()
            if not self._layers.sections:
                return ""
            last = self._files.read(LAST_SECTION)
            if last is None:
                raise TemporaryError(
                    f"the settings file has sections, and label {self._label} of node {self._general.node_name} that "
                    f"names one cannot be read: {error}"
                ) from error
            section = last.decode(errors="replace").strip()
            log.warning("label not read, the section of the last start applies", section=section, error=str(error))
            return section
        self.labels = node.metadata.labels
        self._remember_asking(self.labels)
        section = node.metadata.labels.get(self._label, "")
        self._remember(section)
        return section

    def _node_changed(self, _old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._follow(new.metadata.labels)
            self._remember_asking(new.metadata.labels)
        section = "" if new is None else new.metadata.labels.get(self._label, "")
        if new is None or section == self._section:
            return
        self._section = section
        self._remember(section)
        self._judge(section)
        if self._layers.resolve(section) == self._settings:
            log.info("label changed, the settings are the same", section=section)
            return
        text = f"label {self._label} of this node is {section!r} now: the plugin restarts to apply its settings"
        log.warning("settings changed", reason=text)
        self._tell("Normal", "SettingsChanged", text)
        self._end()

    def _judge(self, section: str) -> None:
        """Show a section in the metrics, and report it if it is unknown."""
        known = self._known(section)
        if self._metrics is not None:
            self._metrics.node.settings_section.clear()
            self._metrics.node.settings_section.labels(section, str(known).lower()).set(1)
        if known:
            return
        text = (
            f"label {self._label} of this node names section {section!r} of the settings file, which has "
            f"{', '.join(sorted(self._layers.sections)) or 'no sections'}: the settings outside the sections apply"
        )
        log.error("unknown section", reason=text)
        self._tell("Warning", "SettingsSectionUnknown", text)

    def _known(self, section: str) -> bool:
        return not section or section in self._layers.sections

    def _remember(self, section: str) -> None:
        self._write(LAST_SECTION, f"{section}\n".encode())

    def _remember_asking(self, labels: Mapping[str, str]) -> None:
        asking = asking_labels(self._general.driver_name, labels)
        if asking != self._asking:
            self._asking = asking
            self._write(LAST_ASKING, f"{json.dumps(asking, sort_keys=True)}\n".encode() if asking else None)

    def _last_asking(self) -> dict[str, str]:
        try:
            asking = json.loads(self._files.read(LAST_ASKING) or b"{}")
            asking = {str(key): str(value) for key, value in asking.items()}
        except (DracaenaError, ValueError, AttributeError, RecursionError) as error:
            log.warning("who asked for the driver before this start is not known", error=str(error))
            return {}
        return asking_labels(self._general.driver_name, asking)

    def _write(self, name: str, data: bytes | None) -> None:
        """Write a file, or remove it if there is nothing to remember."""
        try:
            with self._lock.hold():
                if data is None:
                    self._files.remove(name)
                else:
                    self._files.write_if_changed(name, data)
        except DracaenaError as error:
            log.warning("a label is not remembered for the next start", file=name, error=str(error))
