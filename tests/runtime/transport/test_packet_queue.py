"""The queue of the messages that wait for a connection: order, packets, stamps, and who transmits."""

from __future__ import annotations

import itertools
import threading

from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.runtime.transport.packet_queue import PacketQueue
from dask_elastic.runtime.transport.wire import messages_of, unpack
from dask_elastic.vocab.messages import Stamp

LIMIT = 100


def numbered(limit=LIMIT):
    """Return a queue that numbers its packets."""
    numbers = itertools.count()
    return PacketQueue(limit, lambda: Stamp(5, next(numbers)))


def message(name, *buffers):
    """Return a message with buffers."""
    return [name], list(buffers)


def parsed(packet):
    """Return a packet's stamp and its messages."""
    headers, stamp = unpack(packet)
    return stamp, list(messages_of(packet, headers))


def drained(queue):
    """Return the packets of a queue, parsed."""
    packets = []
    while (packet := queue.next_packet()) is not None:
        packets.append(parsed(packet))
    return packets


def test_waiting_messages_become_one_packet_in_their_order():
    queue = numbered()
    queue.put([message("a", b"1", b"22"), message("b")])
    queue.put([message("c", b"333")])
    assert drained(queue) == [(Stamp(5, 0), [message("a", b"1", b"22"), message("b"), message("c", b"333")])]


def test_packet_ends_with_the_message_that_reaches_the_limit():
    queue = numbered()
    queue.put([message("a", bytes(LIMIT - 1)), message("b", b"1"), message("c", bytes(2 * LIMIT)), message("d")])
    packets = [[header for header, _ in messages] for _, messages in drained(queue)]
    assert packets == [[["a"], ["b"]], [["c"]], [["d"]]]


def test_packets_are_stamped_in_order_and_an_empty_queue_takes_no_stamp():
    queue = numbered()
    assert drained(queue) == []
    for expected in range(3):
        queue.put([message("a")])
        assert [stamp for stamp, _ in drained(queue)] == [Stamp(5, expected)]


def test_only_the_first_put_transmits_until_the_queue_has_been_found_empty():
    queue = numbered()
    assert queue.put([message("a")])
    assert not queue.put([message("b")])
    assert queue.next_packet() is not None
    assert queue.is_empty
    assert not queue.put([message("c")]), "the transmitter has not seen an empty queue yet"
    assert queue.next_packet() is not None
    assert queue.next_packet() is None
    assert queue.put([message("d")])


def test_held_message_waits_for_the_next_put_and_precedes_it():
    queue = numbered()
    queue.hold([message("schema", b"s")])
    assert not queue.is_empty
    assert queue.put([message("batch", b"rows")])
    assert drained(queue) == [(Stamp(5, 0), [message("schema", b"s"), message("batch", b"rows")])]


def test_held_messages_are_transmitted_by_one_thread_and_only_if_there_are_any():
    queue = numbered()
    assert not queue.transmit_held()
    queue.hold([message("a"), message("b")])
    assert queue.transmit_held()
    assert not queue.transmit_held(), "a thread transmits already"
    assert drained(queue) == [(Stamp(5, 0), [message("a"), message("b")])]
    queue.hold([message("c")])
    assert queue.transmit_held(), "the transmitter has found the queue empty before"


@given(
    st.lists(st.lists(st.lists(st.binary(max_size=60), max_size=3), max_size=4), max_size=8),
    st.integers(1, LIMIT),
)
def test_packets_hold_all_messages_once_and_end_as_soon_as_they_are_full(puts, limit):
    queue = numbered(limit)
    for bodies in puts:
        queue.put([message("m", *parts) for parts in bodies])
    packets = [[parts for _, parts in messages] for _, messages in drained(queue)]
    assert [parts for packet in packets for parts in packet] == [parts for bodies in puts for parts in bodies]
    sizes = [[sum(map(len, parts)) for parts in packet] for packet in packets]
    assert all(sum(size[:-1]) < limit for size in sizes)
    assert all(sum(size) >= limit for size in sizes[:-1])


def test_threads_that_put_transmit_one_at_a_time_and_every_message_once():
    threads, each = 4, 300
    queue = numbered(20)
    taken = []

    def run(number):
        for count in range(each):
            if queue.put([([number, count], [b"body"])]):
                while (packet := queue.next_packet()) is not None:
                    taken.append(packet)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert queue.is_empty
    packets = [parsed(packet) for packet in taken]
    assert [stamp.sequence for stamp, _ in packets] == list(range(len(packets)))
    sent = [header for _, messages in packets for header, _ in messages]
    for number in range(threads):
        assert [header for header in sent if header[0] == number] == [[number, count] for count in range(each)]
