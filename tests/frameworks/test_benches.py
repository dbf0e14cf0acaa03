"""The benches that need frameworks work, and compare results with theirs in every row.
SPDX-License-Identifier: MIT
"""
import os
import subprocess
import sys

import pytest

from testdata import ROOT


@pytest.mark.parametrize("name, first, said, rows", [("minilm.py", "8 sentences", "error", 1), ("gradients.py", "gradients-", "apart", 6)])
def test_a_quick_run(name, first, said, rows):
    bench = os.path.join(ROOT, "bench", name)
    done = subprocess.run([sys.executable, bench, "--quick", "--threads", "1"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(first), done.stdout + done.stderr
    assert done.stdout.count(said) == rows
