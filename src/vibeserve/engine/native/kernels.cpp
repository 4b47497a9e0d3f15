// The C face of the kernels; compiled_backend.py calls it.
#include <cstdio>

#include "forward.h"
#include "load.h"

using namespace vs;

// Built once for each precision: -DVS_PRECISION=Float or Brain (bfloat16).
using VS_MODEL = Model<VS_PRECISION>;

extern "C" {

const char* vs_isa() {
#if defined(VS_BF16)
    return VS_ISA "+" VS_BF16;
#else
    return VS_ISA;
#endif
}

// Null where memory ran out.
void* vs_create(const VsConfig* config) {
    try {
        return new VS_MODEL(*config);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engine kernels: %s\n", error.what());
        return nullptr;
    }
}

void vs_load(void* model, int32_t layer, int32_t kind, const void* data, int32_t brain) {
    static_cast<VS_MODEL*>(model)->set(layer, kind, data, brain != 0);
}

// 0, or 1 where memory ran out or the step names what is not there (said on stderr).
int32_t vs_forward(void* model, VsBatch* batch) {
    try {
        static_cast<VS_MODEL*>(model)->forward(*batch);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engine kernels: %s\n", error.what());
        return 1;
    }
}

// 0, or 1 where memory ran out.
int32_t vs_draw(void* model, const float* logits, int32_t count, const int32_t* rows, const VsDraw* how, int32_t* ids) {
    try {
        static_cast<VS_MODEL*>(model)->draw(logits, count, rows, how, ids);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engine kernels: %s\n", error.what());
        return 1;
    }
}

// Bytes of one KV block: keys and values of all layers.
int64_t vs_block_bytes(void* model) { return static_cast<VS_MODEL*>(model)->block_bytes(); }

// Copy KV blocks to `data` (`out` 1) or from it (0), one after the other.
void vs_copy_blocks(void* model, int32_t count, const int32_t* blocks, char* data, int32_t out) {
    static_cast<VS_MODEL*>(model)->copy_blocks(count, blocks, data, out != 0);
}

void vs_destroy(void* model) { delete static_cast<VS_MODEL*>(model); }
}
