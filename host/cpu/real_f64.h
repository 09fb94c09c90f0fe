/* The same as real_f32.h for double. */
#undef REAL
#undef REAL_ABS
#undef REAL_EXP
#undef REAL_LOG
#undef REAL_SQRT
#undef REAL_GEMM
#undef REAL_LEAST
#undef NAMED
#define REAL double
#define REAL_ABS fabs
#define REAL_EXP exp
#define REAL_LOG log
#define REAL_SQRT sqrt
#define REAL_GEMM pk_cpu_gemm_f64
#define REAL_LEAST DBL_MIN
#define NAMED(name) name##_f64
