"""An exported program gives eager's results from Python and from C; what it cannot hold is refused at its line."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import framefuse
from benchmarks.zoo.torchvision_ops import declare_torchvision_operators
from framefuse.aot import exporting, loader

HERE = Path(__file__).parent
RUNTIME = Path(loader.__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="export needs a C compiler")


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 70), torch.nn.GELU(), torch.nn.Linear(70, 4), torch.nn.Softmax(-1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A small network in a file, with the network."""
    path = tmp_path_factory.mktemp("export") / "mlp.so"
    model = mlp().eval()
    framefuse.export(model, (torch.randn(8, 16),), path)
    return path, model


@pytest.mark.parametrize("rows", [1, 6, 13, 300, 0])
def test_a_network_gives_eagers_results_at_other_sizes(exported, rows):
    path, model = exported
    x = torch.randn(rows, 16)
    exact = model.double()(x.double())
    expected = model.float()(x)
    error = (framefuse.load(path)(x) - exact).abs().sum()
    assert error <= 2 * (expected - exact).abs().sum() + 1e-7 * rows


def test_arrays_of_numpy_give_arrays(exported):
    path, model = exported
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    result = framefuse.load(path)(x)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, model(torch.from_numpy(x)).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((torch.randn(3, 15),), "15 is to be == 16"),
        ((torch.randn(3),), "input 0 has 1 dimensions, not 2"),
        ((torch.randn(3, 16).double(),), "input 0 has the dtype"),
        ((torch.randn(3, 16), torch.randn(3)), "takes 1 tensors and gives 1"),
    ],
)
def test_what_does_not_fit_is_an_error(exported, given, text):
    with pytest.raises(ValueError, match=text):
        framefuse.load(exported[0])(*given)


def test_inputs_may_lie_in_any_order(exported):
    path, model = exported
    program = framefuse.load(path)
    wide = torch.randn(6, 40)
    for x in (torch.randn(16, 3).T, wide[::2, 4:36:2], torch.randn(1, 16).expand(5, 16), torch.randn(16, 1).T):
        torch.testing.assert_close(program(x), model(x))


def test_weights_can_be_replaced_all_or_none(exported):
    path, model = exported
    program, x = framefuse.load(path), torch.randn(5, 16)
    before = program(x)
    new = {"0.weight": torch.randn(70, 16), "2.bias": torch.randn(4)}
    with pytest.raises(ValueError, match=r"no weight 3\.bias"):
        program.update_constants({**new, "3.bias": torch.randn(4)})
    with pytest.raises(ValueError, match=r"0\.weight has size 3 in dimension 0, not 70"):
        program.update_constants({**new, "0.weight": torch.randn(3, 16)})
    assert torch.equal(program(x), before)
    program.update_constants(new)
    other = mlp().eval()
    other.load_state_dict({**model.state_dict(), **new})
    torch.testing.assert_close(program(x), other(x).detach())
    assert torch.equal(framefuse.load(path)(x), before)


def test_a_damaged_file_is_refused_before_it_is_opened(exported, tmp_path):
    whole = exported[0].read_bytes()
    path = tmp_path / "damaged.so"
    places = range(0, len(whole), max(1, len(whole) // 60))
    damaged = [bytes((*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :])) for at in places]
    damaged += [whole[:at] for at in places] + [whole[at:] for at in places if at] + [whole + b"\0", whole + whole]
    half = len(whole) // 2
    damaged.append(whole[half:] + whole[:half])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(framefuse.UserError, match=r"damaged|no exported program"):
            framefuse.load(path)
    path.write_bytes(whole)
    assert framefuse.load(path)(torch.randn(2, 16)).shape == (2, 4)


def compiled(source, folder):
    program = folder / "program"
    command = ["cc", "-O2", "-Wall", "-Werror", f"-I{RUNTIME}", str(source), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return program


def rows(count, columns):
    return (torch.arange(count * columns) % 17 / 8 - 1).reshape(count, columns)


def test_a_program_in_c_runs_it(exported, tmp_path):
    path, model = exported
    program = compiled(HERE / "program.c", tmp_path)
    done = subprocess.run([program, path, "5", "16", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *values, _ = map(float, done.stdout.split())
    torch.testing.assert_close(torch.tensor(values).reshape(5, 4), model(rows(5, 16)).detach())
    done = subprocess.run([program, path, "5", "17", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and "17 is to be == 16" in done.stderr


def test_a_program_in_c_replaces_weights(tmp_path):
    path, model = tmp_path / "linear.so", torch.nn.Linear(16, 4).eval()
    framefuse.export(model, (torch.randn(1, 16),), path)
    command = ["cc", "-O2", "-Wall", "-Werror", f"-I{RUNTIME}", HERE / "weights.c", path, "-o", tmp_path / "program"]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert done.returncode == 0 and "no weight none" in done.stderr and "1 dimensions, not 2" in done.stderr
    before, refused, after = torch.tensor([float(line) for line in done.stdout.split()]).reshape(3, 4)
    x = torch.arange(16.0) / 8
    torch.testing.assert_close(before, model(x).detach())
    torch.testing.assert_close(refused, before, rtol=0, atol=0)
    torch.testing.assert_close(after, x.sum() + torch.arange(4.0))


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_a_program_in_cpp_runs_it(exported, tmp_path):
    path, model = exported
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME}", HERE / "program.cpp", path]
    subprocess.run([*command, "-o", tmp_path / "program"], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert done.returncode == 0 and "input 0 has the dtype" in done.stderr
    values = torch.tensor([float(line) for line in done.stdout.split()])
    torch.testing.assert_close(values.reshape(2, 4), model(rows(2, 16)).detach())


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no Rust compiler")
def test_a_program_in_rust_runs_it(exported, tmp_path):
    path, model = exported
    command = ["rustc", HERE / "program.rs", "-C", f"link-arg={path}", "-o", tmp_path / "program"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "error" in done.stderr and "toolchain" in done.stderr:
        pytest.skip("rustc has no toolchain")
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    values = torch.tensor([float(line) for line in done.stdout.split()])
    torch.testing.assert_close(values.reshape(2, 4), model(rows(2, 16)).detach())


def chain(x):
    for _ in range(10):
        x = torch.relu(x) * 1.01
        x = x + 0.1
        x = torch.where(x > 1, x - 0.5, x)
    return x


def test_a_chain_is_short_and_its_structure_is_kept(tmp_path):
    def f(x, y):
        return {"chain": chain(x), "pair": [torch.sin(y) + x.shape[0], None]}

    path = tmp_path / "chain.so"
    framefuse.export(f, (torch.randn(8, 16), torch.randn(3, 2)), path)
    x, y = torch.randn(5, 7), torch.randn(2, 9)
    result, expected = framefuse.load(path)(x, y), f(x, y)
    assert list(result) == ["chain", "pair"] and result["pair"][1] is None
    assert torch.equal(result["chain"], expected["chain"])
    torch.testing.assert_close(result["pair"][0], expected["pair"][0])


class Attention(torch.nn.Module):
    """A block of a small transformer, with tokens in."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32)
        self.all, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, tokens):
        x = self.words(tokens)
        parts = self.all(self.norm(x)).chunk(3, -1)
        q, k, v = (part.reshape(*part.shape[:2], 4, 8).transpose(1, 2) for part in parts)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def test_attention_is_products_and_a_softmax(tmp_path):
    torch.manual_seed(0)
    model, path = Attention().eval(), tmp_path / "attention.so"
    framefuse.export(model, (torch.randint(0, 50, (2, 7)),), path)
    program = framefuse.load(path)
    for sizes in ((3, 5), (2, 12), (4, 33)):
        tokens = torch.randint(0, 50, sizes)
        expected = model(tokens).detach()
        exact = model.double()(tokens).detach()
        model.float()
        assert (program(tokens) - exact).abs().max() <= 2 * (expected - exact).abs().max() + 1e-6


def test_bert_is_exported(tmp_path):
    transformers = pytest.importorskip("transformers")
    declare_torchvision_operators()
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=100, **settings)).eval()
    path = tmp_path / "bert.so"
    framefuse.export(model, (torch.randint(0, 100, (2, 7)),), path)
    tokens = torch.randint(0, 100, (3, 9))
    result, expected = framefuse.load(path)(tokens), model(tokens)
    assert list(result) == ["last_hidden_state", "pooler_output"]
    for name, tensor in result.items():
        torch.testing.assert_close(tensor, expected[name].detach(), atol=1e-5, rtol=1e-5)
    command = [compiled(HERE / "program.c", tmp_path), path, "3", "9", "2", "tokens"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *values, _ = map(float, done.stdout.split())
    expected = model((torch.arange(27) % 17).reshape(3, 9)).last_hidden_state.detach()
    torch.testing.assert_close(torch.tensor(values).reshape(3, 9, 32), expected, atol=1e-5, rtol=1e-5)


def test_named_dimensions_are_free_and_equal_the_others_fixed(tmp_path):
    path = tmp_path / "named.so"
    pair = (torch.randn(4, 3), torch.randn(4, 6))
    framefuse.export(lambda x, y: (x.exp(), y.exp()), pair, path, dynamic={0: {0: "n"}, 1: {0: "n"}})
    program = framefuse.load(path)
    x, y = torch.randn(9, 3), torch.randn(9, 6)
    torch.testing.assert_close(program(x, y), (x.exp(), y.exp()))
    with pytest.raises(ValueError, match="input 1 has size 8 in dimension 0, not 9"):
        program(x, torch.randn(8, 6))
    with pytest.raises(ValueError, match="input 1 has size 5 in dimension 1, not 6"):
        program(x, torch.randn(9, 5))


def test_sizes_are_those_of_the_examples_where_others_are_refused(tmp_path, monkeypatch):
    def picky(f, examples, dynamic, libtorch):
        if dynamic:
            raise framefuse.UserError("sizes decide")
        return recorded(f, examples, dynamic, libtorch)

    recorded = exporting.recorded
    monkeypatch.setattr(exporting, "recorded", picky)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    written = framefuse.export(torch.nn.Tanh(), (x,), tmp_path / "a.so")
    assert written.assumed[-1].endswith("for others: sizes decide")
    torch.testing.assert_close(framefuse.load(written.path)(y), torch.tanh(y))
    with pytest.raises(ValueError, match="size 9 in dimension 0, not 8"):
        framefuse.load(written.path)(torch.randn(9, 16))
    for asked in (True, {0: {0: "rows"}}):
        with pytest.raises(framefuse.UserError, match="sizes decide"):
            framefuse.export(torch.nn.Tanh(), (x,), tmp_path / "b.so", dynamic=asked)


def test_a_file_that_was_replaced_is_another_program(tmp_path):
    path, x = tmp_path / "same.so", torch.randn(3)
    framefuse.export(lambda x: x * 2, (x,), path)
    first = framefuse.load(path)
    framefuse.export(lambda x: x * 3, (x,), path)
    assert torch.equal(framefuse.load(path)(x), x * 3) and torch.equal(first(x), x * 2)


def test_an_index_out_of_bounds_is_an_error(tmp_path):
    table = torch.randn(10, 4)
    path = tmp_path / "table.so"
    framefuse.export(lambda i: torch.nn.functional.embedding(i, table) * 2, (torch.tensor([1, 2]),), path)
    program, places = framefuse.load(path), torch.tensor([9, 0, 3])
    assert torch.equal(program(places), table[places] * 2)
    with pytest.raises(ValueError, match="an index is out of bounds"):
        program(torch.tensor([10, 0, 1]))


def test_an_export_checks_what_the_program_asserts(tmp_path):
    def program(x):
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x * 2

    path = tmp_path / "checked.so"
    framefuse.export(program, (torch.randn(2, 4),), path)
    loaded = framefuse.load(path)
    x = torch.randn(2, 4)
    torch.testing.assert_close(loaded(x), x * 2)
    with pytest.raises(ValueError, match="the program raises"):
        loaded(x / 0)
    torch.testing.assert_close(loaded(x + 1), (x + 1) * 2)


scale = 2.0


def branch(x):
    if x.sum() > 0:
        return x * 2
    return x


seen = []


def effect(x):
    seen.append(1)
    return x * 2


def written(x):
    return x.mul_(2)


def number(x):
    return x * x.sum().item()


def either(x):
    return torch.cond(x.sum() > 0, torch.exp, torch.sin, (x,))


@pytest.mark.parametrize("f", [branch, either, effect, written, number, torch.linalg.eigvals])
def test_what_python_alone_can_do_is_refused(f, tmp_path):
    with pytest.raises(framefuse.UserError):
        framefuse.export(f, (torch.eye(3),), tmp_path / "refused.so")
    assert not list(tmp_path.iterdir())


def test_the_line_is_told(tmp_path):
    with pytest.raises(framefuse.UserError, match=r"test_export\.py:\d+ in branch\n    if x\.sum\(\) > 0:"):
        framefuse.export(branch, (torch.randn(3),), tmp_path / "refused.so")


def test_a_number_that_was_read_is_told(tmp_path):
    def scaled(x):
        return x * scale

    assert framefuse.export(scaled, (torch.randn(3),), tmp_path / "scaled.so").assumed == ("scale == 2.0",)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.scale = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.25)), 3.0
        self.last = Last()

    def forward(self, x, mask=None):
        return self.last(self.layers(x) * self.scale)


class Last(torch.nn.Module):
    power = 2

    def forward(self, x):
        return x**self.power


@pytest.mark.parametrize(
    ("f", "example"),
    [
        (torch.nn.Conv3d(2, 4, 3, padding=1), torch.randn(1, 2, 5, 6, 7)),
        (lambda x: torch.nn.functional.channel_shuffle(x, 2), torch.randn(1, 4, 6, 6)),
        (lambda x: torch.cdist(x, x, p=1.0), torch.randn(1, 3)),
    ],
    ids=["a volume", "a picture", "a vector"],
)
def test_a_batch_of_one_that_stays_is_told(f, example, tmp_path):
    written = framefuse.export(f, (example,), tmp_path / "one.so")
    larger = torch.randn(2, *example.shape[1:])
    try:
        got = framefuse.load(tmp_path / "one.so")(larger)
    except ValueError:
        assert any("input 0 has size 1 in dimension 0" in each for each in written.assumed)
    else:
        assert not written.assumed
        torch.testing.assert_close(got, f(larger), rtol=1e-4, atol=1e-4)


def test_settings_of_torchs_layers_are_not_told(tmp_path):
    written = framefuse.export(Scaled().eval(), (torch.randn(2, 4),), tmp_path / "scaled.so")
    assert set(written.assumed) == {"self.scale == 3.0", "type(Last).power == 2"}


def test_a_size_that_stays_is_told_and_cannot_be_named(tmp_path):
    path, x = tmp_path / "steps.so", torch.randn(2, 7, 4)
    layer = torch.nn.LSTM(4, 5, batch_first=True).eval()
    written = framefuse.export(layer, (x,), path)
    assert any("input 0 has size 7 in dimension 1, by recurrent_layers.py" in each for each in written.assumed)
    assert not any("in dimension 0" in each for each in written.assumed)
    assert framefuse.load(path)(torch.randn(3, 7, 4))[0].shape == (3, 7, 5)
    framefuse.export(layer, (x,), path, dynamic={0: {0: "rows"}})
    with pytest.raises(framefuse.UserError, match="a size that the program has one of: input 0 has size 7"):
        framefuse.export(layer, (x,), path, dynamic={0: {1: "steps"}})
    with pytest.raises(framefuse.UserError, match="input 0 has size 4 in dimension 2"):
        framefuse.export(torch.nn.Linear(4, 2), (x,), path, dynamic={0: {2: "features"}})
    assert framefuse.export(torch.nn.Linear(4, 2), (x,), path).assumed == ()


def test_elements_at_positions_are_taken_and_looked_at(tmp_path):
    def f(x, rows, columns):
        return x[rows, columns], x[columns.int()]

    path = tmp_path / "elements.so"
    framefuse.export(f, (torch.randn(4, 4, 3), torch.tensor([[1], [-2]]), torch.tensor([0, 3, -1])), path)
    program = framefuse.load(path)
    given = torch.randn(5, 5, 7), torch.tensor([[4], [-5], [0]]), torch.tensor([2, -5])
    for result, expected in zip(program(*given), f(*given), strict=True):
        assert torch.equal(result, expected)
    with pytest.raises(ValueError, match="an index is out of bounds"):
        program(given[0], given[1], torch.tensor([5, 0]))


def test_results_may_be_parts_of_each_other_and_copies_of_inputs(tmp_path):
    weight = torch.randn(4, 4)

    def f(x, y):
        z = x * 2
        parts = (
            z[1:, ::2],
            z.t(),
            z[None, ..., 0],
            z.view(-1, 2, 2).transpose(1, 2)[0:1],
            z[:, None].expand(-1, 3, -1),
        )
        return z, parts, z.chunk(2, 1), z.squeeze(0), z.flatten(), z, y, (x.view(-1), x[0], weight)

    path = tmp_path / "parts.so"
    framefuse.export(f, (torch.randn(3, 4), torch.randn(2, 5)), path)
    program = framefuse.load(path)
    x, y = torch.randn(6, 4), torch.randn(7, 3)
    result, expected = program(x, y), f(x, y)
    for given, wanted in zip(flat(result), flat(expected), strict=True):
        assert torch.equal(given, wanted) and given.stride() == wanted.stride()
    assert result[0].data_ptr() == result[1][1].data_ptr() and y.data_ptr() != result[6].data_ptr() != 0
    kept, expected = result[1][0], result[1][0].clone()
    del result
    program(x, y)
    assert torch.equal(kept, expected)  # the memory lives as long as the last of those that share it


def flat(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [tensor for part in tree for tensor in flat(part)]


def test_results_hold_constants_and_no_numbers_of_a_run(tmp_path):
    def f(x):
        return {"y": x * 2, "meta": ("kind", 0.5, (3, None)), "on": True}

    framefuse.export(f, (torch.randn(3, 4),), tmp_path / "constants.so")
    program, x = framefuse.load(tmp_path / "constants.so"), torch.randn(5, 2)
    assert torch.equal(program(x).pop("y"), x * 2)
    assert {**program(x), "y": None} == {**f(x), "y": None}
    with pytest.raises(framefuse.UserError, match="a number that each run computes"):
        framefuse.export(lambda x: (x * 2, x.shape[0]), (torch.randn(3, 4),), tmp_path / "n.so", dynamic=True)


def test_attention_whose_heads_share_keys(tmp_path):
    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def given(batch, rows):
        return [torch.randn(batch, heads, rows, 8) for heads in (6, 2, 2)]

    assert framefuse.export(attention, given(2, 5), tmp_path / "attention.so").assumed == ()
    program = framefuse.load(tmp_path / "attention.so")
    for tensors in (given(2, 5), given(3, 9)):
        torch.testing.assert_close(program(*tensors), attention(*tensors))
    with pytest.raises(ValueError, match="sizes of the inputs"):
        program(torch.randn(2, 5, 5, 8), *given(2, 5)[1:])
