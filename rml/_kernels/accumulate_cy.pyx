"""Twin of accumulate_py: each strip of results is added to the residual stream at once."""


def accumulate(h, weight, x, *, compute="int8x2", scratch=None, n_threads=1):
    """Twin of `accumulate_py.accumulate`."""
    Accumulate(h, weight, x, compute=compute, scratch=scratch).run(n_threads)
