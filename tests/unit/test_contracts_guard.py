"""`guarded`: what it checks, what it raises, and what it leaves to the function."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

import numpy as np
import pytest
import torch

from omniwire import contracts
from omniwire.contracts import ContractTypeError, TokenIds
from omniwire.contracts.guard import guarded


@guarded
def function(
    text: str,
    ints: Sequence[int] = (),
    table: Mapping[str, int] | None = None,
    *,
    anything: Any = None,
    unannotated=None,
    tensor: torch.Tensor | TokenIds = TokenIds(),  # noqa: B008
) -> tuple[object, ...]:
    """A docstring."""
    return text, ints, table, anything, unannotated, tensor


class Example:
    @guarded
    def method(self, number: int) -> int:
        return number

    @classmethod
    @guarded
    def build(cls, number: int, **others: Any) -> tuple[object, ...]:
        return cls, number, others


def test_right_arguments_reach_the_function() -> None:
    tensor = torch.zeros(1)
    given = function("a", [1], {"b": 2}, anything=object, unannotated=4, tensor=tensor)
    assert given == ("a", [1], {"b": 2}, object, 4, tensor)
    assert function("a") == ("a", (), None, None, None, TokenIds())
    assert function(ints=range(2), text="a")[1] == range(2)
    assert Example().method(3) == 3
    assert Example.build(3, others=4, more=5) == (Example, 3, {"others": 4, "more": 5})


@pytest.mark.parametrize(
    ("arguments", "parameter"),
    [
        ({"text": 5}, "text"),
        ({"text": b"a"}, "text"),
        ({"text": "a", "ints": 5}, "ints"),
        ({"text": "a", "ints": {1}}, "ints"),
        ({"text": "a", "ints": np.zeros(1)}, "ints"),
        ({"text": "a", "ints": iter([1])}, "ints"),
        ({"text": "a", "table": [("b", 1)]}, "table"),
        ({"text": "a", "tensor": None}, "tensor"),
        ({"text": "a", "tensor": np.zeros(1)}, "tensor"),
    ],
)
def test_a_wrong_argument_is_one_problem_under_its_parameter(
    refusal, arguments: dict[str, object], parameter: str
) -> None:
    expected = (ContractTypeError, [((parameter,), "type")])
    assert refusal(function, **arguments) == expected


def test_in_order_too(refusal) -> None:
    assert refusal(function, "a", 5) == (ContractTypeError, [(("ints",), "type")])
    assert refusal(function, "a", [], 5) == (ContractTypeError, [(("table",), "type")])
    assert refusal(Example().method, "3") == (ContractTypeError, [(("number",), "type")])
    assert refusal(Example.build, "3", more=5) == (ContractTypeError, [(("number",), "type")])


def test_every_wrong_argument_is_reported(refusal) -> None:
    assert refusal(function, 1, 2, table=3, tensor=4, anything=5) == (
        ContractTypeError,
        [(("text",), "type"), (("ints",), "type"), (("table",), "type"), (("tensor",), "type")],
    )


def test_elements_are_left_to_the_function() -> None:
    """beartype would look at one of a thousand; a validator looks at them all."""
    wrong = ["x"] * 1000
    assert function("a", wrong, {"b": "c"})[1] is wrong


def test_hints_that_are_no_classes(refusal) -> None:
    @guarded
    def choose(
        mode: Literal["a", "b"],
        ints: Optional[Sequence[int]] = None,  # noqa: UP045  # as older code writes it
    ) -> object:
        return mode, ints

    assert choose("a") == ("a", None)
    assert choose("b", ["x"] * 1000)[0] == "b"
    assert refusal(choose, "c") == (ContractTypeError, [(("mode",), "type")])
    assert refusal(choose, "a", 5) == (ContractTypeError, [(("ints",), "type")])


def test_a_call_that_does_not_fit_is_python_s_own_error() -> None:
    for arguments in ((), ("a", [], {}, 1)):
        with pytest.raises(TypeError) as caught:
            function(*arguments)
        assert not isinstance(caught.value, ContractTypeError)
    with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
        function("a", more=1)


def test_what_the_function_raises_comes_through() -> None:
    @guarded
    def failing(number: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        failing(1)


def test_the_error_has_no_history() -> None:
    with pytest.raises(ContractTypeError) as caught:
        function(5)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert caught.value.subject == "function"


def test_it_looks_like_the_function() -> None:
    assert function.__doc__ == "A docstring."
    assert function.__name__ == "function"


@pytest.mark.parametrize(
    "public",
    [
        contracts.check_producer,
        contracts.check_admission,
        contracts.MultimodalInput.from_hexdigests,
        contracts.MultimodalInput.from_tensors,
        contracts.MultimodalParams.from_embeddings,
        contracts.MultimodalParams.to_device,
        contracts.TokenIds.frombytes,
    ],
)
def test_public_functions_are_guarded(public) -> None:
    assert public.__code__ is function.__code__


def test_no_contract_class_is_decorated() -> None:
    """tensordict#1243: beartype is for functions, a validator for fields."""
    for name in contracts.__all__:
        kind = getattr(contracts, name)
        if isinstance(kind, type):
            initializer = kind.__init__
            assert getattr(initializer, "__code__", None) is not function.__code__
            assert "beartype" not in str(getattr(initializer, "__globals__", {}).get("__name__"))
