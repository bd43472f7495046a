"""How plain data prints: as the call that makes it."""

from dataclasses import MISSING, Field, fields
from typing import Any


class Brief:
    """Prints as the call that makes it, without the arguments that have their default; for dataclasses."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in unusual(self).items())})"


def unusual(plain: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that have another value than their default."""
    return {f.name: getattr(plain, f.name) for f in fields(plain) if getattr(plain, f.name) != _default(f)}


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
