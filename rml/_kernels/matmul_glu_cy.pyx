"""Twin of matmul_glu_py: gate and up rows one after the other, gated before they leave the cache."""


def matmul_glu(x, gate, up, out, *, activation="silu", compute="int8x2", scratch=None, n_threads=1):
    """Twin of `matmul_glu_py.matmul_glu`."""
    MatmulGlu(x, gate, up, out, activation=activation, compute=compute, scratch=scratch).run(n_threads)
