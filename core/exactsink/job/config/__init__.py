"""A job's config, from a TOML file or from Python. exactsink checks all of it before it starts anything."""

from exactsink.job.config.load import config_of, load_config
from exactsink.job.config.model import JOURNAL_IN_A_DATABASE, JobConfig
from exactsink.job.config.sinks import bind_sinks

__all__ = ["JOURNAL_IN_A_DATABASE", "JobConfig", "bind_sinks", "config_of", "load_config"]
