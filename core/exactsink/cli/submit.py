"""The Python file for spark-submit, which can't run an installed command. It takes the command line's arguments.

`spark-submit [OPTIONS] "$(exactsink script)" run JOB.toml`
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts this file's folder first on the path, but a job's transform must not import exactsink's modules there.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent]
    from exactsink.cli.main import main

    sys.exit(main())
