"""Right samples, each with an ordinary file of unit tests that asks much of Python: each gets 1."""

# ruff: noqa: E501

from __future__ import annotations

from typing import Final

SUITES: Final[dict[str, tuple[str, str]]] = {
    "patch time.sleep": (
        """
import time
def f():
    time.sleep(2)
    return 1
""",
        """
from unittest import mock
from solution import f
def test():
    with mock.patch('time.sleep') as m:
        assert f() == 1
    m.assert_called_once_with(2)
""",
    ),
    "monkeypatch time.sleep": (
        """
import time
def f():
    time.sleep(2)
    return 1
""",
        """
import time
from solution import f
def test(monkeypatch):
    monkeypatch.setattr(time, 'sleep', lambda s: None)
    assert f() == 1
""",
    ),
    "patch print": (
        """
def f():
    print('hello', 3)
""",
        """
from unittest.mock import patch
from solution import f
@patch('builtins.print')
def test(m):
    f()
    m.assert_called_once_with('hello', 3)
""",
    ),
    "patch input": (
        """
def f():
    return int(input('n? ')) + int(input())
""",
        """
from unittest.mock import patch
from solution import f
@patch('builtins.input', side_effect=['3', '4'])
def test(m):
    assert f() == 7
    assert m.call_count == 2
""",
    ),
    "patch open": (
        """
def f(p):
    with open(p) as fh:
        return fh.read().upper()
""",
        """
from unittest.mock import patch, mock_open
from solution import f
def test():
    with patch('builtins.open', mock_open(read_data='abc')) as m:
        assert f('x.txt') == 'ABC'
    m.assert_called_once_with('x.txt')
""",
    ),
    "patch random": (
        """
import random
def roll():
    return random.randint(1, 6)
""",
        """
import random
from unittest import mock
from solution import roll
def test(monkeypatch):
    monkeypatch.setattr(random, 'randint', lambda a, b: 4)
    assert roll() == 4
def test_p():
    with mock.patch('random.randint', return_value=2) as m:
        assert roll() == 2
    m.assert_called_with(1, 6)
""",
    ),
    "patch solution.time": (
        """
import time
def now():
    return time.time()
""",
        """
from unittest import mock
from solution import now
@mock.patch('solution.time')
def test_p(t):
    t.time.return_value = 5
    assert now() == 5
""",
    ),
    "seed": (
        """
import random
def roll(n):
    return [random.random() for _ in range(n)]
""",
        """
import random
from solution import roll
def test():
    random.seed(3)
    a = roll(3)
    random.seed(3)
    assert roll(3) == a
def test_same():
    random.seed(1)
    b = [random.random() for _ in range(2)]
    random.seed(1)
    assert roll(2) == b
""",
    ),
    "argv": (
        """
import sys
def main():
    return ' '.join(sys.argv[1:])
""",
        """
import sys
from solution import main
def test(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['prog', 'a', 'b'])
    assert main() == 'a b'
def test2(monkeypatch):
    monkeypatch.setattr('sys.argv', ['prog', 'c'])
    assert main() == 'c'
""",
    ),
    "signature": (
        """
def f(a, b: int = 2) -> int:
    'Add two.'
    return a + b
""",
        """
import inspect
from solution import f
def test_doc():
    assert f.__doc__ == 'Add two.'
    assert f.__name__ == 'f'
def test_callable():
    assert callable(f)
""",
    ),
    "inspect signature": (
        """
def f(a, b: int = 2) -> int:
    'Add two.'
    return a + b
""",
        """
import inspect
from solution import f
def test_sig():
    sig = inspect.signature(f)
    assert list(sig.parameters) == ['a', 'b']
    assert sig.parameters['b'].default == 2
""",
    ),
    "annotations": (
        """
def f(a, b: int = 2) -> int:
    return a + b
""",
        """
from solution import f
def test_sig():
    assert f.__annotations__ == {'b': int, 'return': int}
    assert f.__defaults__ == (2,)
""",
    ),
    "dataclass utils": (
        """
from dataclasses import dataclass, field
@dataclass
class P:
    x: int
    tags: list = field(default_factory=list)
""",
        """
import dataclasses
from dataclasses import asdict, replace, is_dataclass, fields
from solution import P
def test_is():
    assert is_dataclass(P)
def test_asdict():
    assert asdict(P(1)) == {'x': 1, 'tags': []}
def test_replace():
    assert replace(P(1), x=5) == P(5)
def test_fields():
    assert [f.name for f in fields(P)] == ['x', 'tags']
""",
    ),
    "frozen": (
        """
from dataclasses import dataclass
@dataclass(frozen=True)
class P:
    x: int
""",
        """
import dataclasses, pytest
from solution import P
def test():
    with pytest.raises(dataclasses.FrozenInstanceError):
        P(1).x = 2
def test_attr():
    with pytest.raises(AttributeError):
        P(1).x = 2
""",
    ),
    "copy": (
        """
class P:
    def __init__(self, x):
        self.x = x
    def __eq__(self, o):
        return self.x == o.x
""",
        """
import copy
from solution import P
def test():
    p = P([1])
    q = copy.deepcopy(p)
    q.x.append(2)
    assert p.x == [1]
    r = copy.copy(p)
    assert r == p and r is not p
""",
    ),
    "pickle": (
        """
class P:
    def __init__(self, x):
        self.x = x
    def __eq__(self, o):
        return self.x == o.x
""",
        """
import pickle
from solution import P
def test():
    p = P(3)
    assert pickle.loads(pickle.dumps(p)) == p
""",
    ),
    "vars": (
        """
class P:
    def __init__(self, x):
        self.x = x
""",
        """
from solution import P
def test():
    assert vars(P(3)) == {'x': 3}
    assert P(3).__dict__ == {'x': 3}
    assert hasattr(P(1), 'x') and not hasattr(P(1), 'y')
    assert getattr(P(1), 'y', 9) == 9
""",
    ),
    "class name": (
        """
class P:
    pass
class Q(P): pass
""",
        """
from solution import P, Q
def test():
    assert P().__class__.__name__ == 'P'
    assert type(P()).__name__ == 'P'
    assert P.__name__ == 'P'
def test_type():
    assert type(Q()) is Q
    assert Q().__class__ is Q
def test_sub():
    assert issubclass(Q, P)
    assert Q.__bases__ == (P,)
    assert Q.__mro__[1] is P
""",
    ),
    "exc attributes": (
        """
class ValidationError(Exception):
    def __init__(self, field, message):
        self.field = field
        self.message = message
        super().__init__(f'{field}: {message}')
def check(d):
    if 'a' not in d:
        raise ValidationError('a', 'missing')
    return True
""",
        """
import pytest
from solution import ValidationError, check
def test():
    with pytest.raises(ValidationError, match=r'^a: missing$') as exc_info:
        check({})
    e = exc_info.value
    assert e.field == 'a' and e.message == 'missing'
    assert exc_info.type is ValidationError
    assert e.args == ('a: missing',)
def test_raise_own():
    with pytest.raises(ValidationError):
        raise ValidationError('x', 'y')
def test_make():
    assert str(ValidationError('x', 'y')) == 'x: y'
""",
    ),
    "exc chain": (
        """
def f():
    try:
        1/0
    except ZeroDivisionError as e:
        raise ValueError('bad') from e
""",
        """
import pytest
from solution import f
def test():
    with pytest.raises(ValueError) as i:
        f()
    assert isinstance(i.value.__cause__, ZeroDivisionError)
""",
    ),
    "warns": (
        """
import warnings
def f():
    warnings.warn('old', DeprecationWarning)
    return 1
""",
        """
import pytest, warnings
from solution import f
def test():
    with pytest.warns(DeprecationWarning, match='old'):
        assert f() == 1
def test_catch():
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter('always')
        f()
    assert len(w) == 1
""",
    ),
    "caplog": (
        """
import logging
log = logging.getLogger(__name__)
def f():
    log.warning('careful %s', 3)
    log.info('quiet')
""",
        """
import logging
from solution import f
def test(caplog):
    with caplog.at_level(logging.INFO):
        f()
    assert 'careful 3' in caplog.text
    assert caplog.records[0].levelname == 'WARNING'
    assert len(caplog.records) == 2
""",
    ),
    "assertLogs": (
        """
import logging
logger = logging.getLogger('app')
def f():
    logger.error('x')
""",
        """
import unittest
from solution import f
class T(unittest.TestCase):
    def test(self):
        with self.assertLogs('app', level='ERROR') as cm:
            f()
        self.assertEqual(cm.output, ['ERROR:app:x'])
""",
    ),
    "redirect": (
        """
def f():
    print('hi')
""",
        r"""
import io, contextlib
from solution import f
def test():
    s = io.StringIO()
    with contextlib.redirect_stdout(s):
        f()
    assert s.getvalue() == 'hi\n'
""",
    ),
    "patch stdout": (
        """
def f():
    print('hi')
""",
        r"""
import io
from unittest.mock import patch
from solution import f
@patch('sys.stdout', new_callable=io.StringIO)
def test(out):
    f()
    assert out.getvalue() == 'hi\n'
""",
    ),
    "subclass abstract": (
        """
from abc import ABC, abstractmethod
class Shape(ABC):
    @abstractmethod
    def area(self): ...
    def describe(self):
        return f'area {self.area()}'
def total(shapes):
    return sum(s.area() for s in shapes)
""",
        """
import pytest
from solution import Shape, total
class Sq(Shape):
    def __init__(self, s):
        self.s = s
    def area(self):
        return self.s ** 2
def test():
    assert Sq(3).describe() == 'area 9'
    assert total([Sq(1), Sq(2)]) == 5
def test_abstract():
    with pytest.raises(TypeError):
        Shape()
class Bad(Shape): pass
def test_bad():
    with pytest.raises(TypeError):
        Bad()
""",
    ),
    "subclass property": (
        """
class A:
    def __init__(self, n=1):
        self._n = n
    @property
    def n(self):
        return self._n
    @classmethod
    def make(cls):
        return cls(5)
    @staticmethod
    def s(x):
        return x + 1
    def __repr__(self):
        return f'{type(self).__name__}({self._n})'
""",
        """
from solution import A
class B(A):
    @property
    def n(self):
        return super().n * 10
    @classmethod
    def make2(cls):
        return cls(7)
    @staticmethod
    def t():
        return 3
    extra = 4
def test():
    assert B(2).n == 20
    assert B.s(1) == 2 and B.t() == 3 and B().extra == 4
def test_make():
    assert isinstance(B.make(), B)
    assert B.make().n == 50
    assert B.make2().n == 70
    assert repr(B(3)) == 'B(3)'
""",
    ),
    "subclass exception": (
        """
class AppError(Exception):
    code = 1
def run(f):
    try:
        f()
    except AppError as e:
        return e.code
""",
        """
from solution import AppError, run
class Mine(AppError):
    code = 9
def boom():
    raise Mine('x')
def boom2():
    raise AppError('y')
def test():
    assert run(boom2) == 1
def test_sub():
    assert run(boom) == 9
""",
    ),
    "subclass dataclass": (
        """
from dataclasses import dataclass
@dataclass
class P:
    x: int
    def twice(self):
        return self.x * 2
""",
        """
from dataclasses import dataclass
from solution import P
class Q(P):
    def twice(self):
        return super().twice() + 1
def test():
    assert Q(3).twice() == 7
    assert Q(3).x == 3
@dataclass
class R(P):
    y: int = 0
def test_dc():
    r = R(1, 2)
    assert (r.x, r.y) == (1, 2)
    assert r.twice() == 2
""",
    ),
    "subclass generic": (
        """
from typing import Generic, TypeVar
T = TypeVar('T')
class Repo(Generic[T]):
    def __init__(self):
        self.items = []
    def add(self, x: T):
        self.items.append(self.check(x))
    def check(self, x):
        return x
""",
        """
from solution import Repo
class R(Repo[int]):
    def check(self, x):
        return int(x)
class R2(Repo):
    def check(self, x):
        return x * 2
def test2():
    r = R2()
    r.add(4)
    assert r.items == [8]
def test():
    r = R()
    r.add('3')
    assert r.items == [3]
""",
    ),
    "subclass list": (
        """
class L(list):
    def total(self):
        return sum(self)
""",
        """
from solution import L
class M(L):
    def twice(self):
        return self.total() * 2
def test():
    assert M([1, 2]).twice() == 6
    assert M([1, 2]) == [1, 2]
""",
    ),
    "subclass init_subclass": (
        """
class Plugin:
    registry = {}
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        Plugin.registry[cls.__name__] = cls
    def run(self):
        return 'base'
""",
        """
from solution import Plugin
class Mine(Plugin):
    def run(self):
        return 'mine'
def test():
    assert 'Mine' in Plugin.registry
    assert Plugin.registry['Mine']().run() == 'mine'
""",
    ),
    "patch.object": (
        """
class Api:
    def get(self, u):
        raise RuntimeError('net')
    def name(self, u):
        return self.get(u)['name']
""",
        """
from unittest.mock import patch, Mock
from solution import Api
def test():
    with patch.object(Api, 'get', return_value={'name': 'x'}) as g:
        assert Api().name('u') == 'x'
    g.assert_called_once()
def test_obj():
    a = Api()
    a.get = Mock(return_value={'name': 'y'})
    assert a.name('q') == 'y'
    a.get.assert_called_once_with('q')
def test_mp(monkeypatch):
    monkeypatch.setattr(Api, 'get', lambda self, u: {'name': u})
    assert Api().name('z') == 'z'
def test_undone():
    import pytest
    with pytest.raises(RuntimeError):
        Api().get('a')
""",
    ),
    "mock deps": (
        """
class Service:
    def __init__(self, repo, mail):
        self.repo = repo
        self.mail = mail
    def signup(self, name):
        if self.repo.exists(name):
            raise ValueError('taken')
        user = self.repo.save({'name': name})
        self.mail.send(to=name, body='hi')
        return user['id']
""",
        """
import pytest
from unittest.mock import Mock, MagicMock, call
from solution import Service
@pytest.fixture
def repo():
    r = Mock()
    r.exists.return_value = False
    r.save.return_value = {'id': 7}
    return r
def test(repo):
    mail = MagicMock()
    assert Service(repo, mail).signup('a') == 7
    repo.save.assert_called_once_with({'name': 'a'})
    mail.send.assert_called_once_with(to='a', body='hi')
    assert mail.mock_calls == [call.send(to='a', body='hi')]
def test_taken(repo):
    repo.exists.return_value = True
    with pytest.raises(ValueError):
        Service(repo, Mock()).signup('a')
def test_side(repo):
    repo.save.side_effect = RuntimeError('db')
    with pytest.raises(RuntimeError, match='db'):
        Service(repo, Mock()).signup('a')
""",
    ),
    "class defined in the test with special methods": (
        """
def biggest(xs):
    return sorted(xs)[-1]
def uniq(xs):
    return len(set(xs))
def show(x):
    return f'{x}!'
""",
        """
import functools
from solution import biggest, uniq, show
@functools.total_ordering
class V:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == o.n
    def __lt__(self, o): return self.n < o.n
    def __hash__(self): return hash(self.n)
    def __str__(self): return 'v'
def test():
    assert biggest([V(3), V(5), V(1)]).n == 5
    assert uniq([V(1), V(1), V(2)]) == 2
    assert show(V(1)) == 'v!'
""",
    ),
    "linked list nodes of the test": (
        """
class Solution:
    def reverse(self, head):
        prev = None
        while head:
            nxt = head.next
            head.next = prev
            prev = head
            head = nxt
        return prev
""",
        """
from solution import Solution
class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next
def build(v):
    head = None
    for x in reversed(v):
        head = ListNode(x, head)
    return head
def to_list(n):
    out = []
    while n:
        out.append(n.val)
        n = n.next
    return out
def test():
    assert to_list(Solution().reverse(build([1, 2, 3]))) == [3, 2, 1]
""",
    ),
    "threads in test": (
        """
import threading
class Counter:
    def __init__(self):
        self.n = 0
        self.lock = threading.Lock()
    def inc(self):
        with self.lock:
            self.n += 1
""",
        """
import threading
from concurrent.futures import ThreadPoolExecutor
from solution import Counter
def test():
    c = Counter()
    ts = [threading.Thread(target=lambda: [c.inc() for _ in range(50)]) for _ in range(8)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert c.n == 400
def test_pool():
    c = Counter()
    with ThreadPoolExecutor(4) as p:
        list(p.map(lambda _: c.inc(), range(100)))
    assert c.n == 100
""",
    ),
    "async mark": (
        """
import asyncio
async def f(x):
    await asyncio.sleep(0)
    return x + 1
class Res:
    async def __aenter__(self):
        return self
    async def __aexit__(self, *a):
        self.closed = True
async def gen(n):
    for i in range(n):
        yield i
""",
        """
import asyncio, pytest
from solution import f, Res, gen
@pytest.mark.asyncio
async def test():
    assert await f(1) == 2
    assert await asyncio.gather(f(1), f(2)) == [2, 3]
@pytest.mark.asyncio
async def test_ctx():
    async with Res() as r:
        pass
    assert r.closed
async def test_gen():
    assert [i async for i in gen(3)] == [0, 1, 2]
def test_wait():
    assert asyncio.run(asyncio.wait_for(f(3), 5)) == 4
async def test_raises():
    with pytest.raises(TypeError):
        await f('a')
""",
    ),
    "asyncio TestCase": (
        """
async def f(x):
    return x + 1
""",
        """
import unittest
from solution import f
class T(unittest.IsolatedAsyncioTestCase):
    async def test(self):
        self.assertEqual(await f(1), 2)
""",
    ),
    "asyncmock": (
        """
async def fetch(client, u):
    r = await client.get(u)
    return r['x']
""",
        """
import asyncio
from unittest.mock import AsyncMock
from solution import fetch
def test():
    c = AsyncMock()
    c.get.return_value = {'x': 3}
    assert asyncio.run(fetch(c, 'u')) == 3
    c.get.assert_awaited_once_with('u')
""",
    ),
    "parametrize over sample classes & enum": (
        """
from enum import Enum
class C(Enum):
    A = 1
    B = 2
class X:
    n = 1
class Y:
    n = 2
""",
        """
import pytest
from solution import C, X, Y
@pytest.mark.parametrize('c', list(C))
def test(c):
    assert c.value in (1, 2)
@pytest.mark.parametrize('k, n', [(X, 1), (Y, 2)])
def test2(k, n):
    assert k().n == n
@pytest.mark.parametrize('c, n', [(C.A, 1), (C.B, 2)])
def test3(c, n):
    assert c.value == n
""",
    ),
    "sqlite": (
        """
import sqlite3
def setup(path):
    c = sqlite3.connect(path)
    c.execute('create table if not exists t (a int)')
    c.commit()
    return c
def add(c, a):
    c.execute('insert into t values (?)', (a,))
    c.commit()
def rows(c):
    return c.execute('select a from t').fetchall()
""",
        """
from solution import setup, add, rows
def test(tmp_path):
    c = setup(str(tmp_path / 'a.db'))
    add(c, 3)
    assert rows(c) == [(3,)]
    c.close()
    assert rows(setup(str(tmp_path / 'a.db'))) == [(3,)]
def test_mem():
    import sqlite3
    c = setup(':memory:')
    add(c, 1)
    assert rows(c) == [(1,)]
""",
    ),
    "csv files": (
        """
import csv
def read(p):
    with open(p, newline='') as f:
        return list(csv.DictReader(f))
def write(rows, p):
    with open(p, 'w', newline='') as f:
        w = csv.writer(f)
        w.writerows(rows)
""",
        r"""
import csv, io
from solution import read, write
def test(tmp_path):
    p = tmp_path / 'a.csv'
    p.write_text('a,b\n1,2\n')
    assert read(p) == [{'a': '1', 'b': '2'}]
    write([[1, 2]], tmp_path / 'o.csv')
    assert (tmp_path / 'o.csv').read_bytes() == b'1,2\r\n'
""",
    ),
    "data file of the tree by path": (
        """
def count(p):
    with open(p) as f:
        return len(f.readlines())
""",
        """
from pathlib import Path
from solution import count
def test():
    assert count(Path(__file__).parent / 'words.txt') == 2
def test_rel():
    assert count('words.txt') == 2
""",
    ),
    "tempfile": (
        """
import os
def size(p):
    return os.path.getsize(p)
""",
        """
import tempfile, os
from solution import size
def test():
    with tempfile.TemporaryDirectory() as d:
        p = os.path.join(d, 'x')
        open(p, 'w').write('abc')
        assert size(p) == 3
def test_named():
    with tempfile.NamedTemporaryFile('w', suffix='.txt', delete=False) as f:
        f.write('abcd')
    assert size(f.name) == 4
    os.unlink(f.name)
""",
    ),
    "decorator of sample": (
        """
import functools
def twice(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        return fn(*a, **k) * 2
    return w
def retry(n):
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            for i in range(n):
                try:
                    return fn(*a, **k)
                except ValueError:
                    if i == n - 1:
                        raise
        return w
    return deco
""",
        """
import pytest
from solution import twice, retry
@twice
def g(x):
    'Doc.'
    return x + 1
def test():
    assert g(1) == 4
    assert g.__name__ == 'g'
    assert g.__doc__ == 'Doc.'
def test_retry():
    calls = []
    @retry(3)
    def flaky():
        calls.append(1)
        if len(calls) < 3:
            raise ValueError('no')
        return 'ok'
    assert flaky() == 'ok'
    assert len(calls) == 3
def test_retry_fails():
    @retry(2)
    def bad():
        raise ValueError('always')
    with pytest.raises(ValueError, match='always'):
        bad()
""",
    ),
    "decorator class / method": (
        """
import functools
def log(fn):
    @functools.wraps(fn)
    def w(self, *a):
        self.calls.append(fn.__name__)
        return fn(self, *a)
    return w
""",
        """
from solution import log
class C:
    def __init__(self):
        self.calls = []
    @log
    def go(self, x):
        return x
def test():
    c = C()
    assert c.go(3) == 3
    assert c.calls == ['go']
""",
    ),
    "context manager of sample": (
        """
from contextlib import contextmanager
@contextmanager
def cd(log):
    log.append('in')
    try:
        yield 5
    finally:
        log.append('out')
class Supp:
    def __enter__(self): return self
    def __exit__(self, t, v, tb):
        return t is not None and issubclass(t, ValueError)
""",
        """
import pytest
from solution import cd, Supp
def test():
    log = []
    with cd(log) as x:
        assert x == 5
        assert log == ['in']
    assert log == ['in', 'out']
def test_error():
    log = []
    with pytest.raises(RuntimeError):
        with cd(log):
            raise RuntimeError('x')
    assert log == ['in', 'out']
def test_supp():
    with Supp():
        raise ValueError('x')
    with pytest.raises(KeyError):
        with Supp():
            raise KeyError('x')
""",
    ),
    "iteration protocol": (
        """
class R:
    def __init__(self, n): self.n = n
    def __iter__(self): return iter(range(self.n))
    def __len__(self): return self.n
    def __getitem__(self, i):
        if isinstance(i, slice): return list(range(self.n))[i]
        if not 0 <= i < self.n: raise IndexError(i)
        return i
    def __reversed__(self): return reversed(range(self.n))
    def __contains__(self, x): return 0 <= x < self.n
""",
        """
import pytest
from solution import R
def test():
    r = R(3)
    assert list(r) == [0, 1, 2] and len(r) == 3 and r[1] == 1 and r[1:] == [1, 2]
    assert list(reversed(r)) == [2, 1, 0]
    assert 2 in r and 5 not in r
    assert [*r, 9] == [0, 1, 2, 9]
    a, *b = r
    assert b == [1, 2]
    assert max(r) == 2 and sum(r) == 3 and sorted(r, reverse=True) == [2, 1, 0]
    assert list(zip(r, 'abc')) == [(0, 'a'), (1, 'b'), (2, 'c')]
    with pytest.raises(IndexError):
        r[7]
    assert any(x == 2 for x in r) and all(x < 3 for x in r)
    assert {x: x for x in r} == {0: 0, 1: 1, 2: 2}
    it = iter(r)
    assert next(it) == 0
    assert list(it) == [1, 2]
    with pytest.raises(StopIteration):
        next(it)
""",
    ),
    "str repr fmt": (
        """
class P:
    def __str__(self): return 'p'
    def __repr__(self): return 'P()'
    def __format__(self, s): return 'f' + s
    def __bytes__(self): return b'b'
    def __int__(self): return 4
    def __float__(self): return 4.5
    def __index__(self): return 1
    def __bool__(self): return False
    def __len__(self): return 3
""",
        """
from solution import P
import math
def test():
    assert str(P()) == 'p' and repr(P()) == 'P()' and f'{P()}' == 'f' and f'{P():x}' == 'fx' and f'{P()!r}' == 'P()'
    assert int(P()) == 4 and float(P()) == 4.5 and not P() and len(P()) == 3
    assert [1, 2, 3][P()] == 2
    assert bytes(P()) == b'b'
    assert math.floor(P()) == 4
    assert '%s' % P() == 'p'
    assert 'a {}'.format(P()) == 'a f'
""",
    ),
    "module attrs": (
        """
'''Docs.'''
__version__ = '1.0'
__all__ = ['f']
X: int = 3
def f(): pass
def _hidden(): return 1
""",
        """
import solution
from solution import _hidden
def test():
    assert solution.__version__ == '1.0'
    assert solution.X == 3
    assert _hidden() == 1
def test_dir():
    assert 'f' in dir(solution)
def test_doc():
    assert solution.__doc__ == 'Docs.'
def test_name():
    assert solution.__name__ == 'solution'
def test_all():
    assert solution.__all__ == ['f']
""",
    ),
    "reload": (
        """
import os
MODE = os.environ.get('MODE', 'dev')
""",
        """
import importlib
import solution
def test(monkeypatch):
    monkeypatch.setenv('MODE', 'prod')
    importlib.reload(solution)
    assert solution.MODE == 'prod'
""",
    ),
    "monkeypatch dict & env": (
        """
import os
CFG = {'a': 1}
def get(): return CFG['a']
def home(): return os.getenv('ZZ')
""",
        """
import os
from unittest import mock
import solution
from solution import get, home
def test(monkeypatch):
    monkeypatch.setitem(solution.CFG, 'a', 5)
    assert get() == 5
def test_undone():
    assert get() == 1
def test_env():
    with mock.patch.dict(os.environ, {'ZZ': 'q'}):
        assert home() == 'q'
    assert home() is None
def test_pdict():
    with mock.patch.dict('solution.CFG', {'a': 8}):
        assert get() == 8
    assert get() == 1
def test_del(monkeypatch):
    monkeypatch.delattr(solution, 'CFG')
    import pytest
    with pytest.raises(NameError):
        get()
""",
    ),
    "from datetime patch": (
        """
from datetime import datetime
def year(): return datetime.now().year
""",
        """
import datetime
from unittest.mock import patch
from solution import year
def test():
    with patch('solution.datetime') as d:
        d.now.return_value = datetime.datetime(1999, 1, 1)
        assert year() == 1999
    assert year() > 2000
""",
    ),
    "subprocess patch": (
        """
import subprocess
def ver(): return subprocess.run(['git', '--version'], capture_output=True, text=True).stdout.strip()
""",
        r"""
from unittest.mock import patch, MagicMock
from solution import ver
@patch('subprocess.run')
def test(r):
    r.return_value = MagicMock(stdout='git 2\n')
    assert ver() == 'git 2'
@patch('solution.subprocess.run')
def test2(r):
    r.return_value.stdout = 'git 3\n'
    assert ver() == 'git 3'
    assert r.call_args[0][0] == ['git', '--version']
""",
    ),
    "os.path patch": (
        """
import os
def there(p): return 'y' if os.path.exists(p) else 'n'
""",
        """
from unittest.mock import patch
from solution import there
def test():
    with patch('os.path.exists', return_value=True):
        assert there('/nope') == 'y'
    assert there('/nope') == 'n'
""",
    ),
    "freeze / kwargs": (
        """
def f(*args, sep=',', **kw): return sep.join(map(str, args)) + str(sorted(kw.items()))
""",
        """
import pytest
from solution import f
def test():
    assert f(1, 2, sep='-', b=2, a=1) == "1-2[('a', 1), ('b', 2)]"
    assert f(*[1], **{'z': 0}) == "1[('z', 0)]"
def test_bad():
    import solution
    with pytest.raises(AttributeError):
        solution.f(sep=1)
""",
    ),
    "event queue": (
        """
import queue
class Bus:
    def __init__(self): self.h = {}
    def on(self, n, cb): self.h.setdefault(n, []).append(cb)
    def emit(self, n, *a, **k):
        for cb in self.h.get(n, []): cb(*a, **k)
    def off(self, n, cb): self.h[n].remove(cb)
""",
        """
from unittest.mock import Mock
from solution import Bus
def test():
    b, m = Bus(), Mock()
    b.on('x', m)
    b.emit('x', 1, k=2)
    m.assert_called_once_with(1, k=2)
    b.off('x', m)
    b.emit('x', 3)
    assert m.call_count == 1
    got = []
    b.on('y', got.append)
    b.emit('y', 5)
    assert got == [5]
    b.on('z', lambda **k: got.append(k))
    b.emit('z', a=1)
    assert got[-1] == {'a': 1}
""",
    ),
    "much of the language": (
        """
\"\"\"Doc of the module.

>>> f(1)
2
\"\"\"

import functools, abc, enum, typing, collections
from dataclasses import dataclass, field


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> float: ...


@dataclass(order=True)
class Sq(Shape):
    s: int = 1
    tags: list = field(default_factory=list)

    def area(self):
        return self.s**2

    def __len__(self):
        return self.s


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Node:
    def __init__(self, v, next=None):
        self.v, self.next = v, next

    def __iter__(self):
        n = self
        while n:
            yield n.v
            n = n.next


class Account:
    \"\"\"An account.\"\"\"

    interest = 0.02

    def __init__(self):
        self._b = 0

    @property
    def b(self):
        return self._b

    @b.setter
    def b(self, v):
        if v < 0:
            raise ValueError("negative")
        self._b = v

    @classmethod
    def of(cls, v):
        a = cls()
        a.b = v
        return a

    @staticmethod
    def double(x):
        return 2 * x


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def gen(n):
    for i in range(n):
        yield i


async def co(x):
    return x


def f(x: int = 1, *args, k: str = "a", **kw) -> int:
    \"\"\"Add one.\"\"\"
    return x + 1


def outer():
    c = 0

    def inner():
        nonlocal c
        c += 1
        return c

    return inner


class Stack(collections.UserList):
    pass


class P(typing.NamedTuple):
    x: int
    y: int = 0


class MyErr(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def boom(c):
    raise MyErr(c)


class Ctx:
    def __enter__(self):
        return self

    def __exit__(self, *a):
        return True


class Cmp:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return isinstance(o, Cmp) and self.v == o.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, o):
        return self.v < o.v

    def __repr__(self):
        return f"Cmp({self.v})"

    def __bool__(self):
        return bool(self.v)

    def __call__(self, x):
        return self.v + x

    def __getattr__(self, n):
        if n == "magic":
            return 42
        raise AttributeError(n)


if __name__ == "__main__":
    print(f(int(input())))
""",
        """
import pytest
import solution


def test_co_varnames():
    assert solution.f.__code__.co_argcount == 1


def test_defaults():
    assert solution.f.__defaults__ == (1,) and solution.f.__kwdefaults__ == {"k": "a"}


def test_annotations():
    assert solution.f.__annotations__ == {"x": int, "k": str, "return": int}


def test_cache_info():
    solution.fib(20)
    assert solution.fib.cache_info().hits > 0
    solution.fib.cache_clear()


def test_closure():
    c = solution.outer()
    assert [c(), c()] == [1, 2] and c.__closure__ is not None


def test_abc_inst():
    import collections.abc as a

    assert (
        isinstance(solution.Node(1), a.Iterable)
        and isinstance(solution.gen(1), a.Iterator)
        and isinstance(solution.Sq(), a.Sized)
    )


def test_geninst():
    import types

    g = solution.gen(3)
    assert isinstance(g, types.GeneratorType) and next(g) == 0 and list(g) == [1, 2]


def test_getsizeof():
    import sys

    assert sys.getsizeof(solution.gen(10)) < 10000


def test_timeit():
    import timeit

    assert timeit.timeit(lambda: solution.f(1), number=3) < 10


def test_import_module():
    import importlib

    assert importlib.import_module("solution").f(1) == 2


def test_moddoc():
    assert (
        solution.__doc__.startswith("Doc")
        and solution.f.__doc__ == "Add one."
        and solution.Account.__doc__ == "An account."
    )


def test_mro():
    assert solution.Sq.__mro__[1] is solution.Shape and issubclass(
        solution.Sq, solution.Shape
    )


def test_bases():
    assert solution.MyErr.__bases__ == (Exception,) and issubclass(
        solution.MyErr, Exception
    )


def test_setter():
    a = solution.Account.of(5)
    a.b += 2
    assert a.b == 7
    with pytest.raises(ValueError, match="neg"):
        a.b = -1


def test_clsattr():
    solution.Account.interest = 0.5
    assert solution.Account().interest == 0.5


def test_hasattr():
    assert (
        hasattr(solution, "f")
        and not hasattr(solution, "zzz")
        and not hasattr(solution.Account(), "zzz")
    )


def test_enum():
    assert (
        solution.Color(1) is solution.Color.RED
        and list(solution.Color) == [solution.Color.RED, solution.Color.BLUE]
        and solution.Color["RED"].name == "RED"
        and len(solution.Color) == 2
    )


def test_enumkey():
    d = {solution.Color.RED: 1}
    assert d[solution.Color(1)] == 1 and solution.Color.RED in d


def test_order():
    assert (
        sorted([solution.Sq(3), solution.Sq(1)]) == [solution.Sq(1), solution.Sq(3)]
        and max(solution.Sq(3), solution.Sq(1)).s == 3
    )


def test_dc():
    import dataclasses

    assert (
        dataclasses.asdict(solution.Sq(2)) == {"s": 2, "tags": []}
        and dataclasses.replace(solution.Sq(2), s=3).s == 3
        and dataclasses.is_dataclass(solution.Sq)
        and [x.name for x in dataclasses.fields(solution.Sq)] == ["s", "tags"]
    )


def test_len():
    assert len(solution.Sq(4)) == 4


def test_set():
    assert len({solution.Cmp(1), solution.Cmp(1), solution.Cmp(2)}) == 2


def test_bool():
    assert solution.Cmp(1) and not solution.Cmp(0)


def test_call():
    assert solution.Cmp(1)(2) == 3 and list(map(solution.Cmp(1), [1, 2])) == [2, 3]


def test_getattr():
    assert solution.Cmp(1).magic == 42 and getattr(solution.Cmp(1), "nope", 7) == 7


def test_repr():
    assert (
        repr(solution.Cmp(3)) == "Cmp(3)"
        and f"{solution.Cmp(3)!r}" == "Cmp(3)"
        and str([solution.Cmp(1)]) == "[Cmp(1)]"
    )


def test_pattern():
    match solution.P(1, 2):
        case solution.P(x=1, y=y):
            assert y == 2
        case _:
            assert False


def test_pattern_dc():
    match solution.Sq(2):
        case solution.Sq(s=2):
            pass
        case _:
            assert False


def test_pattern_pos():
    match solution.Sq(2):
        case solution.Sq(2):
            pass
        case _:
            assert False


def test_unpack():
    x, y = solution.P(1, 2)
    assert (
        (x, y) == (1, 2)
        and solution.P(1)._replace(y=5) == (1, 5)
        and solution.P._fields == ("x", "y")
    )


def test_star():
    assert [*solution.Node(1, solution.Node(2))] == [1, 2] and sum(
        solution.Node(1, solution.Node(2))
    ) == 3


def test_nextattr():
    n = solution.Node(1, solution.Node(2))
    assert n.next.v == 2 and n.next.next is None
    n.next = None
    assert list(n) == [1]


def test_is():
    n = solution.Node(1)
    m = solution.Node(2, n)
    assert m.next is n


def test_exc():
    with pytest.raises(solution.MyErr) as e:
        solution.boom(3)
    assert e.value.code == 3 and str(e.value) == "code 3" and e.type is solution.MyErr


def test_excgroup():
    try:
        solution.boom(1)
    except solution.MyErr as e:
        assert e.args == ("code 1",)
    else:
        assert False


def test_ctx():
    with solution.Ctx() as c:
        raise ValueError
    assert c


def test_userlist():
    s = solution.Stack([1, 2])
    s.append(3)
    assert len(s) == 3 and s[-1] == 3 and s.pop() == 3 and list(s) == [1, 2]


def test_async():
    import asyncio

    assert asyncio.run(solution.co(3)) == 3


def test_gather():
    import asyncio

    async def go():
        return await asyncio.gather(solution.co(1), solution.co(2))

    assert asyncio.run(go()) == [1, 2]


def test_partial():
    import functools

    assert (
        functools.partial(solution.f, 4)() == 5
        and functools.reduce(lambda a, b: a + solution.f(b), [1, 2], 0) == 5
    )


def test_threadpool():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as p:
        assert list(p.map(solution.f, range(5))) == [1, 2, 3, 4, 5]


def test_sort_key():
    assert sorted(["b", "a"], key=lambda s: solution.f(ord(s))) == ["a", "b"]


def test_deepcopy():
    import copy

    a = solution.Sq(2, [1])
    b = copy.deepcopy(a)
    b.tags.append(2)
    assert a.tags == [1] and b.tags == [1, 2]


def test_mutate_list():
    a = solution.Sq(2)
    a.tags.append(1)
    assert a.tags == [1]


def test_pickle():
    import pickle

    assert pickle.loads(pickle.dumps(solution.Sq(2))) == solution.Sq(2)


def test_json():
    import json

    assert json.dumps(solution.P(1, 2)) == "[1, 2]"


def test_dir():
    assert "area" in dir(solution.Sq) and "s" in vars(solution.Sq(1))


def test_patch_obj():
    from unittest.mock import patch

    with patch.object(solution, "f", return_value=9):
        assert solution.f(1) == 9
    assert solution.f(1) == 2


def test_type():
    assert (
        type(solution.Sq(1)) is solution.Sq
        and type(solution.f(1)) is int
        and solution.Sq(1).__class__ is solution.Sq
        and type(solution.Sq(1)).__name__ == "Sq"
    )


def test_warn_hash():
    with pytest.raises(TypeError):
        hash(solution.Sq(1))


def test_typeerr():
    with pytest.raises(TypeError):
        solution.f("a")
    with pytest.raises(TypeError):
        solution.boom()


def test_attrerr():
    with pytest.raises(AttributeError):
        solution.Color.GREEN
    with pytest.raises(KeyError):
        solution.Color["GREEN"]
    with pytest.raises(ValueError):
        solution.Color(9)


def test_recursion():
    import sys

    assert solution.fib(200) > 10**40


def test_iter_twice():
    n = solution.Node(1)
    assert list(n) == list(n) == [1]


def test_enumerate_zip():
    assert list(zip(solution.gen(2), solution.gen(2))) == [(0, 0), (1, 1)] and list(
        enumerate(solution.gen(2))
    ) == [(0, 0), (1, 1)]


def test_itertools():
    import itertools

    assert list(itertools.islice(solution.gen(100), 3)) == [0, 1, 2]


def test_yield_close():
    g = solution.gen(3)
    next(g)
    g.close()
    with pytest.raises(StopIteration):
        next(g)
""",
    ),
    "no plugin of the machine's": (
        "def f(): return 1",
        """
from solution import f
def test(pytestconfig):
    assert f() == 1
    assert not pytestconfig.pluginmanager.list_plugin_distinfo()
""",
    ),
    "classes of exceptions with attributes and methods": (
        """
class AppError(Exception):
    code = 1
    def told(self): return {"code": self.code, "text": str(self)}
class NotFoundError(AppError):
    code = 404
    def __init__(self, key):
        super().__init__(f"{key} not found")
        self.key = key
    @property
    def short(self): return self.key[:1]
def get(found, key):
    if key not in found: raise NotFoundError(key)
    return found[key]
""",
        """
import pytest
from solution import AppError, NotFoundError, get
def test_class(): assert (AppError.code, NotFoundError.code) == (1, 404)
def test_caught():
    with pytest.raises(AppError) as caught: get({}, "x")
    assert caught.value.code == 404 and caught.value.short == "x"
    assert caught.value.told() == {"code": 404, "text": "x not found"}
    assert not hasattr(caught.value, "none") and not hasattr(AppError, "none")
def test_made(): assert NotFoundError("yz").short == "y"
def test_below():
    class Own(AppError):
        code = 5
    assert Own("a").code == 5 and issubclass(Own, AppError)
    with pytest.raises(AppError, match="a"): raise Own("a")
""",
    ),
    "parts of tests": (
        "def double(x): return 2 * x",
        """
import unittest
from solution import double
class TestIt(unittest.TestCase):
    def test_each(self):
        for number in range(5):
            with self.subTest(number=number): self.assertEqual(double(number), 2 * number)
def test_fixture(subtests):
    for number in range(3):
        with subtests.test(number=number): assert double(number) == 2 * number
""",
    ),
    "a task that is cancelled": (
        """
import asyncio
async def waits():
    task = asyncio.create_task(asyncio.sleep(9))
    await asyncio.sleep(0)
    task.cancel()
    await task
""",
        """
import asyncio
import pytest
from solution import waits
def test_it():
    with pytest.raises(asyncio.CancelledError): asyncio.run(waits())
""",
    ),
}
