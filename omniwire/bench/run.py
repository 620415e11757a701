"""Every peer with every kind of request, in rounds, so that what disturbs one disturbs all."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from typing import Final

from omniwire.bench.content import CASES, Case
from omniwire.bench.pairs import Pair, PairFailed, start_server
from omniwire.bench.peers import PEERS, Peer
from omniwire.bench.usage import Usage

_NUM_ROUNDS: Final = 10
_NUM_WARM_UP: Final = 20
_NUM_WATCHED: Final = 20

NOT_INSTALLED: Final = "not installed"
FAILED: Final = "failed"

NUM_STEPS: Final = len(CASES) * len(PEERS) * (1 + _NUM_ROUNDS + 1)
"""How often `run_all` calls `on_step`."""


@dataclass
class Result:
    """What one peer did with one kind of request.

    Attributes:
        peer: Which peer.
        case: Which kind of request.
        problem: "not installed" or "failed" where there are no figures, else None.
        reason: What is missing or what broke, in one line.
        seconds: For each message, from its sending to the arrival of the answer.
        usage: Processor time and page faults of both sides, all these messages together.
        peak_bytes: By how much the memory of both sides grew at most.
    """

    peer: Peer
    case: Case
    problem: str | None = None
    reason: str = ""
    seconds: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    peak_bytes: int = 0

    def quantile(self, share: float) -> float:
        """Seconds that this share of the messages took at most."""
        return sorted(self.seconds)[math.ceil(share * len(self.seconds)) - 1]


def run_all(repeat: int | None, on_step: Callable[[str], None]) -> list[Result]:
    """Measure everything.

    Args:
        repeat: Messages per peer and kind of request; None for what the kind says.
        on_step: Called with the names of a kind and a peer before something is done with them.

    Returns:
        For each kind of request, a result for each peer.
    """
    context = start_server()
    results = []
    for case in CASES:
        results += _run_case(context, case, repeat or case.repeat, on_step)
    return results


def _run_case(
    context: ForkServerContext, case: Case, number: int, on_step: Callable[[str], None]
) -> list[Result]:
    results = [Result(peer, case) for peer in PEERS]
    for result in results:
        if result.peer.missing:
            result.problem, result.reason = NOT_INSTALLED, ", ".join(result.peer.missing)
    with ExitStack() as stack:
        pairs = {}
        for result in _each(results, on_step):
            with _recorded(result):
                pair = stack.enter_context(Pair(context, result.peer, case))
                pair.exchange(min(number, _NUM_WARM_UP))
                pairs[result.peer] = pair
        for index in range(_NUM_ROUNDS):
            size = number * (index + 1) // _NUM_ROUNDS - number * index // _NUM_ROUNDS
            for result in _each(results, on_step):
                with _recorded(result):
                    exchanges, others = pairs[result.peer].exchange(size)
                    result.seconds += exchanges.seconds
                    result.usage += exchanges.usage + others
    # Each alone, since how pages are shared with other pairs would count too.
    for result in _each(results, on_step):
        with _recorded(result), Pair(context, result.peer, case) as pair:
            result.peak_bytes = pair.peak_memory(min(number, _NUM_WATCHED))
    return results


def _each(results: list[Result], on_step: Callable[[str], None]) -> Iterator[Result]:
    """Those without a problem; a step for each."""
    for result in results:
        on_step(f"{result.case.name}: {result.peer.name}")
        if result.problem is None:
            yield result


@contextmanager
def _recorded(result: Result) -> Iterator[None]:
    """Note the failure of a peer, so that the others can go on."""
    try:
        yield
    except PairFailed as error:
        result.problem, result.reason = FAILED, str(error)
