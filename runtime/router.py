"""`OutputRouter`: from an output type such as `"text+audio"` to the handlers that serve it."""

import re

from omniwire.contracts.checks import raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import HandlerNotFoundError, Problem
from omniwire.contracts.guard import guarded
from omniwire.contracts.outputs import OmniOutput
from omniwire.runtime.handlers import ModalityHandler
from omniwire.runtime.registry import ModalityRegistry


class OutputRouter:
    """Splits output types into modalities and looks each of them up; as durable as its registry.

    Args:
        registry: The engine's handlers; later registrations count.
    """

    @guarded
    def __init__(self, registry: ModalityRegistry) -> None:
        self._registry = registry

    @guarded
    def route(
        self, output: OmniOutput | None, output_type: str
    ) -> list[tuple[str, ModalityHandler]]:
        """The handlers of an output type, in its order.

        Args:
            output: The model output to route. The output type alone decides; what the output
                holds is for the handlers to look at.
            output_type: Modalities or aliases joined by `+` or `,`, in any case, with or
                without blanks.

        Returns:
            Pairs of a modality, never an alias, and its handler.

        Raises:
            ContractValueError: A part is empty, or names a modality a second time.
            HandlerNotFoundError: Nothing is registered under a part.

        >>> from omniwire.runtime.registry import default_registry
        >>> router = OutputRouter(default_registry())
        >>> [modality for modality, _ in router.route(None, "Text + audio, image")]
        ['text', 'audio', 'image']
        """
        parts = [part.strip().lower() for part in re.split(r"[+,]", output_type)]
        registered = self._registry.list_modalities()
        known = ", ".join(registered) or "none is registered"
        problems: list[Problem] = []
        routed: dict[str, ModalityHandler] = {}
        unknown: list[str] = []
        for part in parts:
            handler = self._registry.get(part)
            if not part:
                expected = f"modalities joined by '+' or ',', no empty part ({known})"
                problem = Problem(("output_type",), "format", expected, describe(output_type))
                problems.append(problem)
            elif handler is None:
                unknown.append(part)
            elif handler.modality in routed:
                expected = f"each modality once ({known})"
                got = f"{describe(part)} again in {describe(output_type)}"
                problems.append(Problem(("output_type",), "duplicate", expected, got))
            else:
                routed[handler.modality] = handler
        raise_problems("OutputRouter", problems)
        if unknown:
            raise HandlerNotFoundError(unknown[0], registered)
        return list(routed.items())
