"""Plain data: it prints as the call that makes it, and saves as JSON."""

from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar

_CLASS = "class"


class PlainData:
    """A dataclass whose fields hold numbers, texts, other plain data, and tuples and dicts of these."""

    classes: ClassVar[dict[str, type["PlainData"]]] = {}

    def __init_subclass__(cls) -> None:
        PlainData.classes[cls.__name__] = cls

    def __repr__(self) -> str:
        """Return the call that makes it, without the arguments that have their default."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.unusual.items())})"

    @property
    def unusual(self) -> dict[str, Any]:
        """The fields that have another value than their default."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != _default(f)}  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes, and `from_json` reads."""
        values = {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]
        return {_CLASS: type(self).__name__, **values}


def from_json(plain: Any) -> Any:
    """Return what `to_json` described, also after a trip through JSON text, which makes tuples lists.

    The module of its class must have been imported.

    Raises:
        KeyError, TypeError: there is no such class, or it has other fields.
    """
    if isinstance(plain, list | tuple):
        return tuple(map(from_json, plain))
    if not isinstance(plain, dict):
        return plain
    values = {name: from_json(value) for name, value in plain.items()}
    return PlainData.classes[values.pop(_CLASS)](**values) if _CLASS in values else values


def _to_json(value: Any) -> Any:
    match value:
        case PlainData():
            return value.to_json()
        case tuple():
            return [_to_json(one) for one in value]
        case dict():
            return {name: _to_json(one) for name, one in value.items()}
        case _:
            return value


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
