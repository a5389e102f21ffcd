"""What a follower takes over of its leader's marks."""

from broker_runtime.following.follower_log import adopt_marks
from tests.unit.log.log_samples import fill, open_directory, open_log


def test_high_watermark_that_an_earlier_leader_reported_does_not_go_back():
    """W12: what is committed stays so: a new leader learns only step by step how far that goes."""
    log = open_log(open_directory())
    fill(log, 3)
    adopt_marks(log, 1, 0)
    assert log.high_watermark == 3


def test_log_starts_at_most_where_it_is_committed():
    """W12: a leader that has deleted more than this replica knows to be committed is followed as far as that goes."""
    log = open_log(open_directory())
    fill(log, 3, commit=False)
    log.flush()
    adopt_marks(log, 2, 3)
    assert (log.high_watermark, log.log_start_offset) == (2, 2)
