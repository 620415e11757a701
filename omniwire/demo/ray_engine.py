"""The engine of `omniwire demo --engine ray`: several processor and executor actors.

Requests go through Ray's object store, output chunks from executor to processor actors. This
process only starts actors and says who works with whom; it handles references, never contents.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from omniwire.contracts import OmniwireError, ProcessedRequest
from omniwire.demo.agreement import NUM_REQUESTS
from omniwire.demo.events import Progress
from omniwire.demo.executor import Executor
from omniwire.demo.leftovers import wait_for_users
from omniwire.demo.media import Media
from omniwire.demo.problems import BadInput, DemoFailed, first_line, printable
from omniwire.demo.processor import Processor
from omniwire.demo.reports import ExecutorReport, Outcome

NUM_PROCESSORS: Final = 2
NUM_EXECUTORS: Final = 2

_STORE_BYTES: Final = 256 << 20
"""Room for the requests of all processors; Ray writes what is more to disk."""

_MAX_FOLDER_BYTES: Final = 43
"""Ray makes sockets in its folder, whose paths end at 107 bytes; 64 are its own part of them."""


class ExecutorActor:
    """An executor that sends its output chunks to processor actors."""

    def __init__(self, number: int) -> None:
        self._executor = Executor(number)

    def serve(self, processors: Mapping[str, Any], *requests: ProcessedRequest) -> None:
        """Serve requests to their end.

        Args:
            processors: By request id, the handle of the processor actor that made it.
            *requests: What Ray puts in the place of references to them: views of its store.
        """
        taken = [
            processors[chunk.request_id].take.remote(chunk)
            for chunk in self._executor.serve(requests)
        ]
        ray.get(taken)

    def report(self) -> ExecutorReport:
        """As `Executor.report`."""
        return self._executor.report()


def run_actors(media: Media, save: str | None, scratch: str, progress: Progress) -> Outcome:
    """Run all actors to their end, on a Ray of their own.

    Args:
        media: What every processor shows in its requests.
        save: Where to save the first request, if anywhere.
        scratch: Folder for temporary files.
        progress: Told what is being done.

    Raises:
        BadInput: The request cannot be saved there, or Ray cannot work in that folder.
        DemoFailed: An actor died or met an error, or Ray did not start.
        OmniwireError: A request is refused.
    """
    try:
        with _started_ray(scratch, progress):
            return _run(media, save, progress)
    except RayError as error:
        raise in_own_words(error) from error


def _run(media: Media, save: str | None, progress: Progress) -> Outcome:
    progress.step(f"starting {NUM_PROCESSORS} processors and {NUM_EXECUTORS} executors")
    shown = ray.put(media)
    # An actor runs in the folder that Ray chooses.
    saves = [save and str(Path(save).absolute()), *[None] * (NUM_PROCESSORS - 1)]
    make_processor: Any = ray.remote(num_cpus=1)(Processor)
    processors = [make_processor.remote(number, shown, one) for number, one in enumerate(saves)]
    make_executor: Any = ray.remote(num_cpus=1)(ExecutorActor)
    executors = [make_executor.remote(number) for number in range(NUM_EXECUTORS)]
    ready = [processor.request_ids.remote() for processor in processors]
    ready += [executor.__ray_ready__.remote() for executor in executors]
    request_ids = ray.get(ready)[:NUM_PROCESSORS]

    progress.step("preparing the requests")
    prepared = [
        processor.prepare.options(num_returns=NUM_REQUESTS).remote() for processor in processors
    ]
    ray.wait([ref for refs in prepared for ref in refs], num_returns=NUM_PROCESSORS * NUM_REQUESTS)
    progress.step("admitting, encoding, prefilling and generating")
    served = []
    for number, executor in enumerate(executors):
        # Each processor's requests go to all executors in turn.
        mine = range(number, NUM_REQUESTS, NUM_EXECUTORS)
        owners = {
            ids[index]: processor
            for processor, ids in zip(processors, request_ids, strict=True)
            for index in mine
        }
        served.append(executor.serve.remote(owners, *[refs[i] for refs in prepared for i in mine]))
    ray.get(served)
    progress.step("collecting the reports")
    outcome = Outcome(
        ray.get([processor.report.remote() for processor in processors]),
        ray.get([executor.report.remote() for executor in executors]),
        [],
    )
    for actor in (*processors, *executors):
        ray.kill(actor)  # by itself it would notice the end of Ray seconds later
    return outcome


@contextmanager
def _started_ray(scratch: str, progress: Progress) -> Iterator[None]:
    """A Ray on this machine alone, with home and temporary files in a folder of its own."""
    folder = Path(scratch) / "r"
    if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        raise BadInput(
            f"{printable(str(folder))}: {len(os.fsencode(folder))} bytes, the limit for a folder "
            f"that Ray makes sockets in is {_MAX_FOLDER_BYTES}; set TMPDIR to a shorter one"
        )
    folder.mkdir()
    os.environ["HOME"] = os.environ["RAY_TMPDIR"] = str(folder)
    progress.step("starting Ray")
    try:
        _start_ray(folder)
        yield
        progress.step("stopping Ray")
    finally:
        ray.shutdown()
        # Its processes end a little later, and write into the folder until then.
        users = wait_for_users(str(folder))
        shutil.rmtree(folder, ignore_errors=bool(users))


def _start_ray(folder: Path) -> None:
    try:
        ray.init(
            "local",  # never one that runs already
            num_cpus=NUM_PROCESSORS + NUM_EXECUTORS,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise DemoFailed(f"Ray did not start: {first_line(error)}") from error


def in_own_words(error: RayError) -> Exception:
    """What an actor met or what became of it, in place of Ray's account over many lines."""
    if isinstance(error, RayTaskError):
        if isinstance(error.cause, BadInput | DemoFailed | OmniwireError):
            return error.cause
        return DemoFailed(f"{type(error.cause).__name__}: {first_line(error.cause)}")
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return DemoFailed(printable(str(error).strip().splitlines()[-1]))
    return DemoFailed(f"{type(error).__name__}: {first_line(error)}")
