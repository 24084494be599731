"""After the decision: proved, lost or in doubt (docs/protocol.md#outcomes)."""

from tests.scenarios.play import play


def test_settlements_repeated_in_any_portion_are_harmless() -> None:
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
        > ack 1 sink on 0 slots 0,1,2
          accepted
          fact completed 1
          wants complete 1
        > settle 1 sink 1=committed
          accepted
        > settle 1 sink 1=committed
          duplicate
        > settle 1 sink 1=committed 0=committed
          accepted
        > settle 1 sink 0=committed 1=committed 2=committed
          accepted
          fact settled 1
          wants nothing
        > settle 1 sink 0=committed 1=committed 2=committed
          duplicate
        """,
    )


def test_settlements_that_name_nothing_of_the_checkpoint_are_refused() -> None:
    play(
        """
        > open d1
          accepted g1 from the beginning
          fact granted g1 to d1, ids through 0 are taken
        > watch
          accepted
          fact triggered 1 on 0 by g1
          wants trigger 1 on 0
        > settle 1 sink 0=committed
          too_late
        > ack 1 source on 0 at 1
          accepted
        > ack 1 sink on 0 slots 0
          accepted
          fact completed 1
          wants complete 1
        > settle 1 sink
          invalid
        > settle 1 sink 1=committed
          invalid
        > settle 1 sink 0=committed 0=lost
          invalid
        > settle 1 source 0=committed
          unknown_participant
        > settle 2 sink 0=committed
          unknown_checkpoint
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          wants nothing
        > after 1
          fact triggered 2 on 1 by g1
          wants trigger 2 on 1
        > ack 2 source on 1 at 2
          accepted
        > ack 2 sink on 1
          accepted
          fact completed 2, nothing to settle
          wants nothing
        > settle 1 sink 0=committed
          too_late
        """,
    )


def test_a_lost_committable_halts_the_job_aborts_what_runs_and_keeps_every_later_driver_out() -> None:
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
        > after 1
          fact triggered 2 on 1 by g1
          wants complete 1; trigger 2 on 1
        > settle 1 sink 0=committed 1=lost
          accepted
          fact aborted 2: HALTED
          fact halted by 1 sink 0=committed 1=lost
          wants abort 2; halt
        > after 10
        > close failed
          accepted
          fact closed g1: halted
          wants nothing
        > open d2
          halted
        > open d2 takeover
          halted
        > restart
        > open d2
          halted
        """,
        lease="1h",
        orphan_grace="1h",
    )


def test_a_committable_in_doubt_halts_this_run_and_the_next_driver_may_look_again() -> None:
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
        > settle 1 sink 0=in_doubt
          accepted
          fact aborted 2: HALTED
          fact halted by 1 sink 0=in_doubt
          wants abort 2; halt
        > close failed
          accepted
          fact closed g1: halted
          wants nothing
        > open d2
          accepted g2 from 1 unsettled
          fact granted g2 to d2, ids through 2 are taken
          wants complete 1
        > watch
          accepted
          fact triggered 3 on 1 by g2
          wants complete 1; trigger 3 on 1
        > settle 1 sink 0=committed
          accepted
          fact settled 1
          wants trigger 3 on 1
        """,
    )
