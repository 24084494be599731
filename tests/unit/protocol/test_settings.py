"""Settings that are valid survive a round trip; every problem of the others is named."""

from datetime import timedelta
from typing import Any

import pytest

from onceward.protocol.settings import CheckpointSettings, InvalidSettingsError, as_duration


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("2min", 120),
        ("1h", 3600),
        (0, 0),
        (timedelta(minutes=1), 60),
        (timedelta(days=3650), 3650 * 86400),
    ],
)
def test_durations_are_text_with_a_unit_timedelta_or_zero(given: Any, seconds: float) -> None:
    assert as_duration(given).total_seconds() == seconds


@pytest.mark.parametrize(
    "given", ["1", "s", "1 fortnight", 5, 0.5, True, "-1s", "4000d", "1e400s", timedelta(days=3651)]
)
def test_an_invalid_duration_is_named_in_the_error(given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"is not a duration|has no unit|is negative|is longer than 3650 days"
    ) as caught:
        as_duration(given)
    assert str(caught.value).startswith(repr(given))


FULL = CheckpointSettings(
    interval="250ms",
    timeout="3min",
    min_pause="1s",
    tolerable_failed_checkpoints=2,
    num_retained=5,
    lease="11s",
    stream_grace="4s",
    orphan_grace="40s",
)


def test_settings_as_json_have_durations_in_seconds() -> None:
    assert FULL.to_json() == {
        "interval": 0.25,
        "timeout": 180.0,
        "min_pause": 1.0,
        "tolerable_failed_checkpoints": 2,
        "num_retained": 5,
        "lease": 11.0,
        "stream_grace": 4.0,
        "orphan_grace": 40.0,
    }


@pytest.mark.parametrize("settings", [FULL, CheckpointSettings(), CheckpointSettings(interval=None)])
def test_settings_are_read_as_they_were_written(settings: CheckpointSettings) -> None:
    assert CheckpointSettings.from_json(settings.to_json()) == settings


def test_settings_of_an_older_version_get_the_defaults() -> None:
    assert CheckpointSettings.from_json({"lease": 12.0}) == CheckpointSettings(lease="12s")


@pytest.mark.parametrize(
    "edge",
    [
        {"timeout": "100ms"},
        {"lease": "1s", "stream_grace": "1s", "orphan_grace": "1s"},
        {"tolerable_failed_checkpoints": 0, "num_retained": 1},
        {"tolerable_failed_checkpoints": 1_000_000, "num_retained": 1_000_000},
        {"interval": 0},
    ],
)
def test_limits_are_inclusive(edge: dict[str, Any]) -> None:
    CheckpointSettings(**edge)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": "99ms"},
        {"lease": "999ms", "stream_grace": "1ms"},
        {"stream_grace": "11s"},
        {"orphan_grace": "9s"},
        {"tolerable_failed_checkpoints": -1},
        {"tolerable_failed_checkpoints": 1_000_001},
        {"num_retained": 0},
        {"num_retained": True},
        {"num_retained": 1.5},
        {"interval": "soon"},
        {"min_pause": None},
    ],
)
def test_a_setting_that_cannot_be_used_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        CheckpointSettings(**wrong)
    (problem,) = str(caught.value).splitlines()[1:]
    assert problem.strip().startswith(f"{next(iter(wrong))}: ")


def test_all_problems_are_reported_together() -> None:
    wrong: dict[str, Any] = {"interval": None, "timeout": "soon", "lease": "never", "num_retained": 0}
    with pytest.raises(InvalidSettingsError) as caught:
        CheckpointSettings(**wrong)
    assert [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        "timeout",
        "lease",
        "num_retained",
    ]


def test_settings_that_contradict_each_other_are_all_named() -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        CheckpointSettings(timeout="1ms", stream_grace="1min", orphan_grace="1s", tolerable_failed_checkpoints=-1)
    assert [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]] == [
        *("timeout", "stream_grace", "orphan_grace", "tolerable_failed_checkpoints"),
    ]
