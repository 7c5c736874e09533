"""What tools/dev/count_tests makes of logs: the lines of GoogleTest 1.12 and 1.15, ctest and pytest."""

import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "tools/dev/count_tests"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
loader = importlib.machinery.SourceFileLoader("count_tests", str(SCRIPT))
count_tests = importlib.util.module_from_spec(importlib.util.spec_from_loader("count_tests", loader))
loader.exec_module(count_tests)

GTEST = """\
[==========] Running 4 tests from 2 test suites.
[----------] 3 tests from PoolTest
[ RUN      ] PoolTest.GivesBack
[       OK ] PoolTest.GivesBack (0 ms)
[ RUN      ] PoolTest.Refuses
pool_test.cc:12: Failure
Expected equality of these values:
[  FAILED  ] PoolTest.Refuses (3 ms)
[ RUN      ] All/PoolTest.Holds/2
[  FAILED  ] All/PoolTest.Holds/2, where GetParam() = (5, "a b") (1 ms)
[ RUN      ] PoolTest.Multiplies
pool_test.cc:30: Skipped
avx512bf16 is not on this machine

[  SKIPPED ] PoolTest.Multiplies (0 ms)
[==========] 4 tests from 2 test suites ran. (4 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] PoolTest.Multiplies
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] PoolTest.Refuses
[  FAILED  ] All/PoolTest.Holds/2, where GetParam() = (5, "a b")
"""

# Two processes of ctest -j 2, whose lines mix.
CTEST = """\
1: [ RUN      ] A.Multiplies
2: [ RUN      ] B.Loads
1: a_test.cc:7: Skipped
2: b_test.cc:9: Skipped
1: cpu-avx2 is not on this machine
2: cuda is not on this machine
2: [  SKIPPED ] B.Loads (0 ms)
1: [  SKIPPED ] A.Multiplies (0 ms)
2: [ RUN      ] B.Adds
2: [       OK ] B.Adds (12 ms)
1/2 Test #1: a_test ...........................   Passed    0.01 sec
"""

PYTEST = """\
..s.F                                                                    [100%]
=========================== short test summary info ============================
PASSED test_grpc.py::test_bad_requests[change0-a b]
PASSED test_grpc.py::test_reflection
SKIPPED test_hosts.py::test_cut - Skipped: no right to make hosts: unshare: Operation not permitted
FAILED test_load.py::test_load - assert 1 == 2
ERROR test_load.py::test_other - fixture 'x' not found
2 passed, 1 skipped, 1 failed, 1 error in 3.21s
"""


REASONS = count_tests.REASONS


def count(text, status, can=()):
    """With a machine that could do what is skipped for one of `can`."""
    count_tests.REASONS = [(pattern, lambda pattern=pattern: any(re.fullmatch(pattern, reason) for reason in can))
                           for pattern, _ in REASONS]
    return count_tests.count(text.splitlines(), status)


class CountTests(unittest.TestCase):
    def test_googletest_counts_each_test_once(self):
        counts, skips = count(GTEST, 8)
        self.assertEqual(counts, [1, 2, 1])
        self.assertEqual(skips, ["skipped PoolTest.Multiplies: avx512bf16 is not on this machine"])

    def test_a_skip_that_could_have_run_is_a_failure(self):
        counts, skips = count(GTEST, 8, can=["avx512bf16 is not on this machine"])
        self.assertEqual(counts, [1, 3, 0])
        self.assertEqual(skips, ["FAILED PoolTest.Multiplies was skipped (avx512bf16 is not on this machine): "
                                 "this machine could have run it"])

    def test_processes_of_ctest_keep_their_own_reasons(self):
        counts, skips = count(CTEST, 0, can=["avx2 is not on this machine"])
        self.assertEqual(counts, [1, 1, 1])
        self.assertEqual(skips, ["skipped B.Loads: cuda is not on this machine",
                                 "FAILED A.Multiplies was skipped (cpu-avx2 is not on this machine): "
                                 "this machine could have run it"])

    def test_pytest(self):
        counts, skips = count(PYTEST, 1)
        self.assertEqual(counts, [2, 2, 1])
        self.assertEqual(skips, ["skipped test_hosts.py::test_cut: "
                                 "no right to make hosts: unshare: Operation not permitted"])

    def test_checks_of_ours_name_their_reasons_themselves(self):
        self.assertEqual(count("SKIPPED chart - no Go module proxy answers: timed out", 0),
                         ([0, 0, 1], ["skipped chart: no Go module proxy answers: timed out"]))

    def test_unknown_and_missing_reasons_are_failures(self):
        for line in ("SKIPPED test_a.py::test_b - the moon is full", "SKIPPED test_a.py::test_b",
                     "[  SKIPPED ] A.B (0 ms)"):
            counts, skips = count(line, 0)
            self.assertEqual(counts, [0, 1, 0], line)
            self.assertIn("a reason that tools/dev/count_tests does not know", skips[0])

    def test_a_stage_that_fails_without_a_test_counts_once(self):
        self.assertEqual(count("a.cc:1: error: expected ';'", 1), ([0, 1, 0], []))
        self.assertEqual(count("[       OK ] A.B (0 ms)\nSegmentation fault", 139), ([1, 1, 0], []))
        self.assertEqual(count("", 124), ([0, 1, 0], []))

    def test_a_test_that_began_and_said_no_more_has_failed(self):
        self.assertEqual(count("[ RUN      ] A.Exits\n", 0), ([0, 1, 0], []))
        self.assertEqual(count("3: [ RUN      ] A.Exits\n3: [ RUN      ] A.Ends\n3: [       OK ] A.Ends (1 ms)\n", 0),
                         ([1, 1, 0], []))

    def test_a_stage_without_tests_is_one_check(self):
        self.assertEqual(count("check_style: 400 files, 0 offences", 0), ([1, 0, 0], []))

    def test_paths_are_those_that_the_processor_has(self):
        flags = subprocess.run("grep -m1 ^flags /proc/cpuinfo || true", shell=True, capture_output=True, text=True).stdout
        paths = count_tests.cpu_paths.here()
        self.assertEqual("avx2" in paths, " avx2 " in flags and " fma " in flags)
        self.assertEqual("avx512bf16" in paths, " avx512_bf16 " in flags and " avx512bw " in flags)

    def test_tiles_are_there_if_the_processor_has_them(self):
        flags = subprocess.run("grep -m1 ^flags /proc/cpuinfo || true", shell=True, capture_output=True, text=True).stdout
        for name in ("cpu-amx", "cpu-avx512bf16-tiles"):
            excuse = count_tests.judge(f"{name} is not on this machine")
            self.assertEqual(excuse is not None, " amx_tile " in flags and " avx512_bf16 " in flags, name)

    def test_prints_counts_first_and_skips_after(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
            log.write("PASSED test_a.py::test_a\nSKIPPED test_a.py::test_b - the moon is full\n")
            log.flush()
            printed = subprocess.run([SCRIPT, log.name, "0"], capture_output=True, text=True, check=True).stdout
        first, second = printed.splitlines()
        self.assertEqual(first, "1 1 0")
        self.assertTrue(second.startswith("FAILED test_a.py::test_b was skipped (the moon is full)"))


if __name__ == "__main__":
    unittest.main()
