"""Sockets with a path: who may listen and connect, and what is left of them."""

import itertools
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import handoff_children
import handoff_faults
import pytest
from handoff_children import TIMEOUT_S, request
from handoff_remote import Remote

import omniwire as ow


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "socket"


def dead_socket(path: Path) -> None:
    """What a server that was killed leaves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))


def accepted(server: ow.ChannelServer, path: Path) -> tuple[ow.Channel, ow.Channel]:
    channel = ow.Channel.connect(path, TIMEOUT_S)
    return channel, server.accept(TIMEOUT_S)


def works(pair: tuple[ow.Channel, ow.Channel]) -> bool:
    pair[0].send(request(request_id="hello"))
    return pair[1].recv(TIMEOUT_S).request_id == "hello"


class TestListening:
    def test_only_this_user_may_use_the_path(self, path: Path) -> None:
        before = os.umask(0)
        try:
            with ow.ChannelServer(path):
                mode = path.stat().st_mode
        finally:
            os.umask(before)
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600

    def test_the_path_is_gone_when_it_is_closed(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            assert path.exists()
        assert not path.exists()
        server.close()

    def test_accepted_channels_stay(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            pair = accepted(server, path)
        assert works(pair)

    def test_a_path_that_a_dead_server_left_is_replaced(self, path: Path) -> None:
        dead_socket(path)
        with ow.ChannelServer(path) as server:
            assert works(accepted(server, path))
        assert not path.exists()

    def test_a_path_in_use_is_refused_and_stays_in_use(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            with pytest.raises(ow.HandoffError):
                ow.ChannelServer(path)
            assert works(accepted(server, path))

    def test_a_path_in_use_by_another_kind_of_socket(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.bind(str(path))
            sock.listen()
            with pytest.raises(ow.HandoffError):
                ow.ChannelServer(path)
            assert path.exists()
        path.unlink()

    def test_a_server_whose_queue_is_full_is_in_use(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(str(path))
            sock.listen(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(path))
                with pytest.raises(ow.HandoffError):
                    ow.ChannelServer(path)
        path.unlink()

    @pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link"])
    def test_a_path_that_is_something_else_is_left_alone(self, path: Path, kind: str) -> None:
        if kind == "file":
            path.write_text("precious")
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("nowhere")
        before = path.lstat()
        with pytest.raises(ow.HandoffError):
            ow.ChannelServer(path)
        assert path.lstat() == before
        path.rmdir() if kind == "folder" else path.unlink()

    def test_a_folder_that_is_missing(self, folder: Path) -> None:
        with pytest.raises(ow.HandoffError, match="missing"):
            ow.ChannelServer(folder / "missing" / "socket")

    @pytest.mark.parametrize("name", ["", "x" * 200, "a\0b", "\udcff" * 120, "\ud800"], ids=ascii)
    @pytest.mark.parametrize("use", [ow.ChannelServer, ow.Channel.connect])
    def test_no_path_for_a_socket(self, use: Callable[[str], object], name: str) -> None:
        with pytest.raises(ow.HandoffError):
            use(name)

    def test_a_path_as_long_as_it_can_be(self, folder: Path) -> None:
        path = folder / ("x" * (107 - len(os.fsencode(folder)) - 1))
        with ow.ChannelServer(path) as server:
            assert works(accepted(server, path))

    @pytest.mark.parametrize("path", [None, 3, b"socket", ["socket"]], ids=repr)
    @pytest.mark.parametrize("use", [ow.ChannelServer, ow.Channel.connect])
    def test_no_path_at_all(self, use: Callable[[object], object], path: object) -> None:
        with pytest.raises(ow.ContractTypeError) as caught:
            use(path)
        assert caught.value.problems[0].path == ("path",)

    def test_a_relative_path_is_where_it_was(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder)
        with ow.ChannelServer("socket") as server:
            monkeypatch.chdir("/")
            assert works(accepted(server, folder / "socket"))
        assert not (folder / "socket").exists()

    def test_somebody_elses_socket_is_not_removed(self, path: Path) -> None:
        """The path was given to another server meanwhile."""
        with ow.ChannelServer(path):
            path.unlink()
            other = ow.ChannelServer(path)
        assert works(accepted(other, path))
        other.close()

    def test_one_of_many_servers_gets_a_path(self, path: Path) -> None:
        """All find what a dead server left there, at the same time."""
        dead_socket(path)
        outcomes: list[object] = []
        barrier = threading.Barrier(8)

        def listen() -> None:
            barrier.wait()
            try:
                outcomes.append(ow.ChannelServer(path))
            except ow.HandoffError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=listen) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [server] = [each for each in outcomes if isinstance(each, ow.ChannelServer)]
        assert works(accepted(server, path))
        server.close()


class TestConnecting:
    def test_nobody_is_there(self, path: Path) -> None:
        with pytest.raises(ow.HandoffTimeout):
            ow.Channel.connect(path, timeout=0.05)

    def test_nobody_is_there_any_more(self, path: Path) -> None:
        dead_socket(path)
        with pytest.raises(ow.HandoffTimeout):
            ow.Channel.connect(path, timeout=0.05)
        path.unlink()

    def test_a_server_that_comes_later(self, path: Path) -> None:
        servers: list[ow.ChannelServer] = []
        timer = threading.Timer(0.05, lambda: servers.append(ow.ChannelServer(path)))
        timer.start()
        channel = ow.Channel.connect(path, TIMEOUT_S)
        timer.join()
        assert works((channel, servers[0].accept(TIMEOUT_S)))
        servers[0].close()

    def test_a_file_is_no_server(self, path: Path) -> None:
        path.write_text("precious")
        with pytest.raises(ow.HandoffError) as caught:
            ow.Channel.connect(path, TIMEOUT_S)
        assert not isinstance(caught.value, ow.HandoffTimeout)
        path.unlink()

    def test_a_server_of_another_kind(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.bind(str(path))
            sock.listen()
            with pytest.raises(ow.HandoffError) as caught:
                ow.Channel.connect(path, TIMEOUT_S)
            assert not isinstance(caught.value, ow.HandoffTimeout)
        path.unlink()

    def test_nobody_accepts(self, path: Path, call: Callable[..., Remote]) -> None:
        """A server that listens, but is busy."""
        child = call(handoff_children.listen, str(path))
        assert child.receive() == "listening"
        with pytest.raises(ow.HandoffTimeout):
            ow.Channel.connect(path, timeout=0.1)
        child.send("stop")
        child.end()

    def test_accepting_in_time(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            with pytest.raises(ow.HandoffTimeout):
                server.accept(timeout=0)
            with pytest.raises(ow.HandoffTimeout):
                server.accept(timeout=0.02)
            assert works(accepted(server, path))

    def test_a_closed_server_accepts_nobody(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            pass
        with pytest.raises(ow.HandoffError) as caught:
            server.accept(timeout=1)
        assert not isinstance(caught.value, ow.HandoffTimeout)

    def test_who_connected_to_a_server_that_closes_is_told(self, path: Path) -> None:
        with ow.ChannelServer(path):
            channel = ow.Channel.connect(path, TIMEOUT_S)
        with pytest.raises(ow.PeerClosed):
            channel.recv(TIMEOUT_S)

    def test_a_peer_that_says_nothing_keeps_no_other_waiting(self, path: Path) -> None:
        with (
            ow.ChannelServer(path) as server,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent,
        ):
            silent.connect(str(path))
            assert works(accepted(server, path))

    def test_a_peer_that_went_again_is_forgotten(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
                silent.connect(str(path))
                with pytest.raises(ow.HandoffTimeout):
                    server.accept(timeout=0)
            assert works(accepted(server, path))

    def test_several_threads_accept(self, path: Path) -> None:
        """Each client is accepted once."""
        accepted_by: list[ow.Channel] = []

        def accept(server: ow.ChannelServer) -> None:
            accepted_by.extend([server.accept(TIMEOUT_S) for _ in range(5)])

        with ow.ChannelServer(path, arena_bytes=2**16) as server:
            threads = [threading.Thread(target=accept, args=(server,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            clients = [ow.Channel.connect(path, TIMEOUT_S) for _ in range(20)]
            for thread in threads:
                thread.join(TIMEOUT_S)
        for number, client in enumerate(clients):
            client.send(request(request_id=str(number)))
        ids = [channel.recv(TIMEOUT_S).request_id for channel in accepted_by]
        assert sorted(map(int, ids)) == list(range(20))

    def test_a_forked_child_does_not_take_the_path_along(
        self, path: Path, call: Callable[..., Remote]
    ) -> None:
        assert call(handoff_faults.fork_a_server, str(path)).end() == "still listening"
        assert not path.exists()

    def test_peers_are_accepted_in_the_order_they_came(self, path: Path) -> None:
        with ow.ChannelServer(path) as server:
            clients = [ow.Channel.connect(path, TIMEOUT_S) for _ in range(5)]
            for client in clients:
                assert works((client, server.accept(TIMEOUT_S)))

    @pytest.mark.parametrize(
        ("name", "size"),
        [
            ("arena_bytes", 0),
            *itertools.product(("arena_bytes", "max_bytes"), (-1, True, 1.5, "1")),
        ],
        ids=repr,
    )
    def test_sizes_of_arenas(self, path: Path, name: str, size: object) -> None:
        uses: list[Callable[..., object]] = [
            lambda **sizes: ow.ChannelServer(path, **sizes),
            lambda **sizes: ow.Channel.connect(path, 1, **sizes),
            ow.Channel.pair,
        ]
        for use in uses:
            with pytest.raises(ow.ContractError) as caught:
                use(**{name: size})
            assert caught.value.problems[0].path == (name,)
