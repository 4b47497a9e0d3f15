// A team of threads that walks through the phases of a step together.
//
// A phase is a number of tiles. Each thread has a range of its own, in which its memory stream stays linear, and takes
// from the others' ranges when it is done. A phase ends when its tiles are done, not when all threads have arrived: a
// thread that lost its core while it held no tile keeps nobody waiting. Waiting threads spin for a moment and then
// give their core away between looks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <sched.h>
#include <thread>
#include <vector>

namespace vs {

inline void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

class Team {
  public:
    explicit Team(int threads) : threads_(threads), phases_(64) {
        for (int id = 1; id < threads; id++) workers_.emplace_back([this, id] { work(id); });
    }

    ~Team() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            ending_ = true;
            ticket_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    int threads() const { return threads_; }

    // Runs `body(thread)` on every thread that gets a core before the step is over; returns when all have left it.
    // The body walks through at most `phases` calls of `parallel`, the same on every thread.
    void step(int phases, const std::function<void(int)>& body) {
        if (threads_ == 1) return body(0);
        if (size_t(phases) > phases_.size()) phases_ = std::vector<Phase>(phases);
        for (int i = 0; i < phases; i++) phases_[i].reset();
        body_ = &body;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            open_ = true;
            ticket_.fetch_add(1, std::memory_order_release);
        }
        if (sleepers_.load() > 0) wake_.notify_all();
        body(0);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            open_ = false;
        }
        for (int spins = 0; inside_.load(std::memory_order_acquire) > 0; spins++) relax(spins);
    }

    // Phase number `index` of the step, as thread `id`: `tile(i)` for i < count, each once, on whatever thread.
    // Everything that the phase wrote is visible to every thread afterwards.
    template <class Tile>
    void parallel(int id, int index, int count, Tile&& tile) {
        if (threads_ == 1) {
            for (int i = 0; i < count; i++) tile(i);
            return;
        }
        Phase& phase = phases_[index];
        int finished = 0;
        for (int turn = 0; turn < threads_; turn++) {
            int owner = id + turn < threads_ ? id + turn : id + turn - threads_;
            int begin = int(int64_t(count) * owner / threads_), end = int(int64_t(count) * (owner + 1) / threads_);
            while (begin + phase.taken[owner].n.load(std::memory_order_relaxed) < end) {
                int i = begin + phase.taken[owner].n.fetch_add(1, std::memory_order_relaxed);
                if (i >= end) break;
                tile(i);
                finished++;
            }
        }
        if (finished) phase.done.n.fetch_add(finished, std::memory_order_acq_rel);
        for (int spins = 0; phase.done.n.load(std::memory_order_acquire) < count; spins++) relax(spins);
    }

  private:
    static constexpr int MAX_THREADS = 64;
    struct alignas(64) Counter { std::atomic<int> n{0}; };
    struct Phase {
        std::unique_ptr<Counter[]> taken{new Counter[MAX_THREADS]};
        Counter done;
        void reset() {
            for (int i = 0; i < MAX_THREADS; i++) taken[i].n.store(0, std::memory_order_relaxed);
            done.n.store(0, std::memory_order_relaxed);
        }
    };

    static void relax(int spins) {
        if (spins < 4000) pause_cpu();
        else sched_yield();
    }

    void work(int id) {
        int seen = 0;
        for (;;) {
            for (int spins = 0; ticket_.load(std::memory_order_acquire) == seen && spins < 2000; spins++) pause_cpu();
            {
                std::unique_lock<std::mutex> lock(mutex_);
                sleepers_.fetch_add(1);
                wake_.wait(lock, [&] { return ticket_.load() != seen; });
                sleepers_.fetch_sub(1);
                seen = ticket_.load();
                if (ending_) return;
                if (!open_) continue;
                inside_.fetch_add(1);
            }
            (*body_)(id);
            inside_.fetch_sub(1, std::memory_order_release);
        }
    }

    int threads_;
    std::vector<Phase> phases_;
    const std::function<void(int)>* body_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int> ticket_{0}, sleepers_{0}, inside_{0};
    bool open_ = false, ending_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace vs
