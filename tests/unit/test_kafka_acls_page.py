"""docs/how-to/kafka-acls.md: the commands grant exactly what its table says that each role needs."""

import itertools
import re
import shlex

import pytest

from tests.support.guarded import PAGE, ROLES, Right, least_rights

_RESOURCES = {"--topic": "Topic", "--group": "Group", "--transactional-id": "TransactionalId"}


def granted() -> dict[str, set[Right]]:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    rights: dict[str, set[Right]] = {}
    for command in block.replace("\\\n", " ").strip().splitlines():
        if not command:
            continue
        words = shlex.split(command)
        options = list(itertools.pairwise(words))
        value = dict(options)
        prefixed = value.get("--resource-pattern-type") == "prefixed"
        rights.setdefault(value["--allow-principal"].removeprefix("User:").lower(), set()).update(
            Right(operation=value["--operation"], resource=_RESOURCES[option], name=name, prefixed=prefixed)
            for option, name in options
            if option in _RESOURCES
        )
    return rights


@pytest.mark.parametrize("role", ROLES)
def test_the_commands_grant_what_the_table_says(role: str) -> None:
    assert granted()[role] == set(least_rights(role, {}))
