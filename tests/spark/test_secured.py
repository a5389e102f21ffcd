"""Spark on a cluster on which not everybody may do everything, and where its secrets are to be seen: nowhere."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from pyspark_log import Acl, DefaultSource
from pyspark_log.errors import SaslAuthenticationError
from pyspark_log.spark import task_secrets
from tests.secured import Secured, secured_cluster
from tests.waiting import wait_until

TOPIC, OUT, PASSWORD = "rides", "copies", "a password of spark's"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured"), 1) as made:
        with made.admin() as admin:
            admin.create_topic(TOPIC, partitions=2)
            admin.create_topic(OUT, partitions=2)
            admin.set_password("spark", PASSWORD)
            admin.create_acls(
                [
                    Acl(principal="User:spark", operation="Read", resource_type="Topic", name=TOPIC),
                    Acl(principal="User:spark", operation="Write", resource_type="Topic", name=TOPIC),
                    Acl(principal="User:spark", operation="Write", resource_type="Topic", name=OUT),
                    Acl(
                        principal="User:spark", operation="Write", resource_type="TransactionalId", name="*",
                    ),
                    Acl(principal="User:spark", operation="Read", resource_type="Group", name="team"),
                ]
            )  # fmt: skip
        yield made


@pytest.fixture
def options(secured: Secured) -> dict[str, str]:
    return {f"pylog.{name}": value for name, value in secured.user("spark", PASSWORD).items()}


def test_job_reads_and_writes_with_a_user_over_tls_and_shows_its_password_nowhere(
    spark: SparkSession, secured: Secured, options: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Batch write, batch read, a stream from topic to topic; plans, progress, checkpoint and output are searched."""
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("pylog").options(**options).option("topic", TOPIC).mode("append").save()
    read = spark.read.format("pylog").options(**options).option("subscribe", TOPIC).load()
    assert read.count() == 100
    stream = (
        spark.readStream.format("pylog")
        .options(**options)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("pylog.group.id", "team")
        .load()
    )
    checkpoint = tmp_path / "checkpoint"
    query = (
        stream.select("value")
        .writeStream.format("pylog")
        .options(**options)
        .option("topic", OUT)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("simple", "extended", "formatted", "cost"):
            read.explain(mode=mode)
    texts = [shown.getvalue(), repr(read), repr(query.recentProgress), str(query.status), "".join(capfd.readouterr())]
    texts += [path.read_text(errors="replace") for path in checkpoint.rglob("*") if path.is_file()]
    assert len(texts) > 6
    for text in texts:
        assert PASSWORD not in text
    root = {f"pylog.{name}": value for name, value in secured.root.items()}
    root["pylog.bootstrap.servers"] = secured.cluster.bootstrap_servers_of("IN")
    copies = spark.read.format("pylog").options(**root).option("subscribe", OUT).load()
    assert sorted(int(row.value) for row in copies.collect()) == list(range(100))


@pytest.mark.parametrize("what", ["wrong password", "topic that may not be read"])
def test_refusal_is_one_sentence_without_the_password(spark: SparkSession, options: dict[str, str], what: str) -> None:
    given = dict(options)
    if what == "wrong password":
        given["pylog.sasl.password"] = PASSWORD[::-1]
    reader = spark.read.format("pylog").options(**given).option("subscribe", OUT)
    with pytest.raises(Exception, match=r"\[(SASL_AUTHENTICATION|TOPIC_AUTHORIZATION)_FAILED\]") as refused:
        reader.load().count()
    text = str(refused.value)
    assert PASSWORD not in text
    assert PASSWORD[::-1] not in text
    assert re.search("is wrong|may not Read topic 'copies'", text)


def test_tasks_get_a_token_and_never_the_password(
    spark: SparkSession, secured: Secured, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark pickles for the executors, of a reader and of a writer, is searched."""
    source = DefaultSource(dict(options, subscribe=TOPIC, topic=TOPIC))
    as_created = cloudpickle.dumps(source)
    assert PASSWORD.encode() in as_created  # for the driver's own processes
    schema = source.schema()
    reader = source.reader(schema)
    (*_, partition) = reader.partitions()
    assert partition.token.startswith("pylog.")
    writer = source.writer(schema.fromDDL("value STRING"), overwrite=False)
    stream_writer = source.streamWriter(schema.fromDDL("value STRING"), overwrite=False)
    for sent in (source, reader, source.streamReader(schema), writer, stream_writer, partition):
        assert PASSWORD.encode() not in cloudpickle.dumps(sent), sent
    task = cloudpickle.loads(cloudpickle.dumps(reader))
    assert sum(batch.num_rows for batch in task.read(partition)) > 0
    with pytest.raises(Exception, match=r"needs sasl\.password"):
        list(task.read(InputPartition(partition.value)))


def test_tasks_get_on_within_a_minute_after_the_same_password_was_set_again(
    spark: SparkSession, secured: Secured, options: dict[str, str]
) -> None:
    """It ends the token that tasks have, while the driver's password is as right as before."""
    source = DefaultSource(dict(options, subscribe=TOPIC))
    reader = source.reader(source.schema())
    (*_, before) = reader.partitions()
    with secured.admin() as admin:
        admin.set_password("spark", PASSWORD)
    task = cloudpickle.loads(cloudpickle.dumps(reader))

    def is_refused() -> bool:
        try:
            list(task.read(before))
        except SaslAuthenticationError:
            return True
        return False

    wait_until(is_refused, "the broker has read the new password")
    for key, (token, made_s) in tuple(task_secrets._tokens.items()):  # a minute later
        task_secrets._tokens[key] = (token, made_s - 61)
    (*_, after) = reader.partitions()
    assert after.token != before.token
    assert sum(batch.num_rows for batch in task.read(after)) > 0


def test_given_token_is_passed_on_as_it_is(secured: Secured, options: dict[str, str]) -> None:
    given = {name: value for name, value in options.items() if not name.startswith("pylog.sasl.")}
    source = DefaultSource({**given, "pylog.token": "pylog.theirs", "subscribe": TOPIC})
    with pytest.raises(Exception, match="the token is not valid, or no longer"):
        source.schema()


def test_token_in_a_file_of_the_drivers_is_enough(
    spark: SparkSession, secured: Secured, options: dict[str, str], tmp_path: Path
) -> None:
    """Tasks get what was in it, and not the path, which is nothing to them."""
    source = DefaultSource(dict(options, subscribe=TOPIC))
    (*_, partition) = source.reader(source.schema()).partitions()
    file = tmp_path / "token"
    file.write_text(partition.token)
    given = {name: value for name, value in options.items() if not name.startswith("pylog.sasl.")}
    given["pylog.token.file"] = str(file)
    from_file = DefaultSource(dict(given, subscribe=TOPIC))
    reader = from_file.reader(from_file.schema())
    (*_, task_partition) = reader.partitions()
    assert task_partition.token == partition.token
    assert str(file).encode() not in cloudpickle.dumps(reader)
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("pylog").options(**given).option("topic", TOPIC).mode("append").save()
    assert spark.read.format("pylog").options(**given).option("subscribe", TOPIC).load().count() >= 10
