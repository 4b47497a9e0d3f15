// One step: every thread walks the same phases, layer by layer; see team.h for who computes what.
#pragma once

#include "model.h"

namespace vs {

template <class P>
void Model<P>::forward(VsBatch& batch) {
    prepare(batch);
    batch.seconds[0] = batch.seconds[1] = 0;
    team_.step(8 * c_.layers + 4, [&](int id) { walk(batch, id); });
    for (int row = 0; row < batch.wanted; row++) {
        std::pair<float, int> best{-std::numeric_limits<float>::infinity(), c_.vocab};
        for (auto& scratch : scratch_) {
            auto& other = scratch->best[row];
            if (other.first > best.first || (other.first == best.first && other.second < best.second)) best = other;
        }
        batch.best[row] = best.second == c_.vocab ? 0 : best.second;
    }
}

template <class P>
void Model<P>::draw(const float* logits, int count, const int32_t* rows, const VsDraw* how, int32_t* ids) {
    team_.step(1, [&](int id) {
        team_.parallel(id, 0, count, [&](int i) {
            ids[i] = scratch_[id]->drawer.draw(logits + size_t(rows[i]) * c_.vocab, c_.vocab, how[i]);
        });
    });
}

// A row, token or block that does not exist would be read or written elsewhere in memory.
template <class P>
void Model<P>::check(const VsBatch& batch) const {
    auto within = [](const int32_t* values, size_t count, int32_t end) {
        for (size_t i = 0; i < count; i++)
            if (values[i] < 0 || values[i] >= end) throw std::out_of_range("a step names a row, token, position or block that is not there");
    };
    within(batch.tokens, batch.rows, c_.vocab);
    within(batch.positions, batch.rows, std::min(c_.max_len, batch.table_width * BLOCK));
    within(batch.tables, size_t(batch.sequences) * batch.table_width, c_.blocks);
    within(batch.logit_rows, batch.wanted, batch.rows);
}

template <class P>
void Model<P>::prepare(VsBatch& batch) {
    check(batch);
    blocks_ = RowBlocks(batch.rows), wanted_ = RowBlocks(batch.wanted);
    x_.reserve(size_t(batch.rows) * padded_hidden_);
    qkv_.reserve(size_t(batch.rows) * width_);
    normed_.reserve(Packed<P>::slots(batch.rows, c_.hidden));
    mixed_.reserve(Packed<P>::slots(batch.rows, c_.heads * c_.dim));
    inner_.reserve(Packed<P>::slots(batch.rows, c_.inner));
    for (auto& scratch : scratch_) {
        scratch->tile.reserve(size_t(GROUP) * MAX_ROWS * PANEL);
        scratch->best.assign(batch.wanted, {-std::numeric_limits<float>::infinity(), c_.vocab});
    }
    pieces_of_step_.clear();
    int together = std::max(1, MAX_QUERIES / group_);
    for (int s = 0; s < batch.sequences; s++)
        for (int row = batch.row_starts[s]; row < batch.row_starts[s + 1]; row += together)
            pieces_of_step_.push_back({s, row, std::min(together, batch.row_starts[s + 1] - row)});
}

template <class P>
void Model<P>::walk(VsBatch& batch, int id) {
    Scratch& scratch = *scratch_[id];
    auto start = Clock::now();
    double attention = 0;
    int phase = 0, row_blocks = blocks_.count;
    Packed<P> normed{normed_.data(), c_.hidden}, mixed{mixed_.data(), c_.heads * c_.dim}, inner{inner_.data(), c_.inner};
    auto add = [&](const Matrix<P>& matrix) {
        const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
        return [this, bias](int first, int count, int block, const float* out) {
            for (int row = blocks_.start(block); row < blocks_.start(block + 1); row++, out += PANEL) {
                float* x = x_.data() + size_t(row) * padded_hidden_ + first;
                for (int i = 0; i < count; i++) x[i] += bias ? out[i] + bias[first + i] : out[i];
            }
        };
    };
    team_.parallel(id, phase++, row_blocks, [&](int b) { embed(batch, b); });
    for (auto& layer : layers_) {
        team_.parallel(id, phase++, row_blocks, [&](int b) { norm(layer.input_norm.data(), blocks_, b, nullptr, normed_.data()); });
        const float* bias = layer.qkv.bias.empty() ? nullptr : layer.qkv.bias.data();
        dense(id, phase, layer.qkv, normed, blocks_, [&](int first, int count, int block, const float* out) {
            for (int row = blocks_.start(block); row < blocks_.start(block + 1); row++, out += PANEL) {
                float* to = qkv_.data() + size_t(row) * width_ + first;
                for (int i = 0; i < count; i++) to[i] = bias ? out[i] + bias[first + i] : out[i];
            }
        });
        team_.parallel(id, phase++, row_blocks, [&](int b) { place(batch, layer, b); });
        auto before = Clock::now();
        int tiles = int(pieces_of_step_.size()) * c_.kv_heads * pieces_;
        team_.parallel(id, phase++, tiles, [&](int tile) { attend_tile(batch, layer, tile, scratch); });
        attention += since(before);
        dense(id, phase, layer.output, mixed, blocks_, add(layer.output));
        team_.parallel(id, phase++, row_blocks, [&](int b) { norm(layer.mlp_norm.data(), blocks_, b, nullptr, normed_.data()); });
        dense(id, phase, layer.gate_up, normed, blocks_, [&](int first, int, int block, const float* out) { gate(first / PANEL, block, out, layer.gate_up.bias); });
        dense(id, phase, layer.down, inner, blocks_, add(layer.down));
    }
    team_.parallel(id, phase++, wanted_.count, [&](int b) { norm(norm_.data(), wanted_, b, batch.logit_rows, normed_.data()); });
    dense(id, phase, head_, normed, wanted_, [&](int first, int count, int block, const float* out) {
        head(batch, first, count, block, out, scratch);
    });
    if (id == 0) batch.seconds[0] = since(start) - attention, batch.seconds[1] = attention;
}

// A product: each tile is a panel for a group of row blocks. `end(first output, outputs, row block, out[row][32])`
// takes the results.
template <class P>
template <class Epilogue>
void Model<P>::dense(int id, int& phase, const Matrix<P>& matrix, const Packed<P>& x, const RowBlocks& blocks, Epilogue&& end) {
    float* out = scratch_[id]->tile.data();
    team_.parallel(id, phase++, matrix.panels * blocks.groups(), [&](int tile) {
        int panel = tile % matrix.panels, first = tile / matrix.panels * GROUP, last = std::min(first + GROUP, blocks.count);
        matrix.tile(panel, x, blocks, first, last, out);
        int outputs = std::min(PANEL, matrix.outputs - panel * PANEL);
        const float* from = out;
        for (int block = first; block < last; from += PANEL * blocks.size(block), block++) end(panel * PANEL, outputs, block, from);
    });
}

template <class P>
void Model<P>::embed(const VsBatch& batch, int block) {
    for (int row = blocks_.start(block); row < blocks_.start(block + 1); row++) {
        size_t at = size_t(batch.tokens[row]) * c_.hidden;
        float* x = x_.data() + size_t(row) * padded_hidden_;
        for (int i = 0; i < c_.hidden; i++)
            x[i] = embedding_brain_ ? widen(static_cast<const bf16*>(embedding_)[at + i]) : static_cast<const float*>(embedding_)[at + i];
        for (int i = c_.hidden; i < padded_hidden_; i++) x[i] = 0;
    }
}

inline float root_mean_square_scale(const float* x, int count, int padded, float eps) {
    F16 sum = splat(0);
    for (int i = 0; i < padded; i += LANES) sum = fma(load(x + i), load(x + i), sum);
    return 1.0f / std::sqrt(total(sum) / float(count) + eps);
}

// Normalises rows of the residual stream (rows[i] of it where given) and packs them for a product.
template <class P>
void Model<P>::norm(const float* weight, const RowBlocks& blocks, int block, const int32_t* rows, float* out) {
    int first = blocks.start(block), count = blocks.size(block);
    float* packed = Packed<P>{out, c_.hidden}.block(blocks, block);
    for (int r = 0; r < count; r++) {
        const float* x = x_.data() + size_t(rows ? rows[first + r] : first + r) * padded_hidden_;
        float scale = root_mean_square_scale(x, c_.hidden, padded_hidden_, c_.eps);
        int i = 0;
        for (; i + LANES <= c_.hidden; i += LANES) P::put16(packed, i, count, r, load(x + i) * splat(scale) * load(weight + i));
        for (; i < c_.hidden; i++) P::put(packed, i, count, r, x[i] * scale * weight[i]);
    }
}

template <class P>
void Model<P>::rotate(float* head, const float* norm, int position, float scale) {
    int half = c_.dim / 2;
    if (norm) {
        float squares = 0;
        for (int i = 0; i < c_.dim; i++) squares += head[i] * head[i];
        float factor = 1.0f / std::sqrt(squares / float(c_.dim) + c_.eps);
        for (int i = 0; i < c_.dim; i++) head[i] = head[i] * factor * norm[i];
    }
    const float *cosine = cosines_.data() + size_t(position) * half, *sine = sines_.data() + size_t(position) * half;
    for (int i = 0; i < half; i++) {
        float low = head[i], high = head[i + half];
        head[i] = (low * cosine[i] - high * sine[i]) * scale;
        head[i + half] = (high * cosine[i] + low * sine[i]) * scale;
    }
}

// Rotates queries and keys of a block of rows and writes keys and values to their slots.
template <class P>
void Model<P>::place(const VsBatch& batch, Layer<P>& layer, int block) {
    float scale = 1.0f / std::sqrt(float(c_.dim));
    const float* q_norm = layer.q_norm.empty() ? nullptr : layer.q_norm.data();
    const float* k_norm = layer.k_norm.empty() ? nullptr : layer.k_norm.data();
    int sequence = 0;
    for (int row = blocks_.start(block); row < blocks_.start(block + 1); row++) {
        while (batch.row_starts[sequence + 1] <= row) sequence++;
        int position = batch.positions[row], slot = position % BLOCK;
        size_t page = size_t(batch.tables[size_t(sequence) * batch.table_width + position / BLOCK]) * c_.kv_heads;
        float* heads = qkv_.data() + size_t(row) * width_;
        for (int h = 0; h < c_.heads; h++) rotate(heads + h * c_.dim, q_norm, position, scale);
        for (int h = 0; h < c_.kv_heads; h++) {
            float* key = heads + (c_.heads + h) * c_.dim;
            const float* value = key + c_.kv_heads * c_.dim;
            rotate(key, k_norm, position, 1.0f);
            auto* keys = layer.keys + (page + h) * c_.dim * BLOCK + slot;
            auto* values = layer.values + ((page + h) * BLOCK + slot) * wide_;
            for (int i = 0; i < c_.dim; i++) keys[i * BLOCK] = P::weight_of(key[i]), values[i] = P::weight_of(value[i]);
        }
    }
}

template <class P>
void Model<P>::attend_tile(const VsBatch& batch, Layer<P>& layer, int tile, Scratch& scratch) {
    int part = tile % pieces_, head = tile / pieces_ % c_.kv_heads;
    const Piece& piece = pieces_of_step_[tile / pieces_ / c_.kv_heads];
    int from = group_ * part / pieces_, to = group_ * (part + 1) / pieces_;
    Pages<typename P::cache> pages{layer.keys, layer.values, batch.tables + size_t(piece.sequence) * batch.table_width,
                                   c_.kv_heads, head, c_.dim, wide_};
    int first = head * group_ + from, heads = to - from;
    auto run = [&](auto queries) {
        attend_piece<decltype(queries)::value>(pages, piece, batch, first, heads, layer.window, scratch);
    };
    switch (piece.rows * heads) {
#define VS_CASE(n) case n: return run(std::integral_constant<int, n>{});
        VS_CASE(1) VS_CASE(2) VS_CASE(3) VS_CASE(4) VS_CASE(5) VS_CASE(6)
        VS_CASE(7) VS_CASE(8) VS_CASE(9) VS_CASE(10) VS_CASE(11) VS_CASE(12)
#undef VS_CASE
    }
}

template <class P>
template <int Q>
void Model<P>::attend_piece(const Pages<typename P::cache>& pages, const Piece& piece, const VsBatch& batch,
                            int first_head, int heads, int window, Scratch& scratch) {
    Queries<Q> queries;
    queries.window = window;
    for (int q = 0; q < Q; q++) {
        int row = piece.row + q / heads;
        queries.vectors[q] = qkv_.data() + size_t(row) * width_ + (first_head + q % heads) * c_.dim;
        queries.positions[q] = batch.positions[row];
    }
    float* mixed = scratch.mixed.data();
    attend<typename P::cache, Q>(pages, queries, scratch.attention.data(), mixed);
    Packed<P> packed{mixed_.data(), c_.heads * c_.dim};
    for (int q = 0; q < Q; q++) {
        int row = piece.row + q / heads, block = blocks_.of(row);
        int at = (first_head + q % heads) * c_.dim, size = blocks_.size(block), r = row - blocks_.start(block);
        float* to = packed.block(blocks_, block);
        int i = 0;
        if (at % LANES == 0)
            for (; i + LANES <= c_.dim; i += LANES) P::put16(to, at + i, size, r, load(mixed + q * wide_ + i));
        for (; i < c_.dim; i++) P::put(to, at + i, size, r, mixed[q * wide_ + i]);
    }
}

// silu(gate) * up for the 16 pairs of a panel, packed for the next product.
template <class P>
void Model<P>::gate(int panel, int block, const float* out, const std::vector<float>& bias) {
    float* to = Packed<P>{inner_.data(), c_.inner}.block(blocks_, block);
    int first = panel * LANES, count = std::min(LANES, c_.inner - first), size = blocks_.size(block);
    float gates[LANES] = {}, ups[LANES] = {}, values[LANES];
    for (int i = 0; !bias.empty() && i < count; i++) gates[i] = bias[first + i], ups[i] = bias[c_.inner + first + i];
    for (int r = 0; r < size; r++, out += PANEL) {
        F16 g = load(out) + load(gates), u = load(out + LANES) + load(ups);
        F16 product = g / (splat(1.0f) + exp(splat(0.0f) - g)) * u;
        if (count == LANES) {
            P::put16(to, first, size, r, product);
            continue;
        }
        store(values, product);
        for (int i = 0; i < count; i++) P::put(to, first + i, size, r, values[i]);
    }
}

// Keeps the largest logit of each row, and all of them where they are wanted.
template <class P>
void Model<P>::head(const VsBatch& batch, int first, int count, int block, const float* out, Scratch& scratch) {
    for (int row = wanted_.start(block); row < wanted_.start(block + 1); row++, out += PANEL) {
        if (batch.logits) std::memcpy(batch.logits + size_t(row) * c_.vocab + first, out, count * sizeof(float));
        auto& best = scratch.best[row];
        for (int i = 0; i < count; i++)
            if (out[i] > best.first || (out[i] == best.first && first + i < best.second)) best = {out[i], first + i};
    }
}

}  // namespace vs
