"""Test files whose number of tests a sample could change, with samples that try, and their scores.

Each is a test file, then samples with the passed and all tests that are counted for them.
"""

from __future__ import annotations

from typing import Final

COUNTED: Final[dict[str, tuple[str, list[tuple[str, str]]]]] = {
    "a range of the sample's": (
        (
            "import pytest\nfrom solution import LIMIT, double, f\n\n"
            "@pytest.mark.parametrize('n', range(LIMIT))\ndef test_each(n): assert double(n) == 2 * n\n"
            "def test_f(): assert f(1) == 7\n"
        ),
        [
            ("LIMIT = 3\ndef double(n): return 2 * n\ndef f(x): return 7", "2 of 2"),
            ("LIMIT = 300\ndef double(n): return 2 * n\ndef f(x): return 0", "1 of 2"),
            ("LIMIT = 0\ndef double(n): return 2 * n\ndef f(x): return 7", "1 of 2"),
            ("LIMIT = 3\ndef double(n): return n\ndef f(x): return 7", "1 of 2"),
        ],
    ),
    "tests that a loop makes of the sample's names": (
        (
            "import solution\n\n"
            "for name in solution.NAMES: globals()['test_' + name] = lambda: None\n"
            "def test_f(): assert solution.f(1) == 7\n"
        ),
        [
            ("NAMES = list('abcdefgh')\ndef f(x): return 0", "0 of 1"),
            ("NAMES = ['a']\ndef f(x): return 7", "1 of 1"),
        ],
    ),
    "skipped for want of a feature": (
        (
            "import pytest, solution\n\nHAS = solution.HAS\n"
            "@pytest.mark.skipif(not HAS, reason='no')\ndef test_one(): assert solution.f(1) == 7\n"
            "@pytest.mark.xfail(not HAS, reason='no')\ndef test_two(): assert solution.f(1) == 7\n"
            "def test_three():\n    if not HAS: pytest.skip()\n    assert solution.f(1) == 7\n"
            "def test_four(): assert solution.f(2) == 0\n"
        ),
        [
            ("HAS = False\ndef f(x): return 0", "1 of 4"),
            ("HAS = True\ndef f(x): return 7 if x == 1 else 0", "4 of 4"),
        ],
    ),
    "skipped by a fixture of the session": (
        (
            "import pytest, solution\n\n"
            "@pytest.fixture(scope='session')\ndef has(): return solution.has()\n"
            "def test_one(has):\n    assert solution.f(0) == 0\n"
            "def test_two(has):\n    if not has: pytest.skip()\n    assert solution.f(1) == 7\n"
        ),
        [
            ("def has(): return False\ndef f(x): return 0", "1 of 2"),
            ("def has(): return True\ndef f(x): return 7 * x", "2 of 2"),
        ],
    ),
    "expected to fail when it fails": (
        (
            "import pytest, solution\n\n"
            "def test_one():\n    if solution.f(1) != 7: pytest.xfail('known')\n"
            "def test_two(): assert solution.f(2) == 0\n"
        ),
        [
            ("def f(x): return 0", "1 of 2"),
            ("def f(x): return 7 if x == 1 else 0", "2 of 2"),
        ],
    ),
    "skipped by the author": (
        (
            "import pytest, sys, unittest, solution\n\n"
            "def test_here():\n    if sys.platform: pytest.skip('not here')\n    assert 0\n"
            "@pytest.mark.xfail(sys.platform == 'none', reason='no')\n"
            "def test_elsewhere(): assert solution.f(1) == 7\n"
            "@pytest.mark.xfail('sys.platform', reason='no')\n"
            "def test_text(): assert 0\n"
            "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.skip)])\n"
            "def test_each(n): assert solution.f(n) == 7\n"
            "class TestIt(unittest.TestCase):\n"
            "    @unittest.skip('later')\n    def test_later(self): assert 0\n"
            "    @unittest.expectedFailure\n    def test_fails(self): assert solution.f(1) == 8\n"
            "    def test_skips(self): self.skipTest('no')\n"
            "    def test_runs(self): self.assertEqual(solution.f(1), 7)\n"
        ),
        [
            ("def f(x): return 7", "3 of 3"),
            ("def f(x): return 8", "0 of 3"),
        ],
    ),
    "a file that needs the sample to be collected": (
        (
            "import pytest, solution\n\nassert solution.N == 3\n"
            "@pytest.mark.parametrize('n', range(solution.N))\ndef test_each(n):\n    assert solution.f(n) == n\n"
            "class TestIt:\n    def test_f(self): assert solution.f(1) == 1\n"
            "    def test_g(self): assert solution.f(2) == 7\n"
        ),
        [
            ("N = 3\ndef f(x): return x", "2 of 3"),
            ("N = 4\ndef f(x): return x", "0 of 3"),
            ("N = 3\ndef f(x): return 7", "1 of 3"),
        ],
    ),
}
