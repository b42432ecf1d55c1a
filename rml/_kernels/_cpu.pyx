"""Which instruction-set levels this processor and its operating system can run.

Compiled without any instruction-set flag, so that asking is safe on every machine.
"""

cdef extern from *:
    """
    #if defined(__x86_64__) || defined(_M_X64)
    static int rml_has_avx2(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
               __builtin_cpu_supports("bmi2");
    }
    static int rml_has_avx512vnni(void) {
        return rml_has_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    }
    #else
    static int rml_has_avx2(void) { return 0; }
    static int rml_has_avx512vnni(void) { return 0; }
    #endif
    """
    bint rml_has_avx2()
    bint rml_has_avx512vnni()


def supported_levels():
    """Return the names of the levels that can run here, the best one last."""
    levels = ["base"]
    if rml_has_avx2():
        levels.append("avx2")
    if rml_has_avx512vnni():
        levels.append("avx512vnni")
    return levels
