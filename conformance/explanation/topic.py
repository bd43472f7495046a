"""What a check is about: why it matters, what usually goes wrong, and a picture."""

from dataclasses import dataclass

from rich.console import RenderableType


@dataclass(frozen=True)
class Topic:
    """What checks are about.

    Attributes:
        why: why it matters.
        mistakes: what usually goes wrong: names of known mistakes, whose words the diagnosis has, or sentences.
        picture: the right behaviour in text.
    """

    why: str
    mistakes: tuple[str, ...]
    picture: RenderableType
