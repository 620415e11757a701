"""The executor side of a model: its encoder hooks, and whether its items are scheduled."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Protocol

import torch

from omniwire.contracts.budget import EncoderBudget
from omniwire.contracts.checks import check_indices, check_instance
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem, contract_error
from omniwire.contracts.frozen import FrozenMapping
from omniwire.contracts.items import MultimodalItemPartition
from omniwire.contracts.params import EMBEDDING_KEY, ITEM_METADATA_KEY, MultimodalParams
from omniwire.runtime.selection import chosen_by_modality, record_of, select_trusted

SCHEDULING_POLICIES: Final = ("item", "request")
"""Encode single items under a budget, or all of a request at once."""

_SELECTED_KEYS: Final = (ITEM_METADATA_KEY, EMBEDDING_KEY)


class MultimodalEncoder(Protocol):
    """The hooks by which an executor drives a model's encoders; see `MultimodalEncoderMixin`."""

    supports_mm_encoder_item_scheduling: ClassVar[bool]

    def get_multimodal_item_partitions(
        self, params: MultimodalParams, modality: str
    ) -> Mapping[str, MultimodalItemPartition] | None:
        """How a modality's payload fields divide into items; None if that is not declared."""
        ...

    def build_multimodal_encoder_input(
        self, param: MultimodalParams, local_item_indices: Sequence[int], modality: str
    ) -> MultimodalParams:
        """A view of some items of one modality."""
        ...

    def encode_multimodal_inputs(self, params: list[MultimodalParams]) -> list[torch.Tensor]:
        """Per params, the embedding rows `[rows, hidden]` of its items in prompt order."""
        ...

    def after_full_multimodal_embeddings(
        self, embeddings: list[torch.Tensor], params: list[MultimodalParams]
    ) -> list[torch.Tensor]:
        """Request-level preparation, after cache lookup or encoding."""
        ...

    def after_active_multimodal_embeddings(
        self, embeddings: list[torch.Tensor], params: list[MultimodalParams]
    ) -> list[torch.Tensor]:
        """Row-dependent transforms of a chunk's rows, right before fusion."""
        ...


class MultimodalEncoderMixin:
    """Base of a model with multimodal encoders; a mixin without state beside `nn.Module`.

    A model overrides `encode_multimodal_inputs`. To have its items scheduled one by one it
    also sets `supports_mm_encoder_item_scheduling`, and declares partitions (in its
    processor's records or by `get_multimodal_item_partitions`) or overrides
    `build_multimodal_encoder_input`.

    Attributes:
        supports_mm_encoder_item_scheduling: Whether items can be encoded independently.

    >>> class Model(MultimodalEncoderMixin):
    ...     supports_mm_encoder_item_scheduling = True
    ...     def encode_multimodal_inputs(self, params):
    ...         return [one.multimodal_data["image"]["rows"] * 2 for one in params]
    >>> mm_item_scheduling_enabled(Model())
    True
    """

    supports_mm_encoder_item_scheduling: ClassVar[bool] = False

    def get_multimodal_item_partitions(
        self, params: MultimodalParams, modality: str
    ) -> Mapping[str, MultimodalItemPartition] | None:
        """How a modality's payload fields divide into items.

        Args:
            params: Params with an item metadata record.
            modality: One of its modalities.

        Returns:
            Partitions by field, an empty mapping if every field is shared, None to leave it
            to the compatibility selector. By default what the record declares.
        """
        declared = record_of(params).input_partitions
        return None if declared is None else declared.get(modality)

    def build_multimodal_encoder_input(
        self, param: MultimodalParams, local_item_indices: Sequence[int], modality: str
    ) -> MultimodalParams:
        """A new execution view of some items of one modality.

        Override it for payloads that partitions cannot describe. An override leaves `param`
        as it is and need only select the payload: `select_multimodal_items` then selects
        metadata and hashes by prompt-global indices.

        Args:
            param: Params with an item metadata record.
            local_item_indices: Modality-local indices, at least one, in the order wanted.
            modality: One of the record's modalities.

        Returns:
            A view with exactly those items, as `select` makes it from
            `get_multimodal_item_partitions`.

        Raises:
            ContractError: The modality has no items, or as for `select`.
        """
        record = record_of(param)
        prompt_indices = {
            ref.index: index
            for index, ref in enumerate(record.item_refs)
            if ref.modality == modality
        }
        subject, name = "build_multimodal_encoder_input", "local_item_indices"
        if not prompt_indices:
            expected = "a modality among the items"
            problem = Problem(("modality",), "unknown", expected, describe(modality))
            raise contract_error(subject, [problem])
        local = check_indices(local_item_indices, len(prompt_indices), subject, name)
        partitions = self.get_multimodal_item_partitions(param, modality)
        return select_trusted(
            param,
            record,
            tuple([prompt_indices[index] for index in local]),
            None if partitions is None else {modality: partitions},
        )

    def select_multimodal_items(
        self, params: MultimodalParams, prompt_indices: Sequence[int]
    ) -> MultimodalParams:
        """An execution view of some items, through the model's own selection hooks.

        Args:
            params: Params with an item metadata record; left as they are.
            prompt_indices: Prompt-global item indices, at least one; repeats are allowed.

        Returns:
            A view as `select` makes it, with each modality's payload, and auxiliary values
            that the hook rebuilt, from `build_multimodal_encoder_input`.

        Raises:
            ContractError: As for `select`.
        """
        record = record_of(params)
        chosen = check_indices(prompt_indices, len(record.item_refs), "MultimodalParams")
        local_indices = chosen_by_modality(record.item_refs, chosen)
        modalities = {ref.modality for ref in record.item_refs}
        # With every field shared the payloads pass through whole; the hook's take their place.
        view = select_trusted(params, record, chosen, {modality: {} for modality in modalities})
        data = {key: v for key, v in view.multimodal_data.items() if key not in modalities}
        for modality, local in local_indices.items():
            built = self.build_multimodal_encoder_input(params, tuple(local), modality)
            for key, value in built.multimodal_data.items():
                is_rebuilt = value is not params.multimodal_data.get(key)
                is_auxiliary = key not in modalities and key not in _SELECTED_KEYS
                if key == modality or (is_auxiliary and is_rebuilt):
                    data[key] = value
        return MultimodalParams._trusted(
            multimodal_input=view.multimodal_input,
            multimodal_data=FrozenMapping._wrap(data),
            multimodal_runtime=None,
            encoder_state=None,
        )

    def encode_multimodal_inputs(self, params: list[MultimodalParams]) -> list[torch.Tensor]:
        """Encode all items of several params.

        Args:
            params: Requests' params or views of some of their items.

        Returns:
            Per params, its embedding rows `[rows, hidden]` in prompt order.

        Raises:
            NotImplementedError: The model does not override it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement its encoders")

    def after_full_multimodal_embeddings(
        self, embeddings: list[torch.Tensor], params: list[MultimodalParams]
    ) -> list[torch.Tensor]:
        """Request-level preparation after cache lookup or encoding; by default none.

        In a batch with item-scheduled chunks some tensors hold only the active rows already.

        Args:
            embeddings: Per params, its rows.
            params: The params that they belong to.

        Returns:
            The embeddings to go on with.
        """
        return embeddings

    def after_active_multimodal_embeddings(
        self, embeddings: list[torch.Tensor], params: list[MultimodalParams]
    ) -> list[torch.Tensor]:
        """Row-dependent transforms of a chunk's rows right before fusion; by default none.

        Args:
            embeddings: Per params, the rows of its chunk.
            params: The views that they belong to, with their runtime data.

        Returns:
            The rows to fuse.
        """
        return embeddings


def mm_item_scheduling_enabled(
    model: object, *, disable_mm_encoder: bool = False, policy: str = "item"
) -> bool:
    """Whether this engine schedules a model's items one by one.

    Args:
        model: Any model; one without `supports_mm_encoder_item_scheduling` cannot.
        disable_mm_encoder: The engine runs no encoder, such as a prefill-only worker.
        policy: `"item"`, or `"request"` for full-request encoding.

    Raises:
        ContractTypeError: An argument has the wrong type.
        ContractValueError: The policy is unknown.
    """
    problems: list[Problem] = []
    _check_switches(problems, disable_mm_encoder, policy)
    if problems:
        raise contract_error("mm_item_scheduling_enabled", problems)
    return (
        getattr(model, "supports_mm_encoder_item_scheduling", False) is True
        and not disable_mm_encoder
        and policy == "item"
    )


def validate_mm_encoder_scheduling_compatibility(
    model: object,
    *,
    budget: EncoderBudget,
    policy: str = "item",
    disable_mm_encoder: bool = False,
) -> None:
    """Check at start-up that what is switched on can work together.

    Nothing is asked of an engine that does not schedule items.

    Args:
        model: The model.
        budget: What the encoder may spend per iteration.
        policy: As for `mm_item_scheduling_enabled`.
        disable_mm_encoder: As for `mm_item_scheduling_enabled`.

    Raises:
        ContractTypeError: An argument or the model's capability flag has the wrong type.
        ContractValueError: The policy is unknown, or the model claims item scheduling without
            implementing `encode_multimodal_inputs` and item selection.
    """
    problems: list[Problem] = []
    _check_switches(problems, disable_mm_encoder, policy)
    check_instance(problems, ("budget",), budget, EncoderBudget, "an EncoderBudget")
    claim = getattr(model, "supports_mm_encoder_item_scheduling", False)
    path = ("model", "supports_mm_encoder_item_scheduling")
    check_instance(problems, path, claim, bool, "a bool")
    if claim is True and policy == "item" and disable_mm_encoder is False:
        base = MultimodalEncoderMixin.encode_multimodal_inputs
        for name in ("encode_multimodal_inputs", "build_multimodal_encoder_input"):
            hook = getattr(model, name, None)
            if not callable(hook) or getattr(hook, "__func__", None) is base:
                expected = "an implementation, which item scheduling needs"
                problems.append(Problem(("model", name), "missing", expected, "none"))
    if problems:
        raise contract_error("validate_mm_encoder_scheduling_compatibility", problems)


def _check_switches(problems: list[Problem], disable_mm_encoder: object, policy: object) -> None:
    check_instance(problems, ("disable_mm_encoder",), disable_mm_encoder, bool, "a bool")
    if type(policy) is not str:
        problems.append(Problem(("policy",), "type", "a str", describe(policy)))
    elif policy not in SCHEDULING_POLICIES:
        expected = f"one of {', '.join(SCHEDULING_POLICIES)}"
        problems.append(Problem(("policy",), "unknown", expected, describe(policy)))
