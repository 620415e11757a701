"""Channels as a state machine: whatever is done in whichever order, contents and books hold."""

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from handoff_children import pattern, request, tensor_of
from hypothesis import settings
from hypothesis import strategies as hst
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

import omniwire as ow

NUM_CHANNELS = 2
SIZES = [2**16, 2**16 + 1, 100_000, 300_000]  # each with a slot of its own
ARENA = 2**20

positions = hst.integers(0, NUM_CHANNELS - 1)
sizes = hst.lists(hst.sampled_from(SIZES), max_size=3)


@dataclass(eq=False)
class ModelSlot:
    """What should be in an arena, and how many hold it."""

    owner: tuple[int, int]  # of a channel, the end that sends from it
    seed: int
    num_bytes: int
    num_holds: int = 1

    @property
    def in_flight(self) -> int:
        return -(-self.num_bytes // 64) * 64 if self.num_holds else 0


@dataclass(eq=False)
class Held:
    """Something that holds slots, with what it shows of them."""

    slots: list[ModelSlot]
    tensors: list[torch.Tensor] = field(default_factory=list)
    start: int = 0

    def drop(self) -> None:
        self.tensors.clear()
        for slot in self.slots:
            slot.num_holds -= 1


class Channels(RuleBasedStateMachine):
    own = Bundle("own")
    received = Bundle("received")

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[ow.Channel, ow.Channel]] = []
        self.on_the_way: dict[tuple[int, int], deque[tuple[str, list[ModelSlot]]]] = {}
        self.slots: list[ModelSlot] = []
        self.numbers = itertools.count()

    @initialize()
    def open(self) -> None:
        self.ends = [
            ow.Channel.pair(arena_bytes=ARENA, max_bytes=2 * ARENA) for _ in range(NUM_CHANNELS)
        ]
        self.on_the_way = {
            (position, end): deque() for position in range(NUM_CHANNELS) for end in (0, 1)
        }

    def _sent(self, ways: list[tuple[int, int]], slots: list[ModelSlot], tensors: Any) -> None:
        """Send to the other ends of these ways; the slots are in the model already."""
        name = str(next(self.numbers))
        message = request(request_id=name, tensors=list(tensors))
        channels = [self.ends[position][end] for position, end in ways]
        try:
            if len(ways) == 1:
                channels[0].send(message, timeout=0)
            else:
                ow.broadcast(channels, message, timeout=0)
        except ow.ArenaFull:
            return
        for slot in slots:
            slot.num_holds += len(ways)
            if slot not in self.slots:
                self.slots.append(slot)
        for way in ways:
            self.on_the_way[way].append((name, slots))

    def _copied(self, owner: tuple[int, int], wanted: list[int]) -> list[ModelSlot]:
        return [ModelSlot(owner, next(self.numbers) % 251, size, 0) for size in wanted]

    @rule(position=positions, end=hst.integers(0, 1), wanted=sizes)
    def send(self, position: int, end: int, wanted: list[int]) -> None:
        way = (position, end)
        slots = self._copied(way, wanted)
        self._sent([way], slots, [pattern(slot.num_bytes, slot.seed) for slot in slots])

    @rule(wanted=sizes)
    def broadcast(self, wanted: list[int]) -> None:
        ways = [(position, 0) for position in range(NUM_CHANNELS)]
        slots = self._copied(ways[0], wanted)
        self._sent(ways, slots, [pattern(slot.num_bytes, slot.seed) for slot in slots])

    @rule(target=own, position=positions, end=hst.integers(0, 1), size=hst.sampled_from(SIZES))
    def empty(self, position: int, end: int, size: int) -> Any:
        try:
            tensor = self.ends[position][end].empty((size,), torch.uint8, timeout=0)
        except ow.ArenaFull:
            return multiple()
        slot = ModelSlot((position, end), next(self.numbers) % 251, size)
        assert not tensor.any()
        tensor.copy_(pattern(size, slot.seed))
        self.slots.append(slot)
        return Held([slot], [tensor])

    @rule(held=own)
    def send_own(self, held: Held) -> None:
        self._sent([held.slots[0].owner], held.slots, held.tensors)

    @rule(held=own)
    def broadcast_own(self, held: Held) -> None:
        if held.slots[0].owner[1] == 0:
            ways = [(position, 0) for position in range(NUM_CHANNELS)]
            self._sent(ways, held.slots, held.tensors)

    @rule(target=received, position=positions, end=hst.integers(0, 1))
    def receive(self, position: int, end: int) -> Any:
        """At the end that way `end` leads to."""
        waiting = self.on_the_way[position, end]
        channel = self.ends[position][1 - end]
        if not waiting:
            with pytest.raises(ow.HandoffTimeout):
                channel.recv(timeout=0)
            return multiple()
        name, slots = waiting.popleft()
        message = channel.recv(timeout=0)
        assert message.request_id == name
        tensors = list(tensor_of(message, "tensors"))
        assert len(tensors) == len(slots)
        return Held(slots, tensors)

    @rule(held=received)
    def narrow(self, held: Held) -> None:
        """Keep a part of each tensor; it holds all of its slot."""
        held.tensors = [tensor[10:] for tensor in held.tensors]
        held.start += 10

    @rule(held=received, position=positions, end=hst.integers(0, 1))
    def send_on(self, held: Held, position: int, end: int) -> None:
        """What was received is another's: it is copied, but for what it shows twice."""
        if held.start or not held.tensors:
            return
        way = (position, end)
        slots = [ModelSlot(way, slot.seed, slot.num_bytes, 0) for slot in held.slots]
        self._sent([way], slots, held.tensors)

    @rule(held=consumes(own))
    def drop_own(self, held: Held) -> None:
        held.drop()

    @rule(held=consumes(received))
    def drop(self, held: Held) -> None:
        for number, slot in enumerate(held.slots):
            whole = pattern(slot.num_bytes, slot.seed)
            assert torch.equal(held.tensors[number], whole[held.start :])
        held.drop()

    @invariant()
    def books(self) -> None:
        self.slots = [slot for slot in self.slots if slot.num_holds]
        for position, ends in enumerate(self.ends):
            for end, channel in enumerate(ends):
                expected = sum(
                    slot.in_flight for slot in self.slots if slot.owner == (position, end)
                )
                stats = channel.stats()
                assert stats["in_flight_bytes"] == expected
                assert stats["free_bytes"] == stats["arena_bytes"] - expected
                assert stats["arena_bytes"] <= 2 * ARENA

    def teardown(self) -> None:
        for ends in self.ends:
            for channel in ends:
                channel.close()


TestChannels = Channels.TestCase
TestChannels.settings = settings(max_examples=25, stateful_step_count=40)
