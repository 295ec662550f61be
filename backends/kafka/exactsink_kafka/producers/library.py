"""The librdkafka that confluent-kafka has loaded into this process, through ctypes: the few functions that we call.

Its C interface is stable within a major version. Whatever is not as known here makes it Unusable, never a guess.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_void_p
from pathlib import Path

import confluent_kafka
import numpy as np

__all__ = ["ERROR_SIZE", "MESSAGE", "Library", "MessageHead", "Unusable"]

ERROR_SIZE = 512

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

    _fields_ = (("err", c_int32), ("rkt", c_void_p), ("partition", c_int32))


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
