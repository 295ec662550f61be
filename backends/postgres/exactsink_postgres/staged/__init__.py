"""Strategy `staged`: rows wait in a staging table, and one transaction applies an epoch together with its marker."""

from exactsink_postgres.staged.committer import StagingCommitter
from exactsink_postgres.staged.writer import StagingWriter

__all__ = ["StagingCommitter", "StagingWriter"]
