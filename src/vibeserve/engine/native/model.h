// A decoder of the Llama kind: what is loaded, and one forward step over a batch of rows.
#pragma once

#include <chrono>
#include <stdexcept>

#include "attention.h"
#include "dense.h"
#include "sample.h"
#include "team.h"

extern "C" {

// Mirrors compiled_backend.py. All counts in elements.
struct VsConfig {
    int32_t layers, hidden, inner, heads, kv_heads, dim, vocab, blocks, max_len, threads;
    float eps;
};

// One step; see batch.py for the arrays. `logits` may be null. `seconds`: dense layers, attention.
struct VsBatch {
    int32_t rows, sequences, table_width, wanted;
    const int32_t *tokens, *positions, *row_starts, *tables, *logit_rows;
    int32_t* best;
    float* logits;
    double seconds[2];
};
}

namespace vs {

enum Kind {
    INPUT_NORM, QKV, QKV_BIAS, Q_NORM, K_NORM, OUTPUT, OUTPUT_BIAS, MLP_NORM, GATE_UP, GATE_UP_BIAS, DOWN, DOWN_BIAS,
    FINAL_NORM, HEAD, EMBEDDING, WINDOW, COSINES, SINES,
};

template <class P>
struct Layer {
    std::vector<float> input_norm, q_norm, k_norm, mlp_norm;
    Matrix<P> qkv, output, gate_up, down;
    int window = 0;
    typename P::cache* keys = nullptr;
    typename P::cache* values = nullptr;
};

using Clock = std::chrono::steady_clock;
inline double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <class P>
class Model {
  public:
    explicit Model(const VsConfig& config);
    void set(int layer, int kind, const void* data, bool brain);
    void forward(VsBatch& batch);
    // ids[i] drawn from row rows[i] of `logits` [*, vocabulary].
    void draw(const float* logits, int count, const int32_t* rows, const VsDraw* how, int32_t* ids);
    // Bytes of one KV block over all layers: the keys of a layer, then its values.
    size_t block_bytes() const { return (key_block() + value_block()) * c_.layers * sizeof(typename P::cache); }
    void copy_blocks(int count, const int32_t* blocks, char* data, bool out);

  private:
    struct Piece { int sequence, row, rows; };  // queries of one attention tile
    struct Scratch {
        Array<float> tile, attention, mixed;
        std::vector<std::pair<float, int>> best;
        Drawer drawer;
    };

    size_t key_block() const { return size_t(c_.kv_heads) * c_.dim * BLOCK; }
    size_t value_block() const { return size_t(c_.kv_heads) * wide_ * BLOCK; }
    void check(const VsBatch& batch) const;
    void prepare(VsBatch& batch);
    void walk(VsBatch& batch, int id);
    void embed(const VsBatch& batch, int block);
    void norm(const float* weight, const RowBlocks& blocks, int block, const int32_t* rows, float* out);
    void place(const VsBatch& batch, Layer<P>& layer, int block);
    void rotate(float* head, const float* norm, int position, float scale);
    void attend_tile(const VsBatch& batch, Layer<P>& layer, int tile, Scratch& scratch);
    template <int Q>
    void attend_piece(const Pages<typename P::cache>& pages, const Piece& piece, const VsBatch& batch, int first_head,
                      int heads, int window, Scratch& scratch);
    void gate(int panel, int block, const float* out, const std::vector<float>& bias);
    void head(const VsBatch& batch, int first, int count, int block, const float* out, Scratch& scratch);
    template <class Epilogue>
    void dense(int id, int& phase, const Matrix<P>& matrix, const Packed<P>& x, const RowBlocks& blocks, Epilogue&& end);
    template <class Source>
    void fill(int layer, int kind, const Source* data);

    int queries_per_row() const { return (group_ + pieces_ - 1) / pieces_; }

    VsConfig c_;
    int group_, pieces_, width_, padded_hidden_, wide_;
    Team team_;
    std::vector<Layer<P>> layers_;
    Matrix<P> head_;
    std::vector<float> norm_, cosines_, sines_;
    const void* embedding_ = nullptr;
    bool embedding_brain_ = false;
    Array<typename P::weight> weights_;
    Array<typename P::cache> cache_;
    // Of the step that runs: residual stream [rows][padded_hidden], fused projection [rows][width], packed inputs.
    Array<float> x_, qkv_, normed_, mixed_, inner_;
    RowBlocks blocks_{0}, wanted_{0};
    std::vector<Piece> pieces_of_step_;
    std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace vs
