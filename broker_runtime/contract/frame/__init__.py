"""The frame: a record batch as it is sent, stored, replicated and fetched.

`header`, `directory` and `control` document its bytes.
"""

from broker_runtime.contract.frame.control import (
    MOST_ENDED,
    Control,
    EndedTransaction,
    TransactionBegin,
    TransactionEnd,
    encode_control,
    parse_control,
)
from broker_runtime.contract.frame.decode import DecodedFrame, decode_frame
from broker_runtime.contract.frame.directory import (
    HEADERS_COLUMN_ID,
    TIMESTAMP_COLUMN_ID,
    Directory,
    parse_directory,
)
from broker_runtime.contract.frame.encode import (
    CHUNK_PER_COLUMN_BYTES,
    DEFAULT_FRAME_TARGET_BYTES,
    encode_frame,
    split_into_frames,
)
from broker_runtime.contract.frame.header import (
    CODECS,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_RECORDS_PER_FRAME,
    STAMP_BYTES,
    FrameHeader,
    check_stamp,
    number_frame,
    parse_checked_header,
    parse_header,
    stamp,
)
from broker_runtime.contract.frame.layout import HEADERS_TYPE
from broker_runtime.contract.frame.projection import Projection, plan_projection
from broker_runtime.contract.frame.verify import (
    AbortedRange,
    SoundFrame,
    check_frame_schema,
    iter_frames,
    sound_frame,
    verify_answer,
    verify_frame,
    visible_frames,
)

__all__ = [
    "CHUNK_PER_COLUMN_BYTES",
    "CODECS",
    "DEFAULT_FRAME_TARGET_BYTES",
    "HEADERS_COLUMN_ID",
    "HEADERS_TYPE",
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_RECORDS_PER_FRAME",
    "MOST_ENDED",
    "STAMP_BYTES",
    "TIMESTAMP_COLUMN_ID",
    "AbortedRange",
    "Control",
    "DecodedFrame",
    "Directory",
    "EndedTransaction",
    "FrameHeader",
    "Projection",
    "SoundFrame",
    "TransactionBegin",
    "TransactionEnd",
    "check_frame_schema",
    "check_stamp",
    "decode_frame",
    "encode_control",
    "encode_frame",
    "iter_frames",
    "number_frame",
    "parse_checked_header",
    "parse_control",
    "parse_directory",
    "parse_header",
    "plan_projection",
    "sound_frame",
    "split_into_frames",
    "stamp",
    "verify_answer",
    "verify_frame",
    "visible_frames",
]
