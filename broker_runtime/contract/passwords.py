"""What is kept of a password: scrypt (RFC 7914) with a salt. Whoever sets a password computes it, so that the password
itself goes no further; brokers verify with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from broker_runtime.contract.acls import PasswordHash

_COST: Final = 2**15  # 32 MiB and some 76 ms for each check
_BLOCK_SIZE: Final = 8
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MOST_MEMORY_BYTES: Final = 256 << 20


def hash_password(password: str, *, cost: int = _COST) -> PasswordHash:
    """What is to be kept of it. Takes about 0.1 s. ``cost``: a power of two from 2**14 to 2**17."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return PasswordHash(salt=salt, hash=_scrypt(password, salt, cost), cost=cost)


def verify_password(password: str, kept: PasswordHash) -> bool:
    """Whether it is the password. Takes as long as `hash_password`."""
    return hmac.compare_digest(_scrypt(password, kept.salt, kept.cost), kept.hash)


def hash_of_nobody() -> PasswordHash:
    """One that no password fits. To verify with it takes as long as with any other; to make it takes no time."""
    return PasswordHash(salt=secrets.token_bytes(_SALT_BYTES), hash=secrets.token_bytes(_HASH_BYTES), cost=_COST)


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=_BLOCK_SIZE, p=1, maxmem=_MOST_MEMORY_BYTES, dklen=_HASH_BYTES
    )
