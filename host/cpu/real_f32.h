/* What arithmetic written for one REAL needs, for float; such a file is included after this one and
 * again after real_f64.h. No guard: each inclusion switches. */
#undef REAL
#undef REAL_ABS
#undef REAL_EXP
#undef REAL_LOG
#undef REAL_SQRT
#undef REAL_GEMM
#undef REAL_LEAST
#undef NAMED
#define REAL float
#define REAL_ABS fabsf
#define REAL_EXP pk_exp_f32
#define REAL_LOG pk_log_f32
#define REAL_SQRT sqrtf
#define REAL_GEMM pk_cpu_gemm_f32
#define REAL_LEAST FLT_MIN
#define NAMED(name) name##_f32
