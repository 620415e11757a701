"""omniwire: what crosses the boundary between a multimodal processor and its executor.

Every public name of `omniwire.contracts`, `omniwire.serialization` and `omniwire.runtime` is an
attribute of this package, loaded when it is first used: `import omniwire` alone does not import
torch.

>>> import omniwire as ow
>>> ow.ItemRef("image", 0)
ItemRef(modality='image', index=0)
"""

from pkgutil import extend_path
from typing import TYPE_CHECKING

# Python started at the top of a checkout finds this folder before the installed package, whose
# other parts do not lie in it: look for those where they are installed.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from omniwire import contracts as contracts
    from omniwire import runtime as runtime
    from omniwire import serialization as serialization
    from omniwire.contracts import *
    from omniwire.runtime import *
    from omniwire.serialization import *

    __version__: str
else:
    # Hidden from type checkers, which would take any name for an attribute.
    import importlib
    import sys
    from importlib.metadata import version

    _SUBPACKAGES = ("contracts", "serialization", "runtime")

    def _public_names():
        subpackages = (importlib.import_module(f"omniwire.{name}") for name in _SUBPACKAGES)
        return sorted(name for subpackage in subpackages for name in subpackage.__all__)

    def __getattr__(name):
        if name == "__version__":
            return version("omniwire")
        if name == "__all__":
            return _public_names()
        if not name.startswith("_"):
            for subpackage_name in _SUBPACKAGES:
                subpackage = importlib.import_module(f"omniwire.{subpackage_name}")
                if name == subpackage_name:
                    return subpackage
                if name in subpackage.__all__:
                    value = globals()[name] = getattr(subpackage, name)
                    return value
        raise AttributeError(
            f"module 'omniwire' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )

    def __dir__():
        return sorted({*globals(), *_SUBPACKAGES, *_public_names(), "__version__"})
