"""A producer of librdkafka's, made and asked through ctypes, in Python's words."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from exactsink.contract import ConfigError
from exactsink_kafka.producers.failures import Failure, Failures
from exactsink_kafka.producers.library import ERROR_SIZE, Library

__all__ = ["Handle"]

_PRODUCER = 0
_ANY_PARTITION = -1
_COPY, _PARTITION = 0x2, 0x8  # flags of messages
_DELIVERY, _ERROR = 0x1, 0x8  # kinds of events
_PURGE = 0x1 | 0x2 | 0x4  # queued, in flight, without waiting


class Handle:
    """An `rd_kafka_t` with a topic. What goes wrong comes as events, read in `hear`: nothing calls back into Python.

    Failed deliveries alone become events, so the queue of events stays empty as long as all goes well.
    """

    def __init__(
        self, library: Library, settings: Mapping[str, str], topic: str, failures: Failures, doing: str
    ) -> None:
        self._library = library
        self._topic_name = topic
        self._failures = failures
        self._producer = self._made(settings, doing)
        self._topic = library.topic_new(self._producer, topic.encode(), None)
        self._events = library.queue_get_main(self._producer)
        self._gone = weakref.finalize(self, _destroy, library, self._producer, self._topic, self._events)
        self._gone.atexit = False  # the process's end frees it as well, and sooner
        if self._topic is None:
            error = self._error(library.last_error(), topic)
            self.close()
            raise error

    def metadata(self, seconds: float) -> None:
        """Ask the cluster for the topic, and wait for the answer."""
        answer = ctypes.c_void_p()
        code = self._library.metadata(self._producer, 0, self._topic, ctypes.byref(answer), _ms(seconds))
        if code:
            raise self._error(code)
        self._library.metadata_destroy(answer)

    def cluster_id(self, seconds: float) -> str:
        """Return the cluster's id."""
        found = self._library.clusterid(self._producer, _ms(seconds))
        if not found:
            raise self._failures.late("the cluster said no id", "it did not answer in time")
        try:
            return ctypes.string_at(found).decode()
        finally:
            self._library.mem_free(self._producer, found)

    def init_transactions(self, seconds: float) -> None:
        self._check(self._library.init_transactions(self._producer, _ms(seconds)))

    def begin_transaction(self) -> None:
        self._check(self._library.begin_transaction(self._producer))

    def reported(self) -> Failure | None:
        """Ask what the transaction failed of: beginning another is refused with that, here, without a request."""
        return self._taken(self._library.begin_transaction(self._producer))

    def produce(self, messages: npt.NDArray[np.void], *, to_partitions: bool) -> int:
        """Queue copies of messages; gives how many were taken, the others have their `err` set."""
        flags = _COPY | (_PARTITION if to_partitions else 0)
        return int(self._library.produce_batch(self._topic, _ANY_PARTITION, flags, messages.ctypes.data, len(messages)))

    def flush(self, seconds: float) -> int:
        """Wait until nothing is queued or in flight, without lingering; gives how much still is."""
        self._library.flush(self._producer, _ms(seconds))
        self.hear(0)
        return int(self._library.outq_len(self._producer))

    def purge(self) -> None:
        """Drop all that is queued or in flight."""
        self._library.purge(self._producer, _PURGE)

    def hear(self, seconds: float) -> None:
        """Take all events there are, and wait that long for the first."""
        until = time.monotonic() + seconds
        while event := self._library.queue_poll(self._events, max(0, int((until - time.monotonic()) * 1000))):
            try:
                self._take(event)
            finally:
                self._library.event_destroy(event)

    def failure(self, code: int) -> Exception:
        """Explain an error code."""
        return self._error(code, self._topic_name)

    def close(self) -> None:
        """Destroy it; an open transaction stays open. Idempotent."""
        self._gone()

    def _made(self, settings: Mapping[str, str], doing: str) -> int:
        library, why = self._library, ctypes.create_string_buffer(ERROR_SIZE)
        conf = library.conf_new()
        library.conf_set_events(conf, _DELIVERY | _ERROR)
        for name, value in settings.items():
            if library.conf_set(conf, name.encode(), value.encode(), why, ERROR_SIZE) != 0:
                library.conf_destroy(conf)
                raise _refused(doing, why)
        producer = library.new(_PRODUCER, conf, why, ERROR_SIZE)
        if not producer:
            library.conf_destroy(conf)
            raise _refused(doing, why)
        return int(producer)

    def _take(self, event: int) -> None:
        library = self._library
        kind = library.event_type(event)
        if kind == _DELIVERY:
            while message := library.event_message_next(event):
                head = message.contents
                topic = library.topic_name(head.rkt).decode() if head.rkt else self._topic_name
                self._failures.add(Failure(head.err, library.text(head.err), topic))
        elif kind == _ERROR:
            failure = Failure(library.event_error(event), library.event_error_string(event).decode(errors="replace"))
            if library.event_error_is_fatal(event):
                self._failures.add(self._fatal() or failure)
            else:
                self._failures.hear(failure)

    def _fatal(self) -> Failure | None:
        """Return what a fatal error stands for."""
        why = ctypes.create_string_buffer(ERROR_SIZE)
        code = self._library.fatal_error(self._producer, why, ERROR_SIZE)
        return Failure(code, why.value.decode(errors="replace")) if code else None

    def _check(self, error: int | None) -> None:
        failure = self._taken(error)
        if failure is not None:
            raise self._failures.cause(failure, self.hear, self.reported)

    def _taken(self, error: int | None) -> Failure | None:
        """Read an `rd_kafka_error_t`, and free it."""
        if error is None:
            return None
        library = self._library
        failure = Failure(library.error_code(error), library.error_string(error).decode(errors="replace"))
        library.error_destroy(error)
        return failure

    def _error(self, code: int, topic: str | None = None) -> Exception:
        return self._failures.cause(Failure(code, self._library.text(code), topic), self.hear, self.reported)


def _destroy(library: Library, producer: int, topic: int | None, events: int) -> None:
    library.queue_destroy(events)
    if topic is not None:
        library.topic_destroy(topic)
    library.destroy(producer)


def _refused(doing: str, why: ctypes.Array[ctypes.c_char]) -> ConfigError:
    return ConfigError(
        f"{doing}: librdkafka refuses the settings",
        why=why.value.decode(errors="replace"),
        next="fix `producer` and the connection's options of the sink",
    )


def _ms(seconds: float) -> int:
    """Return milliseconds, never negative: librdkafka would wait for ever."""
    return max(1, int(seconds * 1000))
