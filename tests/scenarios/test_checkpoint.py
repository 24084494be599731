"""One checkpoint, from its trigger until it is settled (docs/protocol.md#one-checkpoint)."""

from tests.scenarios.play import play


def test_a_job_begins_with_a_checkpoint_of_its_start_positions_that_has_nothing_to_settle() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 0
          accepted
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          wants nothing
        > after 1
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        """,
    )


def test_completing_waits_for_every_participant_and_is_followed_by_the_order_to_commit() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 sink on 0 slots 0,1
          accepted
        > ack 1 source on 0 at 10
          accepted
          fact completed 1
          wants complete 1
        > settle 1 sink 0=committed
          accepted
        > settle 1 sink 1=committed
          accepted
          fact settled 1
          wants nothing
        """,
    )


def test_the_next_checkpoint_runs_while_its_base_settles_but_is_completed_only_after_that() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1
        > after 1
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        > ack 2 source on 1 at 20
          accepted
        > ack 2 sink on 1 slots 0
          accepted
          wants complete 1
        > after 1000
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          fact completed 2
          fact triggered 3 on 2 by g1
          wants complete 2; trigger 3 on 2
        """,
        lease="1h",
        orphan_grace="1h",
    )


def test_an_unsettled_base_does_not_keep_its_successor_from_being_aborted() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1
        > after 1
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        > ack 2 source on 1 at 20
          accepted
        > decline 2 sink
          accepted aborted
          fact aborted 2: DECLINED
          wants abort 2; complete 1
        > after 1
          fact triggered 3 on 1 by g1
          wants abort 2; complete 1; trigger 3 on 1
        """,
        tolerable_failed_checkpoints=1,
    )


def test_an_acknowledgement_delivered_twice_is_counted_once() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 source on 0 at 10
          duplicate
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1
        > ack 1 sink on 0 slots 0
          duplicate completed
        > ack 1 source on 0 at 10
          duplicate completed
        """,
    )


def test_a_second_acknowledgement_with_other_content_aborts_the_checkpoint() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 source on 0 at 11
          conflict aborted
          fact aborted 1: CONFLICT
          wants abort 1; fail
        > ack 1 sink on 0 slots 0
          too_late aborted
        """,
    )


def test_an_acknowledgement_on_another_base_is_refused_and_changes_nothing() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          wants nothing
        > after 1
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        > ack 2 source on 0 at 20
          wrong_base
        > ack 2 source on 1 at 20
          accepted
        """,
    )


def test_what_contradicts_the_role_of_a_participant_is_refused_and_changes_nothing() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0
          invalid
        > ack 1 source on 0 at 1 slots 0
          invalid
        > ack 1 sink on 0 at 1
          invalid
        > ack 1 sink on 0 slots 0,0
          invalid
        > ack 1 sink on 0 slots 0 unchanged
          invalid
        > ack 1 nobody on 0 at 1
          unknown_participant
        > ack 2 source on 0 at 1
          unknown_checkpoint
        > decline 1 nobody
          unknown_participant
        > decline 2 source
          unknown_checkpoint
        """,
    )


def test_a_checkpoint_that_is_unchanged_everywhere_leaves_no_decision_and_its_id_stays_burnt() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          wants nothing
        > after 1
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        > ack 2 source on 1 at 10 unchanged
          accepted
        > ack 2 sink on 1 unchanged
          accepted
          fact unchanged 2
          wants nothing
        > after 1
          fact triggered 3 on 1 by g1
          wants trigger 3 on 1
        """,
    )


def test_a_checkpoint_that_is_not_acknowledged_in_time_is_aborted_and_late_answers_are_told_so() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > after 9.9
        > after 0.2
          fact aborted 1: EXPIRED
          wants abort 1; fail
        > ack 1 sink on 0 slots 0
          too_late aborted
        """,
        timeout="10s",
        lease="1h",
        orphan_grace="1h",
    )


def test_a_decline_aborts_for_everybody_and_later_declines_are_harmless() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 10
          accepted
        > decline 1 sink
          accepted aborted
          fact aborted 1: DECLINED
          wants abort 1; fail
        > decline 1 source
          too_late aborted
        > ack 1 source on 0 at 10
          too_late aborted
        """,
    )


def test_the_first_counted_failure_fails_the_generation_when_none_is_tolerated() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > decline 1 sink
          accepted aborted
          fact aborted 1: DECLINED
          wants abort 1; fail
        > after 10
        """,
        lease="1h",
        orphan_grace="1h",
    )


def test_a_completion_in_between_resets_the_count_of_failures() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > decline 1 sink
          accepted aborted
          fact aborted 1: DECLINED
          wants abort 1
        > after 1
          fact triggered 2 on 0 by g1
          wants abort 1; trigger 2 on 0
        > ack 2 source on 0 at 1
          accepted
        > ack 2 sink on 0
          accepted
          fact completed 2, nothing to settle
          wants nothing
        > after 1
          fact triggered 3 on 2 by g1
          wants trigger 3 on 2
        > decline 3 source
          accepted aborted
          fact aborted 3: DECLINED
          wants abort 3
        > after 1
          fact triggered 4 on 2 by g1
          wants abort 3; trigger 4 on 2
        > decline 4 source
          accepted aborted
          fact aborted 4: DECLINED
          wants abort 4; fail
        """,
        tolerable_failed_checkpoints=1,
    )


def test_a_checkpoint_that_takes_longer_than_the_interval_is_followed_at_once() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > after 2.5
        > ack 1 source on 0 at 1
          accepted
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        """,
        interval="1s",
    )


def test_the_least_pause_is_kept_after_a_completion() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > after 2.5
        > ack 1 source on 0 at 1
          accepted
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          wants nothing
        > after 0.4
        > after 0.1
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        """,
        interval="1s",
        min_pause="500ms",
    )


def test_a_driver_that_reconnects_is_told_everything_that_is_wanted_again() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > ack 1 source on 0 at 1
          accepted
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1
        > after 1
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        > lost
          accepted
        > after 1
        > watch
          accepted
        > ack 2 source on 1 at 2
          accepted
        """,
    )
