"""Sessions, attempts, lag over time, findings, and figures as people read them. Clocks of the tests' own."""

from __future__ import annotations

import pytest

from broker_runtime.contract.errors import SaslAuthenticationError
from broker_runtime.contract.model import GroupOffset, TopicPartition
from pyspark_log.console import formats
from pyspark_log.console.connection import AnswerCache
from pyspark_log.console.lag_history import LagHistory, LagSample, Pace, pace_of, sample_of
from pyspark_log.console.pages.groups import PartitionLag, findings, spark_points, trend_of
from pyspark_log.console.sessions import IDLE_S, LONGEST_S, Attempts, Sessions, is_cookie, new_cookie
from pyspark_log.console.visit import portion
from tests.clocks import ReadClock
from tests.unit.console.fakes import group, member

F0, F1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


class MovedClock(ReadClock):
    """Goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Connected:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_session_ends_when_it_idles() -> None:
    """A page that renews itself keeps nobody logged in; its connection is closed."""
    clock, connection = MovedClock(), Connected()
    sessions: Sessions[Connected] = Sessions(clock=clock)
    cookie = sessions.begin("ann", connection)
    clock.advance(IDLE_S - 1)
    assert sessions.find(cookie, by_hand=False) is not None
    clock.advance(2)
    assert sessions.find(cookie) is None
    assert connection.is_closed


def test_session_ends_with_its_token() -> None:
    """However busy it is."""
    clock = MovedClock()
    sessions: Sessions[Connected] = Sessions(clock=clock)
    cookie = sessions.begin("ann", Connected())
    for _ in range(int(LONGEST_S // 600)):
        clock.advance(600)
        sessions.find(cookie)
    clock.advance(1)
    assert sessions.find(cookie) is None


def test_sessions_are_bounded() -> None:
    """The one that has idled longest gives way."""
    sessions: Sessions[Connected] = Sessions(most=2, clock=MovedClock())
    first, second = sessions.begin("a", Connected()), sessions.begin("b", Connected())
    sessions.find(first)
    third = sessions.begin("c", Connected())
    assert [sessions.find(each) is not None for each in (first, second, third)] == [True, False, True]
    assert len(sessions) == 2


def test_user_who_logs_in_again_and_again_logs_nobody_else_out() -> None:
    """Their own session that has idled longest ends, and its connection is closed."""
    sessions: Sessions[Connected] = Sessions(clock=MovedClock())
    ann = sessions.begin("ann", Connected())
    connections = [Connected() for _ in range(300)]
    cookies = [sessions.begin("eve", each) for each in connections]
    assert sessions.find(ann) is not None
    assert [sessions.find(each) is not None for each in cookies] == [False] * 290 + [True] * 10
    assert [each.is_closed for each in connections] == [True] * 290 + [False] * 10


def test_cookie_has_a_shape() -> None:
    """What cannot be one is not looked up, and never comes back in a header."""
    assert is_cookie(new_cookie())
    assert new_cookie() != new_cookie()
    for wrong in ("", "a", new_cookie() + "a", new_cookie()[:-1] + "\n", "é" * 43, new_cookie()[:-1] + ";"):
        assert not is_cookie(wrong)


def test_attempts_are_few_for_a_user_and_an_address() -> None:
    """Five failures in a minute; others are not shut out, and the wait ends."""
    clock = MovedClock()
    attempts = Attempts(clock=clock)

    def wrong() -> None:
        raise SaslAuthenticationError("no")

    for _ in range(5):
        assert attempts.wait_s("ann", "h1") == 0
        with pytest.raises(SaslAuthenticationError):
            attempts.run(wrong, "ann", "h1", is_failure=SaslAuthenticationError)
    assert attempts.wait_s("ann", "h1") == 60
    assert attempts.wait_s("ann", "h2") == attempts.wait_s("bob", "h1") == 0
    clock.advance(60)
    assert attempts.wait_s("ann", "h1") == 0


def samples(*lags: int, every_s: float = 2.0) -> list[LagSample]:
    return [
        LagSample(at_s=index * every_s, lag=lag, committed=1_000 - lag, end=1_000) for index, lag in enumerate(lags)
    ]


def test_lag_history_is_bounded() -> None:
    """In samples, in groups, and in how often one is taken."""
    history = LagHistory()
    for number in range(2_000):
        history.add("g", LagSample(at_s=float(number), lag=number))
    assert len(history.of("g")) == 900
    history.add("g", LagSample(at_s=1_999.5, lag=0))
    assert history.of("g")[-1].lag == 1_999
    for number in range(300):
        history.add(f"g{number}", LagSample(at_s=0.0, lag=0))
    assert history.of("g") == []
    assert history.of("g299") != []


def test_sample_leaves_out_what_no_leader_told() -> None:
    """A lag of -1 is no lag."""
    found = sample_of({F0: GroupOffset(4, 10, 6), F1: GroupOffset(3, -1, -1)}, 7.0)
    assert found == LagSample(at_s=7.0, lag=6, committed=4, end=10)


def test_pace_says_when_the_lag_is_gone() -> None:
    """From what was committed and written meanwhile."""
    found = pace_of(samples(500, 400, 300))
    assert found == Pace(produced=0.0, consumed=50.0, catches_up_s=6.0)
    assert pace_of(samples(500)) is None
    assert pace_of([LagSample(at_s=0.0, lag=5), LagSample(at_s=9.0, lag=5)]) is None
    rising = [LagSample(at_s=each * 2.0, lag=100 * each, committed=0, end=100 * each) for each in range(3)]
    assert pace_of(rising) == Pace(produced=50.0, consumed=0.0, catches_up_s=None)


@pytest.mark.parametrize(
    ("lags", "trend"), [((5,), ""), ((100, 200), "rising"), ((200, 100), "falling"), ((1_000, 1_001), "steady")]
)
def test_trend_is_a_word(lags: tuple[int, ...], trend: str) -> None:
    """Small changes are none."""
    assert trend_of(samples(*lags)) == trend
    assert bool(spark_points(samples(*lags))) is (len(lags) > 1)


def lag(at: TopicPartition, behind: int, holder: str = "reader-1") -> PartitionLag:
    return PartitionLag(at=at, offset=GroupOffset(0, behind, behind), member=holder, waits_s=None)


@pytest.mark.parametrize(
    ("described", "rows", "pace", "said"),
    [
        (group("g"), [lag(F0, 9, "")], None, "no members and a lag of 9 records"),
        (group("g", coordinator=None), [], None, "has no coordinator"),
        (group("g", member(), state="assigning"), [], None, "rebalancing"),
        (group("g", member(heard_ms_ago=30_000)), [], None, "last heartbeat 30 s ago"),
        (group("g", member()), [lag(F0, 9, "")], None, "flights:0 is not assigned to any member"),
        (group("g", member()), [lag(F0, 90), lag(F1, 10)], None, "90 % of the lag is in flights:0, which is assigned"),
        (group("g", member()), [lag(F0, 9), lag(F1, 9)], Pace(produced=90.0, consumed=10.0, catches_up_s=None),
            "1 member for 2 partitions: add members"),
        (group("g", member()), [lag(F0, 9)], Pace(produced=90.0, consumed=10.0, catches_up_s=None), "add partitions"),
        (group("g", member()), [lag(F0, 9)], Pace(produced=0.0, consumed=0.0, catches_up_s=None), "not committed"),
        (group("g", member()), [lag(F0, 9)], Pace(produced=1.0, consumed=4.0, catches_up_s=3.0), "gone in about 3 s"),
        (group("g", member()), [lag(F0, 0)], None, "The group keeps up."),
    ],
)  # fmt: skip
def test_findings_name_the_cause(described: object, rows: list[PartitionLag], pace: Pace | None, said: str) -> None:
    """What a person who knows such groups would say."""
    assert any(said in each for each in findings(described, rows, pace))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (1 << 60, "1.0 EiB"),
     (None, formats.UNKNOWN), (-1, formats.UNKNOWN)],
)  # fmt: skip
def test_sizes_are_short(value: int | None, shown: str) -> None:
    """In powers of 1,024."""
    assert formats.size(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.25, "250 ms"), (12, "12 s"), (60, "1 min"), (184, "3 min 4 s"), (3_600, "1 h"), (7_500, "2 h 5 min"),
     (93_600, "1 d 2 h"), (86_405, "1 d")],
)  # fmt: skip
def test_durations_have_two_units(seconds: float, shown: str) -> None:
    """Nobody reads an age in seconds."""
    assert formats.duration(seconds) == shown


def test_moments_never_fail() -> None:
    """Records may have any time."""
    assert formats.moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert formats.moment_ms(1_700_000_000_123).endswith(":20.123")
    for strange in (2**62, -5, None):
        assert formats.moment(strange)
    assert formats.moment_ms(2**62)
    assert formats.moment_ms(-1)


def test_portion_never_runs_out() -> None:
    """A number beyond the last page is the last page."""
    assert portion(list(range(120)), 3).rows == list(range(100, 120))
    assert portion(list(range(120)), 99).number == 3
    assert portion([], 1).pages == 1


def test_prose_with_code_is_escaped() -> None:
    """What stands between backquotes is code, and nothing is markup."""
    assert str(formats.coded("see `a<b`, <i>")) == "see <code>a&lt;b</code>, &lt;i&gt;"


def test_answers_that_took_long_are_kept_four_times_as_long() -> None:
    """One that came at once is asked for again; a failure is not kept."""
    clock = MovedClock()
    memory, asked = AnswerCache(clock=clock), []

    def slowly() -> int:
        clock.advance(2)
        asked.append("slowly")
        return len(asked)

    assert [memory.ask("slow", slowly) for _ in range(3)] == [1, 1, 1]
    clock.advance(8)
    assert memory.ask("slow", slowly) == 2
    assert [memory.ask("quick", lambda: asked.append("quick")) for _ in range(3)] == [None] * 3
    assert asked.count("quick") == 3
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            memory.ask("failing", lambda: 1 // 0)
