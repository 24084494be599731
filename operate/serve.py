"""``onceward serve``."""

import contextlib
import ctypes
import logging
import resource
import sys
import tempfile
from pathlib import Path

from onceward.client.calls import addresses_of
from onceward.common.errors import ConfigurationError
from onceward.common.printable import escape_logs, log_fields, logger
from onceward.coordinator.service.listen import Listen, parse_listen, scratch_for_sockets
from onceward.coordinator.service.observer import observers
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.service.run import Serving, serve
from onceward.coordinator.service.server import ServerOptions
from onceward.coordinator.service.state_dir import StateDirectory, state_directory
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.tls import ServerTls
from onceward.coordinator.store.opening import kind_of
from onceward.coordinator.store.store import Store
from onceward.operate.json_logs import log_formatter
from onceward.operate.measuring import measure, trace
from onceward.operate.options import password_of, systems_of
from onceward.operate.prompts import print_result
from onceward.operate.settings_in_force import settings_of
from onceward.watch.web.page import Page, place_of_page, published

__all__ = ["run_serve"]

_log = logger("onceward.service")

_PR_SET_DUMPABLE = 4

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def tls_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ServerTls | None:
    """Return what the options name; None without any. Raises ConfigurationError."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigurationError(
            "TLS needs both --tls-cert and --tls-key; --client-ca goes with them. Nothing was started."
        )
    tls = ServerTls(certificate=certificate, key=key, client_ca=client_ca)
    tls.check()
    return tls


def rights_of(file: Path | None, place: Listen, tls: ServerTls | None) -> RightsFile | None:
    """Return the rights that hold; None if every client may do everything. Raises ConfigurationError."""
    if file is None:
        if not place.loopback:
            detail = "every client that is accepted may do everything; see --rights"
            _log.warning("%s", log_fields({"event": "no_rights", "detail": detail}))
        return None
    if tls is None and place.path is None:
        raise ConfigurationError(
            "--rights needs TLS (--tls-cert, --tls-key and, for certificates of the clients, --client-ca) or a socket "
            "(--listen unix:PATH): in plain text no client can prove who it is. Nothing was started."
        )
    return RightsFile(file, certificates=tls is not None and tls.authenticates and place.path is None)


def page_of(
    stack: contextlib.ExitStack,
    web: str | None,
    place: Listen,
    tls: ServerTls | None,
    rights: Path | None,
    *,
    anywhere: bool,
) -> Page | None:
    """Serve the page until ``stack`` closes; None if it is not wanted. Raises ConfigurationError.

    It asks of a visitor what the coordinator asks of a client: a certificate with ``--client-ca``, a token with
    ``--rights``.
    """
    if web is None:
        return None
    if rights is not None and tls is None:
        raise ConfigurationError(
            "--web with --rights needs --tls-cert and --tls-key: visitors show a token, which others could read in "
            "plain text. Nothing was started."
        )
    if place.path is not None and rights is None:
        raise ConfigurationError(
            "--web cannot be combined with a socket without --rights: the page would show every job to all users of "
            "this machine, and the socket answers only you. Nothing was started. Pass --rights, --tls-cert and "
            "--tls-key, or leave --web out."
        )
    authenticates = rights is not None or (tls is not None and tls.authenticates)
    page = Page(place_of_page(web, anywhere=anywhere or authenticates), None if tls is None else tls.context)
    stack.callback(page.close)
    return page


def leave_no_core_dump() -> None:
    """A core dump would hold passwords.

    Linux passes one to a program that is configured for it whatever the limit is, but not that of a process which is
    not dumpable. Nor may other processes of the same user read the memory and the environment of such a process.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def run_serve(
    *,
    listen: str,
    advertise: str,
    store: str | None,
    store_password: str | None,
    systems: Path | None,
    tls: ServerTls | None,
    rights: Path | None,
    reflection: bool,
    anywhere: bool,
    log_level: str,
    log_format: str = "text",
    metrics: str | None = None,
    web: str | None = None,
    traces: bool = False,
) -> None:
    """Serve until a signal. Raises ConfigurationError and StoreError."""
    leave_no_core_dump()
    authenticates = tls is not None and (tls.authenticates or rights is not None)
    place = parse_listen(listen, anywhere=anywhere or authenticates)
    level = _LEVELS.get(log_level.lower())
    if level is None:
        raise ConfigurationError(f"{log_level!r} is no log level. Nothing was started. Use {', '.join(_LEVELS)}.")
    form = log_formatter(log_format)
    logging.basicConfig(level=level, stream=sys.stderr, force=True)
    logging.getLogger().handlers[0].setFormatter(form)
    if level > logging.DEBUG:  # each step of each connection, which says nothing about a job
        logging.getLogger("kafka").setLevel(max(level, logging.WARNING))
    escape_logs()
    held = rights_of(rights, place, tls)
    known = systems_of(systems, "started") if systems is not None else {}
    reached = Systems.installed(known, "started")
    for name, kind in reached.unusable.items():
        _log.warning(
            "system %s: its kind %s is not installed here. This coordinator ends no transaction on it; drivers do, and "
            "all other systems are settled. Install the package of that kind beside the coordinator.",
            name,
            kind,
        )
    store_url = store if store is not None else StateDirectory(state_directory()).store_url
    given = {
        "listen": listen,
        "advertise": advertise,
        "store": store_url,
        "store_password": store_password,
        "systems": systems,
        "tls_cert": None if tls is None else tls.certificate,
        "tls_key": None if tls is None else tls.key,
        "client_ca": None if tls is None else tls.client_ca,
        "rights": rights,
        "reflection": reflection,
        "insecure_listen_anywhere": anywhere,
        "log_level": log_level,
        "log_format": log_format,
        "metrics": metrics,
        "web": web,
        "traces": traces,
    }

    def announce(address: str, store: Store | None) -> None:
        names = f", systems {', '.join(known)}" if known else ""
        how = "" if tls is None else " with TLS" if authenticates else " with TLS, clients are not authenticated"
        if measured.url is not None:
            print_result(measured.announcement(rights=held is not None))
        if page is not None:
            page.attach(sockets[0], advertise or address)
            print_result(f"the page is at {page.url}")
        which = "stands by" if store is None else store.store_id
        print_result(f"onceward coordinator listens on {address}{how}, store {store_url} ({which}){names}")

    if advertise:
        addresses_of(advertise)
    with contextlib.ExitStack() as stack:
        measured = measure(stack, metrics, tls, anywhere=anywhere)
        page = page_of(stack, web, place, tls, rights, anywhere=anywhere)
        sockets = [] if page is None else [_private_socket(stack)]
        observer = observers(measured.observer, trace(stack, traces))
        serving = Serving(
            listen=place,
            advertise=advertise,
            store_url=store_url,
            store_password=password_of(store_password, "started"),
            sockets=sockets,
            web="" if page is None else published(page.url, place, advertise),
            options=ServerOptions(
                reflection=reflection,
                tls=tls,
                rights=held,
                systems=reached,
                observer=observer,
                store_kind=kind_of(store_url),
                settings=settings_of(given),
            ),
        )
        serve(serving, announce)


def _private_socket(stack: contextlib.ExitStack) -> str:
    """Where the page reaches the coordinator, which asks for no certificate there, and takes visitors' tokens."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="onceward-", dir=scratch_for_sockets()))
    return f"unix:{directory}/coordinator.sock"
