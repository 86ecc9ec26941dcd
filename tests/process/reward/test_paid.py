"""What code graders pay: every point that was earned, and none that was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from plexsvc.reward.programs.base import Outcome, RefusedError, Scored
from plexsvc.reward.sandbox.base import Sandbox
from tests.process.reward import test_code
from tests.rigs import (
    counted_suites,
    derived_programs,
    ordinary_suites,
    paid_hacks,
    right_programs,
    right_suites,
)
from tests.rigs import more_right_programs as more
from tests.rigs.sandbox_process import sandbox_process

pytestmark = [pytest.mark.process, pytest.mark.slow]

RIGHT: dict[str, tuple[str, list[dict[str, object]], bool]] = {
    **{name: (*found, False) for name, found in right_programs.PROGRAMS.items()},
    **{name: (*found, True) for name, found in right_programs.NUMPY.items()},
    **{
        f"{name}, more": (code, [{"assert": one} for one in texts], name in more.WITH_PACKAGES)
        for name, (code, texts) in {**more.PROGRAMS, **more.WITH_PACKAGES}.items()
    },
    **{
        f"{name}, derived": (code, [{"assert": one} for one in texts], False)
        for name, (code, texts) in derived_programs.PROGRAMS.items()
    },
    **{
        f"{name}, printing": (code, [{"stdin": stdin, "stdout": stdout}], False)
        for name, (code, stdin, stdout) in more.PRINTING.items()
    },
    **{
        f"{name}, returning": (code, [{"call": call, "equals": equals}], False)
        for name, (code, call, equals) in more.RETURNING.items()
    },
    **{
        f"{name}, fenced": (text, [{"call": "f(1)", "equals": 2}], False)
        for name, text in more.FENCED.items()
    },
}
SEEN = """
import gc, sys
for agent in gc.get_objects():
    if type(agent).__name__ == "SampleEnd":
        def read(self, real=type(agent).read):
            message = real(self)
            print("SEEN", message, file=sys.__stderr__)
            return message
        type(agent).read = read
def f(x): return x
class Box:
    def __init__(self, x): self.x = x
"""
"""A sample that prints every message that reaches its process."""


SCANS = """
import os, re, sys
WANTED = re.compile(bytes(ord(c) - 1 for c in "dbobsz") + b"-[0-9a-f]{12}")
def hits():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(at, 16) for at in line.split()[0].split("-"))
            if "r" in line.split()[1] and "[v" not in line:
                try:
                    memory.seek(first)
                    yield from WANTED.findall(memory.read(last - first))
                except (OSError, ValueError, OverflowError):
                    pass
    tops = [".", "..", "/tmp", "/var/tmp", "/dev/shm", "/run", os.path.expanduser("~"), "/proc"]
    for top in tops:
        for here, _, names in os.walk(top):
            for name in names:
                if not here.startswith("/proc") or name in ("cmdline", "environ"):
                    try:
                        with open(os.path.join(here, name), "rb") as file:
                            yield from WANTED.findall(file.read(1 << 20))
                    except OSError:
                        pass
def f(x):
    print("\\nHITS", sorted({hit.decode() for hit in hits()}), file=sys.__stderr__)
    return x
if __name__ == "__main__":
    f(input())
"""
"""A sample that looks for canaries in its memory and in every file that it can open."""


def canary(number: int) -> str:
    """Return a text that is nowhere else."""
    return f"canary-{number + (7 << 40):012x}"


def run(
    sandbox: Sandbox, program: str, text: str, reference: object, **settings: object
) -> Outcome:
    """Return what the graders say, however busy the machine is."""
    return test_code.run(sandbox, program, text, reference, 10, **settings)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_process() as found:
        yield found


@pytest.mark.every(6)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_gets_all_its_points(name: str, sandbox: Sandbox) -> None:
    code, tests, has_packages = RIGHT[name]
    for at in range(0, len(tests), 8):  # all have a time together
        found = run(sandbox, "code_python", code, tests[at : at + 8], packages=has_packages)
        assert isinstance(found, Scored)
        assert found.score == 1, (found.detail, found.output)


def test_a_right_sample_passes_ordinary_test_files(sandbox: Sandbox) -> None:
    reference = {"files": right_suites.FILES}
    found = run(sandbox, "unit_tests", right_suites.SAMPLE, reference)
    assert isinstance(found, Scored)
    assert found.score == 1, found.output


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ordinary_suites.SUITES)
def test_a_right_sample_passes_an_ordinary_test_file(name: str, sandbox: Sandbox) -> None:
    code, test = ordinary_suites.SUITES[name]
    reference = {"files": {"test_it.py": test, "words.txt": "a\nb\n"}}
    found = run(sandbox, "unit_tests", code, reference)
    assert isinstance(found, Scored)
    assert found.score == 1, found.output


@pytest.mark.every(2)
@pytest.mark.parametrize("name", paid_hacks.SAMPLES)
def test_no_sample_gets_a_point_from_an_assertion_that_it_did_not_earn(
    name: str, sandbox: Sandbox, every: Callable[[int], int]
) -> None:
    at, count = list(paid_hacks.SAMPLES).index(name), len(paid_hacks.ASSERTIONS)
    texts = [paid_hacks.ASSERTIONS[(at + 3 * k) % count] for k in range(0, 8, every(4))]
    tests = [{"assert": text} for text in (*paid_hacks.ASSERTIONS[:4], *texts)]
    found = run(sandbox, "code_python", paid_hacks.SAMPLES[name], tests)
    assert isinstance(found, Scored)
    assert found.score == 0, found.detail


@pytest.mark.every(2)
@pytest.mark.parametrize("name", paid_hacks.SUITES)
def test_no_sample_gets_a_point_from_unit_tests_that_it_did_not_earn(
    name: str, sandbox: Sandbox
) -> None:
    found = run(sandbox, "unit_tests", paid_hacks.SUITE_SAMPLES[name], paid_hacks.TREE)
    assert isinstance(found, Scored)
    assert found.score == 0, found.detail
    assert found.detail.startswith("0 of 13"), "the tests are counted before the sample runs"


@pytest.mark.parametrize(
    ("name", "sample"), [(name, one) for name, (_, of) in paid_hacks.FILES.items() for one in of]
)
def test_no_sample_gets_a_point_from_a_file_of_tests_that_it_did_not_earn(
    name: str, sample: str, sandbox: Sandbox
) -> None:
    files, samples = paid_hacks.FILES[name]
    found = run(sandbox, "unit_tests", samples[sample], {"files": files})
    assert isinstance(found, Scored)
    assert found.score == 0, found.output


@pytest.mark.parametrize("name", paid_hacks.ASSERTED)
def test_no_sample_gets_a_point_from_another_assertion_that_it_did_not_earn(
    name: str, sandbox: Sandbox
) -> None:
    sample, texts = paid_hacks.ASSERTED[name]
    found = run(sandbox, "code_python", sample, [{"assert": one} for one in texts])
    assert isinstance(found, Scored)
    assert found.score == 0, found.detail


def test_a_call_of_a_function_of_pythons_name_asks_the_sample(sandbox: Sandbox) -> None:
    tests = [{"call": "sum(2, 3)", "equals": 5}, {"assert": "sum(2, 3) == 5"}]
    for code, expected in (("def sum(a, b): return a + b", 1), ("def total(a, b): return 5", 0)):
        found = run(sandbox, "code_python", code, tests)
        assert isinstance(found, Scored)
        assert found.score == expected, found.output


@pytest.mark.parametrize("name", paid_hacks.NAMED)
def test_what_a_class_that_the_tests_name_says_of_differences_is_not_believed(
    name: str, sandbox: Sandbox
) -> None:
    sample, asserted, suite = paid_hacks.NAMED[name]
    for truth in ("True", "False"):
        code = paid_hacks.LIAR.format(name=sample, truth=truth)
        found = run(sandbox, "code_python", code, [{"assert": one} for one in asserted])
        assert isinstance(found, Scored)
        assert found.score == 0, found.detail
        found = run(sandbox, "unit_tests", code, {"files": {"test_it.py": suite}})
        assert isinstance(found, Scored)
        assert found.score == 0, found.output


@pytest.mark.parametrize("base", paid_hacks.BELOW)
def test_what_a_class_below_a_plain_one_says_of_differences_is_not_believed(
    base: str, sandbox: Sandbox
) -> None:
    code = paid_hacks.LIAR_BELOW.format(base=base)
    texts = paid_hacks.BELOW[base]
    found = run(sandbox, "code_python", code, [{"assert": one} for one in texts])
    assert isinstance(found, Scored)
    assert found.score == 0, found.detail
    body = "\n".join(f"def test_{at}(): assert {one}" for at, one in enumerate(texts))
    tree = {"files": {"test_it.py": f"from solution import Below, f\n{body}"}}
    found = run(sandbox, "unit_tests", code, tree)
    assert isinstance(found, Scored)
    assert found.score == 0, found.output


def test_of_the_tests_only_arguments_of_calls_reach_the_process_of_the_sample(
    sandbox: Sandbox,
) -> None:
    canaries = [str(7_000_001 + 13 * k) for k in range(40)]
    forms = (
        "f(1) == {}", "f(1) - {} == 0", "abs(f(1) - {}) < 1", "{} in [f(1)]", "[f(1)] == [{}]",
        "f(1) < {}", "Box(1) == {}", "Box(1).x != {}", "f'{{f(1)}}' == '{}'", "{} / f(1) == 1",
    )  # fmt: skip
    tests = [{"assert": forms[k % len(forms)].format(one)} for k, one in enumerate(canaries)]
    tests += [{"assert": "assert f('argument') == 'argument'\nassert False"}]
    messages = []
    for test in tests:
        found = run(sandbox, "code_python", SEEN, [test])
        messages += [line for line in found.output.splitlines() if line.startswith("SEEN")]
    assert any("argument" in line for line in messages), "messages are seen"
    assert not [line for line in messages if any(one in line for one in canaries)]
    body = "\n".join(f"def test_{k}(): assert f({k}) == {one}" for k, one in enumerate(canaries))
    tree = {"files": {"test_it.py": f"from solution import f\nEXPECTED = {canaries}\n{body}"}}
    found = run(sandbox, "unit_tests", SEEN, tree)
    messages = [line for line in found.output.splitlines() if line.startswith("SEEN")]
    assert len(messages) > len(canaries)
    assert not [line for line in messages if any(one in line for one in canaries)]


def test_nothing_that_tests_expect_is_in_the_memory_or_the_files_of_the_sample(
    sandbox: Sandbox,
) -> None:
    given, *expected = map(canary, range(7))
    suite = f"from solution import f\nBOTH = {expected[:2]}\n" + "".join(
        f"def test_{k}(): assert f({given!r}) == {one!r}\n" for k, one in enumerate(expected)
    )
    asked: list[tuple[str, object]] = [
        ("code_python", [{"assert": f"f({given!r}) == {expected[0]!r}"}]),
        ("code_python", [{"call": f"f({given!r})", "equals": expected[1]}]),
        ("code_python", [{"stdin": given, "stdout": expected[2]}]),
        ("unit_tests", {"files": {"test_it.py": suite, "data.txt": expected[3]}}),
    ]
    for program, reference in asked:
        found = run(sandbox, program, SCANS, reference)
        assert isinstance(found, Scored)
        assert found.score == 0
        hits = {line for line in found.output.splitlines() if line.startswith("HITS")}
        assert hits == {f"HITS {[given]}"}, (reference, found.output[-2000:])


def test_no_argument_lends_the_sample_a_script_of_the_grader(sandbox: Sandbox) -> None:
    code = "import os\ndef f(path): return os.path.exists(path)"
    for name in ("asserting", "grader_line"):
        found = run(sandbox, "code_python", code, [{"assert": f"not f('.harness/{name}.pyc')"}])
        assert isinstance(found, Scored)
        assert found.score == 1, found.output


@pytest.mark.parametrize(
    ("program", "reference"),
    [
        ("code_python", [{"assert": "f(1) =="}]),
        ("code_python", [{"assert": "x = 1"}]),
        ("code_python", [{"call": "f(1", "equals": 2}]),
        ("code_python", [{"call": "[1, 2]", "equals": [1, 2]}]),
        ("code_python", [{"call": "sorted(set([1]))", "equals": [1]}]),
        ("code_python", [{"assert": "sorted(set([2, 1])) == [1, 2]"}]),
        ("code_python", [{"assert": "math.sqrt(4) == 2"}]),
        ("code_python", [{"assert": "isinstance(Box.__dict__['f'], staticmethod)"}]),
        ("code_python", [{"assert": "isinstance(vars(Box)['f'], property)"}]),
        ("code_python", [{"assert": "import inspect\nassert inspect.isfunction(f)"}]),
        ("unit_tests", {"files": {"test_a.py": "def test_a(: pass"}}),
        ("unit_tests", {"files": {"test_a.py": "import runpy\nrunpy.run_path('solution.py')"}}),
        ("unit_tests", {"files": {"test_a.py": "import inspect\ninspect.getsource(f)"}}),
        *(
            ("unit_tests", {"files": {"test_a.py": f"import solution\n{text}"}})
            for text in (
                "import doctest\ndef test_a(): assert not doctest.testmod(solution).failed",
                "from inspect import isfunction\ndef test_a(): assert isfunction(solution.f)",
                "import asyncio\ndef test_a(): assert asyncio.iscoroutinefunction(solution.f)",
                "import weakref\ndef test_a(): weakref.ref(solution.f)",
                "def test_a(): assert isinstance(solution.Box.__dict__['f'], staticmethod)",
                "def test_a(): assert isinstance(vars(solution.Box)['f'], staticmethod)",
                "import runpy\ndef test_a(): runpy.run_module('solution')",
                "import multiprocessing as mp\ndef test_a(): mp.Pool(1).map(solution.f, [1])",
                "def test_a(): assert open(solution.__file__).read()",
                "def test_a(): assert solution.f.__wrapped__(1)",
                "import subprocess\ndef test_a(): subprocess.run(['python', '-m', 'solution'])",
            )
        ),
        ("unit_tests", {"files": {"test_a.py": "x = 1"}}),
        ("unit_tests", {"files": {}, "path": "setup.cfg"}),
        ("unit_tests", {"files": {}, "given": ["nothing.py"]}),
    ],
)
def test_tests_that_cannot_be_judged_are_refused_whatever_the_sample(
    program: str, reference: object, sandbox: Sandbox
) -> None:
    for text in ("def f(x): return 2", ""):
        with pytest.raises(RefusedError):
            run(sandbox, program, text, reference)


def test_a_sample_may_import_its_package_and_what_is_given_and_no_test(sandbox: Sandbox) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/tools.py": "def double(x): return 2 * x",
        "pkg/expected.py": "VALUE = 4",
        "pkg/cases.py": "from .answers import SECOND",
        "pkg/answers.py": "SECOND = 4",
        "helpers.py": "from pkg import cases, third",
        "pkg/third.py": "THIRD = 4",
        "shared.py": "BASE = 0",
        "test_it.py": "from pkg.solution import f\nfrom pkg.expected import VALUE\n"
        "def test_it(): assert f(2) == VALUE",
    }
    reference = {"files": files, "path": "pkg/solution.py", "given": ["shared.py"]}
    right = "from shared import BASE\nfrom .tools import double\ndef f(x): return BASE + double(x)"
    found = run(sandbox, "unit_tests", right, reference)
    assert isinstance(found, Scored)
    assert found.score == 1, found.output
    for name in ("expected import VALUE", "answers import SECOND", "third import THIRD"):
        hack = f"from .{name} as found\ndef f(x): return found"
        found = run(sandbox, "unit_tests", hack, reference)
        assert isinstance(found, Scored)
        assert found.score == 0
        assert "given" in found.detail


@pytest.mark.parametrize("name", counted_suites.COUNTED)
def test_a_sample_does_not_change_how_many_tests_there_are(name: str, sandbox: Sandbox) -> None:
    test, samples = counted_suites.COUNTED[name]
    for code, counted in samples:
        found = run(sandbox, "unit_tests", code, {"files": {"test_it.py": test}})
        assert isinstance(found, Scored)
        assert found.detail == counted, (code, found.output)


def test_what_a_sample_imports_by_another_name_is_nothing_of_the_graders(
    sandbox: Sandbox,
) -> None:
    for code in ("from unittest.mock import ANY as answer", "from unittest.mock import _ANY as f"):
        for text in ("answer == 42", "f() == 42"):
            found = run(sandbox, "code_python", code, [{"assert": text}])
            assert isinstance(found, Scored)
            assert found.score == 0
    code = "from math import gcd as f\nimport collections as c"
    for text in ("f(4, 6) == 2", "c.Counter('aa') == {'a': 2}"):
        found = run(sandbox, "code_python", code, [{"assert": text}])
        assert isinstance(found, Scored)
        assert found.score == 1, found.output
