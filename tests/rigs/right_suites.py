"""Ordinary files of unit tests, and a right sample that passes all of them."""

from __future__ import annotations

from typing import Final

SAMPLE: Final = """
import json
import os
import sys
from dataclasses import dataclass
from enum import Enum


class AppError(Exception):
    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Animal:
    kind = "animal"

    def __init__(self, name):
        self.name = name

    def speak(self):
        return "..."

    def greet(self):
        return f"{self.name} says {self.speak()}"


@dataclass
class Point:
    x: int
    y: int = 0

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


class Color(Enum):
    RED = 1


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("empty stack")
        return self.items.pop()

    def __len__(self):
        return len(self.items)


RATE = 2


def helper(x):
    return x * RATE


def f(x):
    return helper(x)


def fail(code):
    raise AppError("it failed", code)


def divide(a, b):
    return a / b


def greet():
    name = input("name? ")
    print(f"hello {name}")


def read_all():
    return sys.stdin.read().upper()


def warn():
    print("careful", file=sys.stderr)


def save(path, data):
    with open(path, "w") as file:
        json.dump(data, file)


def load(path):
    with open(path) as file:
        return json.load(file)


def names(directory):
    return sorted(os.listdir(directory))


def home():
    return os.environ.get("APP_HOME", "none")


def relative():
    with open("here.txt", "w") as file:
        file.write("x")


async def later(x):
    return x + 1


def numbers(n):
    yield from range(n)


def apply(function, values):
    return [function(value) for value in values]


def sort(values):
    values.sort()
"""

FILES: Final[dict[str, str]] = {
    "test_plain.py": "from solution import f\n\ndef test_it():\n    assert f(2) == 4\n    assert f(0) == 0\n",
    "test_module.py": "import solution\n\ndef test_it():\n    assert solution.f(3) == 6\n    assert solution.RATE == 2\n",
    "test_star.py": "from solution import *\n\ndef test_it():\n    assert f(1) == 2\n    assert Stack is not None\n",
    "test_parametrize.py": "import pytest\nfrom solution import f\n\n@pytest.mark.parametrize('x, y', [(1, 2), (2, 4), (-1, -2)])\ndef test_it(x, y):\n    assert f(x) == y\n",
    "test_ids.py": "import pytest\nfrom solution import f\n\n@pytest.mark.parametrize('x', [pytest.param(1, id='one'), 2])\ndef test_it(x):\n    assert f(x) % 2 == 0\n",
    "test_fixture.py": "import pytest\nfrom solution import Stack\n\n@pytest.fixture\ndef stack():\n    made = Stack()\n    made.push(1)\n    yield made\n    made.items.clear()\n\ndef test_pop(stack):\n    assert stack.pop() == 1\n    assert len(stack) == 0\n\ndef test_push(stack):\n    stack.push(2)\n    assert stack.items == [1, 2]\n",
    "test_raises.py": "import pytest\nfrom solution import AppError, Stack, divide, fail\n\ndef test_own():\n    with pytest.raises(AppError) as info:\n        fail(7)\n    assert info.value.code == 7\n    assert str(info.value) == 'it failed'\n\ndef test_match():\n    with pytest.raises(IndexError, match='empty'):\n        Stack().pop()\n\ndef test_builtin():\n    with pytest.raises(ZeroDivisionError):\n        divide(1, 0)\n    with pytest.raises(Exception):\n        fail(1)\n",
    "test_approx.py": "import pytest\nfrom solution import divide\n\ndef test_it():\n    assert divide(1, 3) == pytest.approx(0.3333, rel=1e-3)\n    assert [divide(1, 2)] == pytest.approx([0.5])\n    assert abs(divide(1, 3) - 0.333) < 1e-2\n",
    "test_tmp_path.py": "from solution import load, names, save\n\ndef test_round(tmp_path):\n    save(tmp_path / 'a.json', {'k': [1, 2]})\n    assert load(str(tmp_path / 'a.json')) == {'k': [1, 2]}\n    assert (tmp_path / 'a.json').read_text() == '{\"k\": [1, 2]}'\n\ndef test_list(tmp_path):\n    (tmp_path / 'b').write_text('')\n    (tmp_path / 'c').mkdir()\n    assert names(tmp_path) == ['b', 'c']\n",
    "test_tmpdir.py": "from solution import load\n\ndef test_it(tmpdir):\n    place = tmpdir.join('x.json')\n    place.write('[1]')\n    assert load(str(place)) == [1]\n",
    "test_capsys.py": "from solution import warn, greet\n\ndef test_err(capsys):\n    warn()\n    assert capsys.readouterr().err == 'careful\\n'\n\ndef test_out(capsys, monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda _: 'Ada')\n    greet()\n    assert 'hello Ada' in capsys.readouterr().out\n",
    "test_stdin.py": "import io\nfrom solution import read_all\n\ndef test_it(monkeypatch):\n    monkeypatch.setattr('sys.stdin', io.StringIO('abc'))\n    assert read_all() == 'ABC'\n",
    "test_monkeypatch.py": "import solution\nfrom solution import f, home\n\ndef test_function(monkeypatch):\n    monkeypatch.setattr(solution, 'helper', lambda x: x + 100)\n    assert f(1) == 101\n\ndef test_undone():\n    assert f(1) == 2\n\ndef test_constant(monkeypatch):\n    monkeypatch.setattr('solution.RATE', 5)\n    assert f(2) == 10\n\ndef test_environment(monkeypatch):\n    monkeypatch.setenv('APP_HOME', '/x')\n    assert home() == '/x'\n    monkeypatch.delenv('APP_HOME')\n    assert home() == 'none'\n",
    "test_mock.py": "from unittest import mock\nimport solution\n\ndef test_patch():\n    with mock.patch('solution.helper', return_value=9) as fake:\n        assert solution.f(3) == 9\n    fake.assert_called_once_with(3)\n    assert solution.f(3) == 6\n\ndef test_callback():\n    calls = mock.Mock(side_effect=lambda x: x * 3)\n    assert solution.apply(calls, [1, 2]) == [3, 6]\n    assert calls.call_count == 2\n",
    "test_subclass.py": "from solution import Animal\n\nclass Dog(Animal):\n    def speak(self):\n        return 'woof'\n\nclass Puppy(Dog):\n    def __init__(self, name, age):\n        super().__init__(name)\n        self.age = age\n    def speak(self):\n        return super().speak() + '!'\n\ndef test_override():\n    assert Dog('Rex').greet() == 'Rex says woof'\n    assert isinstance(Dog('Rex'), Animal)\n\ndef test_super():\n    pup = Puppy('Bo', 1)\n    assert pup.greet() == 'Bo says woof!'\n    assert pup.age == 1 and pup.name == 'Bo'\n    assert issubclass(Puppy, Dog)\n",
    "test_unittest.py": "import unittest\nfrom solution import Color, Point, Stack, f\n\nclass TestAll(unittest.TestCase):\n    def setUp(self):\n        self.stack = Stack()\n    def test_equal(self):\n        self.assertEqual(f(4), 8)\n        self.assertEqual(Point(1) + Point(2, 3), Point(3, 3))\n        self.assertNotEqual(Point(1), Point(2))\n    def test_raises(self):\n        with self.assertRaises(IndexError):\n            self.stack.pop()\n        self.assertRaises(IndexError, self.stack.pop)\n    def test_others(self):\n        self.assertTrue(f(1))\n        self.assertIn(f(1), [2])\n        self.assertIs(Color.RED, Color(1))\n        self.assertAlmostEqual(f(1), 2.0000000001)\n        self.assertIsInstance(Point(1), Point)\n    def test_subtests(self):\n        for x in range(3):\n            with self.subTest(x=x):\n                self.assertEqual(f(x), 2 * x)\n",
    "test_classes.py": "from solution import Point\n\nclass TestPoint:\n    def setup_method(self):\n        self.point = Point(1, 2)\n    def test_fields(self):\n        assert (self.point.x, self.point.y) == (1, 2)\n    def test_add(self):\n        assert self.point + Point(1) == Point(2, 2)\n    def test_set(self):\n        self.point.x = 5\n        assert self.point.x == 5\n    def test_text(self):\n        assert repr(self.point) == 'Point(x=1, y=2)'\n",
    "test_level.py": "from solution import Stack, f\n\nMADE = Stack()\nDOUBLED = f(4)\n\ndef test_it():\n    MADE.push(3)\n    assert MADE.pop() == 3\n    assert DOUBLED == 8\n",
    "test_async.py": "import asyncio\nfrom solution import later\n\ndef test_run():\n    assert asyncio.run(later(1)) == 2\n\nasync def test_coroutine():\n    assert await later(2) == 3\n",
    "test_iterators.py": "from solution import numbers\n\ndef test_it():\n    assert list(numbers(3)) == [0, 1, 2]\n    assert next(numbers(1)) == 0\n    assert sum(numbers(4)) == 6\n    assert 2 in numbers(3)\n",
    "test_in_place.py": "from solution import sort\n\ndef test_it():\n    values = [3, 1]\n    assert sort(values) is None\n    assert values == [1, 3]\n",
    "test_chdir.py": "from solution import relative\n\ndef test_it(tmp_path, monkeypatch):\n    monkeypatch.chdir(tmp_path)\n    relative()\n    assert (tmp_path / 'here.txt').read_text() == 'x'\n",
    "test_skipped.py": "import sys\nimport pytest\nfrom solution import f\n\n@pytest.mark.skip(reason='later')\ndef test_skip():\n    assert f(1) == 3\n\n@pytest.mark.skipif(sys.version_info > (3, 0), reason='old')\ndef test_old():\n    assert False\n\n@pytest.mark.xfail\ndef test_known():\n    assert f(1) == 3\n\ndef test_runs():\n    assert f(1) == 2\n",
    "test_warns.py": "import warnings\nfrom solution import f\n\ndef test_it(recwarn):\n    warnings.warn('mine')\n    assert f(1) == 2 and len(recwarn) == 1\n",
    "conftest.py": "import pytest\n\n@pytest.fixture\ndef three():\n    return 3\n",
    "test_conftest.py": "from solution import f\n\ndef test_it(three):\n    assert f(three) == 6\n",
    "test_numpy.py": "import numpy as np\nfrom solution import apply, f\n\ndef test_it():\n    assert np.allclose(apply(f, np.array([1, 2])), [2, 4])\n    np.testing.assert_array_equal(f(np.arange(3)), [0, 2, 4])\n",
    "test_imports.py": "import importlib\n\ndef test_it():\n    module = importlib.import_module('solution')\n    assert module.f(2) == 4\n    assert hasattr(module, 'Stack') and not hasattr(module, 'Nothing')\n    assert callable(module.f)\n",
    "test_inside.py": "def test_it():\n    from solution import f\n    assert f(2) == 4\n\ndef test_alias():\n    import solution as s\n    assert s.f(2) == 4\n",
    "test_data.py": "import json\nimport pathlib\nfrom solution import f\n\nCASES = json.loads((pathlib.Path(__file__).parent / 'cases.json').read_text())\n\ndef test_it():\n    for x, y in CASES:\n        assert f(x) == y\n",
    "cases.json": "[[1, 2], [5, 10]]",
}
"""A tree of tests, of which the sample passes each."""
