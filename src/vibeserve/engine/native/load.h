// Building a model: shapes first, so that all weights lie in one stretch of memory, then tensor by tensor.
#pragma once

#include <cstring>

#include "model.h"

namespace vs {

inline size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

template <class P>
Model<P>::Model(const VsConfig& config)
    : c_(config), group_(config.heads / config.kv_heads), pieces_((group_ + MAX_QUERIES - 1) / MAX_QUERIES),
      width_((config.heads + 2 * config.kv_heads) * config.dim), padded_hidden_(int(up(config.hidden, LANES))),
      wide_(int(up(config.dim, LANES))), team_(config.threads), layers_(config.layers) {
    size_t total = 0;
    for (auto& layer : layers_) {
        total += layer.qkv.shape(width_, c_.hidden);
        total += layer.output.shape(c_.hidden, c_.heads * c_.dim);
        total += layer.gate_up.shape(2 * int(up(c_.inner, LANES)), c_.hidden);
        total += layer.down.shape(c_.hidden, c_.inner);
    }
    total += head_.shape(c_.vocab, c_.hidden);
    weights_.allocate(total);
    typename P::weight* at = weights_.data();
    auto take = [&](Matrix<P>& matrix) {
        matrix.packed = at;
        at += matrix.panel_size() * matrix.panels;
    };
    size_t keys = c_.blocks * key_block(), values = c_.blocks * value_block();
    cache_.allocate((keys + values) * c_.layers);
    cache_.touch();
    for (int i = 0; i < c_.layers; i++) {
        for (auto* matrix : {&layers_[i].qkv, &layers_[i].output, &layers_[i].gate_up, &layers_[i].down}) take(*matrix);
        layers_[i].keys = cache_.data() + (keys + values) * i;
        layers_[i].values = layers_[i].keys + keys;
    }
    take(head_);
    for (int i = 0; i < c_.threads; i++) {
        scratch_.push_back(std::make_unique<Scratch>());
        scratch_[i]->attention.allocate(size_t(MAX_QUERIES) * (c_.dim + up(c_.max_len, BLOCK) + 4 * BLOCK));
        scratch_[i]->mixed.allocate(size_t(MAX_QUERIES) * wide_);
    }
}

template <class P>
void Model<P>::copy_blocks(int count, const int32_t* blocks, char* data, bool out) {
    auto copy = [&](typename P::cache* cache, size_t block, size_t elements) {
        const size_t bytes = elements * sizeof(typename P::cache);
        char* place = reinterpret_cast<char*>(cache + block * elements);
        if (out) std::memcpy(data, place, bytes);
        else std::memcpy(place, data, bytes);
        data += bytes;
    };
    for (int i = 0; i < count; i++)
        for (auto& layer : layers_) {
            copy(layer.keys, blocks[i], key_block());
            copy(layer.values, blocks[i], value_block());
        }
}

template <class P>
void Model<P>::set(int layer, int kind, const void* data, bool brain) {
    if (kind == EMBEDDING) {
        embedding_ = data, embedding_brain_ = brain;
    } else if (kind == WINDOW) {
        layers_[layer].window = *static_cast<const int32_t*>(data);
    } else if (brain) {
        fill(layer, kind, static_cast<const bf16*>(data));
    } else {
        fill(layer, kind, static_cast<const float*>(data));
    }
}

template <class P>
template <class Source>
void Model<P>::fill(int layer, int kind, const Source* data) {
    auto copy = [&](std::vector<float>& to, size_t count) {
        to.resize(count);
        for (size_t i = 0; i < count; i++) to[i] = widen(data[i]);
    };
    auto same = [](int output) { return output; };
    // A panel holds 16 outputs of the gate and the 16 of the other projection that they multiply.
    auto paired = [&](int output) {
        int i = output / PANEL * LANES + output % LANES;
        return i >= c_.inner ? -1 : output % PANEL < LANES ? i : c_.inner + i;
    };
    Layer<P>* l = layer < 0 ? nullptr : &layers_[layer];
    size_t half = size_t(c_.dim / 2) * c_.max_len;
    switch (kind) {
        case INPUT_NORM: return copy(l->input_norm, c_.hidden);
        case QKV: return l->qkv.pack(data, same);
        case QKV_BIAS: return copy(l->qkv.bias, width_);
        case Q_NORM: return copy(l->q_norm, c_.dim);
        case K_NORM: return copy(l->k_norm, c_.dim);
        case OUTPUT: return l->output.pack(data, same);
        case OUTPUT_BIAS: return copy(l->output.bias, c_.hidden);
        case MLP_NORM: return copy(l->mlp_norm, c_.hidden);
        case GATE_UP: return l->gate_up.pack(data, paired);
        case GATE_UP_BIAS: return copy(l->gate_up.bias, 2 * size_t(c_.inner));
        case DOWN: return l->down.pack(data, same);
        case DOWN_BIAS: return copy(l->down.bias, c_.hidden);
        case FINAL_NORM: return copy(norm_, c_.hidden);
        case HEAD: return head_.pack(data, same);
        case COSINES: return copy(cosines_, half);
        case SINES: return copy(sines_, half);
        default: throw std::invalid_argument("unknown kind of tensor");
    }
}

}  // namespace vs
