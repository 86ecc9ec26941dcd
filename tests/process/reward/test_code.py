"""Programs that run code, in the real sandbox: partial credit, early verdicts, and cheats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from plexsvc.reward.programs.base import Outcome, Passed, RefusedError, Scored, StageRun, TimedOut
from plexsvc.reward.programs.registry import PROGRAMS
from plexsvc.reward.sandbox.base import Sandbox, StageLimits
from tests.rigs.sandbox_process import sandbox_process

pytestmark = pytest.mark.process
ADD = [{"stdin": "1 2", "stdout": "3"}, {"stdin": "5 5", "stdout": "10\n"}]
CALLS = [{"call": "f(1)", "equals": 2}, {"call": "f([])", "equals": [1]}]
TREE = {
    "files": {
        "test_it.py": "from solution import f\n\n"
        "def test_one(): assert f(1) == 2\n\ndef test_two(): assert f(2) == 4\n"
    }
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with sandbox_process() as found:
        yield found


def run(
    sandbox: Sandbox,
    program: str,
    text: str,
    reference: object,
    patience: int = 1,
    /,
    **settings: object,
) -> Outcome:
    """Return the outcome of the stages as the proxy has them run, or with more time for each."""
    files: dict[str, bytes] = {}
    found: Outcome | None = None
    for stage in PROGRAMS[program].stages:
        work = StageRun(
            text=text,
            reference=reference,
            settings=settings,
            files=files,
            limits=replace(stage.limits, wall_us=patience * stage.limits.wall_us),
            sandbox=sandbox,
        )
        found = stage.run(work)
        if not isinstance(found, Passed):
            break
        files = dict(found.files)
    assert found is not None
    return found


def score(
    sandbox: Sandbox, program: str, text: str, reference: object, **settings: object
) -> float:
    found = run(sandbox, program, text, reference, **settings)
    assert isinstance(found, Scored), found
    return found.score


@pytest.mark.parametrize(
    ("text", "tests", "expected"),
    [
        ("a, b = map(int, input().split()); print(a + b)", ADD, 1.0),
        ("So:\n```python\nprint(3)\n```\nDone.", ADD, 0.5),
        ("print(3", ADD, 0.0),
        ("def f(x): return x + 1 if isinstance(x, int) else x + [1]", CALLS, 1.0),
        ("def f(x): return x + 1", CALLS, 0.5),
        ("def f(x): return 4", [{"assert": "f(2) == 4"}], 1.0),
        ("def f(x): return 5", [{"assert": "f(2) == 4"}], 0.0),
    ],
)
def test_python_gets_the_share_of_tests_that_it_passes(
    text: str, tests: object, expected: float, sandbox: Sandbox
) -> None:
    assert score(sandbox, "code_python", text, tests) == expected


def test_keys_that_are_one_in_json_are_no_answer(sandbox: Sandbox) -> None:
    test = [{"call": "f()", "equals": {"1": 2}}]
    assert score(sandbox, "code_python", "def f(): return {1: 2}", test) == 1.0
    assert score(sandbox, "code_python", "def f(): return {1: 3, '1': 2}", test) == 0.0


@pytest.mark.parametrize("end", ["\u00a0", "\u2028", "\x1c", "\u3000", "\x85"])
def test_an_output_ends_in_white_space_of_ascii_only(end: str, sandbox: Sandbox) -> None:
    assert score(sandbox, "code_python", f"print('3' + {end!r})", ADD[:1]) == 0.0
    assert score(sandbox, "code_python", "print('3 \t\\n\\r\\n ')", ADD[:1]) == 1.0


@pytest.mark.parametrize("program", ["code_python", "code_cpp"])
def test_inputs_and_outputs_are_texts(program: str, sandbox: Sandbox) -> None:
    (*_, stage) = PROGRAMS[program].stages
    for test in ({"stdout": None}, {"stdout": ["1"]}, {"stdin": {"a": 1}, "stdout": "1"}):
        work = StageRun(text="print(1)", reference=[test], settings={}, sandbox=sandbox)
        with pytest.raises(RefusedError, match="must be a text"):
            stage.run(work)
    asked = [{"stdin": None, "stdout": 0}]
    assert score(sandbox, "code_python", "import sys; print(len(sys.stdin.read()))", asked) == 1.0


def test_without_partial_credit_all_must_pass(sandbox: Sandbox) -> None:
    assert score(sandbox, "code_python", "print(3)", ADD, partial=False) == 0.0


@pytest.mark.parametrize(
    "cheat",
    [
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "print('2'); import os; os.close(2); os._exit(0)",
        "import sys; sys.stdout.write('2'); sys.exit()",
        "import builtins; builtins.eval = lambda *a: 2",
        "import os; os.write(3, b'2'); os._exit(0)",
    ],
)
def test_leaving_early_passes_no_test(cheat: str, sandbox: Sandbox) -> None:
    tests = [{"call": "f(3)", "equals": 7}, {"assert": "f(3) == 7"}]
    assert score(sandbox, "code_python", cheat, tests) == 0.0


FORGERIES = {
    "print what it was sent": "import sys, os\n"
    "word = sys.stdin.readline().encode()\n"
    "for fd in range(1, 10):\n"
    "    try: os.write(fd, word)\n"
    "    except OSError: pass\n"
    "os._exit(0)\n",
    "look for it in its frames": "import sys, os\n"
    "frame = sys._getframe()\n"
    "while frame: print(frame.f_locals); frame = frame.f_back\n"
    "import gc; print([o for o in gc.get_objects() if isinstance(o, str)])\n",
    "read the harness's descriptors": "import os\n"
    "for fd in range(10):\n"
    "    for pid in (1, os.getppid()):\n"
    "        try: os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY), b'x')\n"
    "        except OSError: pass\n",
    "write to the harness's memory": "import os\n"
    "try: open(f'/proc/{os.getppid()}/mem', 'r+b'); f = lambda x: 7\n"
    "except OSError: pass\n",
    "read the assertion": "import os\n"
    "said = open(f'/proc/{os.getppid()}/cmdline').read() + open('harness.py').read()\n"
    "f = lambda x: 7 if 'f(3) == 7' in said else 0\n",
    "change what it is tested by": "import builtins\n"
    "builtins.AssertionError = builtins.eval = builtins.exec = builtins.compile = print\n"
    "f = lambda x: 8\n",
    "be equal to everything": "class Liar:\n"
    "    __eq__ = lambda *_: True\n    __hash__ = None\n"
    "f = lambda x: Liar()\n",
    "be a number that is equal to everything": "class Liar(int):\n"
    "    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
    "f = lambda x: Liar(3)\n",
    "replace a function of the library": "import math\n"
    "math.isclose = lambda *_: True\nf = lambda x: 8\n",
    "replace a builtin function": "all = any = isinstance = lambda *_: True\nf = lambda x: 8\n",
    "answer for ever": "import os, threading\n"
    "def answer():\n    while True: os.write(4, b'[\"gave\", true]\\n')\n"
    "threading.Thread(target=answer, daemon=True).start()\nf = lambda x: 8\n",
    "kill the harness": "import os\nos.kill(os.getppid(), 9); f = lambda x: 8\n",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_an_assertion_is_not_fooled(name: str, sandbox: Sandbox) -> None:
    tests = [{"assert": "f(3) == 7"}, {"assert": "math.isclose(f(3), 7) and all([f(3) == 7])"}]
    assert score(sandbox, "code_python", FORGERIES[name], tests) == 0.0


RICH = """
from collections import Counter, defaultdict, namedtuple
from fractions import Fraction
import math
class Stack:
    def __init__(self): self.held = []
    def push(self, x): self.held.append(x); return self
    def pop(self): return self.held.pop()
    def __len__(self): return len(self.held)
    def __eq__(self, other): return self.held == other.held
def f(x):
    if x < 0: raise ValueError("below")
    return math.sqrt(x)
def counts(xs): return Counter(xs)
def some(n):
    for i in range(n): yield i
def nested(): return {"a": (1, {2, 3}), (1, 2): [None, b"x", 1j, Fraction(1, 3)]}
def twice(g, x): return g(g(x))
Pair = namedtuple("Pair", "a b")
def sort(xs): xs.sort()
"""


@pytest.mark.parametrize(
    "assertion",
    [
        "f(4) == 2 and isinstance(f(4), float)",
        "math.isclose(f(2), 1.41421356, rel_tol=1e-6)",
        "counts('aab') == {'a': 2, 'b': 1}",
        "list(some(3)) == [0, 1, 2]",
        "[x for x in some(2)] == [0, 1] and 1 in some(2)",
        "all(f(x * x) == x for x in range(5))",
        "nested() == {'a': (1, {2, 3}), (1, 2): [None, b'x', 1j, Fraction(1, 3)]}",
        "Stack().push(1).push(2).pop() == 2 and len(Stack().push(1)) == 1",
        "isinstance(Stack(), Stack) and Stack() == Stack() and Stack().push(1) != Stack()",
        "Pair(1, 2) == (1, 2) and Stack().push(3).held == [3]",
        "twice(lambda x: x + 1, 3) == 5",
        "(lambda s: s.push(4) and s.pop())(Stack()) == 4",
        "assert f(9) == 3\ntry: f(-1)\nexcept ValueError as e: assert str(e) == 'below'",
        "assert sorted([f(9), 1]) == [1, 3], 'sorted'",
        "assert sort(xs := [[2], [1]]) is None and xs == [[1], [2]]",
    ],
)
def test_an_assertion_sees_the_solution_as_if_it_were_there(
    assertion: str, sandbox: Sandbox
) -> None:
    found = run(sandbox, "code_python", RICH, [{"assert": assertion}])
    assert isinstance(found, Scored)
    assert found.score == 1.0, found.output


def test_code_that_does_not_end_times_out(sandbox: Sandbox) -> None:
    stage = PROGRAMS["code_python"].stages[0]
    work = StageRun(
        text="while True: pass",
        reference=ADD,
        limits=StageLimits(wall_us=500_000),
        sandbox=sandbox,
    )
    assert isinstance(stage.run(work), TimedOut)


def test_tests_may_be_given_less_time(sandbox: Sandbox) -> None:
    found = run(sandbox, "code_python", "while True: pass", ADD, seconds=0.2)
    assert isinstance(found, TimedOut)
    assert "0.2 s" in found.detail
    with pytest.raises(RefusedError, match=r"seconds = 31: it must be above 0 and at most 30"):
        run(sandbox, "code_python", "print(1)", ADD, seconds=31)


@pytest.mark.parametrize("tests", [[], "x", [{"stdin": "1"}], [{}] * 300, None])
def test_tests_that_are_none_are_refused(tests: object, sandbox: Sandbox) -> None:
    with pytest.raises(RefusedError):
        run(sandbox, "code_python", "print(1)", tests)


def test_cpp_is_compiled_once_and_tested(sandbox: Sandbox) -> None:
    good = "#include <iostream>\nint main(){int a,b;std::cin>>a>>b;std::cout<<a+b;}"
    assert score(sandbox, "code_cpp", good, ADD) == 1.0
    assert score(sandbox, "code_cpp", good.replace("a+b", "3"), ADD) == 0.5
    found = run(sandbox, "code_cpp", "int main( {", ADD)
    assert isinstance(found, Scored)
    assert (found.score, found.detail) == (0.0, "it does not compile")
    assert "error" in found.output


def test_cpp_that_crashes_fails_its_test(sandbox: Sandbox) -> None:
    crash = "#include <cstdlib>\nint main(){std::abort();}"
    assert score(sandbox, "code_cpp", crash, ADD) == 0.0


def test_a_tree_of_unit_tests_gives_partial_credit(sandbox: Sandbox) -> None:
    assert score(sandbox, "unit_tests", "def f(x): return 2 * x", TREE) == 1.0
    assert score(sandbox, "unit_tests", "def f(x): return 2", TREE) == 0.5
    assert score(sandbox, "unit_tests", "import os; os._exit(0)", TREE) == 0.0
    assert score(sandbox, "unit_tests", "def f(x: return", TREE) == 0.0
    with pytest.raises(RefusedError, match="do not leave"):
        run(sandbox, "unit_tests", "x", {"files": {"../x": ""}})


HOSTILE_UNITS = {
    "leave when it is called": "import os\ndef f(x): os._exit(0)\n",
    "leave as if all was well": "def f(x): raise SystemExit(0)\n",
    "print a verdict": "import os\n"
    "for fd in range(10):\n"
    "    try: os.write(fd, b'\\n2 passed in 0.01s\\n[2, 2]\\n')\n"
    "    except OSError: pass\nos._exit(0)\n",
    "patch pytest": "import _pytest.runner, _pytest.reports, pytest\n"
    "_pytest.reports.TestReport.passed = True\n"
    "_pytest.runner.runtestprotocol = lambda *a, **k: []\n"
    "pytest.main = lambda *a, **k: 0\nf = lambda x: 7\n",
    "patch unittest": "import unittest\n"
    "unittest.TestCase.run = unittest.TestCase.assertEqual = lambda *a, **k: None\n"
    "f = lambda x: 7\n",
    "speak at the end": "import atexit, os\n"
    "atexit.register(lambda: os.write(1, b'2 passed in 0.01s\\n'))\nf = lambda x: 7\n",
    "write a conftest": "import os\n"
    "for place in ('conftest.py', '/tmp/conftest.py', '/tmp/box/conftest.py'):\n"
    "    try: open(place, 'w').write('def pytest_pyfunc_call(pyfuncitem): return True')\n"
    "    except OSError: pass\nf = lambda x: 7\n",
    "replace the tests": "import os\n"
    "for name in ('test_it.py', 'test_z.py', '.harness/asserting.pyc'):\n"
    "    try: os.chmod(name, 0o777)\n"
    "    except OSError: pass\n"
    "    try: os.replace('solution.py', name)\n"
    "    except OSError: pass\n"
    "    try: os.unlink(name)\n"
    "    except OSError: pass\n"
    "def test_mine(): pass\nf = lambda x: 7\n",
    "mount over the tests": "import ctypes\n"
    "ctypes.CDLL(None).mount(b'none', b'/tmp/box', b'', 32 | 4096, None)\n"
    "ctypes.CDLL(None).umount(b'/tmp/box')\nf = lambda x: 7\n",
    "look for the word": "import gc, os, sys\n"
    "frame, seen = sys._getframe(), []\n"
    "while frame: seen += frame.f_locals.values(); frame = frame.f_back\n"
    "seen += gc.get_objects()\n"
    "words = {one for one in seen if isinstance(one, str) and len(one) == 32}\n"
    "for pid in (1, os.getppid()):\n"
    "    for name in ('fd/0', 'fd/1', 'mem', 'environ', 'fd/3', 'fd/4'):\n"
    "        try: words.add(open(f'/proc/{pid}/{name}').read()[:32])\n"
    "        except (OSError, ValueError): pass\n"
    "for word in words:\n"
    "    for fd in range(10):\n"
    "        try: os.write(fd, f'{word} [2, 2]\\n'.encode())\n"
    "        except OSError: pass\nf = lambda x: 7\n",
    "trace whoever calls": "import sys, threading\n"
    "def spy(frame, event, arg):\n"
    "    frame.f_globals.clear()\n    return spy\n"
    "sys.settrace(spy); threading.settrace(spy); sys.setprofile(spy)\nf = lambda x: 7\n",
    "stop the tests": "import os\n"
    "def f(x):\n"
    '    os.write(4, b\'["raised", ["builtin", "KeyboardInterrupt"], []]\\n\')\n',
    "raise pytest's own": "import pytest\ndef f(x): pytest.skip('no need')\n",
    "end pytest": "import pytest\ndef f(x): pytest.exit('done', 0)\n",
    "be equal to everything": "class Liar(int):\n"
    "    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n"
    "    __hash__ = int.__hash__\nf = Liar\n",
    "kill the tests": "import os\ndef f(x): os.kill(os.getppid(), 9); os.kill(1, 9); return 7\n",
    "be what is starred": "def test_one(): pass\ndef test_two(): pass\n"
    "class TestMine:\n    def test_three(self): pass\n    def test_four(self): pass\n"
    "pytestmark = all = isinstance = None\nf = lambda x: 7\n",
}
STARRED = {
    "files": {
        "test_a.py": "from solution import *\n\ndef test_a(): assert all([f(3) == 6])\n",
        "test_it.py": TREE["files"]["test_it.py"],
        "test_z.py": "import solution\n\ndef test_z():\n    assert solution.f(5) == 10\n",
    }
}


@pytest.mark.parametrize("name", HOSTILE_UNITS)
def test_unit_tests_are_not_fooled(name: str, sandbox: Sandbox) -> None:
    assert score(sandbox, "unit_tests", HOSTILE_UNITS[name], STARRED) == 0.0


def test_what_is_lent_does_not_tell_what_is_expected(sandbox: Sandbox) -> None:
    look = (
        "def f(g):\n"
        "    found = []\n"
        "    for name in ('__globals__', '__code__', '__closure__', '__self__', 'gi_frame'):\n"
        "        try: found.append(getattr(g, name))\n"
        "        except Exception as error: found.append(str(error))\n"
        "    return 7 if any(not isinstance(one, str) for one in found) else 8\n"
    )
    lent = ["lambda: 7", "(x for x in [7])", "dict(a=7).get", "type(7)"]
    tests = [{"assert": f"f({one}) == 7"} for one in lent]
    assert score(sandbox, "code_python", look, tests) == 0.0


PACKAGE = {
    "path": "shop/cart.py",
    "files": {
        "shop/__init__.py": "",
        "shop/prices.py": "PRICES = {'tea': 3}\n",
        "conftest.py": "import pytest\nfrom shop.cart import Cart\n\n"
        "@pytest.fixture\ndef cart(): return Cart()\n",
        "tests/test_cart.py": "import pytest, unittest\n"
        "from unittest.mock import Mock\n"
        "from shop import cart as module\n"
        "from shop.cart import Cart, UnknownError, sort_in_place, LIMIT\n\n"
        "def test_total(cart):\n    cart.add('tea', 2)\n    assert cart.total == 6\n\n"
        "def test_unknown(cart):\n"
        "    with pytest.raises(UnknownError, match='milk'): cart.add('milk', 1)\n"
        "    with pytest.raises(KeyError): cart.add('milk', 1)\n\n"
        "def test_attribute(cart):\n    cart.owner = 'ann'\n    assert cart.greeting() == 'ann'\n"
        "    assert isinstance(cart, Cart) and not isinstance(3, Cart)\n\n"
        "def test_callback(cart):\n    told = []\n    cart.tell(told.append)\n"
        "    assert told == [0]\n    spy = Mock(return_value=4)\n"
        "    assert cart.tell(spy) == 4\n    spy.assert_called_once_with(0)\n\n"
        "def test_in_place():\n    xs = [[3], [1]]\n    assert sort_in_place(xs) is None\n"
        "    assert xs == [[1], [3]]\n\n"
        "def test_context(cart, tmp_path):\n"
        "    with cart as same: same.add('tea', 1)\n    assert cart.total == 3\n"
        "    cart.save(str(tmp_path / 'it'))\n"
        "    assert (tmp_path / 'it').read_text() == '3'\n\n"
        "def test_exits():\n    with pytest.raises(SystemExit): module.main([])\n\n"
        "@pytest.mark.parametrize('number', range(LIMIT))\n"
        "def test_each(number): assert module.double(number) == 2 * number\n\n"
        "@pytest.mark.skip\ndef test_later(): assert 0\n\n"
        "class TestUnits(unittest.TestCase):\n"
        "    def test_units(self): self.assertEqual(module.double(4), 8)\n",
    },
}
CART = """
import sys
from .prices import PRICES
LIMIT = 3
class UnknownError(KeyError): pass
class Cart:
    def __init__(self): self.held = {}
    def add(self, name, number):
        if name not in PRICES: raise UnknownError(name)
        self.held[name] = number
    @property
    def total(self): return sum(PRICES[n] * k for n, k in self.held.items())
    def greeting(self): return self.owner
    def tell(self, listener): return listener(self.total)
    def save(self, path): open(path, "w").write(str(self.total))
    def __enter__(self): return self
    def __exit__(self, *_): pass
def sort_in_place(xs): xs.sort()
def double(x): return 2 * x
def main(argv): sys.exit(2)
"""


def test_unit_tests_see_a_module_of_a_package_as_if_it_were_there(sandbox: Sandbox) -> None:
    found = run(sandbox, "unit_tests", CART, PACKAGE)
    assert isinstance(found, Scored)
    assert found.detail == "9 of 9", found.output
    broken = CART.replace("xs.sort()", "sorted(xs)").replace("return 2 * x", "return x")
    found = run(sandbox, "unit_tests", broken, PACKAGE)
    assert isinstance(found, Scored)
    assert found.detail == "6 of 9", found.output


def test_a_sample_is_no_test_of_itself(sandbox: Sandbox) -> None:
    for path in ("test_it.py", "a/conftest.py", "it_test.py"):
        with pytest.raises(RefusedError, match="cannot judge itself"):
            run(sandbox, "unit_tests", "def test_it(): pass", {"files": {}, "path": path})


BACKTRACKS = {"pattern": "^(a|a)*$"}
NESTED: dict[str, object] = {"type": "object"}
for _ in range(400):
    NESTED = {"items": NESTED}


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ('{"a": 1}', {"required": ["a"]}, 1),
        ('{"b": 1}', {"required": ["a"]}, 0),
        ("no json", {"required": ["a"]}, 0),
        ("[" * 100_000, {"type": "array"}, 0),
        *((text, {}, 0) for text in ("NaN", "-Infinity", "[Infinity]", "1 2", "{} x", "'a'", "01")),
        *(
            (text, {}, 0)
            for text in ("```json\n{}\n```", "\ufeff{}", '{"a": 1, "a": 2}', "[1,]", "")
        ),
        *((text, {"const": 1}, 0) for text in ("true", "[1]", '"1"')),
        *((text, {"enum": [True, [0]]}, 0) for text in ("1", "[false]")),
        ("true", {"type": "number"}, 0),
        ("1.0", {"type": "integer"}, 1),
        ("1.5", {"type": "integer"}, 0),
        ("1e2", {"const": 100}, 1),
        ("[1, true]", {"uniqueItems": True}, 1),
        ("{}", {"properties": {"a": {"default": 1}}, "allOf": [{"required": ["a"]}]}, 0),
        ("1" * 5000, {"type": "integer"}, 1),
        ("1" * 500, {"multipleOf": 0.5}, 0),
        *((text, {"type": "number"}, 0) for text in ("1e999", "-1e999", "1" * 400 + ".5")),
        ('"٣"', {"pattern": "^\\d$"}, 0),
        ('"\\u0663"', {"patternProperties": {"a": {}}, "pattern": "\\w"}, 0),
        (' {"a":\r\n1}\n', {"required": ["a"]}, 1),
        ('{"prefixItems": 1}', {"properties": {"prefixItems": {"type": "number"}}}, 1),
    ],
)
def test_json_is_compared_with_its_schema(
    text: str, schema: object, expected: float, sandbox: Sandbox
) -> None:
    assert score(sandbox, "json_schema", text, schema) == expected
    assert score(sandbox, "json_schema", text, None, schema=schema) == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "the schema is none"),
        (7, "the schema is none"),
        ({"pattern": "("}, "the schema is none"),
        ({"$id": "http://[", "items": {"$ref": "a"}}, "the schema is none"),
        ({"$ref": "file:///etc/hostname"}, "refers to 'file:///etc/hostname'"),
        ({"$id": "http://localhost/a", "$ref": "b"}, "refers to 'http://localhost/b'"),
        ({"items": {"$ref": "else.json#/a"}}, "refers to 'else.json'"),
        (NESTED, "the schema is none"),
        ({"prefixItems": [{"type": "string"}]}, "'prefixItems', which is not compared"),
        ({"items": {"unevaluatedProperties": False}}, "'unevaluatedProperties'"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "[$]schema"),
        ({"title": "'; import os; os._exit(0) #\n", "type": "nonsense"}, "the schema is none"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: object, reason: str, sandbox: Sandbox) -> None:
    with pytest.raises(RefusedError, match=reason):
        run(sandbox, "json_schema", "4", schema)


@pytest.mark.parametrize(
    "schema",
    [
        BACKTRACKS,
        {"patternProperties": {"^(a|a)*$": {}}},
        {"enum": ["x" * (24 << 20)]},
    ],
)
def test_a_schema_that_takes_for_ever_costs_its_own_sample_only(
    schema: object, sandbox: Sandbox
) -> None:
    text = '"' + "a" * 40 + '!"' if schema is BACKTRACKS else '{"' + "a" * 40 + '!": 1}'
    (stage,) = PROGRAMS["json_schema"].stages
    assert stage.is_sandboxed
    limits = StageLimits(wall_us=2_000_000, memory_bytes=64 << 20)
    work = StageRun(text=text, reference=schema, settings={}, limits=limits, sandbox=sandbox)
    try:
        assert isinstance(stage.run(work), TimedOut)
    except RefusedError as refused:
        assert "MemoryError" in str(refused)  # noqa: PT017 - either will do
    assert score(sandbox, "json_schema", "1", {"type": "number"}) == 1, "the next is not touched"
