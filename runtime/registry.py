"""`ModalityRegistry`: which handler serves which modality, one registry per engine."""

from collections.abc import Sequence

from omniwire.contracts.checks import MODALITY_FORMAT, is_modality, raise_problems
from omniwire.contracts.describe import describe
from omniwire.contracts.errors import Problem
from omniwire.contracts.guard import guarded
from omniwire.runtime.handlers import (
    AudioHandler,
    ImageHandler,
    LatentHandler,
    ModalityHandler,
    TextHandler,
    TokenIdsHandler,
    VideoHandler,
)

_METHODS = ("extract", "accumulate", "consolidate", "validate")


class ModalityRegistry:
    """The handlers of one engine, by modality and alias; lives as long as the engine.

    >>> registry = ModalityRegistry()
    >>> registry.register(AudioHandler(), aliases=("speech",))
    >>> registry.get("speech").modality, registry.get("video"), registry.list_modalities()
    ('audio', None, ['audio'])
    """

    def __init__(self) -> None:
        self._handlers: dict[str, ModalityHandler] = {}
        self._aliases: dict[str, str] = {}

    def register(
        self, handler: ModalityHandler, aliases: Sequence[str] = (), replace: bool = False
    ) -> None:
        """Register a handler under its modality and under further names for it.

        Args:
            handler: Serves `handler.modality`; requests that already run keep the one they have.
            aliases: Further names that an output type may use for the modality.
            replace: Whether a name that is taken passes to this handler.

        Raises:
            ContractTypeError: The handler lacks a method, or a name is not a string.
            ContractValueError: A name is malformed, given twice, or taken and not replaced.
        """
        problems: list[Problem] = []
        for method in _METHODS:
            if not callable(getattr(handler, method, None)):
                got = describe(getattr(handler, method, None))
                problems.append(Problem(("handler", method), "type", "a method", got))
        names: set[str] = set()
        modality = getattr(handler, "modality", None)
        self._check_name(problems, ("handler", "modality"), modality, names, replace=replace)
        if isinstance(aliases, str) or not isinstance(aliases, Sequence):
            expected = "a sequence of names"
            problems.append(Problem(("aliases",), "type", expected, describe(aliases)))
        else:
            for index, alias in enumerate(aliases):
                self._check_name(problems, ("aliases", index), alias, names, replace=replace)
        raise_problems("ModalityRegistry", problems)
        for name in names:
            self._aliases.pop(name, None)
        for alias in aliases:
            self._remove(alias)
        self._handlers[handler.modality] = handler
        self._aliases.update(dict.fromkeys(aliases, handler.modality))

    def _check_name(
        self,
        problems: list[Problem],
        path: tuple[str | int, ...],
        name: object,
        names: set[str],
        *,
        replace: bool,
    ) -> None:
        if not isinstance(name, str) or not is_modality(name):
            code = "format" if isinstance(name, str) else "type"
            problems.append(Problem(path, code, MODALITY_FORMAT, describe(name)))
            return
        if name in names:
            problems.append(Problem(path, "duplicate", "each name once", describe(name)))
        elif not replace and (name in self._handlers or name in self._aliases):
            taken = ", ".join(sorted((*self._handlers, *self._aliases)))
            expected = f"a name that is not taken ({taken} are), or replace=True"
            problems.append(Problem(path, "duplicate", expected, describe(name)))
        names.add(name)

    def _remove(self, modality: str) -> None:
        """Remove a modality, if there is one of that name, and its aliases."""
        if self._handlers.pop(modality, None) is not None:
            kept = {alias: name for alias, name in self._aliases.items() if name != modality}
            self._aliases = kept

    @guarded
    def get(self, name: str) -> ModalityHandler | None:
        """The handler of a modality, by its name or an alias; None when there is none."""
        return self._handlers.get(self._aliases.get(name, name))

    def list_modalities(self) -> list[str]:
        """The registered modalities, sorted, without aliases."""
        return sorted(self._handlers)


def default_registry() -> ModalityRegistry:
    """A new registry with the built-in handlers; every call returns a fresh one.

    >>> default_registry().list_modalities()
    ['audio', 'image', 'latent', 'text', 'token_ids', 'video']
    """
    registry = ModalityRegistry()
    for handler in (
        TextHandler(),
        ImageHandler(),
        VideoHandler(),
        AudioHandler(),
        LatentHandler(),
        TokenIdsHandler(),
    ):
        registry.register(handler)
    return registry
