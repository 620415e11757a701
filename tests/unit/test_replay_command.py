"""`omniwire replay`, and the recordings that it plays back."""

import sys
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import omniwire as ow
from omniwire.commands import omniwire


def make_request(request_id: str, value: float = 1.0) -> ow.ProcessedRequest:
    pixels = torch.full((8, 1000), value, dtype=torch.bfloat16)
    small = torch.tensor([3, 4])
    data = {"image": {"pixel_values": pixels, "small": small, "note": "a cat", "raw": b"secret"}}
    return ow.ProcessedRequest(request_id, [1, 5, 2], ow.MultimodalParams(multimodal_data=data))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(omniwire, ["replay", *map(str, arguments)])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two requests and an output, as the processor's end saw them."""
    folder = tmp_path / "recording"
    a, b = ow.Channel.pair(record=folder)
    with a, b:
        a.send(make_request("r1"))
        a.send(make_request("r2"))
        b.recv()
        b.send(ow.OutputChunk("r1", 0, "text", [7]))
        a.recv()
    return folder


class TestRecording:
    def test_every_message_of_the_first_end_is_a_file_in_order(self, recording: Path) -> None:
        messages = ow.recorded(recording)
        assert [message.is_sent for message in messages] == [True, True, False]
        loaded = [message.load() for message in messages]
        assert loaded[:2] == [make_request("r1"), make_request("r2")]
        assert loaded[2] == ow.OutputChunk("r1", 0, "text", [7])
        assert sorted(path.name for path in recording.iterdir()) == [
            message.path.name for message in messages
        ]

    def test_a_server_records_what_its_channels_receive(self, tmp_path: Path) -> None:
        path, folder = tmp_path / "socket", tmp_path / "recording"
        with (
            ow.ChannelServer(path, record=folder) as server,
            ow.Channel.connect(path, timeout=30) as channel,
            server.accept(30) as accepted,
        ):
            channel.send(make_request("r1"))
            accepted.recv(30)
        [message] = ow.recorded(folder)
        assert not message.is_sent
        assert message.load() == make_request("r1")

    def test_a_message_that_cannot_be_decoded_is_recorded(self, tmp_path: Path) -> None:
        folder = tmp_path / "recording"
        b, a = ow.Channel.pair(record=folder)
        with a, b:
            params = ow.MultimodalParams._trusted(
                multimodal_input=None,
                multimodal_data=ow.FrozenMapping({"multimodal_embedding": 3}),
                multimodal_runtime=None,
                encoder_state=None,
            )
            a.send(params)
            with pytest.raises(ow.DecodeError):
                b.recv(30)
        [message] = ow.recorded(folder)
        with pytest.raises(ow.DecodeError, match="multimodal_embedding"):
            message.load()

    def test_redaction_keeps_the_form(self, tmp_path: Path) -> None:
        a, b = ow.Channel.pair(record=ow.Recording(tmp_path, redact=True))
        with a, b:
            a.send(make_request("r1"))
            assert b.recv(30) == make_request("r1")
        [message] = ow.recorded(tmp_path)
        loaded = message.load()
        assert (loaded.request_id, loaded.prompt_token_ids) == ("r1", (1, 5, 2))
        image = loaded.multimodal_params.multimodal_data["image"]
        assert torch.equal(image["pixel_values"], torch.zeros(8, 1000, dtype=torch.bfloat16))
        assert torch.equal(image["small"], torch.zeros(2, dtype=torch.int64))
        assert (image["note"], image["raw"]) == ("a cat", bytes(6))
        assert b"secret" not in message.path.read_bytes()

    def test_the_oldest_files_make_room(self, tmp_path: Path) -> None:
        a, b = ow.Channel.pair(record=ow.Recording(tmp_path, max_bytes=70_000))
        with a, b:
            for number in range(33):  # looked at after the 1st, the 17th and the 33rd
                a.send(make_request(f"r{number}"))
                b.recv(30)
        messages = ow.recorded(tmp_path)
        # Each file has 16,000 bytes of pixels and less than 1,500 others: four fit.
        assert [message.load().request_id for message in messages] == ["r29", "r30", "r31", "r32"]

    def test_a_folder_that_is_gone_ends_the_recording_and_not_the_channel(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "recording"
        a, b = ow.Channel.pair(record=folder)
        with a, b:
            folder.rmdir()
            with pytest.warns(RuntimeWarning, match="has ended: No such file or directory"):
                a.send(make_request("r1"))
            a.send(make_request("r2"))
            assert [b.recv(30).request_id for _ in range(2)] == ["r1", "r2"]

    def test_wrong_fields_are_named(self) -> None:
        with pytest.raises(ow.ContractTypeError) as caught:
            ow.Recording(3, max_bytes=0, redact=1)  # type: ignore[arg-type]
        assert [problem.path for problem in caught.value.problems] == [
            ("directory",),
            ("max_bytes",),
            ("redact",),
        ]


class TestReplay:
    def test_a_function_gets_every_input(
        self, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "replayed.py").write_text(
            "def run(request):\n"
            "    if request.request_id == 'r2':\n"
            "        raise ValueError('no such model')\n"
            "    return request.request_id.upper()\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        result = run(recording, "--call", "replayed:run")
        names = [message.path.name for message in ow.recorded(recording)]
        assert result.output.splitlines() == [
            f"{names[0]}: 'R1'",
            f"{names[1]}: failed: ValueError: no such model",
        ]
        assert result.exit_code == 1

    def test_a_server_gets_every_input(self, recording: Path, tmp_path: Path) -> None:
        path = tmp_path / "socket"
        received = []

        def serve(server: ow.ChannelServer) -> None:
            with server.accept(30) as channel:
                received.extend(channel.recv(30) for _ in range(2))
                channel.send(ow.ItemRef("image", 7))

        with ow.ChannelServer(path) as server:
            thread = threading.Thread(target=serve, args=(server,))
            thread.start()
            result = run(recording, "--connect", path, "--quiet-after", 30)
            thread.join()
        assert [request.request_id for request in received] == ["r1", "r2"]
        assert result.output == "answer: ItemRef(modality='image', index=7)\n"
        assert result.exit_code == 0

    def test_what_cannot_be_read_is_named(self, recording: Path) -> None:
        first = ow.recorded(recording)[0].path
        first.write_bytes(b"omni")
        result = run(recording, "--call", "builtins:id")
        assert result.output.startswith(f"{first.name}: cannot be read: decode: expected")
        assert result.exit_code == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "expected --connect PATH or --call MODULE:FUNCTION, one of the two"),
            (("--call", "no_such_module:run"), "No module named 'no_such_module'"),
            (("--call", "sys:path"), "expected a function, got list"),
        ],
    )
    def test_without_an_executor_it_says_so(
        self, recording: Path, arguments: tuple[str, ...], message: str
    ) -> None:
        result = run(recording, *arguments)
        assert message in result.output
        assert result.exit_code == 2

    def test_an_empty_folder_is_no_success(self, tmp_path: Path) -> None:
        result = run(tmp_path, "--call", "builtins:id")
        assert "expected recorded inputs" in result.output
        assert result.exit_code == 2


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command puts the current folder first on the path of this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
