/* malloc_trim, mallinfo, mallinfo2, malloc_stats, malloc_info and mallopt are there and say plausible things. */
#include "check.h"
#include <malloc.h>

enum { BLOCKS = 4000, BYTES = 10000 };

static void promise(void) {
    static void *blocks[BLOCKS];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = opaque(malloc(BYTES)), 1, BYTES);
    struct mallinfo2 during = mallinfo2();
    size_t grown = during.uordblks + during.hblkhd - before.uordblks - before.hblkhd;
    CHECK(grown >= (size_t)BLOCKS * BYTES * 9 / 10 && grown <= (size_t)BLOCKS * BYTES * 3 / 2);
    CHECK(during.arena + during.hblkhd >= (size_t)BLOCKS * BYTES);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    CHECK(malloc_trim(0) == 1);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + ((size_t)4 << 20));

    void *large = opaque(malloc((size_t)64 << 20));
    CHECK(large && mallinfo2().uordblks + mallinfo2().hblkhd >= (size_t)64 << 20);
    free(large);

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo narrow = mallinfo();
    CHECK(narrow.uordblks >= 0);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    CHECK(mallopt(M_ARENA_MAX, 8) == 1);

    char text[65536] = "";
    FILE *f = fmemopen(text, sizeof text - 1, "w");
    CHECK(f && malloc_info(0, f) == 0 && fclose(f) == 0);
    CHECK(strncmp(text, "<malloc", 7) == 0 && strstr(text, "</malloc>"));
    errno = 0;
    CHECK(malloc_info(1, stderr) != 0);
    malloc_stats();
}
