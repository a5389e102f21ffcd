"""The final verdict on the replicas' files finds each possible fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker_runtime.log.files import RealFiles
from tests.chaos.faults import Flip
from tests.chaos.verdict import compare
from tests.unit.log.log_samples import append, frame, open_directory, open_log

_AT = ("t", 0)


def _replica(root: Path, seeds: Sequence[int], *, committed: int) -> Path:
    """A log of one frame of two records for each seed, with that many frames committed."""
    with open_directory(RealFiles(), root) as directory:
        log = open_log(directory)
        for number, seed in enumerate(seeds):
            append(log, frame(2, seed=seed), commit=number < committed)
        log.flush()
    return root / "t-0"


def test_equal_files_are_accepted(tmp_path: Path) -> None:
    """W11: this holds even if one has unacknowledged records."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1, 2, 3), committed=2)]
    assert compare({_AT: paths}, {_AT: 4}) == []


def test_one_different_byte_is_found(tmp_path: Path) -> None:
    """W11: byte-identical."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1, 3), committed=2)]
    (line,) = compare({_AT: paths}, {_AT: 4})
    assert "differ at offset 2" in line


def test_replica_that_lacks_read_records_is_found(tmp_path: Path) -> None:
    """W12: without faults every replica's disk has everything committed."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1,), committed=1)]
    assert compare({_AT: paths}, {_AT: 4}) == ["replicas: ('t', 0) is committed to 4, but they end at (4, 2)"]


def test_read_records_that_are_not_committed_on_the_disks_are_found(tmp_path: Path) -> None:
    """W11: reads never pass the high watermark; records that were not compared do not count as equal."""
    paths = [_replica(tmp_path / name, (1, 2), committed=1) for name in ("a", "b")]
    assert compare({_AT: paths}, {_AT: 4}) == [
        "replicas: ('t', 0) was read to 4, but is committed to 2 on the disks",
    ]


def test_flipped_bit_counts_until_its_file_is_replaced(tmp_path: Path) -> None:
    """So the end of a run knows whether damage was found."""
    path = tmp_path / "segment"
    path.write_bytes(b"damaged")
    flip = Flip(broker_id=1, partition=0, path=path, inode=path.stat().st_ino, position=2, value=ord("m"))
    assert flip.is_there()
    other = tmp_path / "other"
    other.write_bytes(b"damaged")
    other.rename(path)
    assert not flip.is_there()
    path.unlink()
    assert not flip.is_there()
