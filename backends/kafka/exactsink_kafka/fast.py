"""The fast way into librdkafka: an Arrow batch becomes an array of its messages, without a Python step per row.

All ctypes of this backend is here, behind `FastClient`: the few functions that we call of the very library that
confluent-kafka has loaded into this process. Its C interface is stable within a major version; whatever is not as known
here makes it Unusable, never a guess.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactsink_kafka.errors import QUEUE_FULL, Failure, Failures
from exactsink_kafka.producer import Client, refused_settings
from exactsink_kafka.records import Records

__all__ = ["MESSAGE", "FastClient", "Library", "MessageHead", "Unusable"]

_ROOM = 0.01  # seconds
_PRODUCER = 0
_ANY_PARTITION = -1
_COPY, _PARTITION = 0x2, 0x8  # flags of messages
_DELIVERY, _ERROR = 0x1, 0x8  # kinds of events
_PURGE = 0x1 | 0x2 | 0x4  # queued, in flight, without waiting
_ERROR_SIZE = 512

MESSAGE = np.dtype(
    {
        "names": ["err", "partition", "payload", "len", "key", "key_len"],
        "formats": [np.int32, np.int32, np.uint64, np.uint64, np.uint64, np.uint64],
        "offsets": [0, 16, 24, 32, 40, 48],
        "itemsize": 72,
    }
)
"""`rd_kafka_message_t` as rows of an array: the fields that a producer fills, and the error that it gets."""


class MessageHead(ctypes.Structure):
    """The first fields of `rd_kafka_message_t`, as a failed delivery reports them."""

    _fields_ = (
        *(("err", c_int32), ("rkt", c_void_p), ("partition", c_int32)),
        *(("payload", c_void_p), ("len", c_size_t), ("key", c_void_p), ("key_len", c_size_t)),
    )


_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "rd_kafka_version": (c_int, ()),
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_events": (None, (c_void_p, c_int)),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_name": (c_char_p, (c_void_p,)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    "rd_kafka_last_error": (c_int, ()),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_err2name": (c_char_p, (c_int,)),
    "rd_kafka_fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "rd_kafka_metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)),
    "rd_kafka_metadata_destroy": (None, (c_void_p,)),
    "rd_kafka_clusterid": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_mem_free": (None, (c_void_p, c_void_p)),
    "rd_kafka_init_transactions": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_begin_transaction": (c_void_p, (c_void_p,)),
    "rd_kafka_error_code": (c_int, (c_void_p,)),
    "rd_kafka_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_error_destroy": (None, (c_void_p,)),
    "rd_kafka_produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "rd_kafka_flush": (c_int, (c_void_p, c_int)),
    "rd_kafka_outq_len": (c_int, (c_void_p,)),
    "rd_kafka_purge": (c_int, (c_void_p, c_int)),
    "rd_kafka_queue_get_main": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_event_type": (c_int, (c_void_p,)),
    "rd_kafka_event_message_next": (POINTER(MessageHead), (c_void_p,)),
    "rd_kafka_event_error": (c_int, (c_void_p,)),
    "rd_kafka_event_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_event_error_is_fatal": (c_int, (c_void_p,)),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
}


class Unusable(ImportError):
    """Return why the library can't be called here: the plain writer works all the same."""


class Library:
    """The functions, by their names in C without `rd_kafka_`. Calls release the interpreter's lock.

    Raises Unusable when confluent-kafka's library is not found, or is not one that is known here.
    """

    def __init__(self) -> None:
        path = _loaded()
        try:
            library = ctypes.CDLL(path)  # the same file: the loader gives what is there, no second copy
            for name, (gives, takes) in _FUNCTIONS.items():
                function = getattr(library, name)
                function.restype, function.argtypes = gives, takes
                setattr(self, name.removeprefix("rd_kafka_"), function)
        except (OSError, AttributeError) as error:
            raise Unusable(f"{path}: {error}") from error
        version = library.rd_kafka_version()
        if version >> 24 != 2 or version != confluent_kafka.libversion()[1]:
            raise Unusable(f"{path} is version {version:#x}, not confluent-kafka's own, or not 2.x")
        if ctypes.sizeof(c_void_p) != 8 or ctypes.sizeof(c_size_t) != 8:
            raise Unusable("this is no 64-bit process")

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(name)

    def text(self, code: int) -> str:
        """Return an error code's description and name."""
        return f"{self.err2str(code).decode()} ({self.err2name(code).decode()})"


def _loaded() -> str:
    """Find the file among what this process has loaded: confluent-kafka was imported above."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError as error:
        raise Unusable(f"can't see what this process has loaded: {error}") from error
    found = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    files = sorted(path for path in found if path.rpartition("/")[2].startswith("librdkafka"))
    if len(files) != 1:
        raise Unusable(f"this process has loaded {len(files)} files of librdkafka: {', '.join(files)}")
    return files[0]


class FastClient(Client):
    """An `rd_kafka_t` with a topic. What goes wrong comes as events, read in `hear`: nothing calls back into Python.

    Failed deliveries alone become events, so the queue of events stays empty as long as all goes well.
    """

    def __init__(
        self, library: Library, settings: Mapping[str, str], topic: str, failures: Failures, doing: str
    ) -> None:
        self._library = library
        self._topic_name = topic
        self.failures = failures
        self._producer = _made(library, settings, doing)
        self._topic = library.topic_new(self._producer, topic.encode(), None)
        self._events = library.queue_get_main(self._producer)
        self._gone = weakref.finalize(self, _destroy, library, self._producer, self._topic, self._events)
        self._gone.atexit = False  # the process's end frees it as well, and sooner
        if self._topic is None:
            error = self._explained(library.last_error(), topic)
            self._gone()
            raise error

    def metadata(self, seconds: float) -> None:
        answer = ctypes.c_void_p()
        code = self._library.metadata(self._producer, 0, self._topic, ctypes.byref(answer), _ms(seconds))
        if code:
            raise self._explained(code)
        self._library.metadata_destroy(answer)

    def cluster_id(self, seconds: float) -> str:
        found = self._library.clusterid(self._producer, _ms(seconds))
        if not found:
            raise self.failures.late("the cluster said no id", "it did not answer in time")
        try:
            return ctypes.string_at(found).decode()
        finally:
            self._library.mem_free(self._producer, found)

    def init_transactions(self, seconds: float) -> None:
        self._check(self._library.init_transactions(self._producer, _ms(seconds)))

    def begin_transaction(self) -> None:
        self._check(self._library.begin_transaction(self._producer))

    def failed(self) -> Failure | None:
        return self._taken(self._library.begin_transaction(self._producer))

    def queue(self, records: Records, until: float) -> None:
        """See Client. Those that find no room are handed over again, in their order.

        Waiting within librdkafka is no way: failed rows keep their room until they are heard of here.
        """
        messages, to_partitions = _messages(records), records.partitions is not None
        while self.produce(messages, to_partitions=to_partitions) < len(messages):
            messages = messages[messages["err"] != 0].copy()
            if (other := messages["err"][messages["err"] != QUEUE_FULL]).size:
                first = messages[messages["err"] == other[0]][0]
                raise self._explained(int(other[0]), self._topic_name, int(first["len"] + first["key_len"]))
            self.hear(_ROOM)
            self.failures.check(self.failed)
            if time.monotonic() >= until:
                raise self.failures.late("the brokers take no more rows", "the queue stayed full")
            messages["err"] = 0

    def produce(self, messages: npt.NDArray[np.void], *, to_partitions: bool) -> int:
        """Queue copies of messages; return how many were taken, the others have their `err` set."""
        flags = _COPY | (_PARTITION if to_partitions else 0)
        return int(self._library.produce_batch(self._topic, _ANY_PARTITION, flags, messages.ctypes.data, len(messages)))

    def flush(self, seconds: float) -> int:
        self._library.flush(self._producer, _ms(seconds))
        self.hear(0)
        return int(self._library.outq_len(self._producer))

    def hear(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while event := self._library.queue_poll(self._events, max(0, int((until - time.monotonic()) * 1000))):
            try:
                self._take(event)
            finally:
                self._library.event_destroy(event)

    def close(self) -> None:
        """Drop all that is queued or in flight, and destroy it. Idempotent."""
        if self._gone.alive:
            self._library.purge(self._producer, _PURGE)
            self._gone()

    def _take(self, event: int) -> None:
        library = self._library
        kind = library.event_type(event)
        if kind == _DELIVERY:
            while message := library.event_message_next(event):
                head = message.contents
                topic = library.topic_name(head.rkt).decode() if head.rkt else self._topic_name
                self.failures.add(Failure(head.err, library.text(head.err), topic, head.len + head.key_len))
        elif kind == _ERROR:
            failure = Failure(library.event_error(event), library.event_error_string(event).decode(errors="replace"))
            if library.event_error_is_fatal(event):
                self.failures.add(self._fatal() or failure)
            else:
                self.failures.note(failure)

    def _fatal(self) -> Failure | None:
        """Return what a fatal error stands for."""
        why = ctypes.create_string_buffer(_ERROR_SIZE)
        code = self._library.fatal_error(self._producer, why, _ERROR_SIZE)
        return Failure(code, why.value.decode(errors="replace")) if code else None

    def _check(self, error: int | None) -> None:
        if (failure := self._taken(error)) is not None:
            raise self.failures.cause(failure, self.hear, self.failed)

    def _taken(self, error: int | None) -> Failure | None:
        """Read an `rd_kafka_error_t`, and free it."""
        if error is None:
            return None
        library = self._library
        failure = Failure(library.error_code(error), library.error_string(error).decode(errors="replace"))
        library.error_destroy(error)
        return failure

    def _explained(self, code: int, topic: str | None = None, size: int = 0) -> Exception:
        return self.failures.cause(Failure(code, self._library.text(code), topic, size), self.hear, self.failed)


def _destroy(library: Library, producer: int, topic: int | None, events: int) -> None:
    library.queue_destroy(events)
    if topic is not None:
        library.topic_destroy(topic)
    library.destroy(producer)


def _made(library: Library, settings: Mapping[str, str], doing: str) -> int:
    why = ctypes.create_string_buffer(_ERROR_SIZE)
    conf = library.conf_new()
    library.conf_set_events(conf, _DELIVERY | _ERROR)
    taken = all(
        library.conf_set(conf, name.encode(), value.encode(), why, _ERROR_SIZE) == 0 for name, value in settings.items()
    )
    producer = library.new(_PRODUCER, conf, why, _ERROR_SIZE) if taken else None
    if not producer:
        library.conf_destroy(conf)
        raise refused_settings(doing, why.value.decode(errors="replace"))
    return int(producer)


def _ms(seconds: float) -> int:
    """Return milliseconds, never negative: librdkafka would wait for ever."""
    return max(1, int(seconds * 1000))


def _messages(records: Records) -> npt.NDArray[np.void]:
    """Make messages that point into the columns' memory, which has to live until they are copied."""
    messages = np.zeros(len(records.values), MESSAGE)
    messages["payload"], messages["len"] = _places(records.values)
    if records.keys is not None:
        messages["key"], messages["key_len"] = _places(records.keys)
    if records.partitions is not None:
        messages["partition"] = records.partitions.to_numpy()
    return messages


def _places(values: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return where each value begins, 0 for NULL, and how long it is. An empty value has a place."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, width, len(values) + 1, values.offset * np.dtype(width).itemsize).astype(np.uint64)
    base = data.address if data is not None and data.address else offsets.address  # any but 0: nothing is read there
    begins, lengths = at[:-1] + np.uint64(base), np.diff(at)
    if values.null_count:
        null = values.is_null().to_numpy(zero_copy_only=False)
        begins[null] = 0
        lengths[null] = 0
    return begins, lengths
