"""Which functions are wrapped, and what their spans are called.

``where`` is ``module:name`` or ``module:Class.method``. A generator function's spans are its steps. ``kind`` says how
the span is drawn: ``work`` (computing, or waiting for what has no hook of its own), ``network`` (in gRPC), ``disk``,
``wait`` (for another thread or process; it is no cost by itself), ``spark`` (Spark's own code).

Rule: only the standard library is imported here, because every process of a run imports this at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hook:
    """``detail``: from the call's positional arguments, what is added to the label."""

    where: str
    label: str
    kind: str = "work"
    detail: Callable[[tuple[Any, ...]], str] | None = None


_PRODUCER = "pyspark_log.client.producer"
_CONSUMER = "pyspark_log.client.consumer"
_SPARK = "pyspark_log.spark"

HOOKS = (
    # The producer, and Spark's sink that contains one.
    Hook(f"{_PRODUCER}.producer:Producer.send", "send()"),
    Hook(f"{_PRODUCER}.producer:Producer.send_batch", "send_batch()"),
    Hook(f"{_PRODUCER}.producer:Producer.flush", "flush()", "wait"),
    Hook(f"{_PRODUCER}.delivery:Delivery.wait", "wait for acknowledgement", "wait"),
    Hook(f"{_PRODUCER}.broker_sender:BrokerSender._send", "send a batch"),
    Hook(f"{_PRODUCER}.batch_builder:BatchBuilder.encode", "encode frame"),
    Hook("broker_runtime.contract.frame.encode:split_into_frames", "encode next frame"),
    Hook(f"{_PRODUCER}.produce_stream:ProduceStream.write", "write to stream", "network"),
    Hook(f"{_PRODUCER}.produce_stream:ProduceStream.read", "wait for answer", "wait"),
    Hook(f"{_PRODUCER}.broker_sender:BrokerSender._settle", "settle batch"),
    # The consumer.
    Hook(f"{_CONSUMER}.consumer:Consumer.poll", "poll()", "wait"),
    Hook("broker_runtime.contract.fetch_exchange:FetchExchange.fetch", "fetch: ask and wait", "wait"),
    Hook(f"{_CONSUMER}.fetcher:Fetcher.wanted", "choose partitions"),
    Hook(f"{_CONSUMER}.fetcher:Fetcher.answered", "take answer"),
    Hook(f"{_CONSUMER}.delivery:Delivery._decode", "decode"),
    Hook(f"{_CONSUMER}.delivery:Delivery._records_that_convert", "make records"),
    # Actions, and reading ranges.
    Hook("pyspark_log.client.connection.channel:Channel.call", "ask:", "wait", lambda given: str(given[1])),
    Hook("pyspark_log.client.reading.frame_stream:FrameStream.read", "wait for frames", "wait"),
    Hook("pyspark_log.client.reading.frame_stream:FrameStream.__init__", "open stream", "network"),
    Hook("pyspark_log.client.connection.topics:Topic.decode", "check and decode frame"),
    Hook("pyspark_log.client.connection.cluster:Cluster.close", "close connections"),
    # Spark's source.
    Hook(f"{_SPARK}.stream_reader:PylogStreamReader.latestOffset", "latestOffset"),
    Hook(f"{_SPARK}.stream_reader:PylogStreamReader.partitions", "partitions"),
    Hook(f"{_SPARK}.stream_reader:PylogStreamReader.reportLatestOffset", "reportLatestOffset"),
    Hook(f"{_SPARK}.source:PylogBatchReader.partitions", "partitions"),
    Hook(f"{_SPARK}.range_reading:read_ranges", "make next batch"),
    # Spark's sink.
    Hook(f"{_SPARK}.sink:PylogBatchWriter.write", "write"),
    Hook(f"{_SPARK}.sink:PylogStreamWriter.write", "write"),
    Hook(f"{_PRODUCER}.record_batches:joined", "take Spark's rows", "spark"),
    Hook(f"{_PRODUCER}.attempts:AttemptProducer.__init__", "make producer"),
    Hook(f"{_PRODUCER}.attempts:AttemptProducer.begin", "begin attempt"),
    Hook(f"{_PRODUCER}.attempts:AttemptProducer.finish", "finish attempt", "wait"),
    Hook(f"{_SPARK}.sink:commit_batch", "commit"),
    # Spark's workers. Their `main` begins with the wait for a job, so these begin behind it.
    Hook("pyspark.worker:setup_spark_files", "set files up", "spark"),
    Hook("pyspark.worker:read_udfs", "unpickle plan", "spark"),
    Hook("pyspark.sql.worker.create_data_source:_main", "create data source", "spark"),
    Hook("pyspark.sql.worker.plan_data_source_read:_main", "plan read", "spark"),
    Hook("pyspark.sql.worker.write_into_data_source:_main", "plan write", "spark"),
    Hook("pyspark.sql.worker.commit_data_source_write:_main", "commit write", "spark"),
    Hook("pyspark.sql.worker.python_streaming_sink_runner:_main", "commit micro-batch", "spark"),
    # The broker.
    Hook("broker_runtime.server.boundary:read_chunk", "wait for message", "wait"),
    Hook("broker_runtime.server.boundary:write", "write answer", "network"),
    Hook("broker_runtime.server.boundary:write_put_metadata", "write answer", "network"),
    Hook("broker_runtime.server.flight:PylogFlightServer.do_action", "action:", "work", lambda given: given[-1].type),
    Hook("broker_runtime.server.produce_stream:ProduceStream._take", "take request"),
    Hook("broker_runtime.contract.frame.verify:sound_frame", "check frame"),
    Hook("broker_runtime.services.produce:ProduceService.append", "check and append"),
    Hook("broker_runtime.services.produce:ProduceService.complete", "until it counts", "wait"),
    Hook("broker_runtime.replication.partition:Partition.append", "append"),
    Hook("broker_runtime.log.files:RealFiles.write", "write file", "disk"),
    Hook("broker_runtime.log.files:RealFiles.sync", "fdatasync", "disk"),
    Hook("broker_runtime.log.files:RealFiles.read_into", "read file", "disk"),
    Hook("broker_runtime.services.fetch:FetchService.fetch", "fetch"),
    Hook("broker_runtime.services.fetch_wait:FetchWait.until", "wait for data", "wait"),
    Hook("broker_runtime.services.read:ReadService.pieces", "read next piece"),
    Hook("broker_runtime.transactions.coordination:TransactionCoordinator.begin", "begin transaction"),
    Hook("broker_runtime.transactions.coordination:TransactionCoordinator.decide", "decide transaction"),
    Hook("broker_runtime.zookeeper.client:KazooZooKeeper._ask", "ask ZooKeeper", "wait"),
    Hook("broker_runtime.zookeeper.client:KazooZooKeeper.transaction", "write to ZooKeeper", "wait"),
    Hook("broker_runtime.zookeeper.client:KazooZooKeeper.find_all", "ask ZooKeeper", "wait"),
)
