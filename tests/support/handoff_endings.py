"""What child processes do in the tests of how a channel ends."""

import os
import sys
from multiprocessing.connection import Connection

from handoff_children import TIMEOUT_S, request

import omniwire as ow


def fork_and_stay(control: Connection, channel: ow.Channel) -> None:
    """Use an end, fork a child that exits as processes of multiprocessing do, and stay."""
    channel.send(request(request_id="before"), TIMEOUT_S)
    pid = os.fork()
    if not pid:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    channel.send(request(request_id="after"), TIMEOUT_S)
    control.recv()
