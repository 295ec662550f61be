"""A job's config, out of a TOML file or of Python: checked whole before anything starts."""

from exactsink.job.config.load import config_of, load_config
from exactsink.job.config.model import JOURNAL_IN_A_DATABASE, JobConfig
from exactsink.job.config.sinks import bind_sinks

__all__ = ["JOURNAL_IN_A_DATABASE", "JobConfig", "bind_sinks", "config_of", "load_config"]
