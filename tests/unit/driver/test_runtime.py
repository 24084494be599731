"""The driver's separate thread for calls that may take long."""

import threading

import pytest

from onceward.driver.runtime import THREADS


def test_calls_are_made_one_after_the_other_on_a_thread_with_the_workers_name() -> None:
    worker, free, made = THREADS.worker("settler"), threading.Event(), list[str]()
    began = threading.Event()

    def first() -> None:
        began.set()
        assert free.wait(60)
        made.append(threading.current_thread().name)

    worker.submit(first)
    worker.submit(lambda: made.append("second"))
    assert began.wait(60)
    assert made == [], "the second waits for the first"
    free.set()
    done = threading.Event()
    worker.submit(done.set)
    assert done.wait(60)
    worker.close(wait=True)
    assert [name.partition("_")[0] for name in made] == ["settler", "second"]


@pytest.mark.parametrize("wait", [True, False])
def test_closing_drops_the_calls_that_have_not_begun(wait: bool) -> None:
    worker, free, began, made = THREADS.worker("settler"), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        began.set()
        assert free.wait(60)
        made.append("first")

    worker.submit(first)
    worker.submit(lambda: made.append("second"))
    assert began.wait(60)
    closer = threading.Thread(target=lambda: worker.close(wait=wait))
    closer.start()
    if wait:
        assert closer.is_alive()
        assert made == []
    else:
        closer.join(60)
        assert not closer.is_alive(), "it waits without need"
    free.set()
    closer.join(60)
    worker.close(wait=True)
    assert made == ["first"]
