"""The entry point through which Hypothesis knows the contracts by type.

Hypothesis calls `register_strategies` whenever it is imported, in any program that has this
package installed. Neither torch nor the contracts are imported for that: the strategies are
registered when the program itself imports the contracts, and built when one is asked for.
"""

import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_CONTRACTS: Final = "omniwire.contracts"
_STRATEGIES: Final = {
    "Concat": "concats",
    "DisaggregatedParams": "disaggregated_params",
    "EncoderBudget": "encoder_budgets",
    "EncoderCapability": "encoder_capabilities",
    "FrozenMapping": "payloads",
    "ItemRef": "item_refs",
    "MultimodalInput": "multimodal_inputs",
    "MultimodalItemMetadata": "item_metadata",
    "MultimodalItemPartition": "item_partitions",
    "MultimodalParams": "multimodal_params",
    "MultimodalRuntimeData": "runtime_data",
    "OmniOutput": "omni_outputs",
    "OutputChunk": "output_chunks",
    "OutputSpec": "output_specs",
    "Problem": "problems",
    "ProcessedRequest": "processed_requests",
    "RequestOutput": "request_outputs",
    "Stack": "stacks",
    "TensorHandle": "tensor_handles",
    "TokenIds": "token_ids",
}
"""The strategy of each contract, by name; Hypothesis needs none for enumerations and the like."""


def register_strategies() -> None:
    """Let `hypothesis.strategies.from_type` know every contract; repeated calls do nothing more."""
    contracts = sys.modules.get(_CONTRACTS)
    if contracts is not None:
        _register(contracts)
    elif not any(isinstance(finder, _ContractsFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ContractsFinder())


def _register(contracts: ModuleType) -> None:
    from hypothesis import strategies as st  # noqa: PLC0415  # it is what imports this module

    for name in _STRATEGIES:
        contract = getattr(contracts, name)
        st.register_type_strategy(contract, functools.partial(_strategy_of, contract))


def _strategy_of(contract: type, asked: Any) -> Any:
    """The strategy of a contract, if that itself is what was asked for.

    Hypothesis also asks for the base classes of what is registered: a test of any program that
    wants a `Sequence` must not be given `TokenIds`.
    """
    if asked is not contract:
        return NotImplemented
    strategies = importlib.import_module("omniwire.testing.strategies")
    return getattr(strategies, _STRATEGIES[contract.__name__])()


class _ContractsFinder(MetaPathFinder):
    """Notices the import of the contracts; finds them as the other finders do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _CONTRACTS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _RegisteringLoader(spec.loader, self)
                return spec
        return None


class _RegisteringLoader(Loader):
    """Registers the strategies once the contracts are loaded, and leaves no trace of itself."""

    def __init__(self, loader: Loader, finder: _ContractsFinder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _register(module)
