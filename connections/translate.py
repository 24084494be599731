"""Translate librdkafka's settings to kafka-python's: the only module that knows both.

Users write librdkafka's names, which the data path uses. The control plane (ending transactions) runs on kafka-python,
which names security settings differently and lacks some. A setting that decides whom to trust or how to authenticate is
either translated exactly or rejected: two clients of one job with different security would be worse than none. Settings
that only tune the data path go to librdkafka and need no counterpart.

Sources: librdkafka's CONFIGURATION.md, ``DEFAULT_CONFIG`` of kafka-python's admin client and connection manager. Runs
on executors too: standard library only.
"""

import os
from collections.abc import Mapping
from typing import Any

from onceward.common.errors import ConfigurationError

__all__ = ["PASSWORD_KEYS", "REFERENCE_KEYS", "control_settings", "setting_problem"]

PASSWORD_KEYS = frozenset({"sasl.password", "ssl.key.password"})
"""Keys whose values must be references."""

REFERENCE_KEYS = PASSWORD_KEYS | {
    "sasl.username",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
}
"""Keys whose values may be references."""

_SAME_TEXT = {
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
    "sasl.password": "sasl_plain_password",
    "sasl.username": "sasl_plain_username",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_SAME_NUMBER = {
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
}
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location")

_PEM_TEXT = "PEM text cannot be carried over: write it to a file readable everywhere and use {instead}"
_PKCS12 = (
    "a PKCS12 keystore cannot be carried over: export it to PEM files and use ssl.certificate.location, "
    "ssl.key.location and ssl.key.password"
)
_REFUSED = {
    "bootstrap.servers": "give the servers as the first argument of KafkaCluster",
    "metadata.broker.list": "give the servers as the first argument of KafkaCluster",
    "ssl.ca.pem": _PEM_TEXT.format(instead="ssl.ca.location"),
    "ssl_ca": _PEM_TEXT.format(instead="ssl.ca.location"),
    "ssl.certificate.pem": _PEM_TEXT.format(instead="ssl.certificate.location"),
    "ssl_certificate": _PEM_TEXT.format(instead="ssl.certificate.location"),
    "ssl.key.pem": _PEM_TEXT.format(instead="ssl.key.location"),
    "ssl_key": _PEM_TEXT.format(instead="ssl.key.location"),
    "ssl.keystore.location": _PKCS12,
    "ssl.keystore.password": _PKCS12,
    "plugin.library.paths": "native plug-ins change only one of the two clients: remove it",
    "enable.ssl.certificate.verification": (
        "the control plane always verifies certificates: set ssl.ca.location to the authority that signed the brokers'"
    ),
    "log_cb": "the clients log through the logger 'onceward': attach handlers there",
    "logger": "the clients log through the logger 'onceward': attach handlers there",
}
_SECURITY_PREFIXES = ("sasl.", "ssl.", "ssl_", "https.", "enable.sasl.", "enable.ssl.", "oauthbearer", "security.")


def setting_problem(key: str, value: object) -> str | None:
    """Say why one setting cannot serve both clients and what to use instead; None if it can. Never quotes the value of
    a key that may be secret."""
    if callable(value) or key.endswith("_cb") or key.startswith("on_"):
        return _REFUSED.get(key, "functions cannot be sent to executors or shared by both clients: remove it")
    match key:
        case "security.protocol":
            return None if str(value).upper() in _PROTOCOLS else f"must be one of {', '.join(_PROTOCOLS)}"
        case "sasl.mechanisms" | "sasl.mechanism":
            if str(value).upper() in _MECHANISMS:
                return None
            return f"must be one of {', '.join(_MECHANISMS)}: the control plane has no Kerberos and no OAuth"
        case "ssl.endpoint.identification.algorithm":
            return None if str(value).lower() in ("https", "none") else "must be https or none"
        case "enable.ssl.certificate.verification" if str(value).lower() == "true":
            return None
        case "ssl.ca.location" if str(value) == "probe":
            return (
                "'probe' is understood by only one client: name the file, or leave it out for the system's authorities"
            )
        case _ if key in _REFUSED:
            return _REFUSED[key]
        case _ if key in _SAME_NUMBER:
            return None if str(value).isdecimal() and str(value).isascii() else "must be a whole number of milliseconds"
        case _ if key not in _SAME_TEXT and key.startswith(_SECURITY_PREFIXES):
            return (
                "has no counterpart in the control plane; supported are SSL with PEM files (ssl.*.location, "
                "ssl.key.password) and SASL PLAIN or SCRAM (sasl.username, sasl.password)"
            )
        case _:
            return None


def control_settings(bootstrap_servers: str, resolved: Mapping[str, str]) -> dict[str, Any]:
    """Return kafka-python's keyword arguments for ``resolved``: valid settings with their references resolved.

    Raises ConfigurationError when the two clients cannot both use a path.
    """
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap_servers.split(",")}
    for key, value in resolved.items():
        match key:
            case "security.protocol":
                settings["security_protocol"] = value.upper()
            case "sasl.mechanisms" | "sasl.mechanism":
                settings["sasl_mechanism"] = value.upper()
            case "ssl.endpoint.identification.algorithm":
                settings["ssl_check_hostname"] = value.lower() == "https"
            case _ if key in _SAME_TEXT:
                settings[_SAME_TEXT[key]] = value
            case _ if key in _SAME_NUMBER:
                settings[_SAME_NUMBER[key]] = int(value)
            case _:
                pass  # tunes only the data path
    unusable = [f"{key} = {resolved[key]}" for key in _FILES if key in resolved and not os.path.isfile(resolved[key])]
    if unusable:
        raise ConfigurationError(
            f"These are not files that process {os.getpid()} can see: {'; '.join(unusable)}. Nothing was connected. "
            "Each must name one PEM file (only one of the two clients understands a directory) that exists wherever "
            "the cluster is used."
        )
    return settings
