"""How plain data prints: as the call that makes it."""

from dataclasses import MISSING, Field, fields
from typing import Any


class Brief:
    """Prints as the call that makes it, without the arguments that have their default; for dataclasses."""

    def __repr__(self) -> str:
        told = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _default(f)}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
