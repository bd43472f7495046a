"""What a library claims of its own wrapper or optimizer. Nothing here imports torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a library promises; a check of anything else is skipped, with the claim as the reason."""
