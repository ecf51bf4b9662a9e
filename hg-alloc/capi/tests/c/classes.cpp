// C++17: the header as it is, an allocator for containers on it, threads, exceptions of the program's own.
#include "check.h"

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

static hg_arena *arena;

template <typename T> struct in_arena {
    using value_type = T;
    in_arena() = default;
    template <typename U> in_arena(const in_arena<U> &) noexcept {}
    T *allocate(std::size_t count) {
        void *block = alignof(T) > 16 ? hg_aligned_alloc(arena, alignof(T), count * sizeof(T)) : HG_MALLOC(arena, count * sizeof(T));
        if (!block) throw std::bad_alloc{};
        return static_cast<T *>(block);
    }
    void deallocate(T *block, std::size_t) noexcept { hg_free(arena, block); }
    template <typename U> bool operator==(const in_arena<U> &) const noexcept { return true; }
    template <typename U> bool operator!=(const in_arena<U> &) const noexcept { return false; }
};

using text = std::basic_string<char, std::char_traits<char>, in_arena<char>>;
using table = std::map<int, text, std::less<int>, in_arena<std::pair<const int, text>>>;

struct alignas(64) line {
    char bytes[64];
};

int main() {
    arena = make(HG_KIND_SHARED, "classes");
    {
        table words;
        for (int i = 0; i < rounds(2000); i++) words[i] = text(static_cast<std::size_t>(i % 300), 'x');
        for (const auto &[number, word] : words) CHECK(word.size() == static_cast<std::size_t>(number % 300));
        CHECK(hg_owns(arena, &words.begin()->second));
        std::vector<line, in_arena<line>> lines(100);
        CHECK(reinterpret_cast<std::uintptr_t>(lines.data()) % 64 == 0);

        std::atomic<int> refused{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++) {
            threads.emplace_back([&refused] {
                try {
                    std::vector<char, in_arena<char>> too_large(std::size_t{1} << 40);
                } catch (const std::bad_alloc &) {
                    refused++;
                }
                std::vector<text, in_arena<text>> own;
                for (int i = 0; i < rounds(2000); i++) own.emplace_back(static_cast<std::size_t>(i % 500), 'y');
            });
        }
        for (auto &thread : threads) thread.join();
        CHECK(refused == 4);
    }
    CHECK(std::string_view(hg_status_text(HG_STATUS_OK)) == "done" && std::string_view(hg_version()) == HG_VERSION);
    CHECK(hg_recover(arena, nullptr) == HG_STATUS_OK);
    hg_trim(arena);
    CHECK(hg_live_bytes(arena) == 0 && stats_of(arena).corruptions == 0);
    kept();
    return 0;
}
