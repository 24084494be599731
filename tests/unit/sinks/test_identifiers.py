"""Transactional ids keep jobs apart."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.sinks.kafka.identifiers import TransactionalId, job_pattern

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)
IDS = st.builds(
    TransactionalId,
    job=NAMES,
    sink=NAMES,
    generation=st.integers(0, 2**53 - 1),
    worker=st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    n=st.integers(0, 10**9),
)


@given(IDS)
def test_an_id_is_read_back_as_it_was_written(identifier: TransactionalId) -> None:
    assert TransactionalId.parse(str(identifier)) == identifier


@given(IDS, NAMES)
def test_a_job_sees_only_its_own_ids_even_when_names_are_prefixes(identifier: TransactionalId, other: str) -> None:
    assert (re.fullmatch(job_pattern(other), str(identifier)) is not None) is (identifier.job == other)


def test_the_longest_names_give_an_id_that_kafka_accepts() -> None:
    longest = TransactionalId(job="j" * 63, sink="s" * 63, generation=2**53 - 1, worker="f" * 12, n=10**9)
    assert len(str(longest)) < 249


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job",
        "job.claim",
        "job.sink.1.0011.0",
        "job.sink.1.00112233.0.1",
        "job.sink.x.00112233.0",
        "a b.s.1.00112233.0",
    ],
)
def test_a_foreign_id_is_left_alone(text: str) -> None:
    assert TransactionalId.parse(text) is None
