"""A headless Chromium that tests drive: the DevTools protocol over a pipe, with the standard library alone.

with Browser(CHROMIUM, tmp_path) as browser:
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.evaluate("document.title") == "..."
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60.0
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)

# The browser reads commands from descriptor 3, and writes answers to 4: our pipes may have these numbers.
_STARTER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for place, end in enumerate(ends):
    os.dup2(end, 3 + place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page in a browser of its own.

    `requests` has the addresses that the page asked for, `complaints` the errors and warnings of its console
    and the exceptions of its scripts.
    """

    def __init__(self, chromium: str, folder: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = (*_OPTIONS, f"--user-data-dir={folder / 'browser'}", "about:blank")
        starter = (sys.executable, "-c", _STARTER, str(to_browser), str(from_browser))
        self._process = subprocess.Popen(
            [*starter, chromium, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._session: str | None = None
        (page,) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(SECONDS)

    def open(self, address: str, *, script: bool = True, width: int = 1280, dark: bool = False) -> None:
        """Load a page, and wait until all of it is there."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        # Away from a page that differs in its fragment alone, which would not be loaded again.
        for place in ("about:blank", address):
            self._events.clear()
            self.call("Page.navigate", url=place)
            while not any(event["method"] == "Page.loadEventFired" for event in self._events):
                self._take(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, awaited; AssertionError if it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the first element that a CSS selector finds, in the middle of its first line."""
        box = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center'}); const box = found.getClientRects()[0];"
            "return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def type_text(self, selector: str, text: str) -> None:
        """Click on a field, and type."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the protocol; AssertionError if the browser refuses it or does not answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._take(answer)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._read, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        fields = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(fields["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(fields["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if fields["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(fields["args"]))
            case "Log.entryAdded" if fields["entry"]["level"] in ("error", "warning"):
                self.complaints.append(fields["entry"]["text"])
