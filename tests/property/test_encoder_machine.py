"""Encoder states and the cache, driven at random beside a model that is a few dictionaries.

The model knows every lease that is held and every entry's bytes. Whatever the order of
requests, encodes, failures, aborts and other holders: nothing leaks, nothing is released
twice, nothing held is evicted, the bound holds, and identical items are encoded once.
"""

import torch
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from omniwire.contracts import (
    MultimodalInput,
    MultimodalItemMetadata,
    MultimodalItemPartition,
    MultimodalParams,
    OmniwireError,
    ProcessedRequest,
)
from omniwire.runtime import (
    CacheLease,
    MultimodalEncoderMixin,
    MultimodalEncoderRequestState,
    TensorLRUCache,
    encode_scheduled,
    encoder_cache_key,
)

ROW_BYTES = 16
MAX_ROWS = 7
CONTENTS = range(5)
CONTENT_LISTS = some.lists(some.sampled_from(CONTENTS), min_size=1, max_size=4)
FAULTS = ("none", "none", "raises", "short", "surplus", "wide", "no tensor", "dtype", "abort")


def rows_of(content):
    """An item of each content has 1 to 3 rows, each 16 bytes of its number."""
    return torch.full((1 + content % 3, 4), float(content))


class Encoder(MultimodalEncoderMixin):
    """Notes the contents that it encodes, and fails as it is told to."""

    def __init__(self):
        self.fault = "none"
        self.abort = None
        self.encoded = []

    def encode_multimodal_inputs(self, params):
        outputs = []
        for one in params:
            contents = one.multimodal_data["image"]["content"].tolist()
            self.encoded += contents
            outputs.append(torch.cat([rows_of(content) for content in contents]))
        if self.fault == "raises":
            raise OSError("the device fell off the bus")
        if self.fault == "abort":
            self.abort()
        broken = {
            "short": lambda rows: rows[1:],
            "wide": lambda rows: torch.cat([rows, rows], dim=1)[:, None],
            "no tensor": lambda rows: rows.tolist(),
            "dtype": lambda rows: rows.double(),
        }.get(self.fault)
        if broken is not None:
            outputs[-1] = broken(outputs[-1])
        return [*outputs, outputs[0]] if self.fault == "surplus" else outputs


class EncoderMachine(RuleBasedStateMachine):
    requests = Bundle("requests")
    holds = Bundle("holds")
    promises = Bundle("promises")

    @initialize(target=requests, first=CONTENT_LISTS, second=CONTENT_LISTS)
    def start(self, first, second):
        self.cache = TensorLRUCache(MAX_ROWS * ROW_BYTES)
        self.encoder = Encoder()
        self.live = {}  # request id -> (request, state, contents, settings)
        self.held = []  # (lease, key) of other holders
        self.wrong = {}  # key -> an entry of wrong rows put there
        self.promised = {}  # key -> bytes
        self.number = 0
        return multiple(self.admit(first, has_identity=True), self.admit(second, has_identity=True))

    def key(self, content):
        params = self.params([content])
        return encoder_cache_key(params, 0, dtype=torch.float32, settings="model@1")

    def params(self, contents):
        record = MultimodalItemMetadata(
            [("image", index) for index in range(len(contents))],
            output_embedding_lengths=[len(rows_of(content)) for content in contents],
            input_partitions={"image": {"content": MultimodalItemPartition()}},
        )
        starts = [10 * index for index in range(len(contents))]
        given = MultimodalInput(
            [[content] * 8 for content in contents], starts, record.output_embedding_lengths
        )
        data = {"image": {"content": torch.tensor(contents)}, "item_metadata": record}
        return MultimodalParams(given, data)

    @rule(target=requests, contents=CONTENT_LISTS, has_identity=some.booleans())
    def arrive(self, contents, has_identity):
        return self.admit(contents, has_identity=has_identity)

    def admit(self, contents, *, has_identity):
        self.number += 1
        request = ProcessedRequest(f"r{self.number}", range(64), self.params(contents))
        state = MultimodalEncoderRequestState.from_request(request)
        params = request.multimodal_params.with_encoder_state(state)
        request = ProcessedRequest(request.request_id, request.prompt_token_ids, params)
        self.live[request.request_id] = (request, state, contents, has_identity)
        return request.request_id

    @precondition(lambda self: any(state.pending_items for _, state, *_ in self.live.values()))
    @rule(data=some.data(), fault=some.sampled_from(FAULTS), takes_all=some.booleans())
    def encode(self, data, fault, takes_all):
        """Pending items of some requests that are identified alike."""
        names = [name for name, (_, state, *_) in self.live.items() if state.pending_items]
        first = data.draw(some.sampled_from(names))
        has_identity = self.live[first][3]
        alike = [name for name in names if self.live[name][3] == has_identity]
        chosen = {}
        for name in alike if takes_all else [first]:
            pending = self.live[name][1].pending_items
            items = some.lists(some.sampled_from(pending), min_size=1, unique=True)
            chosen[name] = pending if takes_all else data.draw(items)
        requests = [request for request, *_ in self.live.values()]
        victim = data.draw(some.sampled_from(sorted(self.live)))
        self.encoder.fault, self.encoder.encoded = fault, []
        self.encoder.abort = self.live[victim][1].release
        wanted = [self.live[name][2][index] for name in chosen for index in chosen[name]]
        keys = {self.key(content) for content in wanted} if has_identity else set()
        hits = {key for key in keys if key in self.cache and key not in self.wrong}
        before = self.snapshot(keys)
        try:
            encode_scheduled(
                self.encoder,
                requests,
                chosen,
                cache=self.cache,
                dtype=torch.float32,
                settings="model@1" if has_identity else None,
            )
            failed = False
        except (OmniwireError, OSError):
            failed = True
        for key in keys & self.wrong.keys():
            assert key not in self.cache or not failed
            del self.wrong[key]
        # Identical items once, what is cached not at all; without identity, each.
        if has_identity:
            missed = {content for content in wanted if self.key(content) not in hits}
            assert sorted(self.encoder.encoded) == sorted(missed)
        else:
            assert sorted(self.encoder.encoded) == sorted(wanted)
        assert failed == (fault not in {"none", "abort"} and bool(self.encoder.encoded))
        if failed:
            assert self.snapshot(keys) == before
        else:
            for name, indices in chosen.items():
                state = self.live[name][1]
                assert state.is_released or not {*indices} & {*state.pending_items}
        if self.live[victim][1].is_released:
            del self.live[victim]

    def snapshot(self, keys):
        """States, entries and leases, but for entries of wrong rows that a look drops."""
        return (
            [state.item_ready for _, state, *_ in self.live.values()],
            {
                key: entry.num_leases
                for key, entry in self.cache._entries.items()
                if key not in keys or entry.tensor.size(0) == key.num_rows
            },
            dict(self.cache._reserved),
        )

    @rule(name=consumes(requests), times=some.integers(1, 3))
    def finish_or_abort(self, name, times):
        if name in self.live:
            _, state, *_ = self.live.pop(name)
            for _ in range(times):
                state.release()

    @precondition(lambda self: len(self.cache))
    @rule(target=holds, data=some.data())
    def hold(self, data):
        cached = [key for key in map(self.key, CONTENTS) if key in self.cache]
        key = data.draw(some.sampled_from(cached))
        lease = self.cache.acquire(key)
        self.held.append((lease, key))
        return lease

    @rule(lease=consumes(holds))
    def let_go(self, lease):
        lease.release()
        lease.release()
        self.held = [(other, key) for other, key in self.held if other is not lease]

    @rule(target=promises, content=some.sampled_from(CONTENTS), extra_rows=some.integers(0, 1))
    def reserve_elsewhere(self, content, extra_rows):
        """Another batch encodes an item; an extra row makes its output a wrong one."""
        key = self.key(content)
        if key in self.cache or self.cache.is_reserved(key):
            return multiple()
        num_bytes = (key.num_rows + extra_rows) * ROW_BYTES
        if not self.cache.reserve(key, num_bytes):
            return multiple()
        self.promised[key] = num_bytes
        return key

    @rule(key=consumes(promises), succeeds=some.booleans())
    def settle_elsewhere(self, key, succeeds):
        num_rows = self.promised.pop(key) // ROW_BYTES
        if not succeeds:
            self.cache.cancel(key)
            return
        rows = rows_of(key.content_hash[0])[:1].repeat(num_rows, 1)
        self.cache.commit({key: rows})[key].release()
        if num_rows != key.num_rows:
            self.wrong[key] = num_rows

    def leases(self):
        """Every lease that anybody holds."""
        held = [lease for lease, _ in self.held]
        for _, state, contents, _ in self.live.values():
            held += [
                reference
                for reference in map(state.reference, range(len(contents)))
                if isinstance(reference, CacheLease)
            ]
        return held

    @invariant()
    def every_lease_is_counted_once_and_keeps_its_tensor(self):
        counts = {}
        for lease in self.leases():
            assert lease._entry is not None
            counts[id(lease._entry)] = counts.get(id(lease._entry), 0) + 1
        entries = [*self.cache._entries.values(), *self.cache._dropped]
        for entry in entries:
            assert entry.num_leases == counts.pop(id(entry), 0)
        assert not counts  # a lease on an entry that was evicted

    @invariant()
    def the_bound_holds_and_the_bytes_are_those_held(self):
        entries = {id(e): e for e in self.cache._entries.values()}
        entries |= {id(lease._entry): lease._entry for lease in self.leases()}
        num_bytes = sum(entry.tensor.nbytes for entry in entries.values())
        assert self.cache._reserved == self.promised
        assert self.cache.used_bytes == num_bytes + sum(self.promised.values())
        assert self.cache.used_bytes <= self.cache.max_bytes

    @invariant()
    def ready_items_have_their_own_rows(self):
        for _, state, contents, _ in self.live.values():
            for index, content in enumerate(contents):
                reference = state.reference(index)
                assert state.item_ready[index] == (reference is not None)
                if reference is not None:
                    rows = getattr(reference, "tensor", reference)
                    assert torch.equal(rows, rows_of(content))

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for _, state, *_ in self.live.values():
            state.release()
        for lease, _ in self.held:
            lease.release()
        for key in self.promised:
            self.cache.cancel(key)
        assert self.cache.reserve("everything", self.cache.max_bytes)


TestEncoderMachine = EncoderMachine.TestCase
TestEncoderMachine.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
