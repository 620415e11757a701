"""Fixtures for pytest, which has them wherever this package is installed; extra `testing`.

| fixture | what it is |
| --- | --- |
| `channel_pair` | two connected ends of a `Channel`, closed when the test ends |
| `no_leaked_segments` | fails a test that leaves shared memory behind |
| `no_leaked_descriptors` | fails a test that leaves file descriptors open |
| `golden_message` | compares an object with a message that an earlier run has stored |

pytest imports this module in every run, so nothing else is imported before a fixture is used.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from omniwire import Channel
    from omniwire.testing.golden import GoldenMessages
    from omniwire.testing.leftovers import Present

_LEAK_FIXTURES: Final = frozenset(("no_leaked_descriptors", "no_leaked_segments"))
_ARENA_BYTES: Final = 1 << 20  # tests send little; what is larger gets an arena of its own
_UPDATE_GOLDEN: Final = "--update-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of `golden_message`."""
    parser.getgroup("omniwire").addoption(
        _UPDATE_GOLDEN,
        action="store_true",
        help="store the messages that golden_message compares, where they are missing or differ",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note a test that raised: its traceback keeps whatever it held."""
    if call.excinfo is not None and not _LEAK_FIXTURES.isdisjoint(
        getattr(item, "fixturenames", ())
    ):
        item.stash[_RAISED] = True


@pytest.fixture
def channel_pair(request: pytest.FixtureRequest) -> "Iterator[tuple[Channel, Channel]]":
    """Two connected ends of an `omniwire.Channel`; closed when the test ends.

    Either may be given to a child process before it is used. Arenas are 1 MiB, and larger where
    a message needs it.
    """
    _set_up_leak_fixtures(request)
    import omniwire as ow  # noqa: PLC0415  # see the module's docstring

    first, second = ow.Channel.pair(arena_bytes=_ARENA_BYTES)
    yield first, second
    first.close()
    second.close()
    # An end that is closed keeps its arenas while anybody has it: pytest does, to the very end.
    request.node.funcargs.pop("channel_pair", None)


@pytest.fixture
def no_leaked_segments(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves shared memory behind.

    That is: a mapping of an arena of this package, or a file in `/dev/shm` of this user that no
    unrelated process uses. What a collection of garbage frees in two seconds is not left behind.
    A test that failed is not looked at, since its traceback keeps what it held.
    """
    from omniwire.testing.leftovers import segments  # noqa: PLC0415

    before = segments()
    yield
    _check_nothing_left(request, before, segments)


@pytest.fixture
def no_leaked_descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves file descriptors open.

    Those of multiprocessing's own servers, which stay until the program ends, do not count.
    Otherwise as `no_leaked_segments`.
    """
    from omniwire.testing.leftovers import descriptors  # noqa: PLC0415

    before = descriptors()
    yield
    _check_nothing_left(request, before, descriptors)


@pytest.fixture
def golden_message(request: pytest.FixtureRequest) -> "GoldenMessages":
    """Compare an object with a stored message: `golden_message(obj)`.

    The message of a test in `test_a.py` is `golden/test_a/NAME.omniwire` beside that file; the
    name is that of the test, or `golden_message(obj, "name")`. It must still decode, to what
    equals the object, as `assert_equal` compares. With `--update-golden` a message that is
    missing, that differs or that cannot be decoded is stored anew; others stay as they are, so
    that old ones go on to prove that they can be read.
    """
    from omniwire.testing.golden import GoldenMessages  # noqa: PLC0415

    config = request.config
    return GoldenMessages(
        folder=request.path.parent / "golden" / request.path.stem,
        test_name=".".join(request.node.nodeid.split("::")[1:]),
        compared=config.stash.setdefault(_COMPARED, set()),
        updates=bool(config.getoption(_UPDATE_GOLDEN)),
        flag=_UPDATE_GOLDEN,
    )


_RAISED: Final = pytest.StashKey[bool]()
_COMPARED: Final = pytest.StashKey[set[str]]()


def _set_up_leak_fixtures(request: pytest.FixtureRequest) -> None:
    """What looks for leaks starts before the fixture that asks, and so looks after it has ended."""
    for name in _LEAK_FIXTURES:
        if name in request.fixturenames:
            request.getfixturevalue(name)


def _check_nothing_left(
    request: pytest.FixtureRequest, before: "Present", look: "Callable[[], Present]"
) -> None:
    from omniwire.testing.leftovers import wait_until_gone  # noqa: PLC0415

    if _RAISED in request.node.stash:
        return
    left = wait_until_gone(before, look)
    if left:
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)
