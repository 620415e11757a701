"""What child processes do in the tests of how a channel ends."""

import atexit
import contextlib
import os
from multiprocessing.connection import Connection

from handoff_children import TIMEOUT_S, pattern, request

import omniwire as ow


def fork_and_stay(control: Connection, channel: ow.Channel, how: str) -> None:
    """Use an end, fork a child that ends its copy, send back what came before, and stay.

    Args:
        control: To the test.
        channel: The end.
        how: What the child does: `"exit"` as any interpreter, or `"close"`.
    """
    channel.send(request(request_id="before"), TIMEOUT_S)
    control.send("ready")
    control.recv()
    pid = os.fork()
    if not pid:
        if how == "close":
            channel.close()
        else:  # what an interpreter does at its end
            atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    channel.send(channel.recv(TIMEOUT_S), TIMEOUT_S)
    control.recv()


def fork_and_close_unused(_: Connection) -> str:
    """Close an end that was never used, after forking a child that waits at the other.

    Returns:
        The class of the error that the child sees, though it had copies of both ends.
    """
    a, b = ow.Channel.pair()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            b.recv(TIMEOUT_S / 4)
        except ow.HandoffError as error:
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    a.close()
    b.close()
    name = os.read(read, 100).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return name


def send_to_a_fork_that_comes_late(_: Connection) -> int:
    """Send what fits no arena to a forked child that has not used its end yet.

    Returns:
        The child's status: 0 if it has received all that was sent, and nothing else.
    """
    a, b = ow.Channel.pair(arena_bytes=2**20, max_bytes=2**20)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.read(read, 1)
            ids = [b.recv(TIMEOUT_S).request_id for _ in range(2)]
            code = 0 if ids == ["large", "small"] else 2
        finally:
            os._exit(code)
    large = request(pattern(5 * 2**20), "large")
    with contextlib.suppress(ow.HandoffTimeout):
        a.send(large, timeout=0)
    os.write(write, b"1")
    a.send(large, TIMEOUT_S)
    a.send(request(request_id="small"), TIMEOUT_S)
    status = os.waitpid(pid, 0)[1]
    os.close(read)
    os.close(write)
    return status
