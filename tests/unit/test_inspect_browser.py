"""The page of `omniwire inspect --html` in a real browser: pointer, keys, screen reader, colors.

Skipped where there is no Chromium, which `apt-get install chromium` brings. It is driven over
the DevTools protocol (https://chromedevtools.github.io/devtools-protocol/), null-terminated JSON
on descriptors 3 and 4 of the browser.
"""

import base64
import fcntl
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import omniwire as ow
from omniwire.inspector.page.render import render_page
from omniwire.inspector.source import inspect_file

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

_START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_SECONDS = 60.0  # for anything; a loaded machine starts a browser slowly

_CONTRAST = """(() => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const weights = [0.2126, 0.7152, 0.0722];
  const luminance = (color) => weights.reduce((sum, w, i) => sum + w * linear(color[i] / 255), 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const worst = {};
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || node.matches("script, title, defs *")) continue;
    const style = getComputedStyle(node);
    let [front, back] = [style.color, background(node)];
    if (node.matches("svg text")) {
      front = style.fill;
      const run = node.previousElementSibling;
      if (node.matches(".label")) back = parse(getComputedStyle(run).fill);
    }
    const key = `${node.localName}.${node.getAttribute("class") ?? ""}`;
    worst[key] = Math.min(worst[key] ?? 99, contrast(parse(front), back));
  }
  return worst;
})()"""
"""The lowest contrast of any text and what is behind it, by kind of element (WCAG 2.2, 1.4.3)."""


class Browser:
    """A browser with one page in it; ends when it is closed."""

    def __init__(self, profile: Path) -> None:
        command_read, self._command_write = os.pipe()
        self._event_read, event_write = os.pipe()
        ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (command_read, event_write)]
        assert CHROMIUM is not None
        arguments = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", "--no-first-run"]
        arguments += ["--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        arguments += ["--no-sandbox"] * (os.geteuid() == 0)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, ends), *arguments],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (*ends, command_read, event_write):
            os.close(end)
        self._received = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Any:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._command_write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last_id:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._event_read], [], [], _SECONDS)
            assert ready, "the browser does not answer"
            part = os.read(self._event_read, 2**20)
            assert part, "the browser has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        answer = json.loads(message)
        assert isinstance(answer, dict)
        return answer

    def open(self, path: Path, *, dark: bool = False, width: int = 1280) -> None:
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + _SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end
            self.js("0")

    def js(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, id_: str) -> str:
        return str(self.js(f"document.getElementById({id_!r}).textContent"))

    def press(self, key: str, *, shift: bool = False) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9}.get(key, 0)
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=8 * shift,
            )  # fmt: skip

    def point_at(self, token: int) -> None:
        """Move the pointer over a token of the prompt, which is on one line."""
        x, y, width, height = self.js(
            "(({x, y, width, height}) => [x, y, width, height])"
            "(document.querySelector('#strip svg').getBoundingClientRect())"
        )
        num_tokens = int(self.js("document.getElementById('strip').ariaValueMax")) + 1
        # A line is 1,000 of the drawing's 1,080 units, to the right of 76 for its label.
        units = 76 + (token + 0.5) * 1000 / num_tokens
        self.call(
            "Input.dispatchMouseEvent",
            type="mouseMoved", x=x + units * width / 1080, y=y + height / 2,
        )  # fmt: skip

    def complaints(self) -> list[dict[str, Any]]:
        """What went wrong on the page: exceptions, violations of its policy, dialogs."""
        self.js("0")
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        kinds += ("Page.javascriptDialogOpening", "Network.loadingFailed")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(_SECONDS)
        os.close(self._command_write)
        os.close(self._event_read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """Save an object and write its page."""

    def write_page(obj: object) -> Path:
        ow.save(obj, tmp_path / "one.omniwire")
        page = tmp_path / "one.html"
        page.write_text(render_page(inspect_file(str(tmp_path / "one.omniwire"))), "utf-8")
        return page

    return write_page


def request(positions: tuple[int, int] = (1, 20)) -> ow.ProcessedRequest:
    """Fifty prompt tokens, an image of 16 and an audio clip of 24 in two runs of 12."""
    metadata = ow.MultimodalItemMetadata(
        [("image", 0), ("audio", 0)],
        [64, 96],
        [16, 24],
        {"image": {"pixels": ow.MultimodalItemPartition()}},
    )
    inputs = ow.MultimodalInput.from_hexdigests(
        ["d7" * 32, "c9" * 32],
        positions,
        [16, 24],
        multimodal_item_run_cu_offsets=[0, 1, 3],
        multimodal_run_positions=[positions[0], positions[1], positions[1] + 13],
        multimodal_run_lengths=[16, 12, 12],
    )
    data = {
        "image": {"pixels": torch.rand(1, 3, 8, 16)},
        "audio": {"waveform": torch.rand(2, 800)},
        "item_metadata": metadata,
    }
    return ow.ProcessedRequest("r1", [0] * 50, ow.MultimodalParams(inputs, data))


def many_items() -> ow.ProcessedRequest:
    """Five hundred images of 100 tokens, 50 of text between them."""
    inputs = ow.MultimodalInput([[0] * 8] * 500, list(range(0, 75_000, 150)), [100] * 500)
    record = ow.MultimodalItemMetadata(
        [("image", index) for index in range(500)],
        None,
        None,
        {"image": {"pixel_values": ow.MultimodalItemPartition([2] * 500)}},
    )
    data = {"image": {"pixel_values": torch.zeros(1000, 4)}, "item_metadata": record}
    return ow.ProcessedRequest("many", [0] * 75_000, ow.MultimodalParams(inputs, data))


Write = Callable[[object], Path]


def test_the_page_runs_and_loads_nothing(browser: Browser, write: Write) -> None:
    page = write(request())
    browser.open(page)
    browser.point_at(5)
    assert browser.complaints() == []
    first, *others = browser.requests()
    assert first == page.as_uri()
    assert all(url.startswith("data:image/png;base64,") for url in others)
    assert browser.js("[...document.images].map((i) => [i.naturalWidth, i.width])") == [[16, 128]]


def test_pointing_at_a_token_shows_its_chunk(browser: Browser, write: Write) -> None:
    """Of the tokens [16, 32), one is the image's last and twelve are the clip's first."""
    browser.open(write(request()))
    assert browser.text("strip-token") == browser.text("strip-chunk") == ""
    browser.point_at(21)
    assert browser.text("strip-token") == "Token 21: item 1, audio 0, run 1 of 2"
    assert browser.text("strip-chunk") == (
        "Chunk 2 of 4: prompt tokens [16, 32) need 13 embedding rows, [15, 28) of 40, "
        "of items 0 to 1."
    )
    marks = browser.js(
        "[...document.querySelectorAll('#strip-marks rect')]"
        ".map((one) => [one.x.baseVal.value, one.width.baseVal.value])"
    )
    assert marks == [[396, 320], [496, 20]]  # the chunk and the token, 20 units a token
    browser.point_at(32)
    assert browser.text("strip-token") == "Token 32: text"
    browser.point_at(49)
    assert browser.text("strip-chunk") == (
        "Chunk 4 of 4: prompt tokens [48, 50) need no embedding rows."
    )
    browser.js("const s = document.getElementById('chunk-size'); s.value = '32';"
               "s.dispatchEvent(new Event('change'))")  # fmt: skip
    assert browser.text("strip-chunk") == (
        "Chunk 2 of 2: prompt tokens [32, 50) need 12 embedding rows, [28, 40) of 40, of item 1."
    )
    assert browser.complaints() == []


def test_the_keys_do_what_the_pointer_does(browser: Browser, write: Write) -> None:
    browser.open(write(request()))
    for _ in range(20):
        browser.press("Tab")
        if browser.js("document.activeElement.id") == "strip":
            break
    assert browser.text("strip-token") == "Token 0: text"
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tokens = []
    for key in ("ArrowRight", "ArrowLeft", "ArrowLeft", "PageDown", "End", "PageUp", "ArrowDown",
                "Home", "ArrowUp"):  # fmt: skip
        browser.press(key)
        tokens.append(int(browser.js("document.getElementById('strip').ariaValueNow")))
    assert tokens == [1, 0, 0, 16, 49, 33, 49, 0, 0]
    assert browser.js("document.getElementById('strip').ariaValueText") == "token 0: text"
    # On to the choice of a size, and back.
    browser.press("Tab")
    assert browser.js("document.activeElement.id") == "chunk-size"
    browser.press("Tab", shift=True)
    assert browser.js("document.activeElement.id") == "strip"
    assert browser.complaints() == []


def test_a_chunk_is_announced_once(browser: Browser, write: Write) -> None:
    """A screen reader reads a live region whenever it changes."""
    browser.open(write(request()))
    browser.js(
        "window.changes = 0; new MutationObserver((all) => { window.changes += all.length; })"
        ".observe(document.getElementById('strip-chunk'), {childList: true})"
    )
    browser.js("document.getElementById('strip').focus()")
    for _ in range(15):
        browser.press("ArrowRight")
    assert browser.js("changes") == 1
    browser.press("ArrowRight")  # to token 16
    assert browser.js("changes") == 2


def test_what_a_screen_reader_finds(browser: Browser, write: Write) -> None:
    browser.open(write(request((1, 15))))
    browser.js("document.getElementById('strip').focus()")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    found: dict[str, list[str]] = {}
    for node in nodes:
        if not node["ignored"]:
            name = node.get("name", {}).get("value", "")
            found.setdefault(node["role"]["value"], []).append(name)
    assert found["banner"]
    assert found["main"]
    assert found["navigation"] == ["On this page"]
    assert found["heading"][1:] == [
        "Problems", "Prompt", "Items", "Partitions", "image", "audio", "Images and sounds",
        "$.multimodal_params.multimodal_data.image.pixels",
        "$.multimodal_params.multimodal_data.audio.waveform", "Fields",
    ]  # fmt: skip
    assert found["slider"] == ["Position in the prompt"]
    assert found["status"]
    assert "Items in prompt order" in found["region"]
    assert {"#", "item", "prompt position"} <= set(found["columnheader"])
    assert "problem: 1" in found["rowheader"]
    images = found["image"] if "image" in found else found["img"]
    assert {"Thumbnail of image 0", "Waveform of the sound, channel 2"} <= set(images)
    assert any(name.startswith("pixels, batched along axis 0") for name in images)


def test_hostile_text_does_not_run(browser: Browser, write: Write) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)></title></style><!--\x00"
    inputs = ow.MultimodalInput.from_hexdigests(["d7" * 32], [1], [1], multimodal_uuids=[hostile])
    data = {hostile: hostile, "image" + hostile: torch.rand(3, 8, 8), "image": {hostile: 1}}
    request = ow.ProcessedRequest(hostile, [1, 2], ow.MultimodalParams(inputs, data))
    browser.open(write(request))
    browser.point_at(1)
    assert browser.text("strip-token") == "Token 1: item 0"
    assert browser.complaints() == []
    assert browser.js("document.images.length") == 1
    assert browser.js("document.scripts.length") == 2
    assert all(url.startswith(("file:", "data:image/png;")) for url in browser.requests())


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_both_schemes(dark: bool, browser: Browser, write: Write) -> None:
    browser.open(write(request((1, 15))), dark=dark)
    browser.point_at(5)
    background = browser.js("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
    contrasts = browser.js(_CONTRAST)
    assert len(contrasts) > 15
    assert {kind: value for kind, value in contrasts.items() if value < 4.5} == {}


@pytest.mark.parametrize("make", [request, many_items, lambda: ow.TokenIds([1])])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_window(
    width: int, make: Callable[[], object], browser: Browser, write: Write
) -> None:
    """Only tables and the strip may be wider, and scroll for themselves."""
    browser.open(write(make()), width=width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    content = browser.call("Page.captureScreenshot")["data"]
    with Image.open(io.BytesIO(base64.b64decode(content))) as shot:
        assert shot.size == (width, 900)
        assert len(shot.convert("RGB").getcolors(2**24) or ()) > 20


def test_five_hundred_items(browser: Browser, write: Write) -> None:
    browser.open(write(many_items()))
    browser.js("document.getElementById('strip').focus()")
    browser.press("End")
    assert browser.text("strip-token") == "Token 74,999: text"
    browser.press("PageUp")
    # 75,000 tokens in chunks of 8,192: this is the last but one.
    assert browser.text("strip-chunk") == (
        "Chunk 9 of 10: prompt tokens [65,536, 73,728) need 5,478 embedding rows, "
        "[43,700, 49,178) of 50,000, of items 437 to 491."
    )
    assert browser.complaints() == []
