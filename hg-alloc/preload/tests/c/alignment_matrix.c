/* Blocks are aligned as asked, from 8 bytes to 1 GiB, are writable in full, and do not overlap. */
#include "check.h"
#include <malloc.h>

typedef void *(*aligned)(size_t, size_t);

static void *by_posix(size_t alignment, size_t size) {
    void *p = NULL;
    CHECK(posix_memalign(&p, alignment, size) == 0);
    return p;
}

static void each_entry(aligned entry) {
    enum { BLOCKS = 8 };
    for (size_t alignment = 8; alignment <= (size_t)1 << 20; alignment *= 2) {
        size_t sizes[] = {1, 8, 24, 100, 4000, 5000, 70000, 300000};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            unsigned char *blocks[BLOCKS];
            for (int i = 0; i < BLOCKS; i++) {
                blocks[i] = opaque(entry(alignment, sizes[k]));
                CHECK(blocks[i] && (uintptr_t)blocks[i] % alignment == 0);
                CHECK(malloc_usable_size(blocks[i]) >= sizes[k]);
                memset(blocks[i], i + 1, malloc_usable_size(blocks[i]));
            }
            for (int i = 0; i < BLOCKS; i++) {
                for (size_t b = 0; b < sizes[k]; b++) CHECK(blocks[i][b] == i + 1);
                free(blocks[i]);
            }
        }
    }
}

static void natural(void) {
    /* Fundamental alignment: 16 for all that a max_align_t fits in; smaller blocks may have 8. */
    for (size_t n = 1; n < 100000; n += 1 + n / 7) {
        void *p = opaque(malloc(n)), *q = opaque(calloc(1, n));
        size_t alignment = n >= 16 ? 16 : 8;
        CHECK(p && q && (uintptr_t)p % alignment == 0 && (uintptr_t)q % alignment == 0);
        p = opaque(realloc(p, n + 77));
        CHECK(p && (uintptr_t)p % 16 == 0);
        free(p), free(q);
    }
}

static void huge(void) {
    for (size_t alignment = (size_t)2 << 20; alignment <= (size_t)1 << 30; alignment *= 2) {
        char *p = opaque(aligned_alloc(alignment, 4096));
        CHECK(p && (uintptr_t)p % alignment == 0);
        memset(p, 1, 4096);
        free(p);
    }
}

static void pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *v = opaque(valloc(100)), *pv = opaque(pvalloc(100));
    CHECK(v && (uintptr_t)v % page == 0);
    CHECK(pv && (uintptr_t)pv % page == 0 && malloc_usable_size(pv) >= page);
    memset(pv, 1, page);
    free(v), free(pv);
}

static void promise(void) {
    natural();
    each_entry(memalign);
    each_entry(aligned_alloc);
    each_entry(by_posix);
    huge();
    pages();
}
