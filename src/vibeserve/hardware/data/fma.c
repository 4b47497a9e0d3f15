/* Fused multiply-adds on registers alone, twelve chains at once: what the vector units can do, no memory in the way. */

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#define CHAINS 12

#define PROBE(NAME, TYPE)                                                             \
  typedef TYPE NAME##_vector __attribute__((vector_size(WIDTH)));                     \
  double NAME##_flops(long steps) {                                                   \
    return (double)steps * CHAINS * (WIDTH / sizeof(TYPE)) * 2;                       \
  }                                                                                   \
  double NAME##_run(long steps, TYPE factor, TYPE term) {                             \
    NAME##_vector sums[CHAINS], factors, terms;                                       \
    for (unsigned i = 0; i < WIDTH / sizeof(TYPE); i++) {                             \
      factors[i] = factor;                                                            \
      terms[i] = term;                                                                \
    }                                                                                 \
    for (int chain = 0; chain < CHAINS; chain++) sums[chain] = terms * (TYPE)chain;   \
    for (long step = 0; step < steps; step++) {                                       \
      _Pragma("GCC unroll 12") for (int chain = 0; chain < CHAINS; chain++)           \
          sums[chain] = sums[chain] * factors + terms;                                \
    }                                                                                 \
    double total = 0;                                                                 \
    for (int chain = 0; chain < CHAINS; chain++)                                      \
      for (unsigned i = 0; i < WIDTH / sizeof(TYPE); i++) total += sums[chain][i];    \
    return total;                                                                     \
  }

PROBE(float32, float)
PROBE(float64, double)
