"""The broker's Flight server: translates between streams and the services, and watches over peers.

    flight            which Flight call is which service
    boundary          a call → its `Caller`; errors of every kind → what the wire may see
    authentication    who a listener's callers are
    openings          calls before their first message
    produce_stream    DoPut of frames: one thread reads and appends, one acknowledges, in order
    fetch_session     DoExchange: a fetch at a time, with signs of life while it waits
    plain_dialect     ordinary record batches for any Flight client
    streams           which streams are open, and which have waited too long for their peer
    receive_credits   how much streams may send before it is asked for
    memory_watch      cuts connections before the broker passes its memory limit
    thread_watch      cuts connections whose calls take too many threads
    connection_watch  cuts connections without a stream where there are too many
    connections       finds a peer's TCP connection among this process's sockets, and closes it

Rule: knows no log and no partition, only services; holds no lock over a read or write of the network.
"""
