"""``df.write`` and ``df.writeStream`` with ``format("pylog")``: rows go out as Arrow batches, each in the log once.

    task      begin an attempt ─▶ write its rows, invisible ─▶ wait until they are acknowledged ─▶ message
    driver    commit(messages): the one decision about the batch; exactly the attempts it names become visible

A streaming query's transactional id is its query id (or ``pylog.transactional.id``), its transactions are its
micro-batches. A batch that was decided before is replayed by Spark after a stop or a crash at the wrong moment: its
tasks then read and count their rows, and write nothing. A batch write is a transaction of an id of its own, or of
``txnAppId`` and ``txnVersion``.

Rule: options and schema are checked when the writer is made; a broker is asked only in tasks and for the decision, and
as patiently as the source does, because any exception ends the query. Rows stay Arrow. After the decision nothing
raises.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from broker_runtime.contract.errors import (
    OptionError,
    OverwriteRefusedError,
    PylogError,
    RetriableError,
    SchemaMismatchError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.frame import HEADERS_TYPE
from broker_runtime.contract.schema import cast_to_topic
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer.attempts import (
    AttemptProducer,
    AttemptResult,
    BatchScope,
    abort,
    decide,
    decide_empty,
    wait_until_visible,
)
from pyspark_log.client.producer.delivery import BatchFuture
from pyspark_log.client.producer.record_batches import joined, payload_bytes
from pyspark_log.spark.log_view import QUERY_PATIENCE_S
from pyspark_log.spark.options import SinkOptions
from pyspark_log.spark.plain_errors import plain_errors
from pyspark_log.spark.sink_columns import RecordColumns, find_record_columns
from pyspark_log.spark.task_secrets import task_token, with_token
from pyspark_log.spark.worker_cluster import worker_cluster
from pyspark_log.spark.worker_memory import keep_imports

_SEND_BYTES = 4 << 20  # Spark's batches, of 10,000 rows at most, are joined until frames of a good size can be made
"""How much is handed to the producer at a time: a full frame (1 MiB) for each of a few partitions."""
_KEPT_PRODUCERS: Final = 4
"""How many open producers a worker process keeps, one for each transactional id."""
_KEEP_MS: Final = 30 * 86_400_000
_KEEP_ONCE_MS: Final = 3_600_000
"""How long a transactional id is remembered that serves one batch write, beyond twice its time limit: longer than its
commit is tried again, and while tasks are at work, of which each may begin when another has been open for almost that
limit."""

_VISIBLE_S: Final = 10.0

_QUERY_ID, _BATCH_ID, _RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_producers: dict[tuple[object, ...], AttemptProducer] = {}


@dataclass
class AttemptWritten(WriterCommitMessage):
    """What a task reports to the driver. ``result`` None: it had no rows, and began nothing. ``scope``: the batch that
    it belongs to."""

    rows: int
    scope: BatchScope
    payload_bytes: int = 0
    result: AttemptResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """How a DataFrame's rows become records. ``columns`` None: a typed topic, columns by name."""

    options: SinkOptions
    columns: RecordColumns | None


def check_schema(options: SinkOptions, schema: StructType) -> None:
    """What can be checked without a broker. Raises `SchemaMismatchError`."""
    if options.topic is None:
        find_record_columns(schema, None)


def plan_sink(options: SinkOptions, schema: StructType, cluster: Cluster | None = None) -> SinkPlan:
    """Checks the topic, if the option names it, and the schema. Raises `UnknownTopicOrPartitionError`,
    `SchemaMismatchError`, and what asking a broker raises. ``cluster``: the caller's connections."""
    if options.topic is None:
        return SinkPlan(options=options, columns=find_record_columns(schema, None))
    own = cluster if cluster is not None else Cluster.from_settings(options.settings())
    try:
        topic = own.topic(options.topic)
        try:
            return _plan_for(options, schema, topic)
        except SchemaMismatchError:  # these connections may not have seen a column that was added
            return _plan_for(options, schema, own.topic(options.topic, max_age=topic))
    finally:
        if cluster is None:
            own.close()


def _plan_for(options: SinkOptions, schema: StructType, topic: Topic) -> SinkPlan:
    if not topic.is_typed:
        return SinkPlan(options=options, columns=find_record_columns(schema, options.topic))
    empty = to_arrow_schema(schema, timezone="UTC").empty_table()
    cast_to_topic(empty, topic.schema)
    return SinkPlan(options=options, columns=None)


class PylogBatchWriter(DataSourceArrowWriter):
    """For ``df.write``; pickled to the executors, and back to commit. All rows become visible together."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__()
        if overwrite:
            raise OverwriteRefusedError('A log only appends. Use .mode("append"), or delete the topic first.')
        is_named = options.app_id is not None
        # A write that has a name is one of a query's, which waits as long as its source does.
        plan = _patiently(lambda: plan_sink(options, schema)) if is_named else plan_sink(options, schema)
        self._plan = replace(plan, options=with_token(options, task_token(options)))
        # Made once: attempts, commit and abort share it.
        write_id = uuid.uuid4().hex
        self._scope = BatchScope(
            transactional_id=options.app_id if options.app_id is not None else f"write-{write_id}",
            run_id=write_id,
            batch_id=options.version or 0,
            timeout_ms=options.transaction_timeout_ms,
            keep_ms=_KEEP_MS if is_named else _KEEP_ONCE_MS + 2 * options.transaction_timeout_ms,
        )

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows and waits until they are acknowledged. They are not visible yet."""
        return write_attempt(lambda _: self._plan, self._plan.options, lambda: self._scope, iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Makes all rows visible, and waits until readers find them (up to `_VISIBLE_S`)."""
        commit_batch(self._plan.options, messages, is_visible_after=True)

    @plain_errors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing of what was written becomes visible, unless it was decided before."""
        abort_batch(self._plan.options, self._scope)


class PylogStreamWriter(DataSourceStreamArrowWriter):
    """For ``df.writeStream``; Spark makes one per micro-batch for the tasks, and one to commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        keep_imports()
        check_schema(options, schema)
        self._options = with_token(options, _patiently(lambda: task_token(options)))
        self._schema = schema

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows and waits until they are acknowledged. They are not visible yet."""
        options, schema = self._options, self._schema
        return write_attempt(
            lambda cluster: plan_sink(options, schema, cluster), options, lambda: stream_scope(options), iterator
        )

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The one decision about the micro-batch."""
        commit_batch(self._options, messages)

    @plain_errors()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing of the micro-batch becomes visible, unless it was decided before."""
        scope = next((each.scope for each in _written(messages)), None)
        if scope is not None:  # else a later run, or the time limit, ends what its tasks began
            abort_batch(self._options, scope)


def write_once(df: Any, batch_id: int, *, app_id: str, **options: str) -> None:
    """Writes ``df`` to pylog unless batch ``batch_id`` of ``app_id`` has been written already.

    For ``foreachBatch``: Spark calls it again with the same batch after a failure. ``app_id``: names this write, and no
    other one of the query. ``options``: as for ``df.write.format("pylog")``, with ``_`` for ``.`` in names that begin
    with ``pylog_`` (``topic="t"``, ``pylog_bootstrap_servers="host:9192"``). Raises what the write raises: an earlier
    batch, or the same one with other contents, is an error.
    """
    named = {
        name.replace("_", ".") if name.startswith("pylog_") else name: str(value) for name, value in options.items()
    }
    writer = df.write.format("pylog").mode("append").options(**named)
    writer.option("txnAppId", app_id).option("txnVersion", str(batch_id)).save()


def stream_scope(options: SinkOptions) -> BatchScope:
    """The scope of the micro-batch that this task belongs to, from Spark's local properties. Raises `OptionError` where
    Spark does not say which query it is."""
    context = TaskContext.get()
    properties = (
        {} if context is None else {name: context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN_ID)}
    )
    name = options.transactional_id or properties.get(_QUERY_ID)
    batch_id, run_id = properties.get(_BATCH_ID), properties.get(_RUN_ID)
    if not name or not batch_id or not run_id:
        raise OptionError(
            "Spark does not tell the sink which query and micro-batch it writes for. Give the query a name of its own "
            "with the option pylog.transactional.id, or write in foreachBatch with pyspark_log.write_once"
        )
    return BatchScope(
        transactional_id=name,
        run_id=run_id,
        batch_id=int(batch_id),
        timeout_ms=options.transaction_timeout_ms,
        keep_ms=_KEEP_MS,
    )


def write_attempt(
    plan_with: Callable[[Cluster], SinkPlan],
    options: SinkOptions,
    scope_of: Callable[[], BatchScope],
    batches: Iterator[pa.RecordBatch],
) -> AttemptWritten:
    """One attempt of a task: sends all rows and waits for their acknowledgements. Raises the first delivery error,
    and what the broker answers to the beginning of a transaction."""
    keep_imports()
    tables = joined(batches, _SEND_BYTES)
    first = next(tables, None)
    scope = scope_of()
    if first is None:
        return AttemptWritten(0, scope)
    context = TaskContext.get()
    attempt = -1 if context is None else context.taskAttemptId()
    key, producer = _take_producer(options, scope.transactional_id)
    try:
        is_open = _patiently(lambda: producer.begin(scope, attempt))
        plan = _patiently(lambda: plan_with(producer.cluster))
        rows = size = 0
        sent: list[BatchFuture] = []
        for table in chain((first,), tables):
            rows += table.num_rows
            size += payload_bytes(table)
            if not is_open:
                continue
            for topic, partition, records in _records(plan, table):
                sent.append(producer.send_batch(topic, records, partition=partition))
            sent = [future for future in sent if not _is_delivered(future)]
        result = producer.finish()
        for future in sent:
            future.result(0)
    except BaseException:
        producer.close()  # what it may still hold belongs to a transaction that will be aborted
        raise
    _keep_producer(key, producer)
    return AttemptWritten(rows, scope, size, result)


def commit_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, is_visible_after: bool = False
) -> None:
    """Decides the batch of these messages. ``is_visible_after``: then waits until readers find its rows.

    A batch without rows is decided as well once the query has written any. Raises `CheckpointBehindSinkError`,
    `ReplayDiffersError`, `ProducerFencedError`, and the last `RetriableError` if brokers are away for too long; after
    the decision nothing.
    """
    keep_imports()
    written = _written(messages)
    results = [each.result for each in written if each.result is not None]
    if not results:
        for scope in [each.scope for each in written][:1]:
            _decide_empty(options, scope)
        return
    rows, size = sum(each.rows for each in written), sum(each.payload_bytes for each in written)
    cluster = worker_cluster(options)
    decided = _patiently(
        lambda: decide(
            cluster,
            results,
            rows=rows,
            payload_bytes=size,
            keeps_first=options.keeps_first,
            timeout_s=cluster.request_timeout_s,
        )
    )
    if is_visible_after:
        _wait_until_visible(cluster, results[0].scope.transactional_id)
    if decided.is_replay and (decided.decided_rows, decided.decided_payload_bytes) != (rows, size):
        event(
            _logger,
            "keep first contents of batch",
            level=logging.WARNING,
            transactional_id=results[0].scope.transactional_id,
            batch=results[0].scope.batch_id,
            rows=decided.decided_rows,
            rows_now=rows,
        )


def _decide_empty(options: SinkOptions, scope: BatchScope) -> None:
    cluster = worker_cluster(options)
    _patiently(
        lambda: decide_empty(cluster, scope, keeps_first=options.keeps_first, timeout_s=cluster.request_timeout_s)
    )


def _wait_until_visible(cluster: Cluster, transactional_id: str) -> None:
    try:
        is_visible = wait_until_visible(cluster, transactional_id, timeout_s=_VISIBLE_S)
        error = None
    except PylogError as failure:
        is_visible, error = False, failure
    if not is_visible:
        event(
            _logger,
            "wait until rows are visible",
            level=logging.WARNING,
            transactional_id=transactional_id,
            error=error or f"not within {_VISIBLE_S:.0f} s. They are committed, and appear when their leaders are back",
        )


def abort_batch(options: SinkOptions, scope: BatchScope) -> None:
    """Nothing that this run has open becomes visible. Raises nothing: if no broker can be asked, the next run or the
    time limit does it."""
    cluster = worker_cluster(options)
    try:
        abort(cluster, scope, timeout_s=cluster.request_timeout_s)
    except PylogError as error:
        event(_logger, "abort batch", level=logging.WARNING, transactional_id=scope.transactional_id, error=error)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptWritten]:
    return [each for each in messages if isinstance(each, AttemptWritten)]


def _patiently(ask: Callable[[], _T]) -> _T:
    """Asks again while brokers are away, for `QUERY_PATIENCE_S`. Raises the last `RetriableError`, and at once what
    waiting does not help against."""
    deadline, backoff = Deadline(QUERY_PATIENCE_S), Backoff(limit_s=1.0)
    while True:
        try:
            return ask()
        except RetriableError:
            if deadline.expired:
                raise
        deadline.sleep(backoff.next_s())


def _take_producer(options: SinkOptions, transactional_id: str) -> tuple[tuple[object, ...], AttemptProducer]:
    """This process's producer for these settings and this id, if it has an idle one; else a new one. Nobody else gets
    it before `_keep_producer`."""
    key = (os.getpid(), transactional_id, *sorted(options.client.items()))
    producer = _producers.pop(key, None)
    return key, producer if producer is not None else AttemptProducer(options.client, transactional_id)


def _keep_producer(key: tuple[object, ...], producer: AttemptProducer) -> None:
    for old in [each for each in _producers if each[0] != key[0]]:
        del _producers[old]  # of the process that this one was forked from
    while len(_producers) >= _KEPT_PRODUCERS:
        _producers.pop(next(iter(_producers))).close()
    before = _producers.pop(key, None)
    if before is not None:
        before.close()
    _producers[key] = producer


def _is_delivered(future: BatchFuture) -> bool:
    """Whether it was acknowledged. Raises its error at once, so that a task fails early."""
    if not future.done():
        return False
    future.result(0)
    return True


def _records(plan: SinkPlan, table: pa.Table) -> Iterator[tuple[str, int | None, pa.Table]]:
    """The rows by topic and partition (None: the partitioner's), in their order."""
    columns = plan.columns
    if columns is None:
        assert plan.options.topic is not None
        yield plan.options.topic, None, table
        return
    records = _record_table(columns, table)
    partitions = None if columns.partition is None else table.column(columns.partition)
    if columns.topic is None:
        assert plan.options.topic is not None
        for partition, part in _by_value(partitions, records):
            yield plan.options.topic, partition, part
        return
    topics = table.column(columns.topic)
    if topics.null_count:
        raise SchemaMismatchError(
            "null topic present in the data. Give every row a topic, or use the topic option for all of them."
        )
    for topic, rows in _groups(topics):
        part_partitions = None if partitions is None else _take(partitions, rows)
        for partition, part in _by_value(part_partitions, _take(records, rows)):
            yield topic, partition, part


def _by_value(partitions: pa.ChunkedArray | None, records: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    if partitions is None or partitions.null_count == len(partitions):
        yield None, records
        return
    for partition, rows in _groups(partitions):
        yield partition, _take(records, rows)


def _groups(column: pa.ChunkedArray) -> Iterator[tuple[Any, pa.Array | None]]:
    """Each distinct value with the positions of its rows, in order; None for "all rows"."""
    values = pc.unique(column)
    for value in values:
        if len(values) == 1:
            yield value.as_py(), None
        else:
            is_here = pc.is_null(column) if not value.is_valid else pc.equal(column, value)
            yield value.as_py(), pc.indices_nonzero(is_here)


def _take(data: Any, rows: pa.Array | None) -> Any:
    return data if rows is None else data.take(rows)


def _record_table(columns: RecordColumns, table: pa.Table) -> pa.Table:
    parts = {"value": table.column(columns.value).cast(pa.binary())}
    if columns.key is not None:
        parts["key"] = table.column(columns.key).cast(pa.binary())
    if columns.headers is not None:
        headers = table.column(columns.headers).cast(HEADERS_TYPE)
        has_some = pc.fill_null(pc.greater(pc.list_value_length(headers), 0), False)
        parts["headers"] = pc.if_else(has_some, headers, pa.scalar(None, HEADERS_TYPE))  # an empty list is none
    return pa.table(parts)
