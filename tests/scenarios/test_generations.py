"""Who may drive a job, and what a new generation finds (docs/protocol.md#generations)."""

from tests.scenarios.play import play


def test_opening_aborts_the_undecided_checkpoint_and_never_waits_for_anything() -> None:
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
        > open d2 takeover
          accepted g2 from the beginning
          fact aborted 1: REPLACED
          fact granted g2 to d2, ids through 1 are taken
          wants nothing
        > watch
          accepted
          fact triggered 2 on 0 by g2
          wants trigger 2 on 0
        """,
    )


def test_a_stale_generation_is_fenced_whatever_it_says() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > open d2 takeover
          accepted g2 from the beginning
          fact aborted 1: REPLACED
          fact granted g2 to d2, ids through 1 are taken
          wants nothing
        > watch as g1
          fenced
        > renew as g1
          fenced
        > ack 1 source on 0 at 1 as g1
          fenced
        > decline 1 sink as g1
          fenced
        > settle 1 sink 0=committed as g1
          fenced
        > close finished as g1
          fenced
        > lost as g1
          accepted
        > watch as g3
          fenced
        """,
    )


def test_a_living_driver_keeps_its_job_until_its_lease_is_over() -> None:
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
        > ack 1 sink on 0
          accepted
          fact completed 1, nothing to settle
          wants nothing
        > after 9
        > open d2
          busy
        > renew
          accepted
        > after 9
        > open d2
          busy
        > after 1
        > open d2
          accepted g2 from 1
          fact granted g2 to d2, ids through 1 are taken
        """,
        interval="1h",
    )


def test_a_driver_whose_stream_is_gone_for_the_grace_time_may_be_replaced() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > lost
          accepted
        > after 1.9
        > open d2
          busy
        > after 0.1
        > open d2
          accepted g2 from the beginning
          fact aborted 1: REPLACED
          fact granted g2 to d2, ids through 1 are taken
          wants nothing
        """,
    )


def test_a_driver_without_lease_and_stream_is_given_up_and_its_checkpoint_aborted() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > lost
          accepted
        > after 9.9
        > after 0.1
          fact aborted 1: DRIVER_LOST
          fact closed g1: suspended
          wants nothing
        > renew
          fenced
        > open d2
          accepted g2 from the beginning
          fact granted g2 to d2, ids through 1 are taken
        """,
    )


def test_opening_again_with_the_same_token_gives_the_same_grant() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > open d1
          duplicate g1 from the beginning
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > open d1
          duplicate g1 from the beginning
        """,
    )


def test_a_coordinator_restart_keeps_the_undecided_checkpoint_and_asks_again() -> None:
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
        > restart
        > watch
          accepted
        > ack 1 sink on 0 slots 0
          accepted
        > ack 1 source on 0 at 1
          accepted
          fact completed 1
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        """,
    )


def test_a_coordinator_restart_gives_the_driver_a_full_lease_to_come_back() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > after 9
        > restart
        > after 9.9
        > renew
          accepted
        > after 5
        > watch
          accepted
        > ack 1 source on 0 at 1
          accepted
        """,
    )


def test_a_coordinator_restart_after_the_decision_asks_for_all_commits_again() -> None:
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
        > ack 1 sink on 0 slots 0,1
          accepted
          fact completed 1
          wants complete 1
        > settle 1 sink 0=committed
          accepted
        > restart
        > watch
          accepted
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        > settle 1 sink 1=committed
          accepted
        > settle 1 sink 0=committed 1=committed
          accepted
          fact settled 1
          wants trigger 2 on 1
        """,
    )


def test_a_coordinator_restart_after_an_abort_still_tells_how_the_checkpoint_was_decided() -> None:
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
        > decline 1 sink
          accepted aborted
          fact aborted 1: DECLINED
          wants abort 1; fail
        > restart
          wants nothing
        > ack 1 source on 0 at 1
          too_late aborted
        > watch
          accepted
          fact triggered 2 on 0 by g1
          wants trigger 2 on 0
        """,
    )


def test_the_next_generation_gets_what_is_completed_but_not_settled() -> None:
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
        > close failed
          accepted
          fact closed g1: suspended
          wants nothing
        > open d2
          accepted g2 from 1 unsettled
          fact granted g2 to d2, ids through 1 are taken
          wants complete 1
        > watch
          accepted
          fact triggered 2 on 1 by g2
          wants complete 1; trigger 2 on 1
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          wants trigger 2 on 1
        """,
    )


def test_a_driver_that_lacks_a_participant_with_unsettled_committables_is_refused() -> None:
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
        > close failed
          accepted
          fact closed g1: suspended
          wants nothing
        > open d2 without sink
          refused
        > open d2
          accepted g2 from 1 unsettled
          fact granted g2 to d2, ids through 1 are taken
          wants complete 1
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          wants nothing
        > close stopped
          accepted
          fact closed g2: stopped
        > open d3 without sink
          accepted g3 from 1
          fact granted g3 to d3, ids through 1 are taken
        """,
    )


def test_a_claim_of_another_store_is_refused_unless_adopted() -> None:
    play(
        """
        > open d1 claim store-b 4 17
          refused
        > open d1 adopt claim store-b 4 17
          accepted g5 from the beginning
          fact granted g5 to d1, ids through 17 are taken
        > watch
          accepted
          fact triggered 18 on 0 by g5
          wants trigger 18 on 0
        """,
    )


def test_a_claim_that_is_ahead_of_this_store_is_refused_unless_adopted() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > close stopped
          accepted
          fact closed g1: stopped
        > open d2 claim store-a 2 0
          refused
        > open d2 claim store-a 1 1
          refused
        > open d2 claim store-a 1 0
          accepted g2 from the beginning
          fact granted g2 to d2, ids through 0 are taken
        > close stopped
          accepted
          fact closed g2: stopped
        > open d3 adopt claim store-a 9 40
          accepted g10 from the beginning
          fact granted g10 to d3, ids through 40 are taken
        > watch
          accepted
          fact triggered 41 on 0 by g10
          wants trigger 41 on 0
        """,
    )


def test_a_stop_request_lets_the_running_checkpoint_settle_and_triggers_no_other() -> None:
    play(
        """
        > stop
          too_late
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > stop
          accepted
          fact stop requested
          wants trigger 1 on 0; stop
        > stop
          duplicate
        > ack 1 source on 0 at 1
          accepted
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1; stop
        > after 5
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          wants stop
        > close stopped
          accepted
          fact closed g1: stopped
          wants nothing
        > close stopped
          duplicate
        > stop
          too_late
        > open d2
          accepted g2 from 1
          fact granted g2 to d2, ids through 1 are taken
        > watch
          accepted
          fact triggered 2 on 1 by g2
          wants trigger 2 on 1
        """,
    )


def test_closing_aborts_the_undecided_checkpoint() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > close failed
          accepted
          fact aborted 1: CLOSED
          fact closed g1: suspended
          wants nothing
        > ack 1 source on 0 at 1
          fenced
        """,
    )


def test_a_job_that_leaves_unsettled_commits_behind_is_suspended_not_finished() -> None:
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
        > close finished
          accepted
          fact closed g1: suspended
          wants nothing
        """,
    )


def test_a_driver_that_has_no_stream_yet_is_protected_by_its_lease() -> None:
    """It recovers and starts Spark first, which takes longer than the grace time of a stream that broke."""
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > after 9
        > open d2
          busy
        """,
    )
