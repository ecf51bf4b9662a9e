/* Blocks in batches are all apart, all usable, and all come back; a batch that does not fit is cut. */
#include "check.h"

static int by_address(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

int main(void) {
    hg_arena *arena = make(HG_KIND_SHARED, "many");
    enum { COUNT = 1000 };
    static void *blocks[COUNT];
    for (size_t size = 16; size <= 4096; size *= 4) {
        CHECK(hg_malloc_many(arena, size, blocks, COUNT) == COUNT);
        qsort(blocks, COUNT, sizeof *blocks, by_address);
        for (int i = 0; i < COUNT; i++) {
            CHECK(blocks[i] && (i == 0 || (char *)blocks[i] >= (char *)blocks[i - 1] + size));
            memset(blocks[i], i, size);
        }
        blocks[7] = (hg_free(arena, blocks[7]), NULL);
        hg_free_many(arena, blocks, COUNT);
    }
    CHECK(hg_malloc_many(arena, 100, blocks, 0) == 0);
    hg_free_many(arena, NULL, 0);

    memset(blocks, 0x55, sizeof blocks);
    errno = 0;
    size_t got = hg_malloc_many(arena, 1 << 20, blocks, COUNT);
    CHECK(errno == ENOMEM && got >= 200 && got <= 256);
    for (size_t i = got + 1; i < COUNT; i++) CHECK((uintptr_t)blocks[i] == (uintptr_t)0x5555555555555555);
    hg_free_many(arena, blocks, got);

    CHECK(hg_malloc_many(arena, 100, blocks, 2) == 2);
    void *twice[3] = {blocks[0], blocks[0], blocks[1]};
    hg_free_many(arena, twice, 3);
    hg_trim(arena);
    hg_stats stats = stats_of(arena);
    CHECK(stats.corruptions == 1 && stats.double_frees == 1 && stats.live_bytes == 0);
    kept();
    return 0;
}
