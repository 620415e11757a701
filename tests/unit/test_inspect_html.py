"""The page of `omniwire inspect --html`: its structure, what is in it, and what can never be."""

import base64
import hashlib
import html.parser
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch
from click.testing import CliRunner, Result

import omniwire as ow
from omniwire.inspector.command import inspect_command
from omniwire.inspector.page.render import render_page
from omniwire.inspector.source import inspect_file

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\x00\u202e&lt;</title>"
    "</style><!--{{ 7 * 7 }}"
)
VOID = {"meta", "link", "img", "br", "input"}


@attrs.define(eq=False)
class Element:
    """An element of a page: its tag, its attributes, what it is in, and all the text in it."""

    tag: str
    attributes: dict[str, str]
    inside: tuple["Element", ...]
    texts: list[str] = attrs.Factory(list)
    cells: list["Element"] = attrs.Factory(list)  # of a table's row

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Page(html.parser.HTMLParser):
    """A page that is read strictly: every tag is closed, and in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(self._open))
        self.elements.append(element)
        if tag in ("th", "td"):
            self._open[-1].cells.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag with some attributes; `_class` is one of several classes."""
        name = attributes.pop("_class", None)
        return [
            element
            for element in self.elements
            if element.tag == tag
            and attributes.items() <= element.attributes.items()
            and (name is None or name in element.attributes.get("class", "").split())
        ]

    def one(self, tag: str, **attributes: str) -> Element:
        (element,) = self.all(tag, **attributes)
        return element

    def rows(self, label: str) -> list[str]:
        """The words of each row of a table."""
        rows = (
            row
            for row in self.all("tr")
            if any(outer.attributes.get("aria-label") == label for outer in row.inside)
        )
        return list(map(words, rows))

    @property
    def strip(self) -> dict[str, object]:
        """What the page's script is given."""
        data = json.loads(self.one("script", id="strip-data").text)
        assert isinstance(data, dict)
        return data

    @property
    def text(self) -> str:
        return " ".join(self.one("body").text.split())


def words(row: Element) -> str:
    """The words of a table's row, a space between the cells."""
    return " ".join(" ".join(cell.text for cell in row.cells).split())


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(inspect_command, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[object], Page]:
    """Save an object, inspect it, and read the page."""

    def inspect(obj: object) -> Page:
        ow.save(obj, tmp_path / "one.omniwire")
        return Page(render_page(inspect_file(str(tmp_path / "one.omniwire"))))

    return inspect


def request(
    positions: tuple[int, int] = (1, 20), grid: int = 2, rows: tuple[int, int] = (16, 24)
) -> ow.ProcessedRequest:
    """Fifty prompt tokens and two images, of 16 and 24, the second in two runs of 12."""
    metadata = ow.MultimodalItemMetadata(
        [("image", 0), ("image", 1)],
        [64, 96],
        rows,
        {
            "image": {
                "pixel_values": ow.MultimodalItemPartition([64, 96]),
                "image_grid_thw": _each(),
            }
        },
    )
    inputs = ow.MultimodalInput.from_hexdigests(
        ["d7" * 32, "c9" * 32],
        positions,
        [16, 24],
        multimodal_uuids=["photo-1", None],
        multimodal_item_run_cu_offsets=[0, 1, 3],
        multimodal_run_positions=[positions[0], positions[1], positions[1] + 13],
        multimodal_run_lengths=[16, 12, 12],
    )
    data = {
        "image": {
            "pixel_values": torch.zeros(160, 1176, dtype=torch.bfloat16),
            "image_grid_thw": torch.tensor([[1, 8, 8], [1, 8, 12]])[:grid],
            "scale": 2,
        },
        "item_metadata": metadata,
    }
    return ow.ProcessedRequest("r1", [0] * 50, ow.MultimodalParams(inputs, data))


def _each() -> ow.MultimodalItemPartition:
    return ow.MultimodalItemPartition()


def check_structure(page: Page) -> None:
    """What holds of every page."""
    source = page.source
    assert source.startswith("<!doctype html>\n")
    assert source.replace("\n", "").isprintable()
    assert page.one("html").attributes["lang"] == "en"
    assert page.one("meta", name="color-scheme").attributes["content"] == "light dark"
    assert page.one("h1")
    assert page.one("main")
    (title,) = (one for one in page.all("title") if one.inside[-1].tag == "head")
    assert title.text.endswith(" - omniwire inspect")
    # Nothing is loaded, and nothing but the two parts of the page's own is allowed to run.
    policy = page.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    hashes = [
        base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        for element in (page.one("style"), page.all("script")[-1])
    ]
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; "
        f"script-src 'sha256-{hashes[1]}'; base-uri 'none'; form-action 'none'"
    )
    # It comes before all that it rules.
    assert [element.tag for element in page.elements[:4]] == ["html", "head", "meta", "meta"]
    for element in page.elements:
        assert not {"style", "srcset", "action", "target"} & element.attributes.keys()
        assert not any(name.startswith("on") for name in element.attributes)
        assert element.attributes.get("src", "data:image/png;").startswith("data:image/png;")
    assert set(re.findall(r"url\([^)]*\)|@\w+", page.one("style").text)) <= {
        "url(#hatch)",
        "@media",
    }
    # Links lead somewhere, and names are given once.
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert link.attributes["href"].removeprefix("#") in ids
    for element in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert element.attributes.get(name, ids[0]) in ids
    # What a screen reader needs.
    for image in page.all("img"):
        assert image.attributes["alt"]
    for drawing in page.all("svg"):
        hidden = drawing.attributes.get("aria-hidden") == "true"
        assert hidden or (drawing.attributes["role"], bool(drawing.attributes["aria-label"])) == (
            "img",
            True,
        )
    for heading in page.all("th"):
        assert heading.attributes["scope"] in ("col", "row")
    levels = [
        int(element.tag[1]) for element in page.elements if re.fullmatch("h[1-6]", element.tag)
    ]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for region in page.all("div", _class="scroll"):
        if region.attributes.get("role") == "region":
            assert (region.attributes["tabindex"], bool(region.attributes["aria-label"])) == (
                "0",
                True,
            )


def test_a_page_of_every_type(
    build_to_send: Callable[[], object], page_of: Callable[[object], Page]
) -> None:
    obj = build_to_send()
    page = page_of(obj)
    check_structure(page)
    assert page.one("p", _class="verdict").text.split() == [
        *[type(obj).__name__ + ",", "wire", "format", "version", "1,"],
        *["\u2713", "valid"],
    ]
    assert page.rows("Table of fields")[1].startswith(type(obj).__name__)


def test_the_same_file_gives_the_same_page(page_of: Callable[[object], Page]) -> None:
    assert page_of(request()).source == page_of(request()).source


def test_items_runs_and_chunks_worked_out_by_hand(page_of: Callable[[object], Page]) -> None:
    page = page_of(request())
    check_structure(page)
    assert page.rows("Items in prompt order") == [
        "# item prompt position prompt tokens runs encoder tokens embedding rows hash uuid",
        "0 image 0 1 16 1 64 16 d7d7d7d7 photo-1",
        "1 image 1 20 24 2 96 24 c9c9c9c9",
    ]
    # Fifty tokens of 20 units each, to the right of the 76 of the labels.
    strip = [
        element
        for element in page.all("rect", _class="run")
        if page.all("div", id="strip")[0] in element.inside
    ]
    assert [(element.attributes["x"], element.attributes["width"]) for element in strip] == [
        ("96", "320"),
        ("476", "240"),
        ("736", "240"),
    ]
    labels = [element.text for element in page.all("text", _class="label")]
    assert labels[:3] == ["0: image 0", "1: image 1", "1: image 1"]
    slider = page.one("div", id="strip").attributes
    assert (slider["role"], slider["tabindex"]) == ("slider", "0")
    assert (slider["aria-valuemin"], slider["aria-valuemax"]) == ("0", "49")
    assert page.one("p", id="strip-chunk").attributes["aria-live"] == "polite"
    assert page.strip == {
        "tokens": 50,
        "tokensPerLine": 50,
        # Prompt tokens [start, end) of an item's run.
        "runs": [[1, 17, 0, 0], [20, 32, 1, 0], [33, 45, 1, 1]],
        "items": {"0": ["image 0", 1], "1": ["image 1", 2]},
        "rows": 40,
        "exact": True,
        "chunks": [
            [[0, 7], [7, 15], [15, 20], [20, 28], [28, 35], [35, 40], [40, 40]],
            [[0, 15], [15, 28], [28, 40], [40, 40]],
            [[0, 28], [28, 40]],
        ],
    }
    sizes = [option.attributes["value"] for option in page.all("option")]
    assert sizes == ["8", "16", "32"]


def test_framing_tokens_make_the_rows_of_a_chunk_an_upper_bound(
    page_of: Callable[[object], Page],
) -> None:
    page = page_of(request(rows=(14, 24)))
    assert page.strip["exact"] is False
    assert "so a chunk may need fewer rows." in page.text


def test_long_prompts_take_several_lines(page_of: Callable[[object], Page]) -> None:
    """5,000 tokens: at most 16 lines of at least 313, rounded up to 320."""
    inputs = ow.MultimodalInput([[0] * 8], [310], [330])
    page = page_of(ow.ProcessedRequest("r", [0] * 5000, ow.MultimodalParams(inputs)))
    starts = [element.text for element in page.all("text", _class="start")]
    assert starts == [f"{320 * line:,}" for line in range(16)]
    runs = [element.attributes for element in page.all("rect", height="20", _class="run")]
    # 310 to 320 on the first line, 320 to 640 on the second: 3.125 units a token.
    assert [(run["x"], run["y"], run["width"]) for run in runs] == [
        ("1044.75", "4", "31.25"),
        ("76", "32", "1000"),
    ]


def test_problems_come_with_their_paths_and_links(page_of: Callable[[object], Page]) -> None:
    page = page_of(request((1, 15), grid=1))
    check_structure(page)
    problems = [
        " ".join(row.text.split()) for row in page.all("li") if page.one("ol") in row.inside
    ]
    assert problems == [
        (
            "\u2717 ProcessedRequest: expected item 1 at or after position 17, where the item "
            "before it ends, got 15 - at $.multimodal_params.multimodal_input."
            "multimodal_positions[1] [order] to the field to item 1"
        ),
        (
            "\u2717 ProcessedRequest: expected 2 items along axis 0, got 1 - at "
            "$.multimodal_params.multimodal_data.image.image_grid_thw [count] to the field"
        ),
    ]
    faulty = [words(row) for row in page.all("tr", _class="bad")]
    assert faulty == [
        "\u2717 1 image 1 15 24 2 96 24 c9c9c9c9",
        "\u2717 multimodal_positions 2 ints: 1, 15",
        "\u2717 image_grid_thw i64[1, 3] cpu 24 inline",
    ]
    numbers = {row.attributes["id"] for row in page.all("tr", _class="bad")}
    links = {link.attributes["href"][1:] for link in page.all("a") if page.one("ol") in link.inside}
    assert links == numbers
    # Not by color alone.
    assert len(page.all("span", **{"aria-label": "problem:"})) == 1 + 2 + 3 + 1
    assert page.one("p", _class="verdict").text.split()[-3:] == ["\u2717", "2", "problems"]
    assert "2 tokens that several items claim" in page.text
    # Tokens 15 and 16, of 20 units each.
    (clash,) = [
        rect
        for rect in page.all("rect", _class="clash")
        if rect.attributes["height"] == "24" and rect.attributes["width"] == "40"
    ]
    assert clash.attributes["x"] == "376"
    assert page.strip["chunks"] == []
    assert "No chunks: the items overlap" in page.text


def test_partitions_worked_out_by_hand(page_of: Callable[[object], Page]) -> None:
    page = page_of(request(grid=1))
    bars = [" ".join(caption.text.split()) for caption in page.all("figcaption")][:2]
    assert bars == [
        "pixel_values bf16[160, 1176] cpu, packed along axis 0: 64, 96",
        (
            "\u2717 image_grid_thw i64[1, 3] cpu, batched along axis 0: 2 slices; "
            "the items take 2 of 1 along axis 0"
        ),
    ]
    titles = [element for element in page.all("title") if element.inside[-1].tag == "g"]
    assert [title.text for title in titles] == [
        "image 0 (item 0): [0, 64)",
        "image 1 (item 1): [64, 160)",
        "image 0 (item 0): [0, 1)",
        "image 1 (item 1): [1, 2)",
        "past the end",
    ]
    assert "Shared by all items: scale." in page.text
    first = [
        rect.attributes
        for rect in page.all("rect", _class="m0")
        if rect.inside[-1] in {t.inside[-1] for t in titles[:2]}
    ]
    assert [(rect["x"], rect["width"]) for rect in first] == [("0", "400"), ("400", "600")]


def test_what_no_partition_claims_is_drawn(page_of: Callable[[object], Page]) -> None:
    record = ow.MultimodalItemMetadata(
        [("image", 0)], None, None, {"image": {"pixels": ow.MultimodalItemPartition([30])}}
    )
    data = {"image": {"pixels": torch.zeros(40, 2)}, "item_metadata": record}
    page = page_of(ow.MultimodalParams(None, data))
    assert "packed along axis 0: 30; the items take 30 of 40 along axis 0" in page.text
    (rest,) = [
        rect
        for rect in page.all("rect", _class="clash")
        if rect.inside[-1].text.startswith("no item")
    ]
    assert (rest.attributes["x"], rest.attributes["width"]) == ("750", "250")


def test_undeclared_modalities_and_shared_fields(page_of: Callable[[object], Page]) -> None:
    record = ow.MultimodalItemMetadata([("image", 0), ("audio", 0)], None, None, {"audio": {}})
    data = {"audio": {"rates": [1]}, "image": {"x": 1}, "item_metadata": record}
    page = page_of(ow.MultimodalParams(None, data))
    assert (
        "image Not declared. Shared by all items: x. audio Shared by all items: rates." in page.text
    )


def test_hostile_text_stays_text(page_of: Callable[[object], Page]) -> None:
    metadata = ow.MultimodalItemMetadata(
        [("image", 0)], [1], [1],
        {"image": {HOSTILE: ow.MultimodalItemPartition([5]), "not" + HOSTILE: _each()}},
    )  # fmt: skip
    inputs = ow.MultimodalInput.from_hexdigests(["d7" * 32], [1], [1], multimodal_uuids=[HOSTILE])
    data = {
        HOSTILE: torch.zeros(20_000),
        "text": HOSTILE,
        "texts": [HOSTILE, HOSTILE, 1],
        "y" * 10**5: HOSTILE.encode(),
        "image" + HOSTILE: torch.rand(2, 3, 8, 8),
        "audio": {HOSTILE: torch.rand(2, 500), "sample_rate": HOSTILE},
        "image": {HOSTILE: torch.zeros(4)},
        "nested": {"errors": ow.RequestOutput("r", errors={"a": ow.PeerDied(HOSTILE * 99)})},
        "item_metadata": metadata,
    }
    page = page_of(ow.ProcessedRequest(HOSTILE, [1, 2], ow.MultimodalParams(inputs, data)))
    check_structure(page)
    plain = page_of(request((1, 15), grid=1))
    tags = {element.tag for element in page.elements}
    assert tags <= {element.tag for element in plain.elements} | {
        "path",
        "img",
        "br",
        "label",
        "select",
        "option",
    }
    assert [script.attributes for script in page.all("script")] == [
        {"type": "application/json", "id": "strip-data"},
        {},
    ]
    assert page.all("script")[1].text == plain.all("script")[1].text
    assert page.one("style").text == plain.one("style").text
    assert len(page.all("img")) == 2
    assert "<script>alert(1)</script>" in page.text
    assert r"\x1b[31m\x00\u202e&lt;" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert len(page.source) < 200_000


def test_a_hostile_file_name(tmp_path: Path) -> None:
    path = tmp_path / (HOSTILE.replace("\x00", "").replace("/", "") + "\n")
    ow.save(ow.TokenIds([1]), path)
    page = Page(render_page(inspect_file(str(path))))
    check_structure(page)
    assert "<script>alert(1)<script>" in page.one("h1").text


def many_items(num_items: int) -> ow.ProcessedRequest:
    """Images of 100 tokens with 50 tokens of text between them, and a packed tensor."""
    starts = range(0, 150 * num_items, 150)
    inputs = ow.MultimodalInput.from_hexdigests(
        [f"{index:08x}" + "0" * 56 for index in range(num_items)], starts, [100] * num_items
    )
    record = ow.MultimodalItemMetadata(
        [("image", index) for index in range(num_items)],
        [100] * num_items,
        [100] * num_items,
        {"image": {"tiles": _each(), "pixel_values": ow.MultimodalItemPartition([2] * num_items)}},
    )
    noise = torch.randint(0, 256, (num_items, 3, 64, 64), dtype=torch.uint8)
    data = {
        "image": {"tiles": noise, "pixel_values": torch.zeros(2 * num_items, 4)},
        "item_metadata": record,
    }
    tokens = [0] * (150 * num_items)
    return ow.ProcessedRequest("many", tokens, ow.MultimodalParams(inputs, data))


@pytest.mark.parametrize("num_items", [1, 500])
def test_one_item_and_many(num_items: int, page_of: Callable[[object], Page]) -> None:
    page = page_of(many_items(num_items))
    check_structure(page)
    assert len(page.rows("Items in prompt order")) == 1 + num_items
    assert len(page.strip["runs"]) == num_items
    assert len(page.all("img")) == min(num_items, 24)
    assert ("476 more not drawn" in page.text) == (num_items == 500)
    assert len(page.source) < 1_500_000


def test_pages_stay_small(page_of: Callable[[object], Page]) -> None:
    """What is many in a file is cut in the page, which says so."""
    page = page_of(many_items(3000))
    assert len(page.rows("Items in prompt order")) == 1 + 1200 + 1 + 400
    assert "1,400 more" in page.text
    assert len(page.source) < 3_000_000
    many = {f"image{i}": torch.zeros(3, 8, 8, dtype=torch.uint8) for i in range(1000)}
    page = page_of(ow.FrozenMapping(many))
    assert len(page.all("img")) == 48
    assert "Not drawn: 952 tensors like these." in page.text
    # All 3,000 over the whole prompt, and 200 problems of 2,999 told.
    inputs = ow.MultimodalInput([[0] * 8] * 3000, [0] * 3000, [10_000] * 3000)
    page = page_of(ow.ProcessedRequest("r", [0] * 10_000, ow.MultimodalParams(inputs)))
    assert len(page.source) < 3_000_000
    assert "And 2,799 more, all of which omniwire check prints." in page.text
    assert "10,000 tokens that several items claim" in page.text
    record = ow.MultimodalItemMetadata([(f"m{i}", 0) for i in range(3000)])
    page = page_of(record)
    assert len(page.all("h3")) == 24


def test_a_prompt_that_ends_far_away(page_of: Callable[[object], Page]) -> None:
    page = page_of(ow.MultimodalInput([[0] * 8], [2**31 - 11], [10]))
    check_structure(page)
    assert "2,147,483,647 tokens up to the end of the last item, 1 item" in page.text


class TestCommand:
    @pytest.fixture(autouse=True)
    def _in_an_empty_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_a_valid_file(self) -> None:
        ow.save(request(), "one.omniwire")
        result = run("one.omniwire", "--html", "out.html")
        size = Path("out.html").stat().st_size
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == f"out.html: written, {size:,} bytes\n"
        check_structure(Page(Path("out.html").read_text("utf-8")))

    def test_a_file_with_problems(self) -> None:
        ow.save(request((1, 15)), "one.omniwire")
        result = run("one.omniwire", "--html", "out.html")
        assert (result.exit_code, result.stderr) == (1, "")
        _, problem = result.stdout.splitlines()
        assert problem.startswith("one.omniwire: ProcessedRequest: expected item 1 ")
        assert problem.endswith("multimodal_positions[1] [order]")

    def test_a_file_that_cannot_be_decoded(self) -> None:
        Path("one.omniwire").write_bytes(ow.dumps(request())[:-1])
        result = run("one.omniwire", "--html", "out.html")
        assert result.exit_code == 1
        page = Page(Path("out.html").read_text("utf-8"))
        check_structure(page)
        sentence = result.stdout.splitlines()[1].removeprefix("one.omniwire: ")
        assert sentence in page.one("ol").text
        assert page.one("p", _class="verdict").text.split() == [
            "\u2717", "not", "valid,", "1", "problem",
        ]  # fmt: skip

    def test_a_message_that_breaks_its_contract(self) -> None:
        """A token length of 0: the path is told."""
        content = ow.dumps(ow.MultimodalItemMetadata([("image", 0)], [65]))
        body = content[64 + 26 :].replace(b"\x91\x41", b"\x91\x00")
        import struct
        import zlib

        header = b"\x95\xa8omniwire\xcd\0\1\xcd\0\1\xce" + struct.pack(">I", zlib.crc32(body))
        header += b"\xc6" + struct.pack(">I", len(body)) + body
        table = struct.pack("<8sQQ", b"omniblob", 1, len(header))
        Path("one.omniwire").write_bytes(table.ljust(64, b"\0") + header)
        assert run("one.omniwire", "--html", "out.html").exit_code == 1
        page = Page(Path("out.html").read_text("utf-8"))
        assert "at $.encoder_token_lengths[0] [range]" in page.one("ol").text

    def test_nothing_to_inspect_writes_nothing(self) -> None:
        result = run("missing.omniwire", "--html", "out.html")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == ("omniwire inspect: missing.omniwire: no such file or directory\n")
        assert not Path("out.html").exists()

    @pytest.mark.parametrize(
        ("out", "text"),
        [
            (
                "no/folder/out.html",
                "no/folder/out.html: cannot write there: no such file or directory",
            ),
            (".", ".: cannot write there: is a directory"),
            ("", "'': cannot write there: is a directory"),
            ("one.omniwire", "one.omniwire: is the file to inspect"),
            ("link", "link: is the file to inspect"),
            ("/dev/full", "/dev/full: cannot write there: no space left on device"),
        ],
    )
    def test_a_page_that_cannot_be_written(self, out: str, text: str) -> None:
        ow.save(request(), "one.omniwire")
        content = Path("one.omniwire").read_bytes()
        Path("link").symlink_to("one.omniwire")
        result = run("one.omniwire", "--html", out)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"omniwire inspect: {text}\n"
        assert Path("one.omniwire").read_bytes() == content

    @pytest.mark.parametrize("name", ["jinja2", "PIL"])
    def test_what_is_missing_is_named(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ow.save(request(), "one.omniwire")
        monkeypatch.setitem(sys.modules, name, None)
        result = run("one.omniwire", "--html", "out.html")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"omniwire inspect: needs {name}: pip install 'omniwire[cli]'\n"
        assert run("one.omniwire").exit_code == 0

    def test_without_a_page_none_of_it_is_imported(self) -> None:
        ow.save(request(), "one.omniwire")
        code = (
            "import sys\n"
            "from omniwire.inspector.command import inspect_command\n"
            "inspect_command(['one.omniwire'], standalone_mode=False)"
        )
        code = f"import atexit, sys; atexit.register(lambda: print('PIL' in sys.modules))\n{code}"
        result = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        assert result.stdout.splitlines()[-1] == "False"
