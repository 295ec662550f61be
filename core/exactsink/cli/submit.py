"""The file for spark-submit, which wants a Python file and no installed command: its arguments are the command line's.

`spark-submit [OPTIONS] "$(exactsink script)" run JOB.toml`
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts this file's folder first on the path; a job's transform must not meet our modules' names there.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
    from exactsink.cli.main import main

    sys.exit(main())
