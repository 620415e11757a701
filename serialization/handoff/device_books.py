"""What this process has lent to readers, and borrowed from senders, apart from slots."""

import functools
import itertools
import os
import secrets
import select
import threading
import time
import weakref
from collections import deque
from multiprocessing import util
from typing import Final, NamedTuple

import torch

from omniwire.contracts.errors import HandoffError
from omniwire.serialization.handoff.cuda import CudaBackend
from omniwire.serialization.handoff.descriptors import (
    Descriptor,
    clear_event,
    limit_named,
    new_event,
    signal_event,
)
from omniwire.serialization.handoff.device import DeviceBackend, Event, Opened
from omniwire.serialization.handoff.lease import Lease
from omniwire.serialization.handoff.pool import Pool

_LOOK_AGAIN_S: Final = 1.0
"""How often the keeper looks for what readers gave back, and for something to do at all."""

_EXIT_S: Final = 5.0
"""How long a process that ends waits for others to give back its memory."""

_OPENING: Final = threading.Lock()


class Loan:
    """Something of this process that a message lends; ends with the slot of its record.

    Attributes:
        number: Its number among all loans of this process.
        value: What a reader in this process gets: a tensor or the source of a handle.
        kept: What else has to live as long.
        device: Number of the device that the value's tensor is on; None if it is on none.
        event: After which it is there.
        is_shared: Whether another process may open its memory.
    """

    __slots__ = ("__weakref__", "device", "event", "is_shared", "kept", "number", "value")

    def __init__(self, number: int, value: object, device: int | None) -> None:
        self.number = number
        self.value = value
        self.device = device
        self.kept: list[object] = []
        self.event: Event | None = None
        self.is_shared = False


class Returned(NamedTuple):
    """Memory that nothing in Python refers to any more.

    Attributes:
        lease: Given back once the device is past the events.
        events: The end of the work that was queued until then; None if the device has failed.
        opened: Closed before that, unless it is a copy.
    """

    lease: Lease
    events: list[Event] | None
    opened: Opened | None


class DeviceBooks:
    """The books of one process.

    Attributes:
        pid: The process.
        token: One that no other process has, in whichever container it is.
        backend: The devices.
        keeper: Who ends what is lent and borrowed.
        loans: By number, for readers in this process.

    Args:
        pid: The process.
        backend: The devices.
    """

    def __init__(self, pid: int, backend: DeviceBackend) -> None:
        self.pid = pid
        self.token = secrets.token_bytes(16)
        self.backend = backend
        self.keeper = Keeper(backend)
        self.loans: weakref.WeakValueDictionary[int, Loan] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()

    def lend(self, value: object, device: int | None) -> Loan:
        """A new loan; whoever holds it decides how long it lasts."""
        loan = Loan(next(self._numbers), value, device)
        self.loans[loan.number] = loan
        return loan


class Keeper:
    """Waits in the background, so that no finalizer and no channel has to.

    Borrowed memory is given back when the device is done with it, at once, whatever the process
    does meanwhile. What was lent ends when its readers are done, also if nobody uses the channel
    any more. The thread that sees to it is there only while something is lent or borrowed.

    Args:
        backend: The devices.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._returned: deque[Returned] = deque()
        self._failed: list[Returned] = []
        self._opened: list[Opened] = []
        self._num_borrowed = 0
        self._lent: list[tuple[Pool | weakref.ref[Pool], weakref.ref[Loan]]] = []
        self._wake: Descriptor | None = None
        self._will_drain = False

    def begin_borrowing(self, opened: Opened | None) -> None:
        """To be followed by `give_back`. Called by whoever may wait for a lock.

        Raises:
            HandoffError: The limit of open files is reached.
        """
        with self._lock, limit_named():
            self._start()
            self._num_borrowed += 1
            if opened is not None:
                self._opened.append(opened)

    def give_back(self, returned: Returned) -> None:
        """Give something back when the device is done with it. Takes no lock; may run anywhere."""
        self._returned.append(returned)
        self._signal()

    def is_borrowed(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor of this kind of device is another process's."""
        address = tensor.data_ptr()
        with self._lock:
            return any(each.address <= address < each.address + each.size for each in self._opened)

    def watch(self, loan: Loan, pool: Pool) -> None:
        """End a loan, whose record is in a slot of a pool, when its readers are done with it.

        What another process may open is kept until then, even if its channel is not.

        Raises:
            HandoffError: The limit of open files is reached.
        """
        with self._lock, limit_named():
            self._start()
            kept = pool if loan.is_shared else weakref.ref(pool)
            self._lent.append((kept, weakref.ref(loan, self._signal)))
            if loan.is_shared and not self._will_drain:
                self._will_drain = True
                # Runs when the children of this process have ended.
                util.Finalize(None, _drain, (weakref.ref(self),), exitpriority=-1)
        self._signal()

    def _start(self) -> None:
        if self._wake is None:
            self._wake = new_event()
            threading.Thread(
                target=self._run, args=(self._wake,), name="omniwire-keeper", daemon=True
            ).start()

    def _signal(self, _: object = None) -> None:
        wake = self._wake
        if wake is not None:
            signal_event(wake.number)

    def _run(self, wake: Descriptor) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        is_idle = False
        while True:
            happened = poll.poll(_LOOK_AGAIN_S * 1000)
            clear_event(wake.number)
            self._end_borrowing()
            self._end_loans()
            with self._lock:
                if self._num_borrowed or self._lent:
                    is_idle = False
                elif is_idle and not happened:
                    self._wake = None
                    return
                else:
                    is_idle = True

    def _end_borrowing(self) -> None:
        while self._returned:
            returned = self._returned.popleft()
            if not self._is_done_with(returned):
                # Nobody knows what the device still does with it. The sender has it back when
                # this process ends.
                self._failed.append(returned)
                continue
            with self._lock:
                self._num_borrowed -= 1
                if returned.opened is not None:
                    self._opened.remove(returned.opened)
            returned.lease.release()

    def _is_done_with(self, returned: Returned) -> bool:
        """Whether the device will not touch it again, once it has done what it has to."""
        if returned.events is None:
            return False
        try:
            self._backend.synchronize(returned.events)
            if returned.opened is not None:
                self._backend.close(returned.opened)
        except (RuntimeError, HandoffError):
            return False
        return True

    def _end_loans(self) -> None:
        with self._lock:
            found = {id(pool): pool for kept, _ in self._lent if (pool := _pool(kept)) is not None}
        for pool in found.values():
            for ledger in list(pool.ledgers):
                ledger.has_lost_reader()
            pool.occupancy()
        with self._lock:
            self._lent = [entry for entry in self._lent if entry[1]() is not None]

    def drain(self) -> None:
        """Wait, at the end of the process, for memory that others have open; not for long.

        What CUDA makes of memory that is open elsewhere when its process ends is not specified.
        """
        deadline = time.monotonic() + _EXIT_S
        while time.monotonic() < deadline:
            self._end_loans()
            if not self._is_lending():
                return
            time.sleep(0.002)

    def _is_lending(self) -> bool:
        """Whether other processes may have memory of this one open."""
        with self._lock:
            loans = [reference() for _, reference in self._lent]
        return any(loan is not None and loan.is_shared for loan in loans)


def _drain(reference: weakref.ref[Keeper]) -> None:
    keeper = reference()
    if keeper is not None:
        keeper.drain()


def _pool(kept: Pool | weakref.ref[Pool]) -> Pool | None:
    return kept if isinstance(kept, Pool) else kept()


def device_books() -> DeviceBooks:
    """The books of this process; a forked child begins its own and never looks at the parent's."""
    with _OPENING:
        return _books(os.getpid())


@functools.cache
def _books(pid: int) -> DeviceBooks:
    return DeviceBooks(pid, CudaBackend())
