"""Programs that the fuzzer once found to differ, cut down: each stays equal to eager, and compiled where it was."""

import textwrap

import pytest
from tests.fuzz.definitions import HEAD
from tests.fuzz.oracle import run
from tests.fuzz.program import Program

# name: the least number of calls that compiled code answers, the backend, and the program.
FOUND = {
    "writes of a program at a negative index given as a number": (2, "native", """
        def target(y, r):
            y[r] = 0.5
            return y.sum()

        def calls():
            for r in (-1, -1, -2, 0, 1, -1):
                yield call(data(3, 3, 2), r)
    """),
    "a graph that fails after a write leaves the arguments to eager": (2, "eager", """
        def target(x, n):
            x.mul_(2)
            return x.narrow(0, n, 2).narrow(0, 0, x.shape[0] - 1)

        def calls():
            yield call(data(1, 3), 1)
            yield call(data(2, 3), 0)
            yield call(data(2, 3), 1)
            yield call(data(2, 5), 1)
    """),
    "an item that is read and used in no torch call must be there": (1, "native", """
        TABLE = {"a": data(1)}

        def target(x):
            v = TABLE["a"]
            return x + 1

        def calls():
            yield call(data(1, 2))
            yield call(data(2, 2))
            del TABLE["a"]
            yield call(data(2, 2))
    """),
    "strides that the program reads are what they were": (1, "native", """
        def target(z):
            if 0 < z.stride(0) < 3:
                return [z]
            return z + 0.5

        def calls():
            yield call(data(3, 1, 3).expand(1, 3))
            yield call(data(3, 3, 1).permute(1, 0))
            yield call(data(3, 1, 3))
            yield call(data(4, 3, 1).permute(1, 0))
    """),
    "the text of a caught error may hold sizes": (0, "native", """
        LOG = []

        def target(x):
            try:
                return x + torch.ones(4)
            except RuntimeError as error:
                LOG.append(str(error))
            return x + 1

        def calls():
            yield call(data(1, 3))
            yield call(data(1, 3))
            yield call(data(1, 2))
    """),
    "errors name the type int for a number that the recorder follows": (0, "native", """
        def target(x, n, s):
            for each in (lambda: n[0], lambda: s(), lambda: n + "a", lambda: [*s]):
                try:
                    each()
                except TypeError as error:
                    print(error)
            return x + n

        def calls():
            yield call(data(1, 3), 2, 0.5)
            yield call(data(1, 3), 3, 0.5)
    """),
    "the length of a loop over a tensor made inside": (
        2,
        "eager",
        """
        TABLE = {"a": data(3, 2)}

        def target(x):
            x = x + 1
            for row in x:
                TABLE["a"].add_(1)
            return x if len(x) > 2 else -x

        def calls():
            for size in (2, 2, 3, 2, 3, 1):
                yield call(data(1, size, 3))
    """,
    ),
    "the count of elements that depends on data, of a tensor that nobody uses": (
        3,
        "native",
        """
        def target(x):
            n = len(x[x > 0])
            return (n, n + 1)

        def calls():
            for seed in (1, 2, 3, 4):
                yield call(data(seed, 2, 3))
    """,
    ),
    "numbers that need more than 64 bits": (
        2,
        "native",
        """
        class Runner:
            n = 2

        RUNNER = Runner()

        def target(x, p):
            RUNNER.n += p
            if RUNNER.n < p - 2**64:
                return x
            return x + 1, RUNNER.n * 2**40 // 3

        def calls():
            for p in (2, 2, 3, 2**70, 2**70, 3, -(2**80), 4):
                yield call(data(1, 3), p)
                RUNNER.n = 5
            for n in (2**62, 2**62, -(2**63), 2**40):
                RUNNER.n = n
                yield call(data(1, 3), 2)
    """,
    ),
    "a write to an expanded tensor fails before others are done": (
        1,
        "native",
        """
        def target(x, z):
            z.add_(1)
            x.add_(1)
            return x

        def calls():
            yield call(data(1, 6)[::2], data(2, 3))
            yield call(data(1, 8)[::2], data(2, 3))
            yield call(data(1, 1).expand(3), data(2, 3))
            yield call(data(1, 9)[::3], data(2, 3))
    """,
    ),
    "what looks at the frame of its caller sees the program's": (
        1,
        "native",
        """
        total = 5

        def target(x, how):
            a = 2
            if how == 0:
                x = x + globals()["total"]
            elif how == 1:
                x = x * eval("a + total")
            elif how == 2:
                space = {}
                exec("q = total + 1", globals(), space)
                x = x + space["q"]
            elif how == 3:
                print(sys._getframe().f_code.co_name, sorted(sys._getframe().f_locals))
            return sorted(dir()), x + x.sum().item()

        def calls():
            for how in (4, 4, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4):
                yield call(data(1, 2, 3), how)
    """,
    ),
    "the text of the error of deleting from a number": (
        0,
        "native",
        """
        def target(x, r):
            try:
                del r[0]
            except TypeError as error:
                print(error)
            return x + r

        def calls():
            for r in (0.5, 0.5, 2, 2):
                yield call(data(1, 2, 3), r)
    """,
    ),
    "a generator that is suspended at a break ends once": (
        3,
        "native",
        """
        COUNT, LOG = [0], []

        @contextlib.contextmanager
        def scaled(k):
            COUNT[0] += k
            try:
                yield k
            finally:
                COUNT[0] -= k
                LOG.append(COUNT[0])

        def target(x):
            with scaled(2):
                if x.sum() > 0:
                    x = x + 1
                print(x.sum())
            return x * COUNT[0]

        def calls():
            for seed in (1, 2, 1, 2, 3):
                yield call(data(seed, 2, 3))
    """,
    ),
    "what an opaque step raises has the context that eager gives it": (
        0,
        "native",
        """
        def target(x):
            try:
                raise ValueError("first")
            except ValueError:
                if x.sum() > 0:
                    raise KeyError("second")
            return [1, 2][int(x.sum())]

        def calls():
            yield call(data(1, 3))
            yield call(data(2, 3))
            yield call(data(2, 3) - 9)
            yield call(data(1, 3))
            yield call(data(2, 3) - 9)
    """,
    ),
    "a size of a tensor inside the graph that is kept as a number": (
        2,
        "eager",
        """
        class Slots:
            n = 2

        SLOTS = Slots()

        def target(x, z):
            SLOTS.n += (z * 0).size()[0]
            return x * SLOTS.n

        def calls():
            for size in (2, 2, 3, 2, 3):
                yield call(data(1, 3), data(2, size, 2))
    """,
    ),
    "a number takes no attribute": (1, "eager", """
        class Box:
            pass

        def target(x, q):
            q.held = 1
            return x + 1

        def calls():
            box = Box()
            yield call(data(1, 3), box)
            yield call(data(1, 3), box)
            yield call(data(1, 3), 2)
            yield call(data(1, 3), 0.5)
    """),
    "a number that is written where another was read": (2, "native", """
        class Box:
            kind = 2

        BOX = Box()
        BOX.n = 2

        def target(x):
            v = BOX.n
            BOX.n = BOX.kind
            return x + 1

        def calls():
            for n in (2, 2, 5):
                BOX.n = n
                yield call(data(1, 2, 3))
    """),
    "a view of memory that torch kept to itself": (2, "native", """
        def target(y):
            v = y.repeat_interleave(2, dim=0)
            return v, v.view_as(v)

        def calls():
            for seed in (1, 2, 3):
                yield call(data(seed, 2, 3))
    """),
    "a tensor that is contiguous only at a later call": (1, "native", """
        def target(x):
            return x.contiguous()

        def calls():
            yield call(data(1, 2, 6)[..., ::2])
            yield call(data(1, 2, 6)[..., ::2])
            yield call(data(2, 2, 3))
    """),
    "a count of elements that is written into a tensor": (2, "native", """
        class Box:
            n = 1

        BOX = Box()

        def target(x):
            x.add_(1)
            n = len(x[x > 0])
            BOX.n = n
            x[0] = n
            return x

        def calls():
            for seed in (1, 2, 3):
                yield call(data(seed, 2, 3))
    """),
    "sizes of a tensor inside the graph that decide how a float compares": (0, "native", """
        def target(x, q):
            v = torch.stack([x] * 2, dim=q % 2)
            return v + 1 if 1 > v.numel() + 0.5 else v

        def calls():
            for q in (2, 2, 3, 2):
                yield call(data(1, 2, 3), q)
    """),
    "a list takes no attribute": (2, "native", """
        class Box:
            pass

        def target(x, q):
            try:
                q.tag = 2
            except AttributeError as error:
                print(error)
                del q.tag
            return x + 1

        def calls():
            box = Box()
            for q in (box, box, [], [], {}, box, []):
                yield call(data(1, 2, 3), q)
    """),
    "vars of what has none": (2, "native", """
        class Box:
            pass

        class Slots:
            __slots__ = ("n",)

        def target(x, q):
            try:
                vars(q)["n"] = 1
            except TypeError as error:
                print(error)
            return x + 1

        def calls():
            box = Box()
            for q in (box, box, None, 2, 2.5, "text", [], Slots(), box):
                yield call(data(1, 2, 3), q)
    """),
    "a view that autograd refuses to look at": (1, "native", """
        def target(x, y):
            x -= y
            return x.permute(1, 0), x

        def calls():
            for _ in range(2):
                yield call(data(1, 2, 3), data(2, 2, 3))
            x = torch.nn.Parameter(data(1, 2, 3))
            for _ in range(3):
                yield call(x, data(2, 2, 3))
    """),
    "a write of what a gradient would be marked for": (1, "native", """
        WEIGHT = torch.nn.Parameter(data(1, 2))

        def target(x, y):
            w = x + 1
            if w.sum() > 0:
                w.zero_()
            with torch.no_grad():
                pass
            return y * WEIGHT

        def calls():
            for seed in (1, 2, 3):
                yield call(data(seed, 2, 3) + 5, data(seed, 2, 2))
    """),
    "a loop over rows that nobody reads ends": (2, "native", """
        def target(x):
            for row in x:
                pass
            return x * 2

        def calls():
            for size in (2, 2, 0, 1, 3, 2, 0):
                yield call(data(1, size, 1))
    """),
    "windows whose size was one when recorded": (1, "native", """
        def target(x, n):
            return x.unfold(0, n, 1) + 1

        def calls():
            for n in (1, 1, 2, 3, 1, 2, 3):
                yield call(data(1, 4, 3), n)
    """),
    "dimensions of size one when recorded that lie inside out": (1, "native", """
        def target(x):
            return x.t() + 1

        def calls():
            for rows in (1, 1, 2, 3, 1, 2):
                yield call(data(1, rows, 3))
    """),
    "a dimension of size one with the stride of an expanded one": (0, "native", """
        def target(x):
            v = x.transpose(0, -1)
            v += v
            return v + 1, x

        def calls():
            yield call(data(1, 1, 3).expand(2, 3))
            yield call(data(1, 1, 3).expand(2, 3)[:1])
            yield call(data(4, 2, 3))
            yield call(data(4, 3, 3))
    """),
    "what a list says of a slice to which no iterable is assigned": (0, "native", """
        def target(x, y):
            x[1:] = y
            return x

        def calls():
            yield call(data(1, 2, 3), 0.5)
            yield call(data(1, 2, 3), 0.5)
            yield call([], 0.5)
            yield call([1, 2], data(2).sum())
            yield call([1, 2], data(2))
            yield call([1, 2], None)
    """),
    "ints by floats and bools on their left": (1, "native", """
        def target(x, n):
            scale = 1.5 * n - True * n + 2.5 / n
            return x * scale, True + n, 0.5 < n, [1.0] == [n]

        def calls():
            for n in (3, 2, 5, 1, 3, 7):
                yield call(data(1, 2), n)
    """),
    "a view of one of two tensors with equal contents": (1, "native", """
        def target(x, numbers):
            other = {"a": x + 1}
            v = x + 1
            view = v.unsqueeze(0)
            numbers.sort(key=lambda i: -i)
            return v, view, other

        def calls():
            for _ in range(3):
                yield call(data(1, 2, 3), [1, 2])
    """),
    "how often a tensor of the call was written": (1, "native", """
        def target(x):
            v = torch.tril(x)
            v.add_(1)
            return v._version > 0, v._version

        def calls():
            for _ in range(3):
                yield call(data(1, 2, 3))
    """),
    "numbers where a call may write a tensor": (0, "eager", """
        def target(x):
            torch.add(x, x, out=x)
            return x.view(-1)

        def calls():
            yield call(data(1, 2))
            yield call(True)
    """),
    "the line of an unbound local in a warm function": (0, "native", """
        def target(x):
            for _ in range(9):
                y = x
            y = x
            TABLE |= {"c": y}

        TABLE = {}

        def calls():
            for _ in range(4):
                yield call(data(1, 2))
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    hits, backend, source = FOUND[name]
    tally = run(Program(HEAD + textwrap.dedent(source), backend=backend))
    assert tally.hits >= hits, tally


def test_a_program_that_eager_does_not_end_is_no_difference() -> None:
    source = """
        def target(x):
            for _ in x:
                x += [1]

        def calls():
            yield call([1])
    """
    assert run(Program(HEAD + textwrap.dedent(source)), seconds=1).calls == 0
