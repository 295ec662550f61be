"""Find the epoch up to which all sinks of a job have the same rows, for readers of the targets. Needs no Spark.

from exactsink.reader import last_complete_epoch

epoch = last_complete_epoch("job.toml")
"""

from exactsink.reader.complete import complete_epoch, last_complete_epoch

__all__ = ["complete_epoch", "last_complete_epoch"]
