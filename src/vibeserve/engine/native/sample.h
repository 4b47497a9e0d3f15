// One draw from a row of logits after temperature, top-k, top-p and min-p: the meaning is that of sampling.py.
//
// No sort of the vocabulary: weights are counted into buckets by their distance from the best, the buckets say where
// the cut must lie, and only what lies above is sorted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lanes.h"

extern "C" {
// How one row is drawn; see SamplingParams. `point` in [0, 1).
struct VsDraw {
    float temperature, top_p, min_p;
    int32_t top_k;
    double point;
};
}

namespace vs {

class Drawer {
  public:
    int draw(const float* logits, int count, const VsDraw& how) {
        weights_.resize((size_t(count) + LANES - 1) / LANES * LANES);
        double total = weigh(logits, count, how.temperature);
        bool cut = how.top_k > 0 || how.top_p < 1.0f || how.min_p > 0.0f;
        return cut ? draw_cut(count, total, how) : draw_all(count, how.point);
    }

  private:
    static constexpr int STRETCH = 512, BUCKETS = 512;

    // weights_[i] = exp((logit - best) / temperature); returns their sum and keeps it by stretches of ids.
    double weigh(const float* logits, int count, float temperature) {
        float best = logits[0];
        int whole = count / LANES * LANES;
        F16 top = splat(best);
        for (int i = 0; i < whole; i += LANES) top = max(top, load(logits + i));
        best = peak(top);
        for (int i = whole; i < count; i++) best = std::max(best, logits[i]);
        F16 inverse = splat(1.0f / temperature), zero = splat(best);
        sums_.clear();
        double total = 0;
        for (int start = 0; start < count; start += STRETCH) {
            int end = std::min(count, start + STRETCH);
            double sum = 0;
            for (int i = start; i < end; i += LANES) {
                float padded[LANES];
                const float* from = logits + i;
                if (i + LANES > count) {
                    std::fill(padded, padded + LANES, -std::numeric_limits<float>::infinity());
                    std::copy(from, logits + count, padded);
                    from = padded;
                }
                F16 distance = (load(from) - zero) * inverse;
                F16 weight = exp(distance);
                store(weights_.data() + i, weight);
                for (int lane = 0; lane < LANES; lane++) {
                    // exp() does not go below e^-87: what is banned or hopeless weighs nothing.
                    float& w = weights_[i + lane];
                    if (w < 1e-37f) w = 0;
                    sum += w;
                }
            }
            sums_.push_back(sum);
            total += sum;
        }
        return total;
    }

    int draw_all(int count, double point) const {
        double total = 0;
        for (double sum : sums_) total += sum;
        double goal = point * total, reached = 0;
        size_t stretch = 0;
        while (stretch + 1 < sums_.size() && reached + sums_[stretch] <= goal) reached += sums_[stretch++];
        int last = -1;
        for (int i = int(stretch) * STRETCH; i < count; i++) {
            if (weights_[i] == 0) continue;
            last = i;
            reached += weights_[i];
            if (reached > goal) return i;
        }
        if (last >= 0) return last;
        for (int i = count - 1; i > 0; i--)
            if (weights_[i] > 0) return i;
        return 0;
    }

    int draw_cut(int count, double total, const VsDraw& how) {
        collect(count, total, how);
        size_t kept = order_.size();
        double mass = total;
        if (how.top_k > 0) {
            kept = std::min(kept, size_t(how.top_k));
            mass = 0;
            for (size_t i = 0; i < kept; i++) mass += weights_[order_[i]];
        }
        if (how.top_p < 1.0f) {
            double reached = 0;
            for (size_t i = 0; i < kept; i++) {
                reached += weights_[order_[i]];
                if (reached >= double(how.top_p) * mass) {
                    kept = i + 1;
                    break;
                }
            }
        }
        float floor = how.min_p * weights_[order_[0]];
        while (kept > 1 && weights_[order_[kept - 1]] < floor) kept--;
        double sum = 0, reached = 0;
        for (size_t i = 0; i < kept; i++) sum += weights_[order_[i]];
        for (size_t i = 0; i < kept; i++) {
            reached += weights_[order_[i]];
            if (reached > how.point * sum) return order_[i];
        }
        return order_[kept - 1];
    }

    // order_: the ids that any cut can keep, likeliest first, ties by id.
    void collect(int count, double total, const VsDraw& how) {
        std::array<int, BUCKETS> members{};
        std::array<double, BUCKETS> masses{};
        for (int i = 0; i < count; i++) {
            int b = bucket(weights_[i]);
            members[b]++;
            masses[b] += weights_[i];
        }
        int64_t number = 0;
        double mass = 0;
        int last = 0;
        for (; last < BUCKETS - 2; last++) {
            number += members[last], mass += masses[last];
            bool enough = how.top_k > 0 && number >= how.top_k;
            enough = enough || (how.top_p < 1.0f && how.top_k == 0 && mass >= double(how.top_p) * total);
            // Top-k and top-p together need the mass of all k.
            bool alone = how.top_k == 0 || how.top_p >= 1.0f;
            enough = enough || (alone && how.min_p > 0 && last > bucket(how.min_p));
            if (enough) break;
        }
        order_.clear();
        for (int i = 0; i < count; i++)
            if (weights_[i] > 0 && bucket(weights_[i]) <= last) order_.push_back(i);
        std::sort(order_.begin(), order_.end(), [&](int a, int b) {
            return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
        });
    }

    // 0 for the best (weight 1), one more for every quarter of a power of two below it.
    static int bucket(float weight) {
        uint32_t bits;
        std::memcpy(&bits, &weight, 4);
        int below = int((0x3f800000u >> 21) - (bits >> 21));
        return below < 0 ? 0 : std::min(below, BUCKETS - 1);
    }

    std::vector<float> weights_;
    std::vector<double> sums_;
    std::vector<int> order_;
};

}  // namespace vs
