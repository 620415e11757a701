"""What an encoder can do and may spend; both sides of admission and scheduling read it."""

import attrs

from omniwire.contracts.base import Contract
from omniwire.contracts.checks import check_instance, check_int, raise_problems
from omniwire.contracts.errors import Problem


@attrs.frozen(eq=False, repr=False)
class EncoderCapability(Contract):
    """What a model's encoder supports; hashable.

    Attributes:
        item_scheduling: Items are encoded one by one under a budget, not request by request.
        custom_selection: The model overrides item selection, so it needs no partitions.
        hidden_size: Width of an embedding row, > 0, or None when it is not to be checked.

    Raises:
        ContractTypeError: A field has the wrong type.
        ContractValueError: The hidden size is not positive.
    """

    item_scheduling: bool = True
    custom_selection: bool = False
    hidden_size: int | None = None

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        for name in ("item_scheduling", "custom_selection"):
            check_instance(problems, (name,), getattr(self, name), bool, "a bool")
        if self.hidden_size is not None:
            check_int(problems, ("hidden_size",), self.hidden_size, 1)
        raise_problems("EncoderCapability", problems)


@attrs.frozen(eq=False, repr=False)
class EncoderBudget(Contract):
    """What the encoder may spend in one iteration; hashable. None means no bound.

    Attributes:
        max_encoder_tokens: Encoder tokens per iteration, > 0.
        max_output_bytes: Bytes of embeddings per iteration, > 0; needs `output_row_bytes`.
        output_row_bytes: Bytes of one embedding row, > 0.

    Raises:
        ContractTypeError: A field is not an int.
        ContractValueError: A field is not positive, or `output_row_bytes` is missing.
    """

    max_encoder_tokens: int | None = None
    max_output_bytes: int | None = None
    output_row_bytes: int | None = None

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        for field in attrs.fields(EncoderBudget):
            value = getattr(self, field.name)
            if value is not None:
                check_int(problems, (field.name,), value, 1)
        if self.max_output_bytes is not None and self.output_row_bytes is None:
            expected = "the bytes of a row, which max_output_bytes needs"
            problems.append(Problem(("output_row_bytes",), "missing", expected, "None"))
        raise_problems("EncoderBudget", problems)
