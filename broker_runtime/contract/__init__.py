"""What clients and brokers share: nouns, errors, settings, frames, schemas, messages, connections, waiting, logging."""

from typing import Final

DEFAULT_PORT: Final = 9192
"""Where a broker listens, and where a client looks for one, if nothing else is said. It stands here because the command
line shows it before it loads anything else."""
