"""How to reach an object store: options under the names that deltalake gives them, with credentials as references.

Imported on executors: standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from onceward.common.errors import ConfigurationError
from onceward.connections.secrets import is_reference, reference_problem, resolve

__all__ = ["ObjectOptions"]

_SECRET = ("aws_secret_access_key", "aws_session_token")
_SWITCHES = ("aws_allow_http", "aws_virtual_hosted_style_request")
_KNOWN = ("aws_access_key_id", *_SECRET, "aws_region", "aws_endpoint_url", *_SWITCHES)
_READERS = "the driver, for every executor and for a coordinator that settles for this job"


@dataclass(frozen=True)
class ObjectOptions:
    """Options as they were given, in any process: references are not resolved."""

    given: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: object) -> Self:
        """Raises ConfigurationError that lists every problem, without the values."""
        if not isinstance(options, Mapping):
            raise ConfigurationError("options must be a mapping of names to text")
        given = {str(name).lower(): value for name, value in options.items()}
        problems = [problem for name, value in given.items() if (problem := _problem(name, value))]
        if str(given.get("aws_endpoint_url", "")).startswith("http://") and given.get("aws_allow_http") != "true":
            problems.append('aws_endpoint_url is not encrypted; set aws_allow_http to "true" if it shall not be')
        if problems:
            raise ConfigurationError("; ".join(problems))
        return cls(tuple(sorted(given.items())))

    def resolved(self) -> Mapping[str, str]:
        """Return the options with their secrets, as plain text for a client. Raises ConfigurationError."""
        return {
            name: str(resolve(value, key=name, readers=_READERS)) if is_reference(value) else value
            for name, value in self.given
        }

    def without_secrets(self, text: str) -> str:
        """Return what a client or a store has said, without what it repeats of secrets: S3 sends a token that it does
        not accept back."""
        for name, value in self.given:
            if is_reference(value):
                text = text.replace(str(resolve(value, key=name, readers=_READERS)), "***")
        return text


def _problem(name: str, value: object) -> str | None:
    if name not in _KNOWN:
        return f"{name} is unknown; known are {', '.join(_KNOWN)}"
    if not isinstance(value, str) or not value:
        return f"{name} must be text"
    if is_reference(value):
        problem = reference_problem(value)
        return problem and f"{name}: {problem}"
    if name in _SECRET:
        return f'{name} must be a reference, "env:NAME" or "file:/absolute/path": documents and logs would show it'
    if name in _SWITCHES and value not in ("true", "false"):
        return f'{name} must be "true" or "false"'
    if name == "aws_endpoint_url" and "@" in value:
        return f"{name} must not hold credentials"
    return None
