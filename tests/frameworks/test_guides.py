"""The Python in docs/huggingface.md and docs/onnx.md runs as it stands.
SPDX-License-Identifier: MIT
"""
import os
import re
import subprocess
import sys

import pytest

from testdata import ROOT


@pytest.mark.parametrize("name", ["huggingface.md", "onnx.md"])
def test_the_code_runs(name):
    with open(os.path.join(ROOT, "docs", name)) as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.M | re.S)
    assert blocks
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
