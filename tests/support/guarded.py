"""A broker that admits users over SASL_SSL, or over mTLS, and lets them do only what they were granted."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from onceward.dev.kafka import LocalKafka
from tests.support.peers import HOST, PeerFiles
from tests.support.topics import wait_for
from tests.support.waiting import wait_until

__all__ = ["PAGE", "ROLES", "Guarded", "Right", "guarded_kafka", "least_rights"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kafka-acls.md"
ROLES = ("driver", "executors", "coordinator")

_PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
    # Users of the plain listeners: brokers, and the test itself.
    "super.users": "User:ANONYMOUS",
    "listener.name.client.ssl.keystore.type": "PEM",
    "listener.name.client.ssl.truststore.type": "PEM",
}
_ANY = AclBindingFilter(
    ResourceType.ANY,
    None,  # type: ignore[arg-type]
    ResourcePatternType.ANY,
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    AclOperation.ANY,
    AclPermissionType.ANY,
)


@dataclass(frozen=True, kw_only=True)
class Right:
    """One ACL without its user: what it allows on which resource."""

    operation: str
    resource: str
    name: str
    prefixed: bool = False

    def binding(self, user: str) -> AclBinding:
        return AclBinding(
            ResourceType[_named(self.resource)],
            self.name,
            ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[_named(self.operation)],
            AclPermissionType.ALLOW,
        )


def least_rights(role: str, names: Mapping[str, str], *, all_useful: bool = False) -> list[Right]:
    """The rights that the page's table says a role needs, or all that it may have. ``names``: for INPUT, OUTPUT, JOB
    and GROUP."""
    section = PAGE.read_text().split("## The least rights", 1)[1]
    rights = []
    for line in (line for line in section.splitlines() if line.startswith("|")):
        operation, resource, name, *marks = (cell.strip() for cell in line.strip("|").split("|"))
        mark = dict(zip(ROLES, marks, strict=False))[role]
        if mark == "needs" or (all_useful and mark == "may"):
            plain = name.strip("`")
            prefixed = plain.endswith(".*")
            plain = plain.removesuffix("*") if prefixed else plain
            for stands_for, actual in names.items():
                plain = plain.replace(stands_for, actual)
            rights.append(Right(operation=operation, resource=resource, name=plain, prefixed=prefixed))
    return rights


def _named(kind: str) -> str:
    """``TransactionalId`` as the client's ``TRANSACTIONAL_ID``; it calls the cluster BROKER."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper().replace("CLUSTER", "BROKER")


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """The broker, its users' configurations and rights. The test itself uses `servers`, where all is allowed."""

    kafka: LocalKafka
    protocol: str
    files: PeerFiles
    secret: Path
    """File of the one password: of every user, or of every user's key."""
    admin: AdminClient

    @property
    def servers(self) -> str:
        return self.kafka.internal_servers

    def config(self, user: str) -> dict[str, str]:
        """The configuration of ``user``'s clients."""
        tls = {"security.protocol": self.protocol, "ssl.ca.location": str(self.files.ca)}
        if self.protocol == "SASL_SSL":
            own = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": f"file:{self.secret}"}
        else:
            own = {
                "ssl.certificate.location": str(self.files.directory / f"{user}.pem"),
                "ssl.key.location": str(self.files.directory / f"{user}.key"),
                "ssl.key.password": f"file:{self.secret}",
            }
        return {**tls, **own}

    def per_process(self, user: str) -> tuple[dict[str, str], dict[str, str]]:
        """A configuration whose user each process finds in its environment, and that environment for ``user``. It holds
        no secret."""
        own = self.config(user)
        found = {
            "KAFKA_NAME": "sasl.username",
            "KAFKA_PEM": "ssl.certificate.location",
            "KAFKA_KEY": "ssl.key.location",
        }
        used = {variable: key for variable, key in found.items() if key in own}
        shared = {**own, **{key: f"env:{variable}" for variable, key in used.items()}}
        return shared, {variable: own[key] for variable, key in used.items()}

    def allow(self, user: str, rights: Iterable[Right]) -> None:
        """Give ``user`` exactly these rights."""
        given = {right.binding(user) for right in rights}
        held = set(self._held(user))
        for binding in held - given:
            self._remove(binding)
        for answer in self.admin.create_acls(list(given - held)).values() if given - held else ():
            wait_for(answer)
        wait_until(lambda: set(self._held(user)) == given, "the broker has the rights")

    def _held(self, user: str) -> list[AclBinding]:
        return [one for one in self.admin.describe_acls(_ANY).result(30) if one.principal == f"User:{user}"]

    def _remove(self, one: AclBinding) -> None:
        exactly = AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        wait_for(self.admin.delete_acls([exactly])[exactly])


@contextmanager
def guarded_kafka(directory: Path, protocol: str, users: Sequence[str], secret: str) -> Iterator[Guarded]:
    """``protocol``: SASL_SSL with SCRAM-SHA-512 or PLAIN, or SSL with certificates of the clients. ``secret``: the
    password of all ``users``, or of their keys."""
    files = PeerFiles(directory)
    broker = files.issued_to("broker", addresses=[HOST], common_name="broker")
    assert broker.certificate is not None
    assert broker.key is not None
    store = directory / "broker-store.pem"
    store.write_bytes(Path(broker.key).read_bytes() + Path(broker.certificate).read_bytes())
    listener = {
        "listener.security.protocol.map": f"CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.ssl.keystore.location": str(store),
        "listener.name.client.ssl.truststore.location": str(files.ca),
    }
    if protocol == "SASL_SSL":
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        listener |= {
            "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.client.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                + " ".join(f'user_{user}="{secret}"' for user in users)
                + ";"
            ),
            "listener.name.client.scram-sha-512.sasl.jaas.config": login,
        }
    else:
        listener |= {
            "listener.name.client.ssl.client.auth": "required",
            "listener.name.client.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
        }
        for user in users:
            files.issued_to(user, common_name=user, password=secret)
    password = directory / "password"
    password.write_text(secret)
    with LocalKafka(properties={**_PROPERTIES, **listener}, heap="192m") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.internal_servers, "log_level": 0})
        if protocol == "SASL_SSL":
            credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            made: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, credential, secret.encode()) for user in users
            ]
            for answer in admin.alter_user_scram_credentials(made).values():
                wait_for(answer)
        yield Guarded(kafka=kafka, protocol=protocol, files=files, secret=password, admin=admin)
