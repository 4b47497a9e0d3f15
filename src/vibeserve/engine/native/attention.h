// Attention of a few queries that share a KV head, straight over the paged cache.
//
// A block holds 16 tokens: keys as [dim][16] (lanes are tokens), values as [16][dim] (lanes are dimensions). Scores,
// maximum, weights, sum and mix run over blocks and tokens in rising order, one chain per query, so a query's bits do
// not depend on the queries beside it: a hidden token weighs exactly 0.
#pragma once

#include <limits>
#include <utility>

#include "lanes.h"

namespace vs {

constexpr int BLOCK = 16;
constexpr int MAX_QUERIES = 12;

// One layer's cache as one sequence and one KV head see it.
template <class C>
struct Pages {
    const C* keys;
    const C* values;
    const int* table;
    int heads, head, dim, wide;  // wide: dim rounded up to whole lanes
    const C* key_block(int b) const { return keys + (size_t(table[b]) * heads + head) * dim * BLOCK; }
    const C* value_block(int b) const { return values + (size_t(table[b]) * heads + head) * BLOCK * wide; }
};

// Queries at `positions`, which rise; each sees tokens in (position - window, position], or all up to it (window 0).
template <int Q>
struct Queries {
    const float* vectors[Q];
    int positions[Q];
    int window;
    int low(int q) const { return window && positions[q] >= window ? positions[q] - window + 1 : 0; }
    int first_block() const { return low(0) / BLOCK; }
    int last_block() const { return positions[Q - 1] / BLOCK; }
};

template <class C, int Q, int B>
inline void score_blocks(const Pages<C>& pages, int block, const float* packed, float* scores) {
    F16 sums[B][Q];
    const C* keys[B];
    for (int b = 0; b < B; b++) {
        keys[b] = pages.key_block(block + b);
        for (int q = 0; q < Q; q++) sums[b][q] = splat(0);
    }
    for (int d = 0; d < pages.dim; d++) {
        F16 key[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) key[b] = load(keys[b] + d * BLOCK);
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++) {
            F16 query = splat(packed[d * Q + q]);
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) sums[b][q] = fma(query, key[b], sums[b][q]);
        }
    }
    for (int b = 0; b < B; b++)
        for (int q = 0; q < Q; q++) store(scores + (size_t(b) * Q + q) * BLOCK, sums[b][q]);
}

// Scores become weights exp(score - maximum), 0 where hidden; returns their sum.
template <int Q>
inline float weigh(const Queries<Q>& queries, int q, int first, int last, float* scores) {
    const float hidden = -std::numeric_limits<float>::infinity();
    int low = queries.low(q), high = queries.positions[q] + 1;
    auto at = [&](int b) { return scores + (size_t(b - first) * Q + q) * BLOCK; };
    // Only blocks at the two ends are partly hidden.
    auto whole = [&](int b) { return b * BLOCK >= low && (b + 1) * BLOCK <= high; };
    F16 best = splat(hidden);
    for (int b = first; b <= last; b++) {
        F16 score = load(at(b));
        best = max(best, whole(b) ? score : keep_range(score, low - b * BLOCK, high - b * BLOCK, hidden));
    }
    F16 top = splat(peak(best)), sum = splat(0);
    for (int b = first; b <= last; b++) {
        F16 weight = exp(load(at(b)) - top);
        if (!whole(b)) weight = keep_range(weight, low - b * BLOCK, high - b * BLOCK, 0.0f);
        store(at(b), weight);
        sum = sum + weight;
    }
    return total(sum);
}

template <class C, int Q, int S>
inline void mix_slices(const Pages<C>& pages, int first, int last, int tokens, const float* weights, int slice,
                       float* mixed) {
    F16 sums[Q][S];
    for (int q = 0; q < Q; q++)
        for (int s = 0; s < S; s++) sums[q][s] = splat(0);
    for (int b = first; b <= last; b++) {
        const C* values = pages.value_block(b) + slice * LANES;
        const float* weight = weights + size_t(b - first) * Q * BLOCK;
        int count = tokens - b * BLOCK < BLOCK ? tokens - b * BLOCK : BLOCK;
        for (int t = 0; t < count; t++) {
            F16 value[S];
#pragma GCC unroll 4
            for (int s = 0; s < S; s++) value[s] = load(values + t * pages.wide + s * LANES);
#pragma GCC unroll 16
            for (int q = 0; q < Q; q++) {
                F16 share = splat(weight[q * BLOCK + t]);
#pragma GCC unroll 4
                for (int s = 0; s < S; s++) sums[q][s] = fma(share, value[s], sums[q][s]);
            }
        }
    }
    for (int q = 0; q < Q; q++)
        for (int s = 0; s < S; s++) store(mixed + q * pages.wide + (slice + s) * LANES, sums[q][s]);
}

// mixed[q][wide]: the weighted mean of the values that each query sees. `scratch`: packed queries, then scores.
template <class C, int Q>
inline void attend(const Pages<C>& pages, const Queries<Q>& queries, float* scratch, float* mixed) {
    constexpr int B = Q <= 3 ? 4 : 2;
    constexpr int S = Q <= 6 ? 4 : 2;
    int first = queries.first_block(), last = queries.last_block();
    float* packed = scratch;
    float* scores = scratch + size_t(pages.dim) * Q;
    for (int q = 0; q < Q; q++)
        for (int d = 0; d < pages.dim; d++) packed[d * Q + q] = queries.vectors[q][d];
    int block = first;
    for (; block + B <= last + 1; block += B) score_blocks<C, Q, B>(pages, block, packed, scores + size_t(block - first) * Q * BLOCK);
    for (; block <= last; block++) score_blocks<C, Q, 1>(pages, block, packed, scores + size_t(block - first) * Q * BLOCK);
    float sums[Q];
    for (int q = 0; q < Q; q++) sums[q] = weigh<Q>(queries, q, first, last, scores);
    int tokens = queries.positions[Q - 1] + 1, slices = pages.wide / LANES, slice = 0;
    for (; slice + S <= slices; slice += S) mix_slices<C, Q, S>(pages, first, last, tokens, scores, slice, mixed);
    for (; slice < slices; slice++) mix_slices<C, Q, 1>(pages, first, last, tokens, scores, slice, mixed);
    for (int q = 0; q < Q; q++)
        for (int i = 0; i < pages.wide; i += LANES) {
            float* at = mixed + q * pages.wide + i;
            store(at, load(at) / splat(sums[q]));
        }
}

}  // namespace vs
