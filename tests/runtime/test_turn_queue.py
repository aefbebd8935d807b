"""One thread at a time handles the items of a turn queue, in order."""

from __future__ import annotations

import threading

from dask_elastic.runtime.worker.buffers.turn_queue import TurnQueue


class Consumer:
    """A thread that takes items until it gets None."""

    def __init__(self, queue):
        self.queue = queue
        self.handled = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while (item := self.queue.take()) is not None:
            self.handled.append(item)

    def wait_until_idle(self):
        while not self.queue.begin_turn():
            self.thread.join(0.001)

    def end(self):
        self.queue.put(None)
        self.thread.join(100)
        assert not self.thread.is_alive()
        return self.handled


def test_turn_is_not_given_before_the_thread_waits():
    queue = TurnQueue()
    assert not queue.begin_turn()
    queue.put(1)
    assert not queue.begin_turn()


def test_items_put_during_a_turn_wait_for_its_end():
    consumer = Consumer(TurnQueue())
    consumer.wait_until_idle()
    consumer.queue.put("later")
    assert not consumer.queue.begin_turn()
    assert consumer.handled == []
    consumer.queue.end_turn()
    assert consumer.end() == ["later"]


def test_turn_is_free_again_after_its_end():
    consumer = Consumer(TurnQueue())
    consumer.wait_until_idle()
    consumer.queue.end_turn()
    assert consumer.queue.begin_turn()
    consumer.queue.end_turn()
    assert consumer.end() == []


def test_no_item_is_lost_or_handled_by_two_threads_at_a_time():
    consumer, inline, handling = Consumer(TurnQueue()), [], threading.Lock()

    def bring(start):
        for number in range(start, start + 2_000):
            if consumer.queue.begin_turn():
                assert handling.acquire(blocking=False)
                inline.append(number)
                handling.release()
                consumer.queue.end_turn()
            else:
                consumer.queue.put(number)

    threads = [threading.Thread(target=bring, args=(start,)) for start in (0, 10_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    handled = consumer.end()
    assert sorted(inline + handled) == [*range(2_000), *range(10_000, 12_000)]
    assert [n for n in handled if n < 2_000] == sorted(n for n in handled if n < 2_000)
