"""`ItemScheduler`: which items to encode in the next iteration."""

from collections.abc import Iterable

from omniwire.contracts.budget import EncoderBudget
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error
from omniwire.contracts.items import MultimodalItemMetadata
from omniwire.runtime.encoder_state import MultimodalEncoderRequestState

_SUBJECT = "ItemScheduler"


class ItemScheduler:
    """Picks pending items under a budget of encoder tokens and output bytes per iteration.

    Requests are served oldest first, where a request's age counts from the first call that
    saw it (ties in the order given), and a request's items in prompt order. What does not fit
    in what is left waits, and younger items may use the rest; as the oldest pending item is
    always taken, an item waits only for older ones. An item is never split: the effective
    budget of an iteration is the configured one or, if that is larger, its first item.

    Lives as long as the engine. It remembers only the ages of the requests in the last call.

    Args:
        budget: The bounds of one iteration.

    Raises:
        ContractTypeError: `budget` is not an `EncoderBudget`.
    """

    def __init__(self, budget: EncoderBudget) -> None:
        if type(budget) is not EncoderBudget:
            problem = Problem(("budget",), "type", "an EncoderBudget", describe(budget))
            raise contract_error(_SUBJECT, [problem])
        self._budget = budget
        self._ages: dict[str, int] = {}
        self._num_seen = 0

    def schedule(
        self, states: Iterable[MultimodalEncoderRequestState]
    ) -> dict[str, tuple[int, ...]]:
        """The items to encode now. The states are not changed.

        Args:
            states: All requests that may be scheduled, each once, in order of arrival.

        Returns:
            Prompt indices by request id, oldest request first; requests with nothing to
            encode now are left out.

        Raises:
            ContractTypeError: An element is no state.
            ContractValueError: A request twice, or a record without the encoder costs or row
                counts that the budget bounds.
        """
        waiting = self._by_age(tuple(states))
        scheduled: dict[str, tuple[int, ...]] = {}
        used_tokens = used_bytes = 0
        for state in waiting:
            record = state.item_metadata
            taken: list[int] = []
            for index in state.pending_items:
                tokens, output_bytes = self._cost(record, index)
                is_first = not scheduled and not taken
                if is_first or self._fits(used_tokens + tokens, used_bytes + output_bytes):
                    used_tokens += tokens
                    used_bytes += output_bytes
                    taken.append(index)
            if taken:
                scheduled[state.request_id] = tuple(taken)
        return scheduled

    def _by_age(
        self, states: tuple[MultimodalEncoderRequestState, ...]
    ) -> list[MultimodalEncoderRequestState]:
        problems: list[Problem] = []
        ages: dict[str, int] = {}
        for position, state in enumerate(states):
            path: Path = ("states", position)
            if not isinstance(state, MultimodalEncoderRequestState):
                expected = "a MultimodalEncoderRequestState"
                problems.append(Problem(path, "type", expected, describe(state)))
                continue
            if state.request_id in ages:
                got = describe(state.request_id)
                problems.append(Problem(path, "duplicate", "each request once", got))
            ages[state.request_id] = self._ages.get(state.request_id, self._num_seen + position)
            problems += self._missing_lengths(state.item_metadata, (*path, "item_metadata"))
        if problems:
            raise contract_error(_SUBJECT, problems)
        self._ages = ages
        self._num_seen += len(states)
        return sorted(states, key=lambda state: ages[state.request_id])

    def _missing_lengths(self, record: MultimodalItemMetadata, path: Path) -> list[Problem]:
        needed = (
            ("encoder_token_lengths", self._budget.max_encoder_tokens),
            ("output_embedding_lengths", self._budget.max_output_bytes),
        )
        return [
            Problem((*path, name), "missing", "exact lengths, which the budget bounds", "None")
            for name, bound in needed
            if bound is not None and getattr(record, name) is None
        ]

    def _cost(self, record: MultimodalItemMetadata, index: int) -> tuple[int, int]:
        """Encoder tokens and output bytes of an item, as far as the budget bounds them."""
        costs, rows = record.encoder_token_lengths, record.output_embedding_lengths
        row_bytes = self._budget.output_row_bytes
        return (
            0 if costs is None else costs[index],
            0 if rows is None or row_bytes is None else rows[index] * row_bytes,
        )

    def _fits(self, tokens: int, output_bytes: int) -> bool:
        max_tokens, max_bytes = self._budget.max_encoder_tokens, self._budget.max_output_bytes
        return (max_tokens is None or tokens <= max_tokens) and (
            max_bytes is None or output_bytes <= max_bytes
        )
