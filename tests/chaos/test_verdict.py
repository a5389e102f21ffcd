"""What is said of replicas' files at the end: each thing that can be wrong with them is seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker_runtime.log.files import RealFiles
from tests.chaos.faults import Flip
from tests.chaos.verdict import compare
from tests.unit.log.log_samples import append, frame, open_directory, open_log

_AT = ("t", 0)


def _replica(root: Path, seeds: Sequence[int], *, committed: int) -> Path:
    """A log of one frame of two records for each seed; so many frames are committed."""
    with open_directory(RealFiles(), root) as directory:
        log = open_log(directory)
        for number, seed in enumerate(seeds):
            append(log, frame(2, seed=seed), commit=number < committed)
        log.flush()
    return root / "t-0"


def test_same_files_have_nothing_wrong(tmp_path: Path) -> None:
    """W11: also where one has records that nobody was promised."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1, 2, 3), committed=2)]
    assert compare({_AT: paths}, {_AT: 4}) == []


def test_one_other_byte_is_seen(tmp_path: Path) -> None:
    """W11: byte-identical."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1, 3), committed=2)]
    (line,) = compare({_AT: paths}, {_AT: 4})
    assert "differ at offset 2" in line


def test_replica_that_lacks_what_was_read_is_seen(tmp_path: Path) -> None:
    """W12: what is committed is on all replicas' disks when nothing is broken."""
    paths = [_replica(tmp_path / "a", (1, 2), committed=2), _replica(tmp_path / "b", (1,), committed=1)]
    assert compare({_AT: paths}, {_AT: 4}) == ["replicas: ('t', 0) is committed to 4, but they end at (4, 2)"]


def test_what_was_read_and_is_not_committed_on_the_disks_is_seen(tmp_path: Path) -> None:
    """W11: never above the high watermark; and what was not compared is not called the same."""
    paths = [_replica(tmp_path / name, (1, 2), committed=1) for name in ("a", "b")]
    assert compare({_AT: paths}, {_AT: 4}) == [
        "replicas: ('t', 0) was read to 4, but is committed to 2 on the disks",
    ]


def test_flipped_bit_is_there_until_its_file_is_another(tmp_path: Path) -> None:
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
