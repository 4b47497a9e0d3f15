// Y = X W^T with W packed once at load, X packed by whoever produced it.
//
// W lies in panels of 32 outputs: for every k the 32 weights of that k side by side (for bfloat16: 32 pairs of two k).
// X lies in blocks of up to 12 rows: for every k the rows of that k side by side. So the inner loop reads both from
// start to end. Each output is one chain of fused multiply-adds over rising k, whatever the number of rows: bits do
// not depend on the batch. The k range is cut into chunks whose weights stay in the first-level cache while all row
// blocks pass over them.
#pragma once

#include <algorithm>
#include <vector>

#include "lanes.h"
#include "memory.h"

namespace vs {

constexpr int PANEL = 2 * LANES;
#if defined(__AVX512F__)
constexpr int MAX_ROWS = 12;
#else
constexpr int MAX_ROWS = 3;
#endif

// Row blocks that one tile of a product takes: their activations stay in the second-level cache from panel to panel.
constexpr int GROUP = 8;

// How a number of rows is cut into blocks, as evenly as can be.
struct RowBlocks {
    int rows = 0, count = 0;
    explicit RowBlocks(int n) : rows(n), count((n + MAX_ROWS - 1) / MAX_ROWS) {}
    int start(int block) const { return int(int64_t(rows) * block / count); }
    int size(int block) const { return start(block + 1) - start(block); }
    int groups() const { return (count + GROUP - 1) / GROUP; }
    int of(int row) const {
        int block = int(int64_t(row) * count / rows);
        while (start(block) > row) block--;
        while (start(block + 1) <= row) block++;
        return block;
    }
};

// The element types of one precision: how X and W are stored, and how many k one step of the inner loop takes.
struct Float {
    using weight = float;
    using cache = float;
    static constexpr int STEP = 1;
    static void put(float* x, int k, int rows, int row, float value) { x[size_t(k) * rows + row] = value; }
    // Sixteen k from `k` (a multiple of 16) on.
    static void put16(float* x, int k, int rows, int row, F16 values) {
        float v[LANES];
        store(v, values);
        x += size_t(k) * rows + row;
        for (int i = 0; i < LANES; i++) x[i * rows] = v[i];
    }
    static float weight_of(float x) { return x; }
    static float weight_of(bf16 x) { return widen(x); }
};

struct Brain {
    using weight = bf16;
    using cache = bf16;
    static constexpr int STEP = 2;
    static void put(float* x, int k, int rows, int row, float value) {
        reinterpret_cast<bf16*>(x)[(size_t(k / 2) * rows + row) * 2 + (k & 1)] = narrow(value);
    }
    static void put16(float* x, int k, int rows, int row, F16 values) {
        bf16 pairs[LANES];
        float v[LANES / 2];
        narrow(pairs, values);
        std::memcpy(v, pairs, sizeof v);
        x += size_t(k / 2) * rows + row;
        for (int i = 0; i < LANES / 2; i++) x[i * rows] = v[i];
    }
    static bf16 weight_of(float x) { return narrow(x); }
    static bf16 weight_of(bf16 x) { return x; }
};

#if defined(__AVX512BF16__)
#define VS_BF16 "avx512_bf16"
#endif

// What a kernel fetches into the cache while it computes: `lines` lines a step, from `from` on.
struct Fetch {
    const char* from;
    int lines;
};

// ROWS rows against one panel over `steps` steps of k: c[row][32] is continued, or begun where `first`.
template <class P, int ROWS>
inline void block_kernel(const float* __restrict x, const typename P::weight* __restrict w, int steps, bool first,
                         float* __restrict c, Fetch fetch) {
    F16 lo[ROWS], hi[ROWS];
    for (int r = 0; r < ROWS; r++) {
        lo[r] = first ? splat(0) : load(c + r * PANEL);
        hi[r] = first ? splat(0) : load(c + r * PANEL + LANES);
    }
    for (int s = 0; s < steps; s++) {
        if (fetch.lines) {
            __builtin_prefetch(fetch.from);
            if (fetch.lines > 1) __builtin_prefetch(fetch.from + 64);
            fetch.from += 128;
        }
        if constexpr (P::STEP == 1) {
            F16 a = load(w), b = load(w + LANES);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                F16 value = splat(x[r]);
                lo[r] = fma(value, a, lo[r]);
                hi[r] = fma(value, b, hi[r]);
            }
        } else {
#if defined(__AVX512BF16__)
            __m512bh a = (__m512bh)_mm512_loadu_si512(w), b = (__m512bh)_mm512_loadu_si512(w + PANEL);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                __m512bh value = (__m512bh)_mm512_set1_ps(x[r]);
                lo[r].v = _mm512_dpbf16_ps(lo[r].v, a, value);
                hi[r].v = _mm512_dpbf16_ps(hi[r].v, b, value);
            }
#else
            // No dot instruction: the two k one after the other, widened.
            float even_lo[LANES], odd_lo[LANES], even_hi[LANES], odd_hi[LANES];
            for (int i = 0; i < LANES; i++) {
                even_lo[i] = widen(w[2 * i]), odd_lo[i] = widen(w[2 * i + 1]);
                even_hi[i] = widen(w[PANEL + 2 * i]), odd_hi[i] = widen(w[PANEL + 2 * i + 1]);
            }
            const bf16* pair = reinterpret_cast<const bf16*>(x);
            for (int r = 0; r < ROWS; r++) {
                F16 even = splat(widen(pair[2 * r])), odd = splat(widen(pair[2 * r + 1]));
                lo[r] = fma(odd, load(odd_lo), fma(even, load(even_lo), lo[r]));
                hi[r] = fma(odd, load(odd_hi), fma(even, load(even_hi), hi[r]));
            }
#endif
        }
        x += ROWS;
        w += PANEL * P::STEP;
    }
    for (int r = 0; r < ROWS; r++) {
        store(c + r * PANEL, lo[r]);
        store(c + r * PANEL + LANES, hi[r]);
    }
}

template <class P>
using BlockKernel = void (*)(const float*, const typename P::weight*, int, bool, float*, Fetch);

template <class P, int... R>
BlockKernel<P> kernel_for(int rows, std::integer_sequence<int, R...>) {
    static const BlockKernel<P> table[] = {block_kernel<P, R + 1>...};
    return table[rows - 1];
}

// Activations of a number of rows, packed for products. One float slot holds STEP values of k.
template <class P>
struct Packed {
    float* data = nullptr;
    int k = 0;
    int steps() const { return (k + P::STEP - 1) / P::STEP; }
    float* block(const RowBlocks& blocks, int b) const { return data + size_t(blocks.start(b)) * steps(); }
    static size_t slots(int rows, int k) { return size_t(rows) * ((k + P::STEP - 1) / P::STEP); }
};

template <class P>
struct Matrix {
    using weight = typename P::weight;
    int outputs = 0, k = 0, panels = 0;
    weight* packed = nullptr;
    std::vector<float> bias;

    // Sets the shape and returns how many elements the packed form takes.
    size_t shape(int outputs_, int k_) {
        outputs = outputs_, k = k_, panels = (outputs_ + PANEL - 1) / PANEL;
        return panel_size() * panels;
    }

    size_t steps() const { return size_t(k + P::STEP - 1) / P::STEP; }
    size_t panel_size() const { return steps() * P::STEP * PANEL; }
    const weight* panel(int i) const { return packed + panel_size() * i; }

    // `order(o)` is the row of `source` [rows, k] that becomes output o, or -1 for a zero output.
    template <class Source, class Order>
    void pack(const Source* source, Order order) {
        for (int o = 0; o < outputs; o++) {
            int row = order(o);
            if (row < 0) continue;
            weight* base = packed + panel_size() * (o / PANEL);
            const Source* from = source + size_t(row) * k;
            int lane = o % PANEL;
            for (int i = 0; i < k; i++)
                base[(size_t(i / P::STEP) * PANEL + lane) * P::STEP + i % P::STEP] = P::weight_of(from[i]);
        }
    }

    // One panel for the row blocks [first, last): out[row - start(first)][32].
    void tile(int index, const Packed<P>& x, const RowBlocks& blocks, int first, int last, float* out) const {
        constexpr size_t CHUNK = 128;
        constexpr size_t STRIDE = PANEL * P::STEP * sizeof(weight);
        const weight* w = panel(index);
        for (size_t done = 0; done < steps(); done += CHUNK) {
            int now = int(std::min(CHUNK, steps() - done));
            // The weights of the next chunk, spread over the passes so that memory is busy all the time.
            const char* next = reinterpret_cast<const char*>(w + done * PANEL * P::STEP);
            for (int b = first; b < last; b++) {
                int rows = blocks.size(b);
                auto kernel = kernel_for<P>(rows, std::make_integer_sequence<int, MAX_ROWS>());
                Fetch fetch{next + STRIDE * 48, 2};
                if (last - first > 1) fetch = {next + STRIDE * now + 64 * (b - first), b - first < 2 ? 1 : 0};
                kernel(x.block(blocks, b) + done * rows, w + done * PANEL * P::STEP, now, done == 0,
                       out + size_t(blocks.start(b) - blocks.start(first)) * PANEL, fetch);
            }
        }
    }
};

}  // namespace vs
