"""`pylog log dump`, `verify` and `repair` on the files of a real broker (W27)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from pylog_command import Pylog

from broker_runtime.contract.model import TransactionListing
from broker_runtime.log.inspect import iterate_frames
from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

RECORDS = 200


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a stopped broker with the partitions t-0 and t-1."""
    with LocalCluster(directory=tmp_path_factory.mktemp("cluster")) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(cluster.bootstrap_servers, compression_type="zstd") as producer:
            for number in range(RECORDS):
                producer.send("t", b"x" * 100, partition=number % 2, timestamp=1_700_000_000_000 + number)
                if number % 20 == 19:
                    producer.flush()
        return cluster.log_dirs(1)[0]


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def segment(data: Path) -> Path:
    """The only segment of t-0."""
    (found,) = (data / "t-0").glob("*.log")
    return found


def test_dump_shows_dense_frames_in_all_formats(run_pylog: Pylog, data: Path) -> None:
    """`log dump` prints offset, records, bytes, timestamps, codec, crc."""
    frames = [
        json.loads(line) for line in run_pylog("log", "dump", str(segment(data)), "-o", "jsonl").stdout.splitlines()
    ]
    assert len(frames) >= 10
    next_offset = position = 0
    for frame in frames:
        assert (frame["base_offset"], frame["position"], frame["crc_ok"]) == (next_offset, position, True)
        assert (frame["codec"], frame["error"]) == ("zstd", None)
        next_offset, position = frame["last_offset"] + 1, position + frame["bytes"]
    assert next_offset == RECORDS // 2
    assert frames[0]["base_timestamp"] == 1_700_000_000_000
    as_json = json.loads(run_pylog("log", "dump", str(data / "t-0"), "-o", "json").stdout)
    assert as_json == frames
    table = run_pylog("log", "dump", str(data)).stdout.splitlines()
    assert table[0].split() == ["POSITION", "OFFSET", "RECORDS", "BYTES", "TIMESTAMP", "CODEC", "CRC-OK", "CONTROL"]
    assert sum(int(line.split()[2]) for line in table[1:]) == RECORDS


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The data directories of two stopped brokers with replicas of x-0: a record in a committed transaction, one in an
    aborted one, and one in a transaction that is open."""
    with LocalCluster(brokers=2, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("x", replication_factor=2)
        with Producer(cluster.bootstrap_servers, transactional_id="tx") as producer:
            with producer.transaction():
                producer.send("x", b"committed")
            wait_until_finished(cluster)
            producer.begin_transaction()
            producer.send("x", b"aborted").result(30)
            producer.abort_transaction()
            wait_until_finished(cluster)
        left = Producer(cluster.bootstrap_servers, transactional_id="left")
        left.begin_transaction()
        left.send("x", b"open").result(30)
        return [cluster.log_dirs(broker)[0] for broker in (1, 2)]


def wait_until_finished(cluster: LocalCluster) -> None:
    wait_until(lambda: [each.unfinished for each in admin_listing(cluster)] == [()], "the outcomes are in the log", 30)


def admin_listing(cluster: LocalCluster) -> list[TransactionListing]:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.list_transactions()


def test_dump_shows_how_transactions_begin_and_end(run_pylog: Pylog, transactional: list[Path]) -> None:
    """Control frames are shown with id, epoch, batch and outcomes, and the last stable offset with what is open."""
    partition = transactional[0] / "x-0"
    done = run_pylog("log", "dump", str(partition), "-o", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    controls = [row["control"] for row in rows if row["is_control"]]
    assert [each["type"] for each in controls] == [
        "TransactionBegin", "TransactionEnd", "TransactionBegin", "TransactionEnd", "TransactionBegin",
    ]  # fmt: skip
    assert [each["transactional_id"] for each in controls] == ["tx"] * 4 + ["left"]
    assert [each["ended"][0]["is_committed"] for each in controls if "ended" in each] == [True, False]
    assert [row["last_stable_offset"] for row in rows] == [0, 0, 3, 3, 3, 6, 6, 6]
    assert "x-0: last stable offset 6, log end 8, 1 open transaction" in done.stderr
    assert "open since offset 6: transactional id left, epoch 0, batch 0" in done.stderr
    table = run_pylog("log", "dump", str(partition)).stdout
    assert "begin tx epoch 0 batch 0" in table
    assert re.search(r"end tx epoch 0 batch 1: aborted \d+; stable to 6", table)


def test_verify_and_compare_check_the_index_of_aborted_transactions(
    run_pylog: Pylog, transactional: list[Path], tmp_path: Path
) -> None:
    """An index that lacks an aborted range is damage, and a difference between replicas."""
    one, two = (Path(shutil.copytree(each, tmp_path / str(n))) for n, each in enumerate(transactional))
    done = run_pylog("log", "verify", str(one / "x-0"))
    assert (done.returncode, "1 open transaction" in done.stderr) == (0, True), done.stderr
    assert run_pylog("log", "verify", "--compare", str(one), str(two)).returncode == 0
    [index] = (one / "x-0").glob("*.txnindex")
    index.unlink()
    done = run_pylog("log", "verify", str(one / "x-0"))
    assert done.returncode == 1
    assert "it lacks the aborted transaction of producer" in done.stderr
    done = run_pylog("log", "verify", "--compare", str(one), str(two))
    assert done.returncode == 1
    assert f"{one}/x-0 is wrong: it lacks the aborted transaction" in done.stderr


def test_verify_finds_nothing_wrong_with_a_sound_log(run_pylog: Pylog, data: Path) -> None:
    """The exit status is 0, each segment is ok, and the records are counted."""
    done = run_pylog("log", "verify", str(data), "-o", "json")
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert {report["partition"] for report in reports} == {"t-0", "t-1"}
    assert all(report["ok"] for report in reports)
    assert sum(report["records"] for report in reports) == RECORDS
    assert "200 records" in done.stderr


def test_verify_exits_1_on_a_flipped_bit_and_names_its_position(run_pylog: Pylog, data: Path) -> None:
    """`log verify` exits 1 on damage."""
    frames = json.loads(run_pylog("log", "dump", str(segment(data)), "-o", "json").stdout)
    damaged = bytearray(segment(data).read_bytes())
    damaged[frames[3]["position"] + frames[3]["bytes"] - 70] ^= 0x40
    segment(data).write_bytes(damaged)
    done = run_pylog("logs", "verify", str(data))
    assert done.returncode == 1
    assert done.stderr.startswith(f"[CORRUPT_MESSAGE] {segment(data)} at byte {frames[3]['position']}, offset ")
    after = json.loads(run_pylog("log", "dump", str(segment(data)), "-o", "json").stdout)
    assert [frame["crc_ok"] for frame in after].count(False) == 1
    assert after[-1]["crc_ok"]


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_verify_exits_1_on_a_file_cut_short(run_pylog: Pylog, data: Path, suffix: str) -> None:
    """A torn segment or index is damage."""
    file = segment(data).with_suffix(suffix)
    content = file.read_bytes()
    assert content, "nothing to cut"
    file.write_bytes(content[:-1])
    assert run_pylog("log", "verify", str(data / "t-0")).returncode == 1
    assert run_pylog("log", "verify", str(data / "t-1")).returncode == 0


def test_log_commands_refuse_paths_that_are_no_log(run_pylog: Pylog, tmp_path: Path) -> None:
    """Wrong paths are usage errors that name them."""
    (tmp_path / "x.txt").write_text("x")
    for arguments in (("verify", "missing"), ("verify", str(tmp_path)), ("dump", str(tmp_path / "x.txt"))):
        done = run_pylog("log", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert arguments[1] in done.stderr


def damage(data: Path, frame: int = 3) -> tuple[Path, int]:
    """Flips a bit in a frame of t-0; returns its partition and the frame's first offset."""
    file = segment(data)
    position = offset = 0
    content = bytearray(file.read_bytes())
    for number, (found, header, _) in enumerate(iterate_frames(file)):
        assert header is not None
        if number == frame:
            position, offset = found + header.frame_bytes - 70, header.base_offset
    content[position] ^= 0x40
    file.write_bytes(content)
    return file.parent, offset


def test_repair_shows_the_loss_asks_and_truncates(run_pylog: Pylog, data: Path) -> None:
    """A damaged log without replicas is served again up to the damage, once its operator confirms."""
    partition, offset = damage(data)
    before = segment(data).read_bytes()
    refused = run_pylog("log", "repair", str(partition), stdin="no\n")
    assert refused.returncode == 1
    assert f"deletes {RECORDS // 2 - offset} records of t-0" in refused.stderr
    assert "start this broker" in refused.stderr
    assert segment(data).read_bytes() == before
    done = run_pylog("log", "repair", str(partition), "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["kept_end"], row["lost_from"], row["lost_records"]) == (offset, offset, RECORDS // 2 - offset)
    frames = json.loads(run_pylog("log", "dump", str(segment(data)), "-o", "json").stdout)
    assert all(frame["crc_ok"] for frame in frames)
    assert frames[-1]["last_offset"] == offset - 1
    again = run_pylog("log", "repair", str(partition), "--yes")
    assert again.returncode == 0
    assert "needs no repair" in again.stderr


def test_repaired_log_is_served_by_its_broker(run_pylog: Pylog, tmp_path: Path) -> None:
    """Repair is refused beside the broker; afterwards the rest is served, and appended to."""
    with LocalCluster(directory=tmp_path) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number).result(30)
        (data,) = cluster.log_dirs(1)
        running = run_pylog("log", "repair", str(data / "t-0"), "--yes")
        assert running.returncode != 0
        assert "in use by process" in running.stderr
        cluster.stop(1)
        partition, offset = damage(data, 6)
        assert run_pylog("log", "repair", str(partition), "--yes").returncode == 0
        cluster.start(1)
        cluster.wait_until_ready()
        with Producer(cluster.bootstrap_servers) as producer:
            assert producer.send("t", b"new").result(30).offset == offset
        values = read("t", bootstrap_servers=cluster.bootstrap_servers).read_all()["value"].to_pylist()
        assert values == [*(b"%d" % number for number in range(offset)), b"new"]


def test_repair_refuses_paths_that_are_no_partition_of_a_broker(run_pylog: Pylog, data: Path, tmp_path: Path) -> None:
    """Wrong paths are usage errors that name them."""
    (tmp_path / "u-0").mkdir()
    for path in ("missing-0", str(data), str(tmp_path / "u-0")):
        done = run_pylog("log", "repair", path, "--yes")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
