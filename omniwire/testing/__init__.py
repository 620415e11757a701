"""The contract-testing kit; extra `testing`.

`omniwire.testing.strategies` draws every contract, valid and invalid; with the package installed,
Hypothesis also knows them by type: `from_type(MultimodalItemMetadata)`. The assertions check
values, processors and handlers, and `RequestLifecycle` what happens to requests over time.
pytest has the fixtures of `omniwire.testing.plugin`. Nothing here imports torch before it is used.

>>> from omniwire.contracts import ItemRef
>>> from omniwire.testing import assert_equal
>>> assert_equal((ItemRef("image", 0), 1.5), (ItemRef("image", 0), 1.5))
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omniwire.testing.comparison import assert_equal as assert_equal
    from omniwire.testing.handlers import assert_handler_conforms as assert_handler_conforms
    from omniwire.testing.lifecycle import RequestLifecycle as RequestLifecycle
    from omniwire.testing.live_request import LiveRequest as LiveRequest
    from omniwire.testing.processors import assert_processor_conforms as assert_processor_conforms

__all__ = [
    "LiveRequest",
    "RequestLifecycle",
    "assert_equal",
    "assert_handler_conforms",
    "assert_processor_conforms",
]

_MODULES = {
    "LiveRequest": "live_request",
    "RequestLifecycle": "lifecycle",
    "assert_equal": "comparison",
    "assert_handler_conforms": "handlers",
    "assert_processor_conforms": "processors",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        import importlib  # noqa: PLC0415  # only needed once per name

        try:
            module = importlib.import_module(f"omniwire.testing.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            if error.name != "hypothesis":
                raise
            raise ModuleNotFoundError(
                f"{name} needs hypothesis: pip install 'omniwire[testing]'", name="hypothesis"
            ) from error
        value = globals()[name] = getattr(module, name)
        return value
    raise AttributeError(f"module 'omniwire.testing' has no attribute {name!r}")
