"""Random numbers as a function: of a seed, a position and what is drawn there, and of nothing else.

A stream of random numbers remembers how often it was asked. A function does not: a request draws
the same numbers whatever runs beside it, in however many parts its prompt is evaluated, and when a
token is chosen a second time because the first choice was dropped.

The numbers are SplitMix64's. Its generator adds a constant to its state, the seed, and returns the
state's bits well mixed, so its number `index` can be had without those before it (`splitmix64`).
`chance` goes down a tree of such generators: the first number of the seed's generator is the seed
of one for the text, whose number `position` is the seed of one for that place in it, whose number
`draw` is the result. Each of the three therefore goes through the mixing by itself, and neighbours
(seeds 1, 2, 3, the places of a text) have as little to do with each other as any other inputs.

Sources: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014);
Vigna's ``splitmix64.c`` (2015), whose numbers these are.
"""

from enum import IntEnum

__all__ = ["Draw", "chance", "splitmix64"]

_64_BITS = (1 << 64) - 1

# What the state grows by: 2**64 divided by the golden ratio, made odd.
_STEP = 0x9E3779B97F4A7C15


class Draw(IntEnum):
    """What is drawn at a position.

    A stage that needs chance has one constant here. A constant keeps its number for ever: seeds
    would give other texts.
    """

    TOKEN = 0  # the token itself, in the end
    XTC = 1  # whether XTC happens


def splitmix64(seed: int, index: int) -> int:
    """Return the number `index`, from 0, of the SplitMix64 generator that starts at `seed`.

    Parameters
    ----------
    seed : int
        0 <= seed < 2**64.
    index : int
        At least 0.

    Returns
    -------
    int
        0 <= number < 2**64. Different seeds give different numbers, and so do the first 2**64
        indices.

    Examples
    --------
    >>> splitmix64(1234567, 0)
    6457827717110365317
    """
    z = (seed + (index + 1) * _STEP) & _64_BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return z ^ (z >> 31)


def chance(seed: int, position: int, draw: int) -> float:
    """Return a random number in [0, 1), a multiple of 2**-53.

    Parameters
    ----------
    seed : int
        0 <= seed < 2**64.
    position : int
        How many tokens the text has, prompt included.
    draw : int
        What the number is for, a `Draw`.

    Examples
    --------
    >>> chance(1, 5, Draw.TOKEN)
    0.9911237274725585
    """
    of_text = splitmix64(seed, 0)
    of_position = splitmix64(of_text, position)
    return (splitmix64(of_position, draw) >> 11) * 2.0**-53
