// Sixteen float lanes as one value, whatever the machine's registers are; and bfloat16 as bits.
//
// Every sum in these kernels runs over lanes and steps in an order that is written in the code, so that the bits of a
// result do not depend on how many rows are computed together. Build without -ffast-math.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace vs {

constexpr int LANES = 16;
using bf16 = uint16_t;

inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

// Round to nearest, ties to even. NaN stays NaN.
inline bf16 narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16((bits >> 16) | 0x40);
    return bf16((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float widen(float x) { return x; }

#if defined(__AVX512F__)

#define VS_ISA "avx512"
struct F16 { __m512 v; };
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 load(const bf16* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline F16 nearest(F16 a) { return {_mm512_roundscale_ps(a.v, 8)}; }
inline F16 times_power_of_two(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Lanes whose index is in [low, high) keep their value, the others become `other`.
inline F16 keep_range(F16 a, int low, int high, float other) {
    low = low < 0 ? 0 : low > 16 ? 16 : low;
    high = high < 0 ? 0 : high > 16 ? 16 : high;
    __mmask16 mask = __mmask16(((1u << high) - 1) & ~((1u << low) - 1));
    return {_mm512_mask_blend_ps(mask, _mm512_set1_ps(other), a.v)};
}

#elif defined(__AVX2__) && defined(__FMA__)

#define VS_ISA "avx2"
struct F16 { __m256 a, b; };
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline F16 splat(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline __m256 widen8(const bf16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline F16 load(const bf16* p) { return {widen8(p), widen8(p + 8)}; }
inline F16 nearest(F16 x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline __m256 power_of_two8(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F16 times_power_of_two(F16 x, F16 n) { return x * F16{power_of_two8(n.a), power_of_two8(n.b)}; }
inline __m256 keep8(__m256 x, int low, int high, float other) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i inside = _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(low - 1)),
                                      _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(inside));
}
inline F16 keep_range(F16 x, int low, int high, float other) {
    return {keep8(x.a, low, high, other), keep8(x.b, low - 8, high - 8, other)};
}

#else

#define VS_ISA "generic"
struct F16 { float v[LANES]; };
#define VS_EACH(expression) F16 r; for (int i = 0; i < LANES; i++) r.v[i] = (expression); return r
inline F16 load(const float* p) { VS_EACH(p[i]); }
inline F16 load(const bf16* p) { VS_EACH(widen(p[i])); }
inline void store(float* p, F16 a) { for (int i = 0; i < LANES; i++) p[i] = a.v[i]; }
inline F16 splat(float x) { VS_EACH(x); }
inline F16 operator+(F16 a, F16 b) { VS_EACH(a.v[i] + b.v[i]); }
inline F16 operator-(F16 a, F16 b) { VS_EACH(a.v[i] - b.v[i]); }
inline F16 operator*(F16 a, F16 b) { VS_EACH(a.v[i] * b.v[i]); }
inline F16 operator/(F16 a, F16 b) { VS_EACH(a.v[i] / b.v[i]); }
inline F16 fma(F16 a, F16 b, F16 c) { VS_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline F16 max(F16 a, F16 b) { VS_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F16 nearest(F16 a) { VS_EACH(std::nearbyint(a.v[i])); }
inline F16 times_power_of_two(F16 a, F16 n) { VS_EACH(std::ldexp(a.v[i], int(n.v[i]))); }
inline F16 keep_range(F16 a, int low, int high, float other) { VS_EACH(i >= low && i < high ? a.v[i] : other); }

#endif

// Sixteen values as bfloat16.
inline void narrow(bf16* to, F16 a) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(a.v));
#else
    float v[LANES];
    store(v, a);
    for (int i = 0; i < LANES; i++) to[i] = narrow(v[i]);
#endif
}

// The sum of the lanes: halves folded onto each other, always in this order.
inline float total(F16 a) {
    float v[LANES];
    store(v, a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}

inline float peak(F16 a) {
    float v[LANES];
    store(v, a);
    float best = v[0];
    for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
    return best;
}

// e^x within about one unit in the last place for x <= 88; below -87 the result is that of -87 (about 1e-38).
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7.
inline F16 exp(F16 x) {
    x = max(x, splat(-87.0f));
    F16 n = nearest(x * splat(1.44269504f));
    F16 r = fma(n, splat(-0.693145752f), x);
    r = fma(n, splat(-1.42860677e-6f), r);
    F16 p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return times_power_of_two(p, n);
}

}  // namespace vs
