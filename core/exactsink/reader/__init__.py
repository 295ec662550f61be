"""For whoever reads the targets: up to which epoch all sinks of a job hold the same rows. No Spark.

from exactsink.reader import last_complete_epoch

epoch = last_complete_epoch("job.toml")
"""

from exactsink.reader.complete import complete_epoch, last_complete_epoch

__all__ = ["complete_epoch", "last_complete_epoch"]
