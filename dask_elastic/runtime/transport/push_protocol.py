"""The messages between a client that pushes rows and the worker of the source.

==================================  ==================  ===============================================================
message                             from                meaning
==================================  ==================  ===============================================================
``begin`` job, generation, source,  client              the first message; says which mailbox the rows are for, and who
instance, sender                                        sends them if the source makes rows durable, else ""
``begun`` sequence                  worker              the mailbox exists and is open; the newest number of the sender
                                                        that is durable
``schema`` + schema                 client              the next schema; batches name it by its number
``rows`` schema number, due,        client              a batch for the mailbox, and the sender's number for it
sequence + rows
``ask``                             client              asks for ``taken``
``taken`` batches, bytes            worker              so much of what came on this connection is in the mailbox, and
                                                        durable if the source makes rows durable
``ended`` batches (+ error)         worker              the mailbox took so many batches and takes no more; the error of
                                                        the job if it failed on this worker
==================================  ==================  ===============================================================

The worker sends ``taken`` when asked, and whenever `ACKNOWLEDGED` bytes have been taken since the last one. A client
sends while fewer than `WINDOW` bytes are not known to be taken.
"""

from __future__ import annotations

WINDOW = 8 * 2**20
"""Bytes that a client may have sent without knowing that they are in the mailbox, and one batch more."""

ACKNOWLEDGED = WINDOW // 4
"""Bytes after which the worker reports without being asked."""

OVERHEAD = 512
"""Bytes that a batch counts beyond its body."""

OPERATION = "elastic_push"
"""What a client calls at a worker to open the connection."""


def cost_of(parts: list[memoryview] | list[bytes]) -> int:
    """Return the bytes that a batch counts against the window."""
    return OVERHEAD + sum(map(len, parts))
