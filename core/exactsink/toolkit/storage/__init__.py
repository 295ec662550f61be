"""Durable files and objects: a write survives a crash once its call has returned, or the call raises an error."""

from exactsink.toolkit.storage.durable import (
    NO_HARD_LINKS,
    DurableFile,
    HashedFile,
    SyncFailed,
    create_file,
    file_names,
    file_sha256,
    file_times,
    make_folder,
    new_file,
    new_folder,
    remove_files,
    replace_file,
    replace_whole,
    storage_errors,
    sync_folders,
)
from exactsink.toolkit.storage.object_calls import Upload, s3_pages
from exactsink.toolkit.storage.object_checks import refused_store, store_findings
from exactsink.toolkit.storage.object_errors import is_away, store_code, store_errors
from exactsink.toolkit.storage.object_file import ObjectFile
from exactsink.toolkit.storage.objects import AnyPath, Lack, ObjectPath, is_object_url, object_scheme, path_of

__all__ = [
    "NO_HARD_LINKS",
    "AnyPath",
    "DurableFile",
    "HashedFile",
    "Lack",
    "ObjectFile",
    "ObjectPath",
    "SyncFailed",
    "Upload",
    "create_file",
    "file_names",
    "file_sha256",
    "file_times",
    "is_away",
    "is_object_url",
    "make_folder",
    "new_file",
    "new_folder",
    "object_scheme",
    "path_of",
    "refused_store",
    "remove_files",
    "replace_file",
    "replace_whole",
    "s3_pages",
    "storage_errors",
    "store_code",
    "store_errors",
    "store_findings",
    "sync_folders",
]
