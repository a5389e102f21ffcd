"""A broker whose port refuses is probably dead; what ends a suspicion."""

from broker_runtime.controller.suspicion import STARTING_MS, Suspicions
from broker_runtime.zookeeper.znodes import BrokerRegistration


def registration(epoch=1):
    return BrokerRegistration(host="h", port=1, epoch=epoch, instance="i", pid=1)


class Peers:
    """Broker 1's suspicions of broker 2, whose port refuses, answers, or answers late."""

    def __init__(self):
        self.now_ms = 0
        self.refuses = False
        self.during_probe = lambda: None
        self.suspicions = Suspicions(1, self._probe, lambda: self.now_ms)
        self.register(1)

    def _probe(self, host, port):
        self.during_probe()
        return self.refuses

    def register(self, epoch):
        self.suspicions.registered({1: registration(), 2: registration(epoch)})


def test_port_that_answered_and_refuses_is_suspected_until_it_answers():
    peers = Peers()
    assert not peers.suspicions.look(2)
    peers.refuses = True
    assert peers.suspicions.look(2)
    assert not peers.suspicions.look(2), "nothing new"
    assert peers.suspicions.dead == {2: 1}
    peers.refuses = False
    assert peers.suspicions.look_at_all()
    assert peers.suspicions.dead == {}


def test_starting_broker_is_given_time():
    peers = Peers()
    peers.refuses = True
    peers.suspicions.look(2)
    assert peers.suspicions.dead == {}
    peers.now_ms = STARTING_MS
    assert peers.suspicions.look(2)
    assert peers.suspicions.dead == {2: 1}


def test_broker_itself_and_unknown_brokers_are_never_probed():
    peers = Peers()
    peers.during_probe = lambda: (_ for _ in ()).throw(AssertionError("probed"))
    assert not peers.suspicions.look(1)
    assert not peers.suspicions.look(9)


def test_refusal_does_not_count_for_a_registration_made_during_the_probe():
    peers = Peers()
    peers.now_ms = STARTING_MS
    peers.refuses = True
    peers.during_probe = lambda: peers.register(2)
    assert not peers.suspicions.look(2)
    assert peers.suspicions.dead == {}


def test_suspicion_ends_with_the_registration():
    peers = Peers()
    peers.now_ms = STARTING_MS
    peers.refuses = True
    peers.suspicions.look(2)
    peers.register(1)
    assert peers.suspicions.dead == {2: 1}
    peers.register(2)
    assert peers.suspicions.dead == {}


def test_doubt_ends_with_an_answer_or_becomes_suspicion():
    """A port that refuses at first is doubtful; each end of the doubt is reported, as somebody may wait for it."""
    peers = Peers()
    assert peers.suspicions.doubtful == frozenset()
    peers.refuses = True
    assert peers.suspicions.look(2)
    assert peers.suspicions.doubtful == {2}
    peers.refuses = False
    assert peers.suspicions.look(2)
    assert peers.suspicions.doubtful == frozenset()
    peers.register(3)
    peers.refuses = True
    assert peers.suspicions.look(2)
    peers.now_ms = STARTING_MS
    assert peers.suspicions.look(2)
    assert peers.suspicions.doubtful == frozenset()
    assert peers.suspicions.dead == {2: 3}


def test_broker_that_is_trusted_is_not_doubtful():
    """Other brokers fetch from it, or it from them, though its port refuses this broker."""
    peers = Peers()
    peers.refuses, peers.now_ms = True, STARTING_MS
    assert peers.suspicions.look(2)
    peers.suspicions.left_in_sync(frozenset())
    peers.suspicions.found_in_sync(frozenset({2}))
    peers.suspicions.look(2)
    assert peers.suspicions.dead == {}
    assert peers.suspicions.doubtful == frozenset()
