"""Several channels at once: one object to many peers, or whichever peer sends first."""

from collections.abc import Iterable, Sequence

from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import (
    HandoffError,
    HandoffTimeout,
    PeerClosed,
    PeerDied,
    Problem,
)
from omniwire.contracts.guard import guarded
from omniwire.serialization.handoff.channel import Channel
from omniwire.serialization.handoff.end import End
from omniwire.serialization.handoff.ledger import BOOKS
from omniwire.serialization.handoff.link import Gone
from omniwire.serialization.handoff.outbox import Outbox, placing
from omniwire.serialization.handoff.outgoing import Outgoing
from omniwire.serialization.handoff.waiting import Steps, Timeout, Wait, run


@guarded
def broadcast(channels: Sequence[Channel], obj: object, timeout: Timeout = None) -> None:
    """Send one object to many peers, which share one copy of its tensors in memory.

    The memory is in the arena of the first channel, and free again when the last peer has
    dropped the tensors. Tensors from `empty` of any of the channels are not copied.

    Args:
        channels: Each once; none sends to nobody.
        obj: Any contract object.
        timeout: Seconds to wait in all; None for as long as it takes.

    Raises:
        ContractError: One is no channel.
        EncodeError: It cannot be encoded. Nothing was sent.
        ArenaFull: It does not fit, now or ever. Nothing was sent.
        HandoffError: Of a channel that could not take it. All others were sent it, unless
            there was no time left.
    """
    _check_channels("broadcast", channels)
    if channels:
        run(_broadcasting(channels, obj), timeout)


@guarded
def wait(channels: Sequence[Channel], timeout: Timeout = None) -> list[Channel]:
    """Wait until something can be received from one of several channels.

    Args:
        channels: At least one.
        timeout: Seconds to wait; None for as long as it takes.

    Returns:
        Those, in order, from which `recv` returns or raises at once: something has come, or
        the peer is gone. Empty if there are none in time. To receive once from each of them
        before waiting again is fair.

    Raises:
        ContractError: There is none, or one is no channel.
    """
    _check_channels("wait", channels, at_least=1)
    try:
        return run(_waiting(channels), timeout)
    except HandoffTimeout:
        return []


def _check_channels(subject: str, channels: Sequence[object], at_least: int = 0) -> None:
    problems = [
        Problem(("channels", number), "type", "a Channel", describe(channel))
        for number, channel in enumerate(channels)
        if not isinstance(channel, Channel)
    ]
    if len(channels) < at_least:
        problems.append(Problem(("channels",), "count", "at least one channel", "none"))
    raise_problems(subject, problems)


def _broadcasting(channels: Sequence[Channel], obj: object) -> Steps[None]:
    ends = [channel._end for channel in channels]
    message = Outgoing(obj, ends)
    failures: dict[int, HandoffError] = {}
    outboxes: dict[int, Outbox] = {}
    for number, end in enumerate(ends):
        try:
            outboxes[number] = end.started()
        except HandoffError as error:
            failures[number] = error
    pools = [outbox.pool for outbox in outboxes.values()]
    try:
        message.locate(pools)
        _share_ledgers(outboxes.values())
        placed = False
        while outboxes:
            _drop_gone(ends, outboxes, failures)
            if not outboxes:
                break
            present = [ends[number] for number in outboxes]
            steps = placing(message, pools[0], list(outboxes.values()))
            try:
                placed = yield from _watching(present, steps)
                break
            except (Gone, PeerClosed, PeerDied):
                continue
        for position, (number, outbox) in enumerate(outboxes.items()):
            steps_of_one = (
                outbox.posting(message, position) if placed else outbox.posting_whole(message)
            )
            try:
                yield from ends[number].guarded(steps_of_one)
                ends[number].record(message)
            except HandoffError as error:
                failures[number] = error
    finally:
        message.release()
    if failures:
        number, first = min(failures.items())
        raise type(first)(f"channel {number} of {len(channels)}: {first}")


def _drop_gone(
    ends: Sequence[End], outboxes: dict[int, Outbox], failures: dict[int, HandoffError]
) -> None:
    """Do without the readers that are gone."""
    for number in list(outboxes):
        try:
            ends[number].notice_peer()
            outboxes[number].check_reader()
        except Gone:
            failures[number] = ends[number].gone()
            del outboxes[number]
        except HandoffError as error:
            failures[number] = error
            del outboxes[number]


def _watching(ends: Sequence[End], steps: Steps[bool]) -> Steps[bool]:
    """The same steps, getting to know peers that say hello meanwhile, or end."""
    try:
        while True:
            try:
                wait = next(steps)
            except StopIteration as stop:
                result: bool = stop.value
                return result
            hellos = [waited for end in ends for waited in end.hello_waits()]
            yield wait._replace(readable=[*wait.readable, *hellos])
            for end in ends:
                end.notice_peer()
    finally:
        steps.close()


def _share_ledgers(outboxes: Iterable[Outbox]) -> None:
    """Let every pool know of every reader that may hold its slots."""
    with BOOKS:
        ledgers = [outbox.ledger for outbox in outboxes]
        for outbox in outboxes:
            known = outbox.pool.ledgers
            known += [ledger for ledger in ledgers if ledger not in known]


def _waiting(channels: Sequence[Channel]) -> Steps[list[Channel]]:
    while True:
        ready = [channel for channel in channels if channel._end.is_ready()]
        if ready:
            return ready
        waits = [channel._end.wait_for_messages("") for channel in channels]
        readable = [waited for wait in waits for waited in wait.readable]
        yield Wait(lambda: HandoffTimeout("expected a message in time, got none"), readable)
