"""Routing and mixtures of experts, against float64, against single products and each other.

Bounds are sums of roundings, u = 2^-24 each, carried through the chain of products to first order;
the factor `SECOND_ORDER` covers the rest.
"""

from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import pytest
from blocks import Matrix, random_matrix

from rml._kernels import checks
from rml._kernels.block_formats import FORMATS as BLOCKS
from rml.errors import ArgumentError

U = 2.0**-24
SECOND_ORDER = 1.01
MODES = checks.COMPUTE_MODES
# tokens, experts, chosen: one of one, all, few of many, sizes around a register of sixteen lanes
ROUTES = [(1, 1, 1), (3, 2, 1), (4, 4, 4), (5, 8, 2), (7, 15, 3), (2, 16, 16), (40, 60, 4)]
ROUTES += [(3, 64, 8), (1, 128, 8), (2, 300, 10)]


# ---- route ----


def routed(kernels, scores, k, *, normalize, **kwargs):
    ids = np.full((len(scores), k), -1, np.int32)
    weights = np.full((len(scores), k), np.nan, np.float32)
    kernels.route(scores, ids, weights, normalize=normalize, **kwargs)
    return ids, weights


def route64(scores, k, *, normalize):
    """What the modelling code of Transformers computes: softmax, the k largest, their sum."""
    scores = scores.astype(np.float64)
    ids = np.array([sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in scores])
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(p, ids, axis=1)
    return ids, weights / weights.sum(axis=1, keepdims=True) if normalize else weights


def route_bound(scores, k, exact, *, normalize):
    """How far float32 weights may be off: relative, but for e^x below the smallest number."""
    spread = np.ptp(scores.astype(np.float64), axis=1, keepdims=True)
    # The argument of e^x is rounded once (its size times u), e^x is within 4 u. A probability has
    # one of these and the sum of all, rounded once for each expert, below; a normalized weight is
    # two probabilities, the lower one a sum of k.
    roundings = 2 * (spread + 4) + scores.shape[1] + 1
    if normalize:
        roundings = 2 * roundings + k + 1
    return SECOND_ORDER * roundings * U * exact + 1.2e-38


def random_scores(n_tokens, n_experts, seed=0):
    rng = np.random.default_rng([seed, n_tokens, n_experts])
    scores = rng.standard_normal((n_tokens, n_experts)).astype(np.float32) * 2
    scores[-1] *= 20  # one expert outweighs all
    return scores


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("n_tokens", "n_experts", "k"), ROUTES)
def test_route_is_float64_within_its_roundings(kernels, n_tokens, n_experts, k, normalize):
    scores = random_scores(n_tokens, n_experts)

    ids, weights = routed(kernels, scores, k, normalize=normalize)

    exact_ids, exact = route64(scores, k, normalize=normalize)
    assert np.array_equal(ids, exact_ids)
    assert (np.abs(weights - exact) <= route_bound(scores, k, exact, normalize=normalize)).all()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("n_tokens", "n_experts", "k"), ROUTES)
def test_route_twin_equals_definition(twins, definitions, n_tokens, n_experts, k, normalize):
    scores = random_scores(n_tokens, n_experts, seed=1)

    ids, weights = routed(twins, scores, k, normalize=normalize)
    defined_ids, defined = routed(definitions, scores, k, normalize=normalize)

    exact = route64(scores, k, normalize=normalize)[1]
    bound = route_bound(scores, k, exact, normalize=normalize)
    assert np.array_equal(ids, defined_ids)
    assert (np.abs(weights - defined) <= 2 * bound).all()


def test_normalized_weights_add_up_to_one_and_plain_ones_do_not(kernels):
    # softmax: 1/2, 1/4, 1/8, 1/8 of experts 2, 0, 1, 3.
    scores = np.log(np.array([[2.0, 1.0, 4.0, 1.0]], np.float32))

    ids, plain = routed(kernels, scores, 2, normalize=False)
    _, normalized = routed(kernels, scores, 2, normalize=True)

    assert ids.tolist() == [[2, 0]]
    assert np.allclose(plain, [[1 / 2, 1 / 4]], rtol=1e-6)
    assert np.allclose(normalized, [[2 / 3, 1 / 3]], rtol=1e-6)


def test_ties_go_to_the_lower_id(kernels):
    scores = np.zeros((4, 60), np.float32)
    scores[1, [7, 20, 59]] = 3.0
    scores[2, ::2] = -0.0  # equal to 0.0
    scores[3, 30] = 1e-10  # too small for another probability, but larger

    ids, weights = routed(kernels, scores, 4, normalize=True)

    assert ids.tolist() == [[0, 1, 2, 3], [7, 20, 59, 0], [0, 1, 2, 3], [30, 0, 1, 2]]
    assert np.array_equal(weights[[0, 2, 3]], np.full((3, 4), 0.25, np.float32))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_show(kernels, bad, normalize):
    scores = random_scores(3, 20)
    scores[1, 5] = bad

    ids, weights = routed(kernels, scores, 6, normalize=normalize)

    assert np.isnan(weights[1]).all()
    assert np.isfinite(weights[[0, 2]]).all()
    assert len(set(ids[1])) == 6
    assert (5 in ids[1]) == (bad == np.inf)


def test_experts_that_are_ruled_out(kernels):
    scores = np.full((2, 20), -np.inf, np.float32)
    scores[0, 17] = scores[0, 18] = -3e38
    scores[1, 3] = 3e38

    ids, weights = routed(kernels, scores, 3, normalize=False)

    assert ids.tolist() == [[17, 18, 0], [3, 0, 1]]
    assert weights.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]


def test_all_nan_still_gives_experts(kernels):
    ids, weights = routed(kernels, np.full((1, 18), np.nan, np.float32), 4, normalize=True)

    assert ids.tolist() == [[0, 1, 2, 3]]
    assert np.isnan(weights).all()


@pytest.mark.parametrize("normalize", [True, False])
def test_route_bits_do_not_depend_on_company(kernels, normalize):
    scores = random_scores(40, 60)
    ids, weights = routed(kernels, scores, 8, normalize=normalize)

    for n_threads in (2, 3):
        again = routed(kernels, scores, 8, normalize=normalize, n_threads=n_threads)
        assert np.array_equal(ids, again[0])
        assert np.array_equal(weights, again[1])
    for t in range(40):
        alone = routed(kernels, scores[t : t + 1].copy(), 8, normalize=normalize)
        assert np.array_equal(ids[t : t + 1], alone[0])
        assert np.array_equal(weights[t : t + 1], alone[1])


def _refused_routes():
    scores = np.zeros((3, 5), np.float32)
    ids, weights = np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)
    return {
        "float64 scores": (scores.astype(float), ids, weights),
        "one dimension": (scores[0], ids, weights),
        "int64 ids": (scores, ids.astype(np.int64), weights),
        "fewer ids": (scores, ids[:2], weights),
        "other weights": (scores, ids, weights[:, :1].copy()),
        "no choice": (scores, ids[:, :0].copy(), weights[:, :0].copy()),
        "more than there are": (scores, np.zeros((3, 6), np.int32), np.zeros((3, 6), np.float32)),
        "read-only ids": (scores, read_only(ids), weights),
        "read-only weights": (scores, ids, read_only(weights)),
    }


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("case", _refused_routes())
def test_route_refuses_what_its_definition_refuses(kernels, definitions, case):
    args = _refused_routes()[case]
    with pytest.raises(ArgumentError) as defined:
        definitions.route(*args, normalize=True)
    with pytest.raises(ArgumentError) as got:
        kernels.route(*args, normalize=True)

    assert str(got.value) == str(defined.value)


# ---- mix_experts ----


@dataclass
class Case:
    """Arguments of one call, with the stream that is added to, and the weights in float64."""

    x: np.ndarray
    gates: list
    ups: list
    downs: list
    ids: np.ndarray
    weights: np.ndarray
    stream: np.ndarray
    exact: list  # of gates, ups and downs

    def run(self, kernels, tokens=slice(None), **kwargs):
        out = self.stream[tokens].copy()
        kernels.mix_experts(
            self.x[tokens].copy(), self.gates, self.ups, self.downs,
            self.ids[tokens].copy(), self.weights[tokens].copy(), out, **kwargs,
        )  # fmt: skip
        return out


def make_case(formats, n_tokens, n_experts, k, sizes, seed=0):
    """Random experts; their formats follow each other in turn, gate, up and down of each."""
    n_in, n_hidden, n_out = sizes
    rng = np.random.default_rng([seed, n_tokens, n_experts, k, *sizes])
    formats = cycle(formats)
    shapes = [(n_hidden, n_in), (n_hidden, n_in), (n_out, n_hidden)] * n_experts
    made = [random_matrix(rng, next(formats), *shape) for shape in shapes]
    parts = [made[0::3], made[1::3], made[2::3]]
    gates, ups, downs = ([matrix for matrix, _ in part] for part in parts)
    order = rng.random((n_tokens, n_experts)).argsort(axis=1)
    return Case(
        x=rng.standard_normal((n_tokens, n_in)).astype(np.float32) * 3,
        gates=gates,
        ups=ups,
        downs=downs,
        ids=np.ascontiguousarray(order[:, :k]).astype(np.int32),
        weights=rng.random((n_tokens, k)).astype(np.float32),
        stream=rng.standard_normal((n_tokens, n_out)).astype(np.float32),
        exact=[[exact for _, exact in part] for part in parts],
    )


# Each is tokens, experts, how many are chosen, and the sizes of inputs, hidden rows and outputs.
CASES = [
    (1, 1, 1, (32, 32, 32)),
    (1, 60, 4, (64, 32, 64)),  # most experts have no token
    (6, 4, 4, (64, 96, 37)),  # every token uses all
    (40, 60, 4, (64, 32, 48)),
    (9, 3, 2, (96, 160, 15)),
]
MIXED = ("Q4_1", "F16", "Q8_0", "Q5_0")
SETS = [(name,) for name in (*checks.FLOAT_FORMATS, *checks.QUANTIZED_FORMATS)] + [MIXED]


def sizes_of(formats):
    """Inputs, hidden and outputs: whole blocks, and no whole group of rows at the end."""
    return (64, 96, 37) if max(BLOCKS[name].length for name in formats) <= 32 else (256, 256, 37)


def silu64(x):
    return x / (1 + np.exp(-x))


def gelu64(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def product64(x, error, weight, exact, compute):
    """A product in float64, and a bound of the float32 kernel's error when x is off by `error`."""
    size = np.abs(x) + error
    if compute == "f32" or weight.type in checks.FLOAT_FORMATS:
        # ceil(K / 16) products in a lane, 4 levels of the tree, 1 rounding of a product.
        rounding = (weight.cols / 16 + 6) * U * size @ np.abs(exact).T
    else:
        # Half a step of a unit's inputs; then 2 roundings of a half unit's scale, 3 of its minimum
        # and 2 sums. Code * scale and minimum alone can each exceed their sum, up to three times.
        unit = size.reshape(len(x), -1, 32).max(axis=2)
        steps = {"int8": 127, "int8x2": 127 * 256}[compute]
        error = error + np.repeat(unit / steps / 2, 32, axis=1)
        terms = np.abs(exact).max() * 3 * size.sum(axis=1, keepdims=True)
        rounding = (2 * weight.cols / 16 + 6) * U * terms
    return x @ exact.T, error @ np.abs(exact).T + rounding


def mix64(case, compute, activation="silu"):
    """All of it in float64, and a bound of the float32 kernel's error."""
    out, out_error = case.stream.astype(np.float64), np.zeros(case.stream.shape)
    act = {"silu": silu64, "gelu_tanh": gelu64}[activation]
    gates, ups, downs = (
        list(zip(*part, strict=True))
        for part in zip((case.gates, case.ups, case.downs), case.exact, strict=True)
    )
    for t, row in enumerate(case.x.astype(np.float64)):
        x, none = row[None], np.zeros((1, len(row)))
        total = np.abs(out[t])
        for expert, w in zip(case.ids[t], case.weights[t].astype(np.float64), strict=True):
            g, g_error = product64(x, none, *gates[expert], compute)
            u, u_error = product64(x, none, *ups[expert], compute)
            # Both activations have slopes below 1.13. e^x: 4 u, its argument in GELU: 6 u of at
            # most |z|; then 4 roundings and the product with u.
            z = 0 if activation == "silu" else 2 * (np.abs(g) + np.abs(g) ** 3)
            a_error = 1.13 * g_error + (9 + 6 * z) * U * np.abs(act(g))
            h = act(g) * u
            h_error = np.abs(act(g)) * u_error + (np.abs(u) + u_error) * a_error
            y, y_error = product64(h, h_error, *downs[expert], compute)
            out[t] += w * y[0]
            out_error[t] += w * y_error[0]
            total = total + w * np.abs(y[0])
        out_error[t] += (case.ids.shape[1] + 1) * U * total
    return out, SECOND_ORDER * out_error


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("formats", SETS, ids="-".join)
def test_formats_are_float64_within_their_roundings(kernels, formats, compute):
    case = make_case(formats, 6, 4, 3, sizes_of(formats))
    exact, bound = mix64(case, compute)

    error = np.abs(case.run(kernels, compute=compute) - exact)

    assert (error <= bound).all()
    # The bound tells experts apart: with others the result is far outside. The worst case of 8-bit
    # inputs is as wide as that; there the comparison with the single kernels says more.
    if compute != "int8":
        other = mix64(replace(case, ids=(case.ids + 1) % 4), compute)[0]
        assert (np.abs(other - exact) > bound).mean() > 0.9


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("activation", checks.ACTIVATIONS)
@pytest.mark.parametrize(("n_tokens", "n_experts", "k", "sizes"), CASES)
def test_sizes_are_float64_within_their_roundings(
    kernels, activation, compute, n_tokens, n_experts, k, sizes
):
    case = make_case(MIXED, n_tokens, n_experts, k, sizes)
    exact, bound = mix64(case, compute, activation)

    error = np.abs(case.run(kernels, compute=compute, activation=activation, n_threads=2) - exact)

    assert (error <= bound).all()


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("formats", SETS, ids="-".join)
def test_twin_equals_definition(twins, definitions, formats, compute):
    case = make_case(formats, 12, 5, 2, sizes_of(formats), seed=1)
    bound = mix64(case, compute)[1]

    difference = case.run(twins, compute=compute) - case.run(definitions, compute=compute)

    assert (np.abs(difference) <= 2 * bound).all()


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("formats", [("F16",), ("Q4_1",), MIXED], ids="-".join)
@pytest.mark.parametrize(("n_tokens", "n_experts", "k", "sizes"), CASES)
def test_mixture_is_the_single_kernels_one_after_the_other(
    kernels, formats, compute, n_tokens, n_experts, k, sizes
):
    case = make_case(formats, n_tokens, n_experts, k, sizes)

    got = case.run(kernels, compute=compute)

    exact, total = case.stream.astype(np.float64), np.abs(case.stream).astype(np.float64)
    for t in range(n_tokens):
        x = case.x[t : t + 1].copy()
        for expert, weight in zip(case.ids[t], case.weights[t], strict=True):
            hidden = np.empty((1, sizes[1]), np.float32)
            y = np.empty((1, sizes[2]), np.float32)
            gate, up, down = case.gates[expert], case.ups[expert], case.downs[expert]
            kernels.matmul_glu(x, gate, up, hidden, compute=compute)
            kernels.matmul_many(hidden, [down], [y], compute=compute)
            exact[t] += np.float64(weight) * y[0]
            total[t] += np.abs(np.float64(weight) * y[0])
    # Nothing but the sum is rounded differently: a product and an addition for each expert.
    assert (np.abs(got - exact) <= SECOND_ORDER * (k + 1) * U * total).all()


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("formats", [("F16",), ("Q4_1",), MIXED], ids="-".join)
def test_bits_do_not_depend_on_company(kernels, formats, compute):
    case = make_case(formats, 40, 7, 3, (64, 96, 77))

    whole = case.run(kernels, compute=compute)

    for n_threads in (2, 3, 5):
        assert np.array_equal(whole, case.run(kernels, compute=compute, n_threads=n_threads))
    for size in (1, 2, 3, 5, 13, 39):
        pieces = [
            case.run(kernels, slice(start, start + size), compute=compute)
            for start in range(0, 40, size)
        ]
        assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("compute", MODES)
def test_every_number_of_tokens(kernels, compute):
    case = make_case(["Q8_0"], 40, 5, 2, (32, 64, 32))
    whole = case.run(kernels, compute=compute)

    for n in range(1, 41):
        assert np.array_equal(whole[:n], case.run(kernels, slice(n), compute=compute, n_threads=2))


@pytest.mark.compiled
@pytest.mark.parametrize("compute", MODES)
def test_more_tokens_of_an_expert_than_one_pass(twins, compute):
    case = make_case(["Q4_1"], 1100, 2, 1, (64, 32, 40))
    assert np.bincount(case.ids[:, 0]).min() > 512

    whole = case.run(twins, compute=compute, n_threads=2)

    for t in (0, 511, 512, 1023, 1024, 1099):
        assert np.array_equal(whole[t : t + 1], case.run(twins, slice(t, t + 1), compute=compute))


def test_one_expert_for_all_tokens(kernels):
    case = make_case(["Q4_1"], 11, 6, 2, (64, 64, 64))
    case.ids[:] = [4, 1]

    whole = case.run(kernels, n_threads=2)

    for t in range(11):
        assert np.array_equal(whole[t : t + 1], case.run(kernels, slice(t, t + 1)))


def test_no_tokens(kernels):
    case = make_case(["Q4_1"], 0, 3, 2, (64, 64, 64))
    assert case.run(kernels, n_threads=2).shape == (0, 64)


def test_experts_without_tokens_are_not_read(kernels):
    case = make_case(["F32"], 5, 6, 2, (32, 32, 32))
    case.ids[:] = [5, 2]
    expected = case.run(kernels)
    for expert in (0, 1, 3, 4):
        for part in (case.gates, case.ups, case.downs):
            part[expert] = Matrix("F32", 32, 32, np.full(4 * 32 * 32, 0xFF, np.uint8))  # NaN

    assert np.array_equal(case.run(kernels, n_threads=2), expected)


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("field", ["x", "weights"])
def test_what_is_not_finite_stays_so_and_stays_alone(kernels, field, compute):
    case = make_case(["Q4_1"], 6, 4, 2, (64, 64, 64))
    expected = case.run(kernels, compute=compute)
    getattr(case, field)[3, 1] = np.nan

    with np.errstate(invalid="ignore"):
        out = case.run(kernels, compute=compute)

    assert not np.isfinite(out[3]).any()
    others = [0, 1, 2, 4, 5]
    assert np.array_equal(out[others], expected[others])


def test_scratch_is_used_again(twins):
    case = make_case(MIXED, 20, 4, 2, (64, 96, 64))
    expected = case.run(twins)
    scratch = twins.module.Scratch()
    case.run(twins, scratch=scratch)
    size = scratch.nbytes

    assert np.array_equal(case.run(twins, scratch=scratch), expected)
    assert np.array_equal(case.run(twins, slice(1), scratch=scratch), expected[:1])
    assert scratch.nbytes == size > 0


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_program_routes_and_mixes_what_it_finds(twins, n_threads):
    case = make_case(["Q4_1"], 5, 7, 3, (64, 64, 64))
    scores = np.zeros((5, 7), np.float32)
    ids, weights = np.zeros((5, 3), np.int32), np.zeros((5, 3), np.float32)
    out = np.zeros((5, 64), np.float32)
    ops = [
        twins.operations["route"](scores, ids, weights, normalize=True),
        twins.operations["mix_experts"](
            case.x, case.gates, case.ups, case.downs, ids, weights, out
        ),
    ]
    program = twins.module.Program(ops, n_threads, np.zeros(1, np.int32))

    for seed in range(3):
        scores[:] = random_scores(5, 7, seed)
        out[:] = case.stream
        assert program.run()

        case.ids, case.weights = routed(twins, scores, 3, normalize=True)
        assert np.array_equal(out, case.run(twins))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_token_without_an_expert_shows_in_a_program(twins, bad):
    case = make_case(["Q4_1"], 5, 4, 2, (64, 64, 40))
    expected = case.run(twins)
    out, ids = case.stream.copy(), case.ids.copy()
    op = twins.operations["mix_experts"](
        case.x, case.gates, case.ups, case.downs, ids, case.weights, out
    )
    ids[2, 1] = bad

    op.run(2)

    assert np.isnan(out[2]).all()
    others = [0, 1, 3, 4]
    assert np.array_equal(out[others], expected[others])


def test_read_only_arguments_at_odd_addresses(kernels):
    case = make_case(["Q4_1"], 4, 3, 2, (64, 64, 64))
    expected = case.run(kernels)
    for part in (case.gates, case.ups, case.downs):
        for i, weight in enumerate(part):
            data = read_only(np.concatenate([np.zeros(3, np.uint8), weight.data]))[3:]
            part[i] = Matrix(weight.type, weight.rows, weight.cols, data)
    out = case.stream.copy()

    kernels.mix_experts(
        read_only(case.x), tuple(case.gates), tuple(case.ups), tuple(case.downs),
        read_only(case.ids), read_only(case.weights), out,
    )  # fmt: skip

    assert np.array_equal(out, expected)


def _refused_mixtures():
    case = make_case(["Q4_1"], 3, 4, 2, (64, 64, 32))
    names = ["x", "gates", "ups", "downs", "ids", "weights", "out"]
    good = dict(zip(names, vars(case).values(), strict=False))
    narrow = random_matrix(np.random.default_rng(0), "Q4_1", 64, 32)[0]
    short = Matrix("Q4_1", 64, 64, case.gates[0].data[:-1])
    changes = {
        "float64 input": {"x": case.x.astype(float)},
        "one dimension": {"x": case.x[0]},
        "no experts": {"gates": [], "ups": [], "downs": []},
        "an up is missing": {"ups": case.ups[:3]},
        "a down is missing": {"downs": case.downs[:3]},
        "a narrow gate": {"gates": [*case.gates[:3], narrow]},
        "a narrow up": {"ups": [narrow, *case.ups[1:]]},
        "a wide down": {"downs": [*case.downs[:3], case.gates[0]]},
        "short data": {"gates": [*case.gates[:3], short]},
        "integers": {"ups": [Matrix("I8", 64, 64, case.ups[0].data), *case.ups[1:]]},
        "int64 ids": {"ids": case.ids.astype(np.int64)},
        "fewer ids": {"ids": case.ids[:2]},
        "other weights": {"weights": case.weights[:, :1].copy()},
        "small out": {"out": case.stream[:, :31].copy()},
        "read-only out": {"out": read_only(case.stream)},
        "negative id": {"ids": np.full_like(case.ids, -1)},
        "id of no expert": {"ids": np.full_like(case.ids, 4)},
        "activation": {"activation": "relu"},
        "mode": {"compute": "int4"},
    }
    return {name: good | change for name, change in changes.items()}


@pytest.mark.parametrize("case", _refused_mixtures())
def test_mixture_refuses_what_its_definition_refuses(kernels, definitions, case):
    arguments = _refused_mixtures()[case]
    before = arguments["out"].copy()
    with pytest.raises(ArgumentError) as defined:
        definitions.mix_experts(**arguments)
    with pytest.raises(ArgumentError) as got:
        kernels.mix_experts(**arguments)

    assert str(got.value) == str(defined.value)
    assert np.array_equal(arguments["out"], before)
