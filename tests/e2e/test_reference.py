"""The reference pages say what the programs say."""

import subprocess
import sys

from server import ROOT


def test_flags_and_metrics_pages_are_current():
    ended = subprocess.run([sys.executable, ROOT / "tools/dev/make_reference", "--check"],
                           capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
