// Big zeroed arrays on large pages where the kernel has them: weights are read from end to end in every step.
#pragma once

#include <cstddef>
#include <new>
#include <sys/mman.h>

namespace vs {

template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(size_t count) { allocate(count); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { release(); }

    void allocate(size_t count) {
        release();
        count_ = count;
        // One large page to spare for the alignment, and room to prefetch past the end.
        bytes_ = (count * sizeof(T) + 2 * PAGE) / PAGE * PAGE + PAGE;
        void* got = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) throw std::bad_alloc();
        base_ = got;
        data_ = reinterpret_cast<T*>((reinterpret_cast<size_t>(got) + PAGE - 1) / PAGE * PAGE);
#ifdef MADV_HUGEPAGE
        madvise(base_, bytes_, MADV_HUGEPAGE);
#endif
    }

    // At least this many; what was in it is lost when it grows.
    void reserve(size_t count) {
        if (count > count_) allocate(count);
    }

    // Have the kernel give all pages now, so that no step pays for it.
    void touch() {
        for (size_t i = 0; i < bytes(); i += 4096) reinterpret_cast<volatile char*>(data_)[i] = 0;
    }

    T* data() const { return data_; }
    T& operator[](size_t i) const { return data_[i]; }
    size_t size() const { return count_; }
    size_t bytes() const { return count_ * sizeof(T); }
    explicit operator bool() const { return data_ != nullptr; }

  private:
    static constexpr size_t PAGE = 2u << 20;
    void release() {
        if (base_) munmap(base_, bytes_);
        base_ = nullptr;
        data_ = nullptr;
        count_ = 0;
    }
    void* base_ = nullptr;
    T* data_ = nullptr;
    size_t count_ = 0, bytes_ = 0;
};

}  // namespace vs
