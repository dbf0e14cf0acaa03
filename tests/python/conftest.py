"""pytest's settings: the header that says what is tested with which data and seed, and the counts at the end.
SPDX-License-Identifier: MIT
"""
import collections
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import testdata
except ImportError as fault:
    raise pytest.UsageError(str(fault)) from None


def pytest_configure(config):
    named = os.environ.get("ATTN_TEST_DATA")
    if testdata.DATA is None and (named or os.environ.get("ATTN_TEST_DATA_REQUIRED") == "1"):
        raise pytest.UsageError("there is no folder of test data at %s: set ATTN_TEST_DATA to it" % (named or "../shared"))


def pytest_report_header():
    attn = testdata.attn
    return ["libattn %s, %s, isa %s" % (attn.version, attn._library.lib._name, " ".join(testdata.ISAS)),
            "test data: %s" % (testdata.DATA or "none (ATTN_TEST_DATA); what needs it is skipped"),
            "seed: %d (ATTN_SEED), examples x %g (ATTN_EXAMPLES)" % (testdata.SEED, testdata.EXAMPLES)]


def pytest_terminal_summary(terminalreporter):
    """Counts by file, so that a vector or case that silently went missing shows."""
    counts = collections.defaultdict(collections.Counter)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            counts[os.path.basename(report.nodeid.split("::")[0])][outcome] += 1
    for name, count in sorted(counts.items()):
        terminalreporter.write_line("%s: %s" % (name, ", ".join("%d %s" % (n, outcome) for outcome, n in count.items())))
    for reason in sorted({str(r.longrepr[2]) for r in terminalreporter.getreports("skipped") if isinstance(r.longrepr, tuple)}):
        terminalreporter.write_line("skipped because: %s" % reason)
