"""pytest's settings for the tests that need frameworks: the package and the helpers of tests/python are found, the versions are printed.
SPDX-License-Identifier: MIT
"""
import importlib.metadata
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "python")]

import testdata  # noqa: E402, the path to the package is set in there


def pytest_report_header():
    with open(os.path.join(HERE, "requirements.txt")) as file:
        names = [line.split("=")[0].split(">")[0].strip() for line in file if line.strip() and not line.startswith("#")]
    return ["libattn %s, isa %s, seed %d (ATTN_SEED)" % (testdata.attn.version, " ".join(testdata.ISAS), testdata.SEED),
            "with " + ", ".join("%s %s" % (name, importlib.metadata.version(name)) for name in names)]
