"""Which instruction-set levels this processor and its operating system can run.

Compiled without any instruction-set flag, so that asking is safe on every machine.
"""

cdef extern from *:
    """
    #if defined(__x86_64__) || defined(_M_X64)
    #include <cpuid.h>

    /* Not every compiler's __builtin_cpu_supports knows this one by name. */
    static int rml_has_f16c(void) {
        unsigned a, b, c, d;
        return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
    }
    static int rml_runs_avx2(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && rml_has_f16c() &&
               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    }
    static int rml_runs_avx512vnni(void) {
        return rml_runs_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    }
    static const char *rml_levels[] = {"base", "avx2", "avx512vnni"};
    static int rml_n_levels(void) { return 1 + rml_runs_avx2() + rml_runs_avx512vnni(); }

    #elif defined(__aarch64__)

    /* Everything the compiler may use: ARMv8.1 (atomics, rounding multiply-add), half-precision
     * arithmetic, and integer dot products. */
    #if defined(__linux__)
    #include <sys/auxv.h>
    static int rml_runs_dotprod(void) {
        enum { ATOMICS = 1 << 8, FPHP = 1 << 9, ASIMDHP = 1 << 10, ASIMDRDM = 1 << 12, ASIMDDP = 1 << 20 };
        const unsigned long needed = ATOMICS | FPHP | ASIMDHP | ASIMDRDM | ASIMDDP;
        return (getauxval(AT_HWCAP) & needed) == needed;
    }
    #elif defined(__APPLE__)
    #include <sys/sysctl.h>
    static int rml_has(const char *feature) {
        int value = 0;
        size_t size = sizeof value;
        return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
    }
    static int rml_runs_dotprod(void) {
        return rml_has("hw.optional.arm.FEAT_LSE") && rml_has("hw.optional.arm.FEAT_RDM") &&
               rml_has("hw.optional.arm.FEAT_FP16") && rml_has("hw.optional.arm.FEAT_DotProd");
    }
    #else
    static int rml_runs_dotprod(void) { return 0; }
    #endif
    static const char *rml_levels[] = {"neon", "dotprod"};
    static int rml_n_levels(void) { return 1 + rml_runs_dotprod(); }

    #else

    static const char *rml_levels[] = {"base"};
    static int rml_n_levels(void) { return 1; }

    #endif
    """
    const char *rml_levels[]
    int rml_n_levels()


def supported_levels():
    """Return the names of the levels that can run here, the best one last."""
    return [rml_levels[i].decode() for i in range(rml_n_levels())]
