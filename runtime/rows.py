"""Joining embedding rows: a view where one piece suffices, one concatenation otherwise."""

from collections.abc import Sequence

import torch

from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Path, Problem, contract_error


def row_problem(path: Path, rows: object, like: torch.Tensor | None = None) -> Problem | None:
    """What keeps `rows` from being embedding rows `[rows, hidden]`, if anything does.

    Args:
        path: Where it is, for the problem.
        rows: What should be a 2-D tensor.
        like: Rows that it must be joined to: same hidden size, dtype and device.
    """
    if not isinstance(rows, torch.Tensor):
        return Problem(path, "type", "a tensor of embedding rows", describe(rows))
    if rows.dim() != 2:
        return Problem(path, "shape", "2-D embedding rows [rows, hidden]", describe(rows))
    if like is None:
        return None
    if rows.size(1) != like.size(1):
        return Problem(path, "shape", f"rows of hidden size {like.size(1)}", describe(rows))
    if rows.dtype != like.dtype:
        return Problem(path, "dtype", f"rows like the first, {describe(like)}", describe(rows))
    if rows.device != like.device:
        return Problem(path, "device", f"rows on {like.device}", f"rows on {rows.device}")
    return None


def check_rows(subject: str, name: str, pieces: Sequence[object]) -> None:
    """Check that pieces are embedding rows that can be joined.

    Raises:
        ContractTypeError: A piece is no tensor.
        ContractValueError: A piece is not 2-D, or differs from the first in hidden size,
            dtype or device.
    """
    problems: list[Problem] = []
    like: torch.Tensor | None = None
    for index, piece in enumerate(pieces):
        problem = row_problem((name, index), piece, like)
        if problem is not None:
            problems.append(problem)
        elif like is None:
            assert isinstance(piece, torch.Tensor)
            like = piece
    if problems:
        raise contract_error(subject, problems)


def join_rows(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of all rows of at least one piece: the piece itself, or one concatenation."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
