"""A headless Chromium, driven by the DevTools protocol over a pipe: no package is needed for it.

https://chromedevtools.github.io/devtools-protocol/; messages are JSON with a NUL behind each, written to descriptor 3
of the browser and read from its descriptor 4.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

TIMEOUT_S: Final = 60.0
"""For an answer of the browser: a start takes a second on a free core."""

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One tab. What it logged, what it asked for and the dialogs that it showed are kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._target = self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []

    def open(self, url: str, *, width: int = 1280, height: int = 900) -> None:
        """Open an address in a new tab in place of the one before, and wait until all of its files are there."""
        self._session = ""  # tabs are made by the browser, not by the tab before
        before, self._target = self._target, self._call("Target.createTarget", url="about:blank")["targetId"]
        if before:  # it follows the page on one of the six connections that a browser has to a host
            self._call("Target.closeTarget", targetId=before)
        self._session = self._call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Page.navigate", url=url)
        self.wait_for(f"location.href.startsWith('{url}') && document.readyState === 'complete'")

    def prefer(self, scheme: str, motion: str = "no-preference") -> None:
        """Be `light` or `dark`; with the motion `reduce` nothing flashes."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self._call("Emulation.setEmulatedMedia", features=features)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str, *, within_s: float = TIMEOUT_S) -> Any:
        """Wait until an expression in the page is true; return its value."""
        until_s = time.monotonic() + within_s
        while not (value := self.value(expression)):
            if time.monotonic() > until_s:
                text = self.value("document.body.innerText")
                raise AssertionError(f"{expression} did not become true; {self.errors}; the page says:\n{text}")
            time.sleep(0.1)
        return value

    def press(self, key: str, code: int) -> None:
        """Press a key and let it go."""
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def screenshot(self, path: Path, *, of: str = "", size: tuple[int, int] | None = None) -> None:
        """Write the whole page as a PNG; with `size`, that much of it in CSS pixels, which are those of the picture,
        from the top left of the element that the selector `of` names."""
        more: dict[str, Any] = {}
        if size is not None:
            corner = self.value(
                f"(({{ x, y }}) => [x + scrollX, y + scrollY])(document.querySelector('{of}').getBoundingClientRect())"
            )
            more = {"clip": {"x": corner[0], "y": corner[1], "width": size[0], "height": size[1], "scale": 1}}
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **more)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{told['entry']['text']} ({told['entry'].get('url', '')})")
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(str(told["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(told["message"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], TIMEOUT_S)
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


def program() -> str:
    """Return the browser of this machine. Raises FileNotFoundError: a test of the page without one would be none."""
    for name in (os.environ.get("CHROMIUM", ""), *PROGRAMS):
        if name and (found := shutil.which(name)):
            return found
    raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is on PATH, and CHROMIUM names none (apt install chromium)")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with nothing of an earlier one, and end it."""
    found = program()
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as profile:
        flags = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        )  # fmt: skip
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", shell, found, *flags, "about:blank"],
            pass_fds=(to_read, from_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
