"""``onceward token``: make a token for a peer of a rights file."""

import os
import secrets
from pathlib import Path

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.rights import digest_of
from onceward.operate.prompts import print_result, say

__all__ = ["make_token"]

_BYTES = 32


def make_token(file: Path) -> None:
    """Write a new token to a new file that only this user can read, and print the line with its hash. The token is not
    shown: terminals keep what they show. Raises ConfigurationError."""
    token = secrets.token_urlsafe(_BYTES)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be created: {error.strerror}. No token was made. Name a file that does not exist yet."
        ) from None
    with open(descriptor, "w", encoding="utf-8") as made:
        os.fchmod(made.fileno(), 0o600)  # the umask may have taken too much
        made.write(token + "\n")
    say(f"the token is in {file}, for the peer alone (token=, ONCEWARD_TOKEN); this line is for the rights file:")
    print_result(f'tokens = ["sha256:{digest_of(token).hex()}"]')
