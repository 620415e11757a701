"""What child processes do in the tests of faults: whole scenarios, each in one process."""

import contextlib
import errno
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from handoff_children import TIMEOUT_S, is_pattern, pattern, request, tensor_of

import omniwire as ow

MIB = 2**20
ARENAS = {"arena_bytes": MIB, "max_bytes": 6 * MIB}
"""Room for what `produce` and `consume` hold, in whichever pieces, and for one more."""

SIZES = (0, 300, 5000, 2**16, 300_000, MIB, 7 * MIB)
"""In the header, in a shared slot, in one of its own; the last one fits no arena."""


def produce(_: Connection, end: ow.Channel | str, seed: int) -> None:
    """Send requests numbered from 0 of random sizes until somebody ends this."""
    channel = ow.Channel.connect(end, TIMEOUT_S, **ARENAS) if isinstance(end, str) else end
    randomness = random.Random(seed)
    own: list[torch.Tensor] = []
    number = 0
    while True:
        size = randomness.choice(SIZES)
        tensor = pattern(size, number) if size else None
        if tensor is not None and randomness.random() < 0.3 and size < MIB:
            own = [channel.empty(tensor.shape, torch.uint8, TIMEOUT_S).copy_(tensor)]
            tensor = own[0]
        channel.send(request(tensor, str(number)), TIMEOUT_S)
        number += 1


def consume(_: Connection, end: ow.Channel | str, seed: int) -> None:
    """Receive requests, and hold a few of them, until somebody ends this."""
    channel = ow.Channel.connect(end, TIMEOUT_S, **ARENAS) if isinstance(end, str) else end
    randomness = random.Random(seed)
    held: list[Any] = []
    while True:
        held.append(channel.recv(TIMEOUT_S))
        while len(held) > randomness.randrange(4):
            held.pop(randomness.randrange(len(held)))


def echo(_: Connection, channel: ow.Channel) -> None:
    """Send back what is received until somebody ends this."""
    while True:
        channel.send(channel.recv(TIMEOUT_S), TIMEOUT_S)


def serve(control: Connection, path: str) -> None:
    """Be an executor that answers whoever connects, one after the other."""
    with ow.ChannelServer(path) as server:
        control.send("listening")
        while True:
            channel = server.accept(TIMEOUT_S)
            with contextlib.suppress(ow.HandoffError):
                while True:
                    channel.send(channel.recv(TIMEOUT_S), TIMEOUT_S)


def hold_a_socket(_: Connection) -> str:
    """Have a sibling that inherited both sockets; the child at the other end is killed.

    Returns:
        The class of the error that its death gives.
    """
    a, b = ow.Channel.pair(arena_bytes=MIB)
    sibling = os.fork()
    if not sibling:
        signal.pause()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_receive_one_and_stay, args=(b,))
    child.start()
    try:
        a.send(request(pattern(MIB)), TIMEOUT_S)
        assert a.recv(TIMEOUT_S).request_id == "received"
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        try:
            a.recv(TIMEOUT_S)
        except ow.HandoffError as error:
            assert a.stats()["in_flight_bytes"] == 0
            return type(error).__name__
    finally:
        os.kill(sibling, signal.SIGKILL)
        os.waitpid(sibling, 0)
    return "nothing"


def _receive_one_and_stay(channel: ow.Channel) -> None:
    message = channel.recv(TIMEOUT_S)
    channel.send(request(request_id="received"))
    signal.pause()
    del message


def fork_and_drop(control: Connection, path: str) -> list[int]:
    """Fork a child that drops its copies of everything this process has; it frees nothing.

    Returns:
        The bytes of own tensors in flight: before the child, after it, after dropping them.
    """
    channel = ow.Channel.connect(path, TIMEOUT_S, arena_bytes=MIB)
    received = channel.recv(TIMEOUT_S)
    own = channel.empty((MIB // 2,), torch.uint8).copy_(pattern(MIB // 2, 1))
    handle = channel.share(pattern(1000, 2))
    held = [channel.stats()["in_flight_bytes"]]
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for use in (lambda: channel.send(request()), lambda: channel.recv(0)):
                try:
                    use()
                except ow.HandoffError:
                    continue
                else:
                    os._exit(2)
            assert is_pattern(tensor_of(received))
            del received, own, handle
            gc.collect()
            channel.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    control.send("forked")
    control.recv()
    held.append(channel.stats()["in_flight_bytes"])
    assert is_pattern(tensor_of(received))
    assert is_pattern(own, 1)
    assert is_pattern(handle.resolve(), 2)
    del own, handle
    held.append(channel.stats()["in_flight_bytes"])
    channel.send(request(request_id="still here"))
    del received
    control.recv()
    return held


def fork_before_use(_: Connection) -> list[str]:
    """Give an end to a forked child, the way of the fork start method; what both see."""
    a, b = ow.Channel.pair(arena_bytes=MIB)
    a.send(request(pattern(MIB), "early"), TIMEOUT_S)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_echo_some, args=(b, 3))
    child.start()
    seen = []
    for number in range(2):
        a.send(request(pattern(MIB, number), str(number)), TIMEOUT_S)
    for _ in range(3):
        seen.append(a.recv(TIMEOUT_S).request_id)  # noqa: PERF401
    try:
        a.recv(TIMEOUT_S)
    except ow.HandoffError as error:
        seen.append(type(error).__name__)
    child.join()
    assert child.exitcode == 0
    return seen


def _echo_some(channel: ow.Channel, num: int) -> None:
    for _ in range(num):
        channel.send(channel.recv(TIMEOUT_S), TIMEOUT_S)


def fork_after_use(_: Connection) -> str:
    """Close an end that was used before the child with the other one was forked.

    Returns:
        The class of the error that the child sees, whose copy of the closed end does not count.
    """
    a, b = ow.Channel.pair()
    a.send(request())
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        b.recv(TIMEOUT_S)
        try:
            b.recv(TIMEOUT_S)
        except ow.HandoffError as error:
            os.write(write, type(error).__name__.encode())
        os._exit(0)
    os.close(write)
    a.close()
    name = os.read(read, 100).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return name


def fork_while_arenas_are_made(_: Connection) -> list[int]:
    """Fork children that use channels of their own, while another thread makes arenas.

    Returns:
        The exit statuses of the children, each of which has a minute.
    """
    is_done = threading.Event()

    def make_arenas() -> None:
        while not is_done.is_set():
            ow.Channel.pair(arena_bytes=16 * MIB)[0].empty((1,), torch.uint8)

    thread = threading.Thread(target=make_arenas)
    thread.start()
    statuses = []
    for _ in range(5):
        pid = os.fork()
        if not pid:
            signal.alarm(TIMEOUT_S)
            a, b = ow.Channel.pair(arena_bytes=MIB)
            _check(a, b)
            os._exit(0)
        statuses.append(os.waitpid(pid, 0)[1])
    is_done.set()
    thread.join()
    return statuses


def fork_a_server(_: Connection, path: str) -> str:
    """Fork a child that closes its copy of a server and ends."""
    with ow.ChannelServer(path) as server:
        pid = os.fork()
        if not pid:
            server.close()
            os._exit(0)
        os.waitpid(pid, 0)
        channel = ow.Channel.connect(path, TIMEOUT_S)
        _check(channel, server.accept(TIMEOUT_S))
    return "still listening"


@contextlib.contextmanager
def few_descriptors(num_free: int) -> Iterator[None]:
    """Let this process open so many more descriptors, and no more than that."""
    is_pattern(pattern(1000))  # torch opens files at first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(num_free):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_with_few_descriptors(_: Connection, folder: str) -> dict[str, set[int]]:
    """Open channels with 0, 1, 2 ... free descriptors.

    Returns:
        By way of opening, with how many of them it succeeded. All failures were ours.
    """
    gc.collect()
    gc.freeze()
    path = f"{folder}/limited"
    succeeded: dict[str, set[int]] = {"pair": set(), "connect": set(), "accept": set()}
    with ow.ChannelServer(path, arena_bytes=2**16) as server:
        for num_free in range(24):
            with contextlib.suppress(ow.HandoffError):
                with few_descriptors(num_free):
                    a, b = ow.Channel.pair(arena_bytes=2**16)
                    a.send(request(pattern(2**15)), 0.05)
                    assert is_pattern(tensor_of(b.recv(0.05)))
                succeeded["pair"].add(num_free)
            a = b = None
            gc.collect()
            with contextlib.suppress(ow.HandoffError):
                with few_descriptors(num_free):
                    a = ow.Channel.connect(path, 1, arena_bytes=2**16)
                succeeded["connect"].add(num_free)
                b = server.accept(TIMEOUT_S)
                _check(a, b)
            a = b = None
            gc.collect()
            _accept_the_rest(server)
            a = ow.Channel.connect(path, TIMEOUT_S, arena_bytes=2**16)
            with contextlib.suppress(ow.HandoffError):
                with few_descriptors(num_free):
                    b = server.accept(0.05)
                succeeded["accept"].add(num_free)
                _check(a, b)
            a = b = None
            gc.collect()
            _accept_the_rest(server)
        # And now that there are enough of them again:
        a = ow.Channel.connect(path, TIMEOUT_S)
        _check(a, server.accept(TIMEOUT_S))
    return succeeded


def _check(a: ow.Channel, b: ow.Channel) -> None:
    for sender, receiver in ((a, b), (b, a)):
        sender.send(request(pattern(2**16)), TIMEOUT_S)
        assert is_pattern(tensor_of(receiver.recv(TIMEOUT_S)))


def _accept_the_rest(server: ow.ChannelServer) -> None:
    while True:
        try:
            server.accept(0).close()
        except ow.HandoffTimeout:
            return
        except ow.HandoffError:
            continue


def listen_with_few_descriptors(_: Connection, folder: str) -> int:
    """Open servers with 0, 1, 2 ... free descriptors; how many it takes."""
    for num_free in range(40):
        try:
            with few_descriptors(num_free):
                ow.ChannelServer(f"{folder}/{num_free}").close()
        except ow.HandoffError:
            assert not os.path.lexists(f"{folder}/{num_free}")
        else:
            return num_free
    return -1


def send_with_few_descriptors(_: Connection, channel: ow.Channel) -> list[str]:
    """Send what needs new arenas, with few descriptors; what became of each.

    The test receives all that was sent, and holds it.
    """
    channel.recv(TIMEOUT_S)
    outcomes = []
    for num_free in range(4):
        name = str(num_free)
        try:
            with few_descriptors(num_free):
                channel.send(request(pattern(MIB, num_free), name), 1)
        except ow.HandoffError as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("sent")
    channel.send(request(pattern(MIB, 99), "afterwards"), TIMEOUT_S)
    return outcomes


def receive_with_few_descriptors(control: Connection, channel: ow.Channel) -> list[str]:
    """Receive what comes in new arenas, with few descriptors; what became of each."""
    channel.recv(TIMEOUT_S)
    held: list[Any] = []
    outcomes = []
    for num_free in (0, 1, 2, 0, 3):
        with few_descriptors(num_free):
            control.send("limited")
            try:
                held.append(channel.recv(TIMEOUT_S))
                outcomes.append("received")
            except ow.HandoffError as error:
                outcomes.append(type(error).__name__)
        control.send("free")
        held.append(channel.recv(TIMEOUT_S))
    for each in held:
        assert is_pattern(tensor_of(each), int(each.request_id))
    return outcomes


def greet_with_few_descriptors(control: Connection, path: str) -> str:
    """Accept a process while the limit is reached, and again when it is not."""
    with ow.ChannelServer(path) as server:
        control.send("listening")
        control.recv()
        with few_descriptors(1), contextlib.suppress(ow.HandoffError):
            server.accept(0.05)
        control.send("refused")
        channel = server.accept(TIMEOUT_S)
        name = channel.recv(TIMEOUT_S).request_id
        assert isinstance(name, str)
        return name


def public_folder() -> str:
    """A new folder that every user can get to."""
    folder = tempfile.mkdtemp(dir="/tmp")
    Path(folder).chmod(0o755)
    return folder


def be_another_user(_: Connection, path: str) -> tuple[str, str]:
    """Try to connect to a server of another user; the error and what it says."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        ow.Channel.connect(path, 1)
    except ow.HandoffError as error:
        return type(error).__name__, str(error)
    return "connected", ""


def die_in_unpickling(pid: int) -> None:
    """What `Dies` unpickles to, in the child."""
    if os.getpid() != pid:
        os.kill(os.getpid(), signal.SIGKILL)


class Dies:
    """An argument that kills the process that it is unpickled in."""

    def __reduce__(self) -> tuple[Any, ...]:
        return die_in_unpickling, (os.getpid(),)


def never(*_: object) -> None:
    """For a child that does not live until it is called."""
    sys.exit(errno.EINVAL)


def sleep_forever(control: Connection, *_: object) -> None:
    """Stay until killed."""
    control.send("asleep")
    time.sleep(10**6)


def write_late(control: Connection, channel: ow.Channel) -> None:
    """Send a tensor from `empty`, and write to it when the test says so."""
    tensor = channel.empty((MIB,), torch.uint8, TIMEOUT_S).fill_(1)
    channel.send(request(tensor), TIMEOUT_S)
    control.send("sent")
    control.recv()
    tensor.fill_(2)
    control.send("written")
    control.recv()
