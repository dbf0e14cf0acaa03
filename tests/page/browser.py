"""browser.py: a headless Chromium driven over a pipe (the DevTools protocol), as much of it as the tests of the page need.
SPDX-License-Identifier: MIT
"""
import base64
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import time

import numpy as np
from PIL import Image

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SECONDS = 60


def program():
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """One page in one window. `said` gathers what the page writes to its console, and exceptions that nobody catches."""

    def __init__(self, folder, width=1100, height=1000):
        ours, theirs = self._pipe(), self._pipe()  # commands, answers

        def place():
            os.dup2(ours[0], 3)
            os.dup2(theirs[1], 4)

        self.process = subprocess.Popen(
            [program(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-lcd-text",
             f"--user-data-dir={folder}", f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(3, 4), preexec_fn=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(ours[0]), os.close(theirs[1])
        self.write, self.read = ours[1], theirs[0]
        self.rest, self.number, self.said, self.requests, self.loaded, self.session = b"", 0, [], [], False, None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    @staticmethod
    def _pipe():
        """Above 3 and 4, which the browser wants."""
        return tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe())

    def _message(self):
        limit = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, limit - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            got = os.read(self.read, 1 << 20)
            if not got:
                raise EOFError("the browser is gone")
            self.rest += got
        one, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(one)
        about, more = message.get("method"), message.get("params", {})
        if about == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning", "assert"):
            self.said.append(str(more["args"]))
        elif about == "Runtime.exceptionThrown":
            self.said.append(str(more["exceptionDetails"]))
        elif about == "Log.entryAdded":
            self.said.append(str(more["entry"]))
        elif about == "Network.requestWillBeSent":
            self.requests.append(more["request"]["url"])
        elif about == "Page.loadEventFired":
            self.loaded = True
        return message

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path):
        self.loaded, self.requests, self.said = False, [], []
        self.call("Page.navigate", url="file://" + str(path))
        while not self.loaded:
            self._message()

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")

    def choose(self, selector, value):
        """Picks an option of a select as a person does: the change is heard."""
        self.run(f"{{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }}")

    def mouse(self, kind, x, y, button="none"):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=int(button != "none"))

    def key(self, name):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def click(self, x, y):
        self.mouse("mousePressed", x, y, "left")
        self.mouse("mouseReleased", x, y, "left")

    def cell(self, i, j, canvas=0):
        """The middle of a cell on the screen, scrolled into view."""
        return self.run(
            f"(() => {{ const c = document.querySelectorAll('#maps canvas')[{canvas}], d = c.dataset; c.scrollIntoView({{block: 'nearest'}}); "
            f"const b = c.getBoundingClientRect(); return [b.left + +d.left + ({j} + .5) * d.cell, b.top + +d.top + ({i} + .5) * d.cell]; }})()")

    def picture(self):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def close(self):
        os.close(self.write), os.close(self.read)
        self.process.terminate()
        self.process.wait(SECONDS)
