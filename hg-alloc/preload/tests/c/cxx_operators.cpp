// Every form of operator new and delete works, pairs with its counterpart, and fails as the standard says.
#include "check.h"
#include <new>
#include <string>
#include <thread>
#include <vector>

static void writable(void *p, std::size_t n) {
    CHECK(p);
    memset(p, 0x3c, n);
}

static bool throws(std::size_t n) {
    try {
        void *p = opaque(::operator new(opaque_size(n)));
        ::operator delete(p);
        return false;
    } catch (const std::bad_alloc &) {
        return true;
    }
}

static int handler_calls;

static void give_up_at_third_call() {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

static void promise() {
    const std::size_t sizes[] = {0, 1, 7, 16, 100, 1000, 5000, 100000, 3000000};
    for (std::size_t n : sizes) {
        for (int round = 0; round < 4; round++) {
            void *p = opaque(::operator new(n)), *q = opaque(::operator new[](n));
            writable(p, n), writable(q, n);
            if (round % 2) ::operator delete(p), ::operator delete[](q);
            else ::operator delete(p, n), ::operator delete[](q, n);
            p = opaque(::operator new(n, std::nothrow)), q = opaque(::operator new[](n, std::nothrow));
            writable(p, n), writable(q, n);
            ::operator delete(p, std::nothrow), ::operator delete[](q, std::nothrow);
        }
        for (std::size_t a = 8; a <= 65536; a *= 2) {
            const auto align = std::align_val_t(a);
            void *p = opaque(::operator new(n, align)), *q = opaque(::operator new[](n, align));
            writable(p, n), writable(q, n);
            CHECK(reinterpret_cast<std::uintptr_t>(p) % a == 0 && reinterpret_cast<std::uintptr_t>(q) % a == 0);
            ::operator delete(p, align), ::operator delete[](q, n, align);
            p = opaque(::operator new(n, align, std::nothrow)), q = opaque(::operator new[](n, align, std::nothrow));
            writable(p, n), writable(q, n);
            CHECK(reinterpret_cast<std::uintptr_t>(p) % a == 0 && reinterpret_cast<std::uintptr_t>(q) % a == 0);
            ::operator delete(p, n, align), ::operator delete[](q, align, std::nothrow);
        }
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr);

    CHECK(throws(SIZE_MAX) && throws(static_cast<std::size_t>(PTRDIFF_MAX) + 1));
    CHECK(opaque(::operator new(opaque_size(SIZE_MAX), std::nothrow)) == nullptr);
    CHECK(opaque(::operator new[](opaque_size(SIZE_MAX - 100), std::align_val_t(64), std::nothrow)) == nullptr);

    std::set_new_handler(give_up_at_third_call);
    CHECK(throws(SIZE_MAX) && handler_calls == 3);

    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
        threads.emplace_back([t] {
            std::vector<std::string> words;
            for (int i = 0; i < 20000; i++) words.push_back(std::string(1 + (i * 7 + t) % 200, 'a' + t));
            for (int i = 0; i < 20000; i++) CHECK(words[i].size() == std::size_t(1 + (i * 7 + t) % 200));
        });
    }
    for (auto &thread : threads) thread.join();
}
