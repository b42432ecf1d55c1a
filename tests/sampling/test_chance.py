"""Random numbers as a function: published values, a second implementation, and statistics.

The statistics are of fixed inputs, so they come out the same every time. Bounds are five standard
deviations of what independent uniform numbers would give.
"""

import itertools
import math

import numpy as np
import pytest

from rml.sampling.chance import Draw, chance, splitmix64

N = 1 << 14


class Generator:
    """SplitMix64 as published: a state that grows, in unsigned arithmetic that wraps around."""

    def __init__(self, seed):
        self.state = np.array([seed], np.uint64)

    def next(self):
        self.state += np.uint64(0x9E3779B97F4A7C15)
        z = self.state.copy()
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z ^= z >> np.uint64(shift)
            z *= np.uint64(factor)
        return int((z ^ z >> np.uint64(31))[0])


def drawn(seed, position, draw):
    """The same number from generators that are asked until they have come to it."""
    of_text = Generator(Generator(seed).next())
    of_position = Generator([of_text.next() for _ in range(position + 1)][-1])
    return [of_position.next() for _ in range(draw + 1)][-1]


def test_published_numbers():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    generator = Generator(1234567)

    assert [splitmix64(1234567, i) for i in range(5)] == published
    assert [generator.next() for _ in range(5)] == published


@pytest.mark.parametrize("seed", [0, 1, 2, 1234567, 2**32, 2**63, 2**64 - 1])
def test_a_second_implementation_draws_the_same(seed):
    for position, draw in itertools.product([0, 1, 2, 100, 3000], range(4)):
        assert chance(seed, position, draw) == (drawn(seed, position, draw) >> 11) / 2**53


def test_numbers_never_change():
    """A seed that someone wrote down must give the same text with the next version."""
    assert (Draw.TOKEN, Draw.XTC) == (0, 1)
    assert len(set(Draw)) == len(Draw.__members__)  # each has a number of its own
    assert chance(0, 0, Draw.TOKEN) == 0.13870941014555427
    assert chance(1, 5, Draw.TOKEN) == 0.9911237274725585
    assert chance(1, 5, Draw.XTC) == 0.6857371539755247
    assert chance(2**64 - 1, 10**6, Draw.XTC) == 0.5985909857948114


# Runs of neighbours in each argument, from ordinary places and from the ends of the range.
AXES = {
    f"{name} from {start}": (
        lambda i, at=at, start=start: chance(*[start + i if k == at else 7 for k in range(3)])
    )
    for at, (name, starts) in enumerate(
        {"seeds": (0, 2**32 - 99, 2**64 - N), "positions": (0, 100_000), "draws": (0,)}.items()
    )
    for start in starts
}


@pytest.fixture(scope="module", params=AXES.values(), ids=AXES)
def numbers(request):
    """Chances of neighbours in one argument."""
    return np.array([request.param(i) for i in range(N)])


def chi_square(counts):
    """Distance from equal counts, in standard deviations (degrees of freedom are many)."""
    freedom = counts.size - 1
    expected = counts.sum() / counts.size
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def test_neighbours_are_spread_evenly(numbers):
    counts, _ = np.histogram(numbers, 256, (0, 1))

    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(chi_square(counts)) < 5  # neither uneven nor too even


@pytest.mark.parametrize("distance", [1, 2, 3, 64])
def test_neighbours_have_nothing_to_do_with_each_other(numbers, distance):
    ours, theirs = numbers[:-distance], numbers[distance:]

    counts, *_ = np.histogram2d(ours, theirs, 16, ((0, 1), (0, 1)))
    correlation = np.corrcoef(ours, theirs)[0, 1]

    assert abs(chi_square(counts)) < 5
    assert abs(correlation) < 5 / math.sqrt(len(ours))


def test_every_bit_is_as_often_0_as_1(numbers):
    bits = np.arange(53, dtype=np.uint64)
    ones = ((numbers * 2**53).astype(np.uint64)[:, None] >> bits & np.uint64(1)).sum(axis=0)

    assert abs(ones - N / 2).max() < 5 * math.sqrt(N) / 2


def test_every_bit_of_an_input_changes_half_of_the_number():
    """On the average; what a sum of seed, position and draw would not do."""
    for at, n_bits in ((0, 64), (1, 20), (2, 4)):
        for bit in range(n_bits):
            changed = 0
            for i in range(200):
                inputs = [i, 31 * i, i % 8]
                before = int(chance(*inputs) * 2**53)
                inputs[at] ^= 1 << bit
                changed += (before ^ int(chance(*inputs) * 2**53)).bit_count()
            assert abs(changed - 200 * 53 / 2) < 5 * math.sqrt(200 * 53) / 2


def test_no_two_inputs_share_a_number():
    """Texts with other seeds are no shifted copies of each other, nor are their draws.

    Some seeds are those that people make with the golden ratio, which SplitMix64 counts in, too.
    """
    golden = [i * 0x9E3779B97F4A7C15 % 2**64 for i in range(1, 10)]
    inputs = list(itertools.product([*range(30), *golden], range(60), range(10)))

    assert len({chance(*each) for each in inputs}) == len(inputs)
