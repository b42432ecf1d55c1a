"""Twin of matmul_many_py: one quantized input, the rows of all matrices as one list."""


def matmul_many(x, weights, outs, *, biases=None, compute="int8x2", scratch=None, n_threads=1):
    """Twin of `matmul_many_py.matmul_many`."""
    MatmulMany(x, weights, outs, biases=biases, compute=compute, scratch=scratch).run(n_threads)
