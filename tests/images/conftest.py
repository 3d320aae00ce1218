"""The programs are started as the tests of the chart do it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chart"))
