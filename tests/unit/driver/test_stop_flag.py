import signal
import threading

from onceward.driver.exits import StopFlag


def test_a_signal_handler_may_set_it_while_its_own_thread_waits() -> None:
    flag = StopFlag()
    former = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGUSR1]).start()
        assert flag.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_it_may_be_set_by_the_thread_that_holds_its_lock() -> None:
    """A handler that interrupts the thread inside ``wait`` does this; a plain Event would hang."""
    flag = StopFlag()
    with flag._changed:
        flag.set()
    assert flag.is_set()
    flag.clear()
    assert not flag.wait(0)
