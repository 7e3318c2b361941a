"""A real browser for tests: headless chromium, without a network."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("bash") is None,
    reason="no chromium here: the report is not tried in a real browser (apt-get install chromium)",
)


class Browser:
    """A headless chromium spoken to over a pair of pipes in its debugging protocol."""

    FLAGS = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--remote-debugging-pipe",
    )

    def __init__(self, profile: Path) -> None:
        command_out, self.command = os.pipe()
        self.answer, answer_in = os.pipe()
        # The browser wants its pipes as descriptors 3 and 4: the shell moves them there from higher numbers.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 30) for end in (command_out, answer_in)]
        shell = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        arguments = [str(CHROMIUM), *self.FLAGS, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *arguments],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (command_out, answer_in, *ends):
            os.close(end)
        self.buffer, self.count = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        os.write(self.command, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self.events.append(answer)

    def receive(self, patience: float = 60) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answer], [], [], patience)
            assert ready, "the browser does not answer"
            more = os.read(self.answer, 2**20)
            assert more, "the browser has gone"
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, page: Path, width: int = 1300, height: int = 900) -> "Tab":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.call("Page.navigate", url=page.resolve().as_uri())
        tab.wait("document.readyState === 'complete'")
        return tab

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.command)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.answer)


class Tab:
    """One page: what it shows, what it complains about, and what it asks the network for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str, patience: float = 60) -> bool:
        end = time.monotonic() + patience
        while not (met := bool(self.run(condition))) and time.monotonic() < end:
            time.sleep(0.05)
        return met

    def drawn(self, patience: float = 60) -> bool:
        return self.wait("document.body.dataset.drawn !== undefined", patience)

    def of(self, method: str) -> list[dict[str, Any]]:
        found = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in found if event["method"] == method]

    def complaints(self) -> list[str]:
        printed = [
            call for call in self.of("Runtime.consoleAPICalled") if call["type"] in ("error", "warning", "assert")
        ]
        logged = [entry["entry"] for entry in self.of("Log.entryAdded")]
        return [json.dumps(item) for item in (*printed, *logged, *self.of("Runtime.exceptionThrown"))]

    def requests(self) -> list[str]:
        """Addresses that lie outside this file."""
        asked = [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]

    def undrawn(self) -> list[str]:
        """Figures without a picture: a map must hold an image or a canvas, a curve a path, of some size."""
        return self.run(
            """[...document.querySelectorAll(".plot")].filter(plot => {
                const marks = [...plot.querySelectorAll(".heatmaplayer image, .trace path, canvas")];
                return !marks.some(mark => mark.getBoundingClientRect().width > 20);
            }).map(plot => plot.id)"""
        )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
